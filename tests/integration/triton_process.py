"""The local stack's Triton as a process, for the tests that pause or kill it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from waiting import wait_until

from swiftqueue.infra.local import processes, triton_leftovers


def server_process() -> psutil.Process:
    server = processes.running("triton")
    assert server is not None
    process = server.process()
    assert process is not None
    return process


@contextmanager
def paused_server() -> Iterator[None]:
    """Triton stands still in the block: a thread that was at work stops later than the signal is sent."""
    process = server_process()
    threads = Path(f"/proc/{process.pid}/task")

    def stopped() -> bool:
        states = [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]
        return set(states) == {"T"}

    process.suspend()
    try:
        wait_until(stopped)
        yield
    finally:
        process.resume()


def kill_server() -> None:
    process = server_process()
    family = [process, *process.children(recursive=True)]
    regions = triton_leftovers.shared_memory(family)
    process.kill()
    for stub in processes.wait_ended(family, 5):
        stub.kill()
    for region in regions:  # a killed server cannot remove its own
        region.unlink(missing_ok=True)
    assert processes.running("triton") is None
