"""What answers in shadow before it serves, and is put back when it serves worse than what was before it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from common.say import say
from common.settings import settings
from feature_store.quality.claims import believed
from feature_store.telemetry.recent import RecentPackets
from models.networks.artifact import read_files
from models.registry.registry import Registry
from models.sharp import PAPERS, Change
from models.training.warm_worker import WarmWorkerError
from pipelines.live.rounds_log import RoundRecord, newest_first
from pipelines.live.watch import Compared, Pair
from pipelines.live.worker import Worker
from serving.deploy import log as deploy_log
from serving.deploy.champion import find_champion
from serving.deploy.deployment import rollback_champion
from serving.deploy.hold import held
from serving.triton.endpoint import first_line

SHADOW_WAIT_S: Final = 30.0  # for the batches of a shadow; a sender that stopped delays no round for longer
SHADOW_LOOK_S: Final = 1.0
WATCHED: Final = 1.5  # of the seconds that a rollback takes are looked at

# The last so many seconds of a sender, by its name or ("") of the one whose turn it is; FileNotFoundError
# where there is nothing of it.
Telemetry = Callable[[float, str], RecentPackets]


class Probation:
    """Compares two heads on live traffic, before a switch and after it (docs/decisions/0008)."""

    def __init__(
        self, telemetry: Telemetry, worker: Worker, model: str, lead_in_s: float, change: Change = PAPERS
    ) -> None:
        """Read the settings.

        Args:
            telemetry: where packets come from.
            worker: does the work.
            model: name in the registry.
            lead_in_s: telemetry before what judges, that only fills the first windows' history.
            change: of latency, from which on a packet is late.
        """
        self._telemetry = telemetry
        self._worker = worker
        self._model = model
        self._lead_in_s = lead_in_s
        self._change = change
        self.shadow_batches = settings().shadow_batches
        self._rollback_margin = settings().rollback_margin
        self._rollback_after_s = settings().rollback_after_s
        self._watched: _Watched | None = None

    def shadow(
        self,
        record: RoundRecord,
        latest: RecentPackets,
        head: Mapping[str, bytes],
        champion: Mapping[str, bytes],
    ) -> str:
        """Judge a head beside the champion on traffic that came since its round began, without any effect.

        Returns what it may be worse in; nothing too where too little came to tell.
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
    ) -> Compared | None:
        """Two heads on the last seconds of a sender, as far as they came since a time; None if nothing did.

        With `or_another` it may be another sender's turn; of that one neither head has learned those seconds.
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
        pair = Pair(packets, latest.beginning, from_ns, head, other, self._change)
        compared: Compared = self._worker.do(pair)
        return compared

    def watch(self) -> str:
        """Put the version before the served one back where the served one is surely worse on live traffic.

        Returns a line about that; nothing where all is well, or nobody knows.
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
            self._watched = _Watched(version, before, learned_of, learned_ns, head, other)
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
class _Watched:
    """A served version, the one before it, what it learned last, and the heads of both."""

    version: int
    before: int
    sender: str
    learned_ns: int
    head: Mapping[str, bytes]
    other: Mapping[str, bytes]


def rolled_back_since_last(log: Path) -> str:
    """What was put back without a hand since the last round of a rounds log began, and why."""
    switch = deploy_log.last_switch() or {}
    last = next(newest_first(log), {})
    if not switch.get("why") or float(switch.get("time", 0)) < float(last.get("triggered") or 0):
        return ""
    return f"version {switch.get('previous')} was rolled back to {switch['version']}: {switch['why']}"


def files_of(registry: Registry, version: int) -> Mapping[str, bytes]:
    """The artifact's files of a version, by name.

    Raises:
        RegistryError: there is no such version, or it is not what was registered.
    """
    with tempfile.TemporaryDirectory() as temporary:
        return read_files(registry.fetch(version, Path(temporary)))
