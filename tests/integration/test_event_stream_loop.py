"""The whole live loop, whose network changes while it lives: from one layer to two, with larger windows.

Real Ray, Triton, registry and agent; versions come by command. A sender's client asks all the while.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mutants
import pytest
from conftest import PROJECT
from fault_loop import ENDED_WELL, HEAL_S, PORTS, FaultLoop, register_champion
from registered import add_version
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local.loop import stop_stack
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import start_mlflow
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry.registry import Registry
from swiftqueue.serving.triton.endpoint import Triton

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes: with SWIFTQUEUE_TEST_ALL=1"),
]
ROUNDS = 3
# So that what the loop sets, and what a developer has set, is gone before and after.
NOT_OURS = (
    "MLFLOW_TRACKING_URI",
    "RAY_ADDRESS",
    "SWIFTQUEUE_TELEMETRY",
    "SWIFTQUEUE_TRITON_SERVERS",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
)


@pytest.fixture(scope="module")
def loop(make_artifact: Callable[..., Path]) -> Iterator[FaultLoop]:
    """The loop of a champion of one layer, with a client that asks."""
    folder = Path(tempfile.mkdtemp(prefix="swiftqueue-switch-"))
    write_table(folder / "packets", bottleneck_table("live", seconds=20))
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        patch.chdir(PROJECT)
        for name in NOT_OURS:
            patch.setenv(name, "")
            patch.delenv(name)
        for name, number in ports.items():
            patch.setenv(name, str(number))
        patch.setenv("SWIFTQUEUE_STATE", str(folder / "state"))
        patch.setenv("SWIFTQUEUE_SHADOW_BATCHES", "0")  # a shadow would outlast these short rounds
        register_champion(make_artifact(1, onnx=True, layers=1))
        with contextlib.ExitStack() as running:  # ends before the settings that say which loop is meant
            running.callback(stop_stack)
            start_mlflow()
            patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{ports['SWIFTQUEUE_MLFLOW_PORT']}")
            nothing = folder / "nothing"
            found = FaultLoop(folder / "state", folder / "packets", nothing, nothing, ports, False, folder)
            found.start()
            found.begin()
            running.callback(found.end)
            yield found


def deploy(version: int) -> str:
    """`swiftqueue deploy`, as a user gives it."""
    command = [str(Path(sys.executable).with_name("swiftqueue")), "deploy", "--version", str(version)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def served_rows() -> tuple[int, ...]:
    """Tokens and features of the windows that the served version takes."""
    with Triton() as triton:
        return tuple(triton.config().input[0].dims)


def rounds_of(loop: FaultLoop, after: int, version: int) -> list[dict[str, Any]]:
    """Rounds that end well and tune the head of a version, or of one made from it, once there are enough."""

    def look() -> list[dict[str, Any]]:
        ended = [one for one in loop.rounds()[after:] if one["outcome"] in ENDED_WELL]
        ours = [one for one in ended if one["parent"] >= version]
        return ours[:ROUNDS] if len(ours) >= ROUNDS else []

    def said() -> str:
        last = [f"{one['number']} {one['outcome']}: {one['reason']}" for one in loop.rounds()[after:]]
        return f"too few rounds ended well: {last[-5:]}"

    return wait_until(look, said, 2 * HEAL_S)


def test_another_network_takes_over_while_the_loop_lives(
    loop: FaultLoop, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Three rounds tune the new network's head; the agent decides by it, and no client sees an error."""
    assert served_rows() == (72, len(EVENTS.features))
    version = add_version(make_artifact(1, onnx=True))
    failed, before = loop.asking.failed, len(loop.rounds())
    deploy(version)
    assert served_rows() == (136, len(EVENTS.features))
    rounds = rounds_of(loop, before, version)
    assert any(one["parent"] == version for one in loop.rounds()[before:])
    for one in rounds:
        fetched = Registry("swiftqueue").fetch(one["version"], tmp_path / str(one["version"]))
        assert artifact.load(fetched).description.tokens == 136
        assert one["figures"]["challenger"]["log_mae"] > 0
    loop.check_champion()
    loop.check_sender()
    # A question of the old size that was under way is refused once, by name; nothing else fails.
    assert loop.asking.failed - failed <= 1, loop.asking.last_error
