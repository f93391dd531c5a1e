"""Damaged bytes for whatever reads bytes from strangers: mutants of good ones, read in a child process.

    survive("swiftqueue.serving.agent.io.frames:parse", [good_bytes])

The child calls the function with one mutant after the other. It may return, or raise ValueError or OSError (a
refusal). Any other exception, a crash or a standstill is a failure, which names the mutant and keeps it.
"""

from __future__ import annotations

import importlib
import json
import mmap
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

ALL: Final = os.environ.get("SWIFTQUEUE_TEST_ALL") == "1"
COUNT: Final = 1_000_000 if ALL else 20_000  # `make test-all`, `make test`
STILL_S: Final = 60.0  # one input may take so long; what the machine does beside it does not count
LOOK_S: Final = 1.0
NUMBERS: Final = tuple(
    struct.pack("<Q", value)
    for value in (0, 1, 0x7F, 0x80, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
)
INDEX: Final = struct.Struct("<qqq")  # the mutant under way, how many were taken, how many refused


def mutant(good: Sequence[bytes], seed: int, index: int) -> bytes:
    """Mutant `index` of a run: one of the good inputs with 1 to 8 changes, the same each time."""
    dice = random.Random((seed << 40) + index)
    data = bytearray(dice.choice(good))
    for _ in range(dice.choice((1, 1, 1, 2, 3, 4, 8))):
        at, kind = dice.randrange(len(data) + 1), dice.randrange(8)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            del data[at : at + dice.randrange(1, 17)]
        elif kind == 2:
            data[at:at] = dice.randbytes(dice.randrange(1, 17))
        elif kind == 3:
            begin = dice.randrange(len(data) + 1)
            data[at:at] = data[begin : begin + dice.randrange(1, 65)]
        elif kind == 4:
            number = dice.choice(NUMBERS)[: dice.choice((1, 2, 4, 8))]
            data[at : at + len(number)] = number
        elif data:
            at = min(at, len(data) - 1)
            data[at] = data[at] ^ 1 << dice.randrange(8) if kind < 7 else dice.randrange(256)
    return bytes(data)


def survive(
    target: str,
    good: Sequence[bytes],
    count: int = COUNT,
    *,
    seed: int = 1,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, int]:
    """Feed mutants to `MODULE:FUNCTION` in a child process; return how many were taken and how many refused.

    The child's environment has what `environment` adds.

    Raises:
        AssertionError: the child died, stood still, or raised what is no refusal.
    """
    assert all(good), "an empty input has no mutants"
    folder = Path(os.environ.get("PYTEST_MUTANTS", "build/mutants")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{target.replace(':', '-')}-{os.getpid()}-{time.monotonic_ns()}"
    work, state = stem.with_suffix(".json"), stem.with_suffix(".state")
    work.write_text(
        json.dumps({"target": target, "good": [g.hex() for g in good], "count": count, "seed": seed})
    )
    state.write_bytes(bytes(INDEX.size))
    path = os.pathsep.join(dict.fromkeys([os.getcwd(), *filter(None, sys.path)]))
    child = subprocess.Popen(
        [sys.executable, __file__, str(work), str(state)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        text=True,
    )
    before, stood_s, spent_s = -1, 0.0, 0.0
    while True:
        try:
            _, said = child.communicate(timeout=LOOK_S)
            break
        except subprocess.TimeoutExpired:
            was_s, (spent_s, sleeps) = spent_s, _spent(child.pid)
            index = INDEX.unpack(state.read_bytes())[0]
            stood_s += LOOK_S if sleeps else spent_s - was_s
            if index != before:
                before, stood_s = index, 0.0
            elif stood_s > STILL_S:
                child.kill()
                _, said = child.communicate()
                said += f"\nit stood still for {STILL_S:.0f} s"
                break
    index, taken, refused = INDEX.unpack(state.read_bytes())
    for path_ in (work, state):
        path_.unlink()
    if child.returncode != 0 or taken + refused != count:
        kept = stem.with_suffix(".mutant")
        kept.write_bytes(mutant(good, seed, index))
        raise AssertionError(
            f"{target} did not survive mutant {index} of seed {seed} "
            f"(exit {child.returncode}; kept in {kept}):\n{said[-2000:]}"
        )
    return taken, refused


def _spent(pid: int) -> tuple[float, bool]:
    """Seconds of a core that a child has had, and whether it waits for something else than a core."""
    child = psutil.Process(pid)
    spent = child.cpu_times()
    return spent.user + spent.system, child.status() == psutil.STATUS_SLEEPING


def _child(work: Path, state: Path) -> None:
    job = json.loads(work.read_text())
    module, _, name = job["target"].partition(":")
    target = getattr(importlib.import_module(module), name)
    good = [bytes.fromhex(text) for text in job["good"]]
    taken = refused = 0
    with state.open("r+b") as file, mmap.mmap(file.fileno(), INDEX.size) as shared:
        for index in range(job["count"]):
            shared[:] = INDEX.pack(index, taken, refused)
            try:
                target(mutant(good, job["seed"], index))
                taken += 1
            except (ValueError, OSError):
                refused += 1
        shared[:] = INDEX.pack(index, taken, refused)


if __name__ == "__main__":
    _child(Path(sys.argv[1]), Path(sys.argv[2]))
