"""Run the live loop for hours and sample what each part uses, with the slopes and a verdict on leaks.

    swiftqueue bench soak --minutes 120     # --minutes 0 only reads the samples that there are

The command starts the loop (`swiftqueue up --live`) where it does not run, and stops it at the end where it
started it. Each sample is a line of `var/soak/samples.jsonl`, on the disk before the next one is taken; the
same command after an interruption goes on with that file (remove it for a new run).

A slope is that of a least-squares line through the means of twelve equal stretches of the run, without its
first sixth; its 95 % interval is Student's over those means, because samples ten seconds apart are not
independent. A quantity grows when the whole interval lies above what is allowed: that is what the ratio of
its row compares (1 and more: it does not; 100 at most).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.slopes import BEST, MIB, STRETCHES, line, read, tree
from swiftqueue.common.state import scratch, state_dir
from swiftqueue.infra.local import processes, status
from swiftqueue.infra.local.parts import PARTS
from swiftqueue.pipelines.live import rounds_log as record

SAMPLE_S: Final = 10.0
LEARN_S, JUDGE_S = 30.0, 10.0
WARM_UP: Final = 1 / 6  # share of the run in which caches fill
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108
MINUTES, EVERY_S = 120.0, 10.0
# Allowed growth of a part in an hour: 2 % of its memory, or 5 MiB where that is more; other quantities: 0.
ALLOWED_SHARE: Final = 0.02
ALLOWED_MIB: Final = 5.0
ALLOWED_COUNT: Final = 0.5
# Kept on purpose: what they grow by is reported per version, not judged.
KEPT: Final = ("mlflow", "telemetry", "live", "prometheus")


@dataclass(frozen=True)
class Slope:
    """A quantity's change per hour."""

    name: str
    mean: float
    per_hour: float
    low: float  # lower end of the 95 % interval
    high: float
    allowed: float | None  # allowed growth per hour; None: not judged

    @property
    def grows(self) -> bool:
        """Return whether it surely grows by more than is allowed."""
        return self.allowed is not None and self.low > self.allowed


def sample() -> dict[str, float]:
    """Return everything that could leak, by name."""
    found: dict[str, float] = {}
    total = psutil.virtual_memory()
    found["machine memory MiB"] = (total.total - total.available) / MIB
    found["machine shared memory MiB"] = total.shared / MIB  # shared objects of Ray, counted once
    for name in PARTS:
        server = processes.running(name)
        first = server.process() if server else None
        if first is None:
            continue
        threads = files = count = 0
        private: Counter[str] = Counter()
        for process in _family(first):
            with contextlib.suppress(psutil.Error):
                with process.oneshot():
                    memory = process.memory_info()
                    private[_kind(process)] += memory.rss - memory.shared  # memory that only this process has
                    threads += process.num_threads()
                files += process.num_fds()
                count += 1
        if count > 1:
            found |= {f"{name}: {kind} memory MiB": size / MIB for kind, size in private.items()}
        found |= {
            f"{name} memory MiB": private.total() / MIB,
            f"{name} threads": threads,
            f"{name} open files": files,
            f"{name} processes": count,
        }
    for folder in sorted(path for path in state_dir().iterdir() if path.is_dir()):
        size, count = tree(folder)
        found |= {f"{folder.name} disk MiB": size / MIB, f"{folder.name} disk files": count}
    found["temporary files"] = tree(scratch())[1]
    found["shared memory files"] = len(list(SHARED_MEMORY.iterdir()))
    found["served version"] = served_version() or 0
    rounds = record.read(state_dir() / "live" / record.LOG_FILE)
    found["versions"] = len({one["version"] for one in rounds if one["version"]})
    for outcome in record.OUTCOMES:
        found[f"rounds {outcome}"] = sum(one["outcome"] == outcome for one in rounds)
    return found


def served_version() -> int | None:
    """Return the version that a real inference reported on the scheduler's page."""
    server = processes.running("scheduler")
    page = f"http://127.0.0.1:{server.ports['metrics']}/metrics" if server else ""
    value = status.number(page, "swiftqueue_served_version") if page else None
    return None if value is None else int(value)


def slopes(samples: list[dict[str, Any]]) -> list[Slope]:
    """Return the slope of every quantity that was there all the time after the warm-up.

    Raises:
        ValueError: there are too few samples.
    """
    begin, end = samples[0]["time"], samples[-1]["time"]
    late = [one for one in samples if one["time"] >= begin + WARM_UP * (end - begin)]
    if len(late) < 2 * STRETCHES:
        raise ValueError(f"{len(late)} samples after the warm-up; {2 * STRETCHES} are needed for slopes")
    hours = np.array([one["time"] for one in late]) / 3600
    names = sorted(set.intersection(*(set(one["values"]) for one in late)))
    found = []
    for name in names:
        values = np.array([one["values"][name] for one in late], dtype=float)
        per_hour, low, high = line(hours, values)
        found.append(Slope(name, float(values.mean()), per_hour, low, high, _allowed(name, values.mean())))
    return found


def _allowed(name: str, mean: float) -> float | None:
    """Return a quantity's allowed growth in an hour; None if it is not judged."""
    part, _, what = name.rpartition(" disk ")
    if part in KEPT or ": " in name or name.startswith(("rounds ", "versions", "served version", "machine ")):
        return None
    if what == "files" or name.endswith(("threads", "files", "processes")):
        return ALLOWED_COUNT
    return max(ALLOWED_MIB, ALLOWED_SHARE * mean)


def report(samples: list[dict[str, Any]]) -> int:
    """Print every slope and the verdict; return 1 if something grows."""
    from rich.console import Console
    from rich.table import Table

    hours = (samples[-1]["time"] - samples[0]["time"]) / 3600
    found = slopes(samples)
    table = Table(title=f"{len(samples)} samples over {60 * hours:.1f} minutes")
    for column in ("quantity", "mean", "per hour", "95 % interval", "allowed", ""):
        table.add_column(column, justify="left" if column in ("quantity", "") else "right")
    for one in found:
        allowed = "" if one.allowed is None else f"{one.allowed:.1f}"
        interval = f"{one.low:+.2f} .. {one.high:+.2f}"
        mark = "GROWS" if one.grows else ""
        table.add_row(one.name, f"{one.mean:,.1f}", f"{one.per_hour:+.2f}", interval, allowed, mark)
    Console(width=120).print(table)
    first, last = samples[0]["values"], samples[-1]["values"]
    made = last["versions"] - first["versions"]
    if made:
        for name in KEPT:
            if (key := f"{name} disk MiB") in first and key in last:
                print(f"{name}: {(last[key] - first[key]) / made * 1024:.0f} KiB per version on the disk")
    growing = [one.name for one in found if one.grows]
    print(f"versions made: {made:.0f}; served now: {last['served version']:.0f}")
    print(f"GROWING: {', '.join(growing)}" if growing else "nothing grows by more than is allowed")
    return 1 if growing else 0


def measure(rounds: int, minutes: float = MINUTES) -> list[Row]:
    """Run the loop for so long, or go on with a run that was interrupted; a row for each quantity judged.

    It is one run, whatever `rounds` says.
    """
    path = samples_file()
    with contextlib.redirect_stdout(sys.stderr):  # `--json` owns the standard output
        if len(read(path)) < wanted(minutes):
            with _loop():
                run(path, minutes)
        if not (found := read(path)):
            raise ValueError(f"{path} has no samples")
        report(found)
    return rows(found)


def rows(samples: list[dict[str, Any]]) -> list[Row]:
    """Return a row for each quantity's growth in an hour, beside the allowed growth."""
    found = []
    for one in slopes(samples):
        if one.allowed is None:
            continue
        name = f"{one.name}, change an hour ({one.low:+.2f} to {one.high:+.2f}) of {one.mean:,.1f}"
        ratio = BEST if one.low <= 0 else min(BEST, one.allowed / one.low)
        unit = "MiB/h" if one.name.endswith("MiB") else "1/h"
        found.append(Row(name, one.per_hour, one.allowed, "allowed", ratio, unit, len(samples)))
    return found


def samples_file() -> Path:
    """Return the file of the samples."""
    return state_dir() / "soak" / "samples.jsonl"


def wanted(minutes: float) -> int:
    """Return how many samples a run of so many minutes has."""
    return round(60 * minutes / SAMPLE_S)


def run(path: Path, minutes: float) -> None:
    """Add samples to a file until there are enough for `minutes` minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    done = len(read(path))
    if done:
        print(f"{path} has {done} samples: going on (remove it for a new run)")
    with path.open("ab") as out:
        if out.tell() and not path.read_bytes().endswith(b"\n"):
            out.write(b"\n")  # a line cut short must not spoil the next one
        for number in range(done, wanted(minutes)):
            begin_s = time.monotonic()
            line = json.dumps({"time": time.time(), "values": sample()}) + "\n"
            out.write(line.encode())
            out.flush()
            os.fsync(out.fileno())
            if number % 30 == 0:
                print(f"{number} samples, {number * SAMPLE_S / 60:.0f} minutes", flush=True)
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - begin_s)))


@contextlib.contextmanager
def _loop() -> Iterator[None]:
    """Run the block beside the live loop; start it if it does not run, and stop it then."""
    from swiftqueue.infra.local.loop import start_loop, stop_stack

    if processes.running("scheduler"):
        print("the loop runs already: it stays")
        yield
        return
    try:
        start_loop(None, speed=1.0, every_s=EVERY_S, learn_s=LEARN_S, judge_s=JUDGE_S)
        yield
    finally:
        stop_stack()


def _kind(process: psutil.Process) -> str:
    """Return the kind of a process; Ray's actors and servers have their title in the command line's place."""
    words = process.cmdline()
    title = words[0] if words else process.name()
    actor = re.match(r"ray::(\w+(?::[\w-]+){0,2})", title)
    return actor[1] if actor else Path(title.split()[0]).name


def _family(first: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return [first, *first.children(recursive=True)]
    return []
