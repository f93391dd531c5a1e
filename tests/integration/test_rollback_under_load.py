"""Late batches while a served version is put back, beside as many batches in peace, in the same run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import mutants
import pytest
from agent_program import AgentProgram, LiveSender, needs_agent
from registered import add_version
from test_agent import change_head

from swiftqueue.models.networks import onnx_head
from swiftqueue.serving.deploy.deployment import deploy_version
from swiftqueue.serving.triton.endpoint import grpc_address

pytestmark = [pytest.mark.slow, needs_agent]
DEADLINE_US = 30_000
ROLLBACKS = 3 if mutants.ALL else 1
LEAST_BATCHES = 40  # of a stretch
BY_CHANCE = 1e-3  # of as many late batches, if a rollback made none of them late

# As the scheduler's watch does it, in a process that has everything loaded.
WATCH = """
import sys
import swiftqueue.serving.deploy.push
from swiftqueue.serving.deploy.deployment import rollback_champion
print("ready", flush=True)
for line in sys.stdin:
    rollback_champion(of=int(line), why="a test says so")
    print("done", flush=True)
"""


@contextmanager
def watching() -> Iterator[Callable[[int], None]]:
    """A process that puts a version back when it is told to; what is yielded returns when it has."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        asks, says = child.stdin, child.stdout

        def until(word: str) -> None:
            assert word in (line.strip() for line in iter(says.readline, "")), f"it ended before {word!r}"

        def roll_back(version: int) -> None:
            asks.write(f"{version}\n")
            asks.flush()
            until("done")

        until("ready")
        yield roll_back
        asks.close()


def outcomes(sender: LiveSender, while_: Callable[[], bool]) -> list[str]:
    """What became of batches asked one after the other."""
    before = len(sender.outcomes)
    while len(sender.outcomes) < before + LEAST_BATCHES or while_():
        sender.batch()
    return sender.outcomes[before:]


@pytest.mark.long
def test_a_rollback_makes_no_batch_late(
    champion: int, make_artifact: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from scipy.stats import fisher_exact

    folder = shutil.copytree(make_artifact(1, onnx=True), tmp_path / "bad")
    (folder / "model.onnx").unlink()
    change_head(folder)
    onnx_head.export_onnx(folder, make_artifact(1, onnx=True))
    bad = add_version(folder)
    path = tmp_path / "agent.sock"
    deploy_version(champion)
    peace: list[str] = []
    switching: list[str] = []
    with (
        watching() as roll_back,
        AgentProgram("--listen", path, "--metrics-port", 0, "--server", grpc_address()),
        LiveSender(path, "s", DEADLINE_US) as sender,
    ):
        for _ in range(ROLLBACKS):
            deploy_version(bad)
            sender.until_decided(bad)
            rollback = Thread(target=roll_back, args=(bad,))
            rollback.start()
            during = outcomes(sender, rollback.is_alive)
            rollback.join()
            sender.until_decided(champion)
            quiet: list[str] = []
            while len(quiet) < len(during):
                quiet += outcomes(sender, lambda: False)
            switching += during
            peace += quiet
    assert set(switching) | set(peace) <= {"decided", "late"}, "no batch was without an answer of a server"
    table = [[one.count("late"), len(one) - one.count("late")] for one in (switching, peace)]
    with capsys.disabled():
        print(f"\n[late: {table[0][0]} of {len(switching)} batches in rollbacks, ", end="")
        print(f"{table[1][0]} of {len(peace)} in peace] ", end="")
    assert fisher_exact(table, alternative="greater").pvalue > BY_CHANCE, table
