"""Deploy and rollback against a real Triton and a real registry, with clients asking all the while."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow


class Clients:
    """A thread that asks without pause; what it saw."""

    def __init__(self) -> None:
        self.versions: list[int] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        from serving.endpoint import Triton

        with Triton() as triton:
            tokens, features = triton.config().input[0].dims
            x_BWF = np.zeros((2, tokens, features), dtype=np.float32)
            while not self._stop.is_set():
                try:
                    self.versions.append(triton.infer(x_BWF).version)
                except OSError as error:
                    self.errors.append(str(error))

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()


@pytest.fixture(scope="module")
def registry(triton: Path):  # type: ignore[no-untyped-def]
    from models.registry import Registry

    return Registry("swiftqueue")


@pytest.fixture
def register(registry, make_artifact: Callable[..., Path]):  # type: ignore[no-untyped-def]
    """Register an untrained artifact and make it the challenger."""
    from models.lineage import content_hash

    def add(
        seed: int, gate: str = "passed", spoil: Callable[[Path], None] | None = None, **kwargs: object
    ) -> int:
        folder = make_artifact(seed, onnx=True, **kwargs)
        copy = folder.with_name(f"{folder.name}-registered")
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        if spoil:
            spoil(copy)
        tags = {"content_sha256": content_hash(copy), "gate": gate, "gate_reason": "set by a test"}
        version = registry.add(copy, tags=tags, params={}, metrics={"mae_ms": 1.0})
        registry.set_alias("challenger", version)
        shutil.rmtree(copy)
        return int(version)

    return add


def served() -> int | None:
    from serving.endpoint import Triton
    from serving.push import served_version

    with Triton() as connection:
        return served_version(connection)


def test_deploys_a_challenger_and_rolls_back(triton: Path, registry, register, capsys) -> None:  # type: ignore[no-untyped-def]
    from serving import deploy_log
    from serving.deploy import deploy_version, rollback_champion

    first = register(1)
    t = time.time()
    deploy_version(None)
    print("T", time.time() - t)
    assert served() == first == registry.alias("champion")
    assert registry.alias("challenger") is None
    clients = Clients()
    with clients.asking():
        second = register(2)
        deploy_version(None)
        assert served() == second == registry.alias("champion")
        assert registry.tags(second)["replaced_version"] == str(first)
        rollback_champion()
        assert served() == first == registry.alias("champion")
    assert clients.errors == []
    assert set(clients.versions) == {first, second}
    last = deploy_log.entries()[-1]
    assert (last["action"], last["version"], last["outcome"]) == ("rollback", first, "served")
