"""The local stack's Triton as a process, for the tests that pause or kill it."""

from __future__ import annotations

import psutil

from infra.local import processes, triton_leftovers


def server_process() -> psutil.Process:
    server = processes.running("triton")
    assert server is not None
    process = server.process()
    assert process is not None
    return process


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
