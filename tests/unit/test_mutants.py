"""The fuzzing itself: a crash, a standstill and a wrong exception are failures; a refusal is none."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import mutants
import pytest

GOOD = [b"abcdefgh" * 4]
WAITED: list[bool] = []


def refuses_some(data: bytes) -> None:
    if len(data) % 2:
        raise ValueError("odd")


def dies_of_some(data: bytes) -> None:
    if len(data) == 33:
        ctypes.string_at(0)


def raises_another(data: bytes) -> None:
    if len(data) > 40:
        raise KeyError("x")


def stands_still(data: bytes) -> None:
    if len(data) > 40:
        time.sleep(600)


def waits_for_a_core(data: bytes) -> None:
    """As on a machine where others have all of them: for 6 s, twice as long as one input may take."""
    if not WAITED:
        WAITED.append(True)
        with subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"]):
            os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_MUTANTS", str(tmp_path))
    monkeypatch.setattr(mutants, "STILL_S", 3.0)


def test_a_mutant_is_the_same_each_time() -> None:
    assert [mutants.mutant(GOOD, 1, n) for n in range(50)] == [mutants.mutant(GOOD, 1, n) for n in range(50)]


def test_what_is_taken_and_refused_is_counted() -> None:
    taken, refused = mutants.survive(f"{__name__}:refuses_some", GOOD, 500)
    assert taken + refused == 500
    assert min(taken, refused) > 20


@pytest.mark.long
@pytest.mark.slow
def test_a_busy_machine_is_no_standstill() -> None:
    assert sum(mutants.survive(f"{__name__}:waits_for_a_core", GOOD, 10)) == 10


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("target", ["dies_of_some", "raises_another", "stands_still"])
def test_the_mutant_that_harmed_is_kept(tmp_path: Path, target: str) -> None:
    with pytest.raises(AssertionError, match="did not survive mutant"):
        mutants.survive(f"{__name__}:{target}", GOOD, 5000)
    (kept,) = tmp_path.glob("*.mutant")
    if target == "dies_of_some":
        assert len(kept.read_bytes()) == 33
