"""What `swiftqueue rate follow --keep` keeps: paths of flows, as they came, for `swiftqueue rate round`.

The loader writes records of ACKs in numbered files (`testbed/loader/records.h`). Once enough flows are
complete they become a path, and what belongs to others is put aside for the next one.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feature_store.rate.definition import HORIZONS, MOST_SAMPLES, NAMES
from feature_store.rate.tables import KERNEL, write_path
from laboratory.bed.rate_flows import RECORD, flows_of, tables
from models.lock import held

MOST_PATHS: Final = 50  # that are kept; the oldest goes
SILENT_NS: Final = 60 * 10**9  # a flow has ended, if others went on for so long
LOOK_S: Final = 5.0
PARTS, PREFIX = ".records", "followed-"
DELIVERED, TS = NAMES.index("delivered"), NAMES.index("ts")


class Keeper:
    """A folder of paths; `flows` and `paths` count what this one has added."""

    def __init__(self, folder: Path, flows: int) -> None:
        """Keep paths of so many flows in a folder; what a killed one had left there becomes a path first.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder, self._least = folder, flows
        self.flows = self.paths = 0
        self._aside: Path | None = None
        parts = folder / PARTS
        for left in sorted(parts.glob("*")):
            self._records = left
            self.turn(ended=True)
        self._records = parts / datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        self._records.mkdir(parents=True)

    @property
    def records(self) -> Path:
        """Where the loader writes."""
        return self._records

    def turn(self, *, ended: bool = False) -> None:
        """Make a path of what is complete, if that is enough.

        Args:
            ended: the loader has; its last file is finished, and every flow is complete.

        Raises:
            OSError: a file cannot be read, or written.
        """
        parts = sorted(self._records.iterdir())
        if not ended:
            parts = parts[:-1]  # the loader is writing there
        if parts and (ended or parts[-1] != self._aside):
            each = flows_of(np.concatenate([np.fromfile(part, RECORD) for part in parts]))
            newest_ns = max((_last_ns(own) for own in each), default=0)
            complete = [
                own
                for own in each
                if ended
                or own["fields"][-1, DELIVERED] >= HORIZONS[-1]
                or _last_ns(own) < newest_ns - SILENT_NS
            ]
            long = [own for own in complete if len(own) >= MOST_SAMPLES]  # others neither teach nor judge
            done = {int(own["flow"][0]) for own in complete}
            if written := len(long) >= (1 if ended else self._least):
                self._write(long, parts[-1])
            kept = [own for own in each if int(own["flow"][0]) not in done]
            self._put_aside(kept if written else kept + long, parts)
        if ended:
            shutil.rmtree(self._records)

    def _write(self, flows: list[NDArray[Any]], last: Path) -> None:
        name = f"{PREFIX}{last.parent.name}-{last.name}"
        if (self._folder / f"path={name}").exists():
            return  # it was written, and then this was killed
        about = {"format": 1, "kind": "train", "source": KERNEL, "flows_whole": len(flows)}
        write_path(self._folder, name, about, *tables(flows))
        self.flows, self.paths = self.flows + len(flows), self.paths + 1
        for old in sorted(self._folder.glob(f"path={PREFIX}*"))[:-MOST_PATHS]:
            shutil.rmtree(old)

    def _put_aside(self, flows: list[NDArray[Any]], parts: list[Path]) -> None:
        """Leave these flows' records in the last of the files alone."""
        aside = parts[-1].with_suffix(".partial")
        np.concatenate([np.empty(0, RECORD), *flows]).tofile(aside)
        os.replace(aside, parts[-1])
        for part in parts[:-1]:
            part.unlink()
        self._aside = parts[-1]


def _last_ns(flow: NDArray[Any]) -> int:
    """When a flow's last record came, CLOCK_MONOTONIC."""
    return int(flow["since_ns"][-1]) + 1000 * int(flow["fields"][-1, TS])


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
