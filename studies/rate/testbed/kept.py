"""Keep paths of flows as they came, for `swiftqueue rate round` (`swiftqueue rate follow --keep`).

The loader writes records of ACKs in numbered files (`studies/rate/testbed/records.h`). Once enough flows are
complete they become a path, and what belongs to others is put aside for the next one.
"""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_file
from swiftqueue.common.lock import held
from swiftqueue.studies.rate.samples.definition import HORIZONS, LARGEST_RATE, MOST_SAMPLES, NAMES
from swiftqueue.studies.rate.samples.tables import KERNEL, described, write_path
from swiftqueue.studies.rate.testbed.flows import RECORD, flows_of, tables

MOST_PATHS: Final = 50  # number of paths that are kept; the oldest goes
SILENT_NS: Final = 60 * 10**9  # a flow has ended, if others went on for so long
LOOK_S: Final = 5.0
PARTS, PREFIX = ".records", "followed-"


class Keeper:
    """A folder of paths; `flows` and `paths` count what this one has added."""

    def __init__(self, folder: Path, flows: int) -> None:
        """Keep paths of so many flows in a folder; what a killed one had left there becomes a path first.

        Raises:
            OSError: the folder cannot be read or written.
        """
        self._folder, self._least = folder, flows
        self.flows = self.paths = 0
        parts = folder / PARTS
        for left in sorted(parts.glob("*")):
            self._begin(left)
            self.turn(ended=True)
        self._begin(parts / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f"))
        self.records.mkdir(parents=True)

    def _begin(self, records: Path) -> None:
        self.records = records  # where the loader writes
        self._aside: Path | None = None  # the last file, if what is complete was taken out of it
        paths = self._folder.glob(f"path={PREFIX}{records.name}-*")
        found = (described(path) for path in paths)
        self._written = {number for about in found if about for number in about["numbers"]}

    def turn(self, *, ended: bool = False) -> None:
        """Make a path of what is complete, if that is enough.

        Args:
            ended: the loader has; its last file is finished, and every flow is complete.

        Raises:
            OSError: a file cannot be read, or written. Nothing is lost then, nor written twice.
        """
        parts = sorted(part for part in self.records.iterdir() if part.name.isdigit())
        if not ended:
            parts = parts[:-1]  # the loader is writing there
        if parts and (ended or parts[-1] != self._aside):
            each = flows_of(np.concatenate([np.fromfile(part, RECORD) for part in parts]))
            each = [own for own in each if _number(own) not in self._written]
            newest_ns = max((_last_ns(own) for own in each), default=0)
            done = {_number(own) for own in each if ended or _is_complete(own, newest_ns)}
            long = [own for own in each if _number(own) in done and _is_sound(own)]
            if len(long) >= (1 if ended else self._least):
                self._write(long)
                long = []
            self._put_aside([own for own in each if _number(own) not in done] + long, parts)
        if ended:
            shutil.rmtree(self.records)

    def _write(self, flows: list[NDArray[Any]]) -> None:
        numbers = [_number(own) for own in flows]  # by which they are known if this is killed now
        about = {"format": 1, "kind": "train", "source": KERNEL, "numbers": numbers}
        name = f"{PREFIX}{self.records.name}-{numbers[0]:08d}"
        try:
            write_path(self._folder, name, about, *tables(flows))
        except pl.exceptions.PolarsError as error:
            raise OSError(f"path {name} cannot be written: {error}") from None
        self._written |= set(numbers)
        self.flows, self.paths = self.flows + len(flows), self.paths + 1
        for old in sorted(self._folder.glob(f"path={PREFIX}*"))[:-MOST_PATHS]:
            shutil.rmtree(old)

    def _put_aside(self, flows: list[NDArray[Any]], parts: list[Path]) -> None:
        """Leave these flows' records in the last of the files alone."""
        with new_file(parts[-1]) as aside:
            np.concatenate([np.empty(0, RECORD), *flows]).tofile(aside)
        for part in parts[:-1]:
            part.unlink()
        self._aside = parts[-1]


def _number(flow: NDArray[Any]) -> int:
    """A flow's, which the loader gave it."""
    return int(flow["flow"][0])


def _is_complete(flow: NDArray[Any], newest_ns: int) -> bool:
    """Return whether nothing more comes of a flow, or nothing that is asked about."""
    delivered = flow["fields"][-1, NAMES.index("delivered")]
    return bool(delivered >= HORIZONS[-1]) or _last_ns(flow) < newest_ns - SILENT_NS


def _is_sound(flow: NDArray[Any]) -> bool:
    """Return whether a flow can teach: others are too short, or too fast to be."""
    return len(flow) >= MOST_SAMPLES and flow["fields"][:, NAMES.index("bbr_bw")].max() < LARGEST_RATE


def _last_ns(flow: NDArray[Any]) -> int:
    """When a flow's last record came, CLOCK_MONOTONIC."""
    return int(flow["since_ns"][-1]) + 1000 * int(flow["fields"][-1, NAMES.index("ts")])


@contextmanager
def keeping(folder: Path, flows: int) -> Iterator[Keeper]:
    """Keep flows for as long as the block lasts; in it, a loader starts and ends.

    Raises:
        OSError: the folder cannot be written, or another one keeps flows there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder / ".lock", "`swiftqueue rate follow`", 0):
        keeper, told = Keeper(folder, flows), threading.Event()

        def look() -> None:
            while not told.wait(LOOK_S):
                try:
                    keeper.turn()
                except OSError as error:
                    print(f"{error}; the samples stay, and are looked at again", file=sys.stderr)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield keeper
        finally:
            told.set()
            thread.join()
        keeper.turn(ended=True)
