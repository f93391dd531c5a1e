"""The shared part of every model's rounds: how a round begins, how it may end, and its record."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Generic, TypeVar

import polars as pl

from swiftqueue.common import json_lines, lock
from swiftqueue.common.say import say
from swiftqueue.common.settings import settings
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.models.registry.live_runs import log_round
from swiftqueue.models.registry.registry import Registry
from swiftqueue.models.registry.retention import collect_garbage
from swiftqueue.pipelines.live.rounds_log import DeclinedError, RoundRecord, newest_first, read
from swiftqueue.serving.deploy.champion import find_champion
from swiftqueue.serving.deploy.deployment import ChampionChangedError, prune_registry, serve_champion
from swiftqueue.serving.deploy.hold import HeldVersionError, held
from swiftqueue.serving.triton.endpoint import first_line

LEARNED: Final = ("pushed", "kept")
COLLECT_EVERY_S: Final = 3600.0
LOCK_WAIT_S: Final = 300.0  # the round of a suspended CronJob may run so long
Record = TypeVar("Record", bound=RoundRecord)


class Runner(ABC, Generic[Record]):
    """Runs rounds of one model one after another; a line of the log tells the outcome of each."""

    def __init__(self, model: str, kind: str, log: str, record: type[Record], first: str) -> None:
        """Make the state folder and read the earlier rounds.

        Args:
            model: name in the registry.
            kind: the model's word in `deploy --model`.
            log: name of the rounds log's file.
            record: class of a round's record.
            first: command that makes the first champion, in words.
        """
        self._model, self._kind, self._record, self._first = model, kind, record, first
        self._keep_versions = settings().keep_versions
        self._collect_at_s = 0.0
        self._folder = state_dir() / "live"
        private_dir(self._folder)
        self.log = self._folder / log
        self.number = max((one["number"] for one in self.history()), default=0)

    def history(self) -> list[dict[str, Any]]:
        """Return every round so far, oldest first."""
        return read(self.log)

    def failed(self) -> bool:
        """Return whether the last recorded round failed."""
        return next(newest_first(self.log), {}).get("outcome") == "failed"

    def run(self) -> Record:
        """Run one round; expected failures do not raise."""
        self.number += 1
        record, begin_s = self._record(self.number, time.time()), time.monotonic()
        try:
            self._run(record)
        except (DeclinedError, ChampionChangedError, HeldVersionError) as error:
            record.outcome, record.reason = "declined", first_line(str(error))
        except (OSError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            record.reason = first_line(str(error))
        record.seconds["total"] = time.monotonic() - begin_s
        record.ended_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        self._ended(record)
        try:
            json_lines.append(self.log, asdict(record))
        except OSError as error:  # the disk is full; metrics and the scheduler's own log have the round
            record.reason = f"{record.reason}; {self.log}: {error.strerror}"
        self._log(record)
        self._prune(record)
        return record

    def watch(self) -> str:
        """Look after the served version between two rounds; return a line about a rollback, mostly empty."""
        return ""

    @abstractmethod
    def _run(self, record: Record) -> None:
        """Do a round's work; an error is its reason, a DeclinedError means that there was nothing to do."""

    def _ended(self, record: Record) -> None:
        """Take note of a round before it is recorded."""

    def _champion(self, registry: Registry, record: Record) -> int:
        """Return the champion, once every server serves it.

        Raises:
            DeclinedError: there is no champion, or a version is held.
            OSError, RuntimeError: as `serve_champion`.
        """
        found = find_champion(registry, self._kind)
        if (champion := found.version) is None:
            raise DeclinedError(f"{found.astray or 'the registry has no champion'}; {self._first}")
        record.parent = champion
        # A server may have come back with another version, or with none. This says where the alias is astray.
        serve_champion(self._kind)
        if kept := held(self._kind):
            raise DeclinedError(str(kept))
        return champion

    def _log(self, record: Record) -> None:
        """Log a round that made a version in MLflow; a failure is only printed."""
        if record.version is None:
            return
        try:
            log_round(self._model, record.number, record.points())
        except OSError as error:
            say(f"round {record.number}: not logged in MLflow: {first_line(str(error))}")

    def _prune(self, record: Record) -> None:
        """Remove the versions that nobody needs after a round; a failure is only printed."""
        if record.version is None:
            return
        try:
            if gone := prune_registry(self._model, self._keep_versions):
                say(
                    f"round {record.number}: {len(gone)} versions removed from the registry, up to {gone[-1]}"
                )
                self._collect()
        except OSError as error:
            say(f"round {record.number}: the registry is not pruned: {first_line(str(error))}")

    def _collect(self) -> None:
        """Free the disk space of removed versions now and then, because it takes seconds of a core.

        Raises:
            RegistryError: `mlflow gc` failed; the next round tries again.
        """
        if time.monotonic() >= self._collect_at_s:
            collect_garbage()
            self._collect_at_s = time.monotonic() + COLLECT_EVERY_S


@contextmanager
def alone(name: str, what: str) -> Iterator[None]:
    """Run rounds of a model in this block while no other process does: they share a log and files.

    Raises:
        HeldError: another process does.
    """

    def wait(holder: str) -> None:
        say(f"{what} runs here already (pid {holder}): waiting for its end")

    with lock.held(private_dir(state_dir() / "live") / name, what, LOCK_WAIT_S, wait):
        yield


@contextmanager
def timed(record: RoundRecord, step: str) -> Iterator[None]:
    """Record the seconds of a step, whether or not it fails."""
    begin = time.monotonic()
    try:
        yield
    finally:
        record.seconds[step] = time.monotonic() - begin
