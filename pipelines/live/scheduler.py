"""`swiftqueue schedule`: runs a round every few minutes, on the monotonic clock, never two at once."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from swiftqueue.pipelines.live.metrics import Metrics
from swiftqueue.pipelines.live.rounds_log import RoundRecord
from swiftqueue.pipelines.live.runner import Runner

WATCH_EVERY_S: Final = 15.0
WATCH_TAKES_S: Final = 5.0  # no look begins that would delay a round
LATE_S: Final = 0.5  # a round that begins later was held up by a look; the following rounds shift with it


class Scheduler:
    """Triggers rounds at start, start + every, ...; a round whose time comes while another runs is skipped.

    A look that takes too long delays the next round, and those after it.
    """

    def __init__(self, rounds: Runner[Any], every_s: float, metrics: Metrics) -> None:
        """Raise ValueError where `every_s` is not above zero."""
        if not (math.isfinite(every_s) and every_s > 0):
            raise ValueError(f"--every {every_s}: must be above 0 seconds")
        self._rounds = rounds
        self._every_s = every_s
        self._metrics = metrics
        metrics.every(every_s)
        self._stop = threading.Event()

    def stop(self) -> None:
        """End after the round that is running."""
        self._stop.set()

    def run(self, limit: int | None, say: Callable[[str], None]) -> None:
        """Run rounds until `stop`, or `limit` of them."""
        due_s, ran = time.monotonic(), 0
        while not self._stop.is_set() and (limit is None or ran < limit):
            record = self._rounds.run()
            ran += 1
            self._metrics.add(record)
            say(line(record))
            if missed := math.floor((time.monotonic() - due_s) / self._every_s):
                self._metrics.skipped(missed)
                say(f"round {record.number} took longer than {self._every_s:g} s: {missed} skipped")
            due_s += (missed + 1) * self._every_s
            if limit is None or ran < limit:
                self._watch_until(due_s, say)
                if (late_s := time.monotonic() - due_s) > LATE_S:
                    say(f"a look delayed the next round: it begins {late_s:.0f} s late")
                    due_s += late_s

    def _watch_until(self, at_s: float, say: Callable[[str], None]) -> None:
        """Wait for the next round, and check now and then whether the served version has become worse."""
        while (left_s := at_s - time.monotonic()) > 0 and not self._stop.wait(min(left_s, WATCH_EVERY_S)):
            if at_s - time.monotonic() < WATCH_TAKES_S:
                continue
            if line := self._rounds.watch():
                self._metrics.rolled_back()
                say(line)


def line(record: RoundRecord) -> str:
    """Return a line about a round."""
    version = f" version {record.version}" if record.version is not None else ""
    steps = ", ".join(f"{k} {v:.1f}" for k, v in record.seconds.items() if k != "total" and v >= 0.05)
    drift = ""
    if record.retrain:
        name, index = next(iter(record.psi.items()))  # the largest index
        drift = f" INPUTS HAVE DRIFTED ({name}: {index:.1f}), a full re-train is due;"
    drift += f" re-train {record.retraining};" if record.retraining else ""
    total = record.seconds.get("total", math.nan)
    return (
        f"round {record.number}: {record.outcome}{version} in {total:.1f} s ({steps}); "
        f"{record.came()};{drift} {record.reason}"
    )


def stop_on_signals(scheduler: Scheduler) -> None:
    """End the loop at SIGTERM and SIGINT, after the round that is running."""

    def ask(number: int, frame: FrameType | None) -> None:
        scheduler.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask)
