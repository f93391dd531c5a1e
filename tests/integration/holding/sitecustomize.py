"""For the tests of faults: a round of the real scheduler waits where one of its steps begins.

Python imports this module when it starts, where this folder is on PYTHONPATH. Where the file
$SWIFTQUEUE_TEST_HOLD/STEP exists when a step begins, its process renames it to STEP.PID and waits until that
file is gone. While the file $SWIFTQUEUE_TEST_HOLD/appends exists, no replica of the ingest appends anything.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

FOLDER = os.environ.get("SWIFTQUEUE_TEST_HOLD", "")


def hold(step: str) -> None:
    """Wait, if a test asked for it."""
    held = os.path.join(FOLDER, f"{step}.{os.getpid()}")
    try:
        os.rename(os.path.join(FOLDER, step), held)
    except FileNotFoundError:
        return
    while os.path.exists(held):
        time.sleep(0.01)


def hold_rounds(rounds: ModuleType) -> None:
    """Hold at the scheduler's own steps."""
    whole: Callable[..., Any] = rounds._timed

    @contextmanager
    def timed(record: object, step: str) -> Iterator[None]:
        hold("deploy" if step == "push" else step)  # `push` is later: see `hold_push`
        with whole(record, step):
            yield

    rounds._timed = timed  # type: ignore[attr-defined]


def hold_minute(minute: ModuleType) -> None:
    """Hold at the steps of the Ray worker: each begins where the one before it ends."""
    clock: type[Any] = minute._Clock
    after = {"load": "encode", "encode": "train", "train": "judge"}

    class Clock(clock):  # type: ignore[misc]
        def __init__(self) -> None:
            hold("load")
            super().__init__()

        def lap(self, step: str) -> None:
            super().lap(step)
            if step in after:
                hold(after[step])

    minute._Clock = Clock  # type: ignore[attr-defined]


def hold_push(endpoint: ModuleType) -> None:
    """Hold where the new version lies in Triton's repository and is about to be loaded."""
    load = endpoint.Triton.load

    def held(self: object, model: str, *timeout_s: float) -> None:
        if model == endpoint.MODEL:
            hold("push")
        load(self, model, *timeout_s)

    endpoint.Triton.load = held


def hold_alias(registry: ModuleType) -> None:
    """Hold where Triton serves the new version and the registry does not name it champion yet."""
    set_alias = registry.Registry.set_alias

    def held(self: object, alias: str, version: int) -> None:
        if alias == registry.CHAMPION:
            hold("alias")
        set_alias(self, alias, version)

    registry.Registry.set_alias = held


def hold_appends(log: ModuleType) -> None:
    """Hold every append of telemetry, as a disk that takes its time does."""
    append = log.SegmentWriter.append

    def held(self: object, batches: Sequence[bytes]) -> None:
        while os.path.exists(os.path.join(FOLDER, "appends")):
            time.sleep(0.01)
        append(self, batches)

    log.SegmentWriter.append = held


HOLDS = {
    "swiftqueue.pipelines.live.rounds": hold_rounds,
    "swiftqueue.pipelines.live.minute": hold_minute,
    "swiftqueue.serving.triton.endpoint": hold_push,
    "swiftqueue.models.registry.registry": hold_alias,
    "swiftqueue.feature_store.telemetry.log": hold_appends,
}


class Finder(importlib.abc.MetaPathFinder):
    """Changes these modules once they are loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find the module as everybody else does."""
        if fullname not in HOLDS:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(found for finder in others if (found := finder.find_spec(fullname, path, target)))
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            HOLDS[fullname](module)

        loader.exec_module = exec_module
        return spec


if FOLDER:
    sys.meta_path.insert(0, Finder())
