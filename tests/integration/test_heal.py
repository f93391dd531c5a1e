"""What the keeper starts to heal a part, with the real Triton."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from registered import add_version
from waiting import wait_until

from swiftqueue.infra.local import live_options, processes
from swiftqueue.infra.local.heal import Healing
from swiftqueue.infra.local.servers import served_backend
from swiftqueue.serving.deploy.deployment import deploy_version
from swiftqueue.serving.triton.endpoint import Triton
from swiftqueue.serving.triton.repository import MODEL, ModelRepository

pytestmark = pytest.mark.slow


def kill_and_heal(pid: int) -> None:
    """Kill Triton, and let the keeper's work heal it without a failure."""
    psutil.Process(pid).kill()
    wait_until(lambda: processes.running("triton") is None)
    healing = Healing("triton", idle=False)
    failures: list[str | None] = []
    try:
        wait_until(lambda: failures.append(healing.outcome()) or failures[-1] is not None)
    finally:
        live_options.file().unlink()
    assert failures[-1] == ""


@pytest.mark.parametrize("backend", ["native", "python"])
def test_a_killed_triton_serves_again_what_it_served_and_asks_no_registry(
    backend: str, triton: Path, make_artifact: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look the champion up brings PyTorch and MLflow: 81 to 111 s on a busy machine."""
    champion = add_version(make_artifact(1, onnx=True, **({"width": 32} if backend == "python" else {})))
    deploy_version(champion)
    assert served_backend().name.lower() == backend
    live_options.write(live_options.LiveOptions("x", 1, 60, 30, 8))
    server = processes.running("triton")
    assert server is not None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")  # where nobody is
    kill_and_heal(server.pid)
    with Triton() as triton:
        assert triton.served_version() == champion
    again = processes.running("triton")
    assert again is not None
    assert again != server


def test_a_damaged_file_of_tritons_repository_is_said_and_put_back(
    triton: Path, make_artifact: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    champion = add_version(make_artifact(2, onnx=True))
    deploy_version(champion)
    live_options.write(live_options.LiveOptions("x", 1, 60, 30, 8))
    server = processes.running("triton")
    assert server is not None
    for weights in (ModelRepository().embedded / MODEL / str(champion)).rglob("*.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-5000])
    kill_and_heal(server.pid)
    assert "triton does not serve what it served last" in capsys.readouterr().out
    with Triton() as again:
        assert again.served_version() == champion
