"""A head's probation: it answers in shadow before it serves, and is rolled back if it serves worse."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.say import say
from swiftqueue.common.settings import settings
from swiftqueue.feature_store.quality.claims import believed
from swiftqueue.feature_store.telemetry.recent import RecentPackets
from swiftqueue.models.networks.artifact import read_files
from swiftqueue.models.registry.registry import Registry
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.warm_worker import WarmWorkerError
from swiftqueue.pipelines.live.rounds_log import RoundRecord, newest_first
from swiftqueue.pipelines.live.watch import HeadComparison, HeadPair
from swiftqueue.pipelines.live.worker import Worker
from swiftqueue.serving.deploy import log as deploy_log
from swiftqueue.serving.deploy.champion import find_champion
from swiftqueue.serving.deploy.deployment import rollback_champion
from swiftqueue.serving.deploy.hold import held
from swiftqueue.serving.triton.endpoint import first_line

SHADOW_WAIT_S: Final = 30.0  # for a shadow's batches; a sender that stopped delays no round for longer
SHADOW_LOOK_S: Final = 1.0
WATCHED: Final = 1.5  # multiple of the rollback's seconds that is looked at

# Returns the last seconds of a sender, by its name or ("") of the one whose turn it is. Raises
# FileNotFoundError where there are none.
Telemetry = Callable[[float, str], RecentPackets]


class Probation:
    """Comparisons of two heads on live traffic, before a switch and after it (docs/decisions/0008)."""

    def __init__(
        self, telemetry: Telemetry, worker: Worker, model: str, lead_in_s: float, change: Change = PAPERS
    ) -> None:
        """Keep the settings.

        Args:
            telemetry: returns the last seconds of a sender's packets.
            worker: runs the comparisons.
            model: name in the registry.
            lead_in_s: seconds of telemetry before the judged ones, only for the first decisions' history.
            change: change of latency above which a packet is late.
        """
        self._telemetry = telemetry
        self._worker = worker
        self._model = model
        self._lead_in_s = lead_in_s
        self._change = change
        self.shadow_batches = settings().shadow_batches
        self._rollback_margin = settings().rollback_margin
        self._rollback_after_s = settings().rollback_after_s
        self._watched: _ProbationState | None = None

    def shadow(
        self,
        record: RoundRecord,
        latest: RecentPackets,
        head: Mapping[str, bytes],
        champion: Mapping[str, bytes],
    ) -> str:
        """Judge a head beside the champion on traffic since its round began, without any effect.

        Return the figure in which it may be worse; empty if there is none, or too little traffic to tell.
        """
        deadline = time.monotonic() + SHADOW_WAIT_S
        while True:
            found = self._beside(head, champion, SHADOW_WAIT_S, latest.newest_ns, record.sender)
            enough = found is not None and found.batches >= self.shadow_batches
            if enough or time.monotonic() > deadline:
                break
            time.sleep(SHADOW_LOOK_S)
        if found is None or not enough:
            record.shadow = {"batches": found.batches if found else 0, "enough": False}
            return ""
        record.shadow = {"batches": found.batches, "seconds": found.seconds, **found.figures}
        return found.inferior

    def _beside(
        self,
        head: Mapping[str, bytes],
        other: Mapping[str, bytes],
        seconds: float,
        since_ns: int,
        sender: str,
        *,
        or_another: bool = False,
    ) -> HeadComparison | None:
        """Return how two heads compare on a sender's last seconds since a time; None without packets.

        With `or_another` it may be another sender's turn, from whose seconds neither head has learned.
        """
        try:
            latest = self._telemetry(self._lead_in_s + seconds, "" if or_another else sender)
        except FileNotFoundError:
            return None
        if latest.packets.is_empty():
            return None
        newest_ns = int(latest.packets["sent_ns"][-1])
        since_ns = since_ns if latest.packets["trace"][0] == sender else 0
        if newest_ns <= since_ns:
            return None
        from_ns = max(since_ns + 1, newest_ns - round(seconds * 1e9))
        packets = believed(latest.packets, 0).packets
        pair = HeadPair(packets, latest.beginning, from_ns, head, other, self._change)
        compared: HeadComparison = self._worker.do(pair)
        return compared

    def watch(self) -> str:
        """Roll back to the previous version where the served one is surely worse on live traffic.

        Return a line about a rollback; empty where all is well, or the traffic is too little to tell.
        """
        try:
            return self._watch()
        except (WarmWorkerError, ConnectionError, TimeoutError):
            self._worker.close()
        except (OSError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            say(f"watch: {first_line(str(error))}")
        return ""

    def _watch(self) -> str:
        switch = deploy_log.last_switch()
        if switch is None or switch.get("action") != "deploy" or held():
            return ""
        version, before = switch["version"], switch.get("previous")
        if self._watched is None or (self._watched.version, self._watched.before) != (version, before):
            registry = Registry(self._model)
            if find_champion(registry).version != version or not isinstance(before, int):
                return ""
            tags = registry.tags(version)
            learned_of = tags.get("source", "").removeprefix("telemetry/")
            learned_ns = int(tags.get("telemetry_to_ns") or 0)
            head, other = (files_of(registry, one) for one in (version, before))
            self._watched = _ProbationState(version, before, learned_of, learned_ns, head, other)
        one = self._watched
        found = self._beside(
            one.head,
            one.other,
            WATCHED * self._rollback_after_s,
            one.learned_ns,
            one.sender,
            or_another=True,
        )
        if found is None or found.seconds < self._rollback_after_s:
            return ""
        much = {name: by for name, by in found.worse.items() if by > self._rollback_margin}
        if not much:
            return ""
        said = ", ".join(f"{name} worse by {by:.3f} or more" for name, by in much.items())
        why = f"over {found.seconds:.0f} s of live traffic {said} than that of version {before}"
        rollback_champion(of=version, why=why)
        return f"version {version} is rolled back to {before}: {why}"


@dataclass(frozen=True)
class _ProbationState:
    """A served version, the one before it, the end of its training data, and the heads of both."""

    version: int
    before: int
    sender: str
    learned_ns: int
    head: Mapping[str, bytes]
    other: Mapping[str, bytes]


def rolled_back_since_last(log: Path) -> str:
    """Return a line about an automatic rollback since the last round of a rounds log began, or nothing."""
    switch = deploy_log.last_switch() or {}
    last = next(newest_first(log), {})
    if not switch.get("why") or float(switch.get("time", 0)) < float(last.get("triggered") or 0):
        return ""
    return f"version {switch.get('previous')} was rolled back to {switch['version']}: {switch['why']}"


def files_of(registry: Registry, version: int) -> Mapping[str, bytes]:
    """Return the artifact's files of a version, by name.

    Raises:
        RegistryError: there is no such version, or its files are not those that were registered.
    """
    with tempfile.TemporaryDirectory() as temporary:
        return read_files(registry.fetch(version, Path(temporary)))
