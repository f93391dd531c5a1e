"""The C++ agent at its limits: a burst of batches, no descriptor left, a record that cannot be written."""

from __future__ import annotations

import resource
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
from agent_program import AgentProgram, LiveSender, needs_agent

from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io import frames

pytestmark = [pytest.mark.slow, needs_agent]
BURST = 200  # answers that a socket holds before its sender reads one: what finds no room is not delivered


def burst(sender: LiveSender, deadline_ns: int) -> list[str]:
    """Outcomes of many batches at once, all due at one time; each is ended by then."""
    batches = frames.blank(frames.BATCH, BURST)
    due_ns = time.monotonic_ns() + deadline_ns
    batches["first_packet"] = sender.packet + 8 * np.arange(BURST)
    batches["now_ns"], batches["due_ns"] = sender.now_ns, due_ns
    batches["packets"]["size_bytes"], batches["packets"]["queue"] = 1500, 1
    sender.send(batches)
    sender.packet += 8 * BURST
    answers = [sender.receive(due_ns + 30 * 10**9) for _ in range(BURST)]
    after_due_ns = time.monotonic_ns() - due_ns
    assert all(answer is not None for answer in answers)
    assert after_due_ns < 200_000_000  # the scheduler's hiccups; nothing here waits for the other batches
    outcomes = [frames.OUTCOMES[answer["outcome"]] for answer in answers]
    assert outcomes.count("decided") + outcomes.count("late") == BURST
    return outcomes


def test_a_burst_of_batches_holds_up_nobody(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    """More at once than can be answered in time: some are decided, all are ended when they are due."""
    path = tmp_path / "agent.sock"
    with (
        AgentProgram("--listen", path, "--local", make_artifact(1)),
        LiveSender(path) as sender,
    ):
        for _ in range(40):  # a window full of history
            sender.batch()
        # How many are answered in time depends on the machine: the first deadline that is enough for one.
        decided = next(
            found
            for deadline_ms in (1, 2, 4, 8, 16, 32)
            if (found := burst(sender, deadline_ms * 1_000_000).count("decided"))
        )
    assert decided < BURST


def test_without_a_descriptor_left_the_agent_rests(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    path = tmp_path / "agent.sock"
    with AgentProgram("--listen", path, "--local", make_artifact(1, layers=1)) as agent:
        process = psutil.Process(agent.process.pid)
        with LiveSender(path) as served:
            served.until_decided()
            in_use = process.num_fds()
            _, most = process.rlimit(resource.RLIMIT_NOFILE)
            process.rlimit(resource.RLIMIT_NOFILE, (in_use, most))
            with socket.socket(socket.AF_UNIX) as waiting:
                waiting.connect(str(path))
                waiting.sendall(frames.hello("waiting").tobytes())
                waiting.settimeout(1)
                before = sum(process.cpu_times()[:2])
                with pytest.raises(TimeoutError):  # a second without an answer
                    waiting.recv(1)
                spent_s = sum(process.cpu_times()[:2]) - before
                served.until_decided()
                process.rlimit(resource.RLIMIT_NOFILE, (in_use + 1, most))
                waiting.settimeout(10)
                assert waiting.recv(1)
    assert spent_s < 0.5


def test_a_record_that_cannot_be_written_is_an_error(make_artifact: Callable[..., Path]) -> None:
    command = [
        agent_process.BINARY,
        "--synthetic-bps=1e8",
        "--seconds=0.3",
        "--speed=0",
        "--record=/dev/full",
    ]
    ran = subprocess.run(
        [*map(str, command), f"--local={make_artifact(1, layers=1)}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "/dev/full: 312 decisions could not be written" in ran.stderr
