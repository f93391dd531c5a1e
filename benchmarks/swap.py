"""Measure head swaps under a client that asks on a fixed schedule, beside the same client in peace.

A swap every second under 1,000 and 10,000 questions a second, and one every five seconds under 500. Triton
serves the native backend; each swap is a whole push (serving/deploy/push.py), as at the five-minute update:
load and check the artifact, try it under another name, compare it with PyTorch, load it beside the served
version, compare again. (The registry is not in it: fetching happens before Triton is touched.) The versions
differ in their heads alone. Stretches with and without swaps take turns; the reported latencies of the C++
client are medians over the stretches.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from swiftqueue.benchmarks.inference_references import save
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.served_models import build, served
from swiftqueue.serving.deploy.push import push
from swiftqueue.serving.triton.endpoint import Triton
from swiftqueue.serving.triton.repository import ModelRepository

HEADS: Final = 4  # heads told apart by version number; the same ones come round again

Figures = dict[str, float]  # figures of a stretch, as the client gives them


@dataclass(frozen=True)
class SwapLoad:
    """The interval of head swaps, and the client's load."""

    every_s: float  # seconds between swaps; the first comes after half of it
    rate: int  # questions per second
    stretch_s: float

    @property
    def swaps(self) -> int:
        """Return the number of swaps in a stretch."""
        return int(self.stretch_s / self.every_s)

    def __str__(self) -> str:
        return f"a swap every {self.every_s:g} s, {self.rate} questions/s"


# Five rounds of the first load are a minute with swaps, and as much without. The last is more than two cores
# answer as it comes, so its round trips are mostly waiting.
SETTINGS: Final = (SwapLoad(1.0, 1_000, 12.0), SwapLoad(5.0, 500, 20.0), SwapLoad(1.0, 10_000, 12.0))
ANSWER_WITHIN_S: Final = 30.0  # limit for an answer; lateness is in the quantiles


@dataclass
class Swaps:
    """The pushing side's result: each push's time, and its failure if it ended early."""

    seconds: list[float] = field(default_factory=list)
    failure: Exception | None = None


@dataclass
class SwapServer:
    """The server under test; it serves the last of `heads` that was pushed."""

    client: Path
    address: str
    triton: Triton
    repository: ModelRepository
    heads: list[Path]
    version: int = 1


def measure(rounds: int) -> list[Row]:
    """Ask through `rounds` stretches without swaps and as many with them, under each load.

    Raises:
        OSError: the native backend or the C++ client is not built.
        RuntimeError: Triton does not start, or a push fails.
    """
    client = build("round_trip") / "round_trip"
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        heads = [save(root / "artifacts" / str(i), i) for i in range(HEADS)]  # heads of one encoder
        repository = ModelRepository(root)
        repository.embedded.mkdir()
        with served(root, ()) as address, Triton(address) as triton:
            one = SwapServer(client, address, triton, repository, heads)
            push(heads[0], one.version, [triton], repository, None)
            return [row for setting in SETTINGS for row in _measure(setting, one, rounds)]


def _measure(setting: SwapLoad, one: SwapServer, rounds: int) -> list[Row]:
    quiet, swapped = list[Figures](), list[Figures]()
    swaps = Swaps()
    for _ in range(rounds):
        quiet.append(_ask(setting, one))
        with _swapping(setting, one, swaps):
            swapped.append(_ask(setting, one))
        if swaps.failure:
            raise RuntimeError(f"bench swap: a push failed: {swaps.failure}") from swaps.failure
    return _rows(setting, quiet, swapped, swaps.seconds, rounds)


@contextmanager
def _swapping(setting: SwapLoad, one: SwapServer, swaps: Swaps) -> Iterator[None]:
    """Push the next head again and again from a thread, as often as fits into a stretch."""
    stop = threading.Event()

    def swap() -> None:
        due_s = time.monotonic() + setting.every_s / 2
        for _ in range(setting.swaps):
            if stop.wait(max(0.0, due_s - time.monotonic())):
                return
            begin_s, before = time.monotonic(), one.version
            try:
                push(one.heads[before % HEADS], before + 1, [one.triton], one.repository, before)
            except (OSError, RuntimeError) as error:
                swaps.failure = error
                return
            one.version = before + 1
            swaps.seconds.append(time.monotonic() - begin_s)
            one.repository.remove(before)
            due_s += setting.every_s

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _ask(setting: SwapLoad, one: SwapServer) -> Figures:
    """Run one stretch of questions, each a window of real events."""
    questions = round(setting.rate * setting.stretch_s)
    command = [str(one.client), "--server", one.address]
    command += ["--rate", str(setting.rate), "--questions", str(questions)]
    command += ["--deadline-us", str(round(ANSWER_WITHIN_S * 1e6))]
    limit_s = 60 + 10 * setting.stretch_s
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit_s)
    if ran.returncode:
        raise RuntimeError(f"bench swap: {ran.stderr.strip()}")
    found = json.loads(ran.stdout.splitlines()[-1])
    return {
        "answered": found["in_time"] / found["asked"],
        "versions": float(len(found["versions"])),
        **{name: float(found[name]) for name in ("p50_us", "p99_us", "gap_ms")},
    }


def _rows(
    setting: SwapLoad, quiet: list[Figures], swapped: list[Figures], pushes_s: list[float], rounds: int
) -> list[Row]:
    def row(what: str, key: str, unit: str) -> Row:
        ours, theirs = (statistics.median(figures[key] for figures in side) for side in (swapped, quiet))
        return Row(f"{setting}: {what}", ours, theirs, "without swaps", theirs / ours, unit, rounds)

    ours, theirs = (min(figures["answered"] for figures in side) for side in (swapped, quiet))
    due = setting.swaps * rounds
    seen = sum(figures["versions"] - 1 for figures in swapped)
    push_s = statistics.median(pushes_s)
    return [
        Row(
            f"{setting}: answered, worst stretch",
            ours,
            theirs,
            "without swaps",
            ours / theirs,
            "share",
            rounds,
        ),
        row("round trip, p50", "p50_us", "us"),
        row("round trip, p99", "p99_us", "us"),
        row("longest time without an answer", "gap_ms", "ms"),
        Row(f"{setting}: swaps the client saw", seen, due, "as many as fit", seen / due, "", rounds),
        Row(
            f"{setting}: a push: check, try, load, compare",
            push_s * 1e3,
            setting.every_s * 1e3,
            "time until the next one",
            setting.every_s / push_s,
            "ms",
            rounds,
        ),
    ]
