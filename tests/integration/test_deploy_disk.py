"""A disk that is full once a version is served, or when one is refused: the log's loss is all it costs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from registered import add_version

pytestmark = pytest.mark.slow


def challenger(folder: Path) -> int:
    """A challenger that passed the gate."""
    from swiftqueue.models.registry.registry import CHALLENGER, Registry

    version = add_version(folder)
    Registry("swiftqueue").set_alias(CHALLENGER, version)
    return version


def test_a_full_disk_neither_undoes_a_switch_nor_hides_why_there_was_none(
    champion: int,
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import Triton

    def served() -> int | None:
        with Triton() as triton:
            return triton.served_version()

    registry, log = Registry("swiftqueue"), deploy_log.log_file()
    good = challenger(make_artifact(2, onnx=True))
    entries = len(list(deploy_log.newest_first()))
    monkeypatch.setattr(deploy_log, "log_file", lambda: Path("/dev/full"))
    deploy_version(None)
    assert served() == good == registry.alias("champion")
    assert registry.alias("challenger") is None
    said = capsys.readouterr().out
    assert f"version {good} is served, but not all is tidied up: [Errno 28] No space left" in said
    assert f"version {good} is served by the " in said

    copy = tmp_path / "other"
    shutil.copytree(make_artifact(1, onnx=True), copy)
    described = json.loads((copy / "model.json").read_text())
    (copy / "model.json").write_text(json.dumps(described | {"schema_hash": "f" * 64}))
    with pytest.raises(RuntimeError, match="made for features ffff"):
        deploy_version(challenger(copy))
    assert served() == good == registry.alias("champion")
    registry.remove_alias("challenger")
    monkeypatch.setattr(deploy_log, "log_file", lambda: log)
    assert len(list(deploy_log.newest_first())) == entries
