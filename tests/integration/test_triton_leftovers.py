"""What killed Tritons leave of their Python backend is removed, and what a living one uses stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from swiftqueue.infra.local import processes, triton_leftovers
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import triton_command
from swiftqueue.infra.local.triton_environment import find_environment
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton

pytestmark = pytest.mark.slow

CONFIG = """
backend: "python"
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def folders() -> set[Path]:
    return set(triton_leftovers.TEMPORARY.glob(triton_leftovers.FOLDERS))


class Python:
    """A Triton with the Python backend loaded."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        version = root / "repository" / "m" / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(CONFIG)
        environment = find_environment()
        ports = dict(zip(("grpc", "metrics"), free_ports(2), strict=True))
        command = [*triton_command(environment, root / "repository", ports), "--load-model=m"]
        for _ in range(5):
            before = folders()
            with Triton(f"{LOOPBACK}:{ports['grpc']}") as triton:
                self.server = processes.start(name, command, ports, environment.variables, triton.live, 150)
            made = folders() - before
            if len(made) == 1:
                [self.folder] = made
                return
            processes.stop(name)  # another server made one meanwhile: nothing says whose is whose
        raise AssertionError("other servers made folders whenever this one did")

    def kill(self) -> None:
        process = psutil.Process(self.server.pid)
        process.kill()
        process.wait(10)


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Python, Python]]:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    both = [Python(f"triton-{name}", tmp_path / name) for name in ("one", "two")]
    # Older servers of this machine may own these folders, for all that is known; here they do not.
    every = triton_leftovers.owners
    pids = {one.server.pid for one in both}
    assert pids <= {process.pid for process in every()}
    monkeypatch.setattr(triton_leftovers, "owners", lambda: (p for p in every() if p.pid in pids))
    yield both[0], both[1]
    for one in both:
        processes.stop(one.name)


def test_the_folder_of_a_killed_server_is_removed_and_no_other(two: tuple[Python, Python]) -> None:
    first, second = two
    first.kill()
    assert first.folder.exists()
    processes.stop(first.name)
    assert not first.folder.exists()
    assert second.folder.exists()
    second.kill()
    processes.stop(second.name)
    assert not second.folder.exists()


def test_what_an_older_living_server_may_own_stays(two: tuple[Python, Python]) -> None:
    first, second = two
    second.kill()
    processes.stop(second.name)
    assert second.folder.exists()  # by its time it may be the first one's
    processes.stop(first.name)  # an orderly end: it removes its own
    assert not first.folder.exists()
    assert not second.folder.exists()
