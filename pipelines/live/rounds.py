"""One round of the live loop: telemetry, validation, a new head, the gate, the registry, Triton.

    pushed    the new version is served
    kept      the challenger did not pass the gate; it is in the registry, and the champion goes on serving
    declined  there was nothing sound to learn from: no new telemetry, too little of it, or bad telemetry; or
              the champion was changed by hand meanwhile, or is held
    failed    a part of the system was missing; the next round tries again

Whatever happens, the champion goes on serving, and a failed round leaves nothing that harms the next one.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from swiftqueue.common.say import say
from swiftqueue.feature_store.quality import expectations as ex
from swiftqueue.feature_store.quality.claims import believed
from swiftqueue.feature_store.telemetry.recent import RecentPackets
from swiftqueue.models.networks.artifact import read_files
from swiftqueue.models.registry.registry import GateDecision, Registry
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.registry.store import RegistryError
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.warm_worker import WarmWorkerError
from swiftqueue.pipelines.live import challenger
from swiftqueue.pipelines.live.minute import Minute, TuningResult
from swiftqueue.pipelines.live.probation import Probation, Telemetry, files_of, rolled_back_since_last
from swiftqueue.pipelines.live.reservoir import EMPTY, ReservoirFile
from swiftqueue.pipelines.live.reservoir import FILE as RESERVOIR
from swiftqueue.pipelines.live.retrain import (
    MOST_PACKETS,
    SECONDS,
    RetrainError,
    Retraining,
    RetrainingResult,
)
from swiftqueue.pipelines.live.rounds_log import LOG_FILE, DeclinedError, RoundRecord
from swiftqueue.pipelines.live.runner import LEARNED, Runner
from swiftqueue.pipelines.live.runner import timed as _timed
from swiftqueue.pipelines.live.slices import SliceFolder
from swiftqueue.pipelines.live.worker import Worker
from swiftqueue.serving.deploy.deployment import deploy_version
from swiftqueue.serving.triton.endpoint import first_line
from swiftqueue.serving.triton.repository import LATENCY


@dataclass(frozen=True)
class RoundParams:
    """The parameters of a round."""

    learn_s: float  # seconds of telemetry that teach
    judge_s: float  # seconds of telemetry after them that judge
    lead_in_s: float  # seconds of telemetry before them that only fill the first decisions' history
    least_decisions: int  # least decisions in either part; with fewer the round is declined
    drift: float  # population stability index of an input above which a full re-train is due
    max_unknown_latency: float
    max_latency_s: float
    memory_decisions: int = 0  # most decisions of earlier stretches that teach beside the minute
    change: Change = PAPERS  # change of latency that the loss weights and the gate counts as late

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name in ("max_unknown_latency", "memory_decisions", "change"):  # their sections check them
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} is {value!r}; it must be a number above zero")


TURNS: Final = 50  # rounds over which senders get their shares
MOST_WORKERS_LOST: Final = 2  # losses with one re-trained candidate before it is given up; one may be chance
MAX_MISSING: Final = 0.01  # share of packets that telemetry lost; decisions around them show a wrong history


class Rounds(Runner[RoundRecord]):
    """The rounds of the latency model, which keep a warm worker between them."""

    def __init__(
        self,
        telemetry: Telemetry,
        params: RoundParams,
        finetune: FinetuneParams,
        model: str,
        retraining: Retraining | None = None,
    ) -> None:
        """Make the state folder and read the earlier rounds.

        Args:
            telemetry: returns the last seconds of a sender's packets.
            params: the parameters of a round.
            finetune: how a head is trained.
            model: name in the registry.
            retraining: starts a full re-train when the inputs have drifted; None only proposes it.
        """
        first = "`swiftqueue run` makes the first one"
        super().__init__(model, LATENCY, LOG_FILE, RoundRecord, first)
        self._telemetry = telemetry
        self._retraining = retraining
        self._params = params
        self._finetune = finetune
        self._worker = Worker()
        self.probation = Probation(telemetry, self._worker, model, params.lead_in_s, params.change)
        self._reference: tuple[int, Mapping[str, bytes]] | None = None  # the last one's number and files
        self._slices = SliceFolder(self._folder / "slices")
        self._reservoir = ReservoirFile(self._folder / RESERVOIR)
        history = self.history()
        learned = [one for one in history if one["outcome"] in LEARNED and one.get("newest_ns") is not None]
        # By sender, the last round that learned from it, and its newest event.
        self._learned = {str(one.get("sender", "")): (one["number"], one["newest_ns"]) for one in learned}
        self._turns = deque((str(one["sender"]) for one in history if one.get("sender")), TURNS)
        self._unmatched: dict[str, int] = {}  # ACKs without a packet by sender, as of its last round
        self._workers_lost = 0  # workers lost with the re-trained candidate that waits

    @property
    def turns(self) -> list[str]:
        """Return the senders of the last rounds, whatever their outcome, so that all get their turns."""
        return list(self._turns)

    def warm(self) -> None:
        """Start the fine-tuning worker and wait for it; do nothing when it is up.

        Raises:
            WarmWorkerError, ConnectionError, TimeoutError: the worker does not come up.
        """
        self._worker.warm()

    def close(self) -> None:
        """End the worker, and a re-train that runs."""
        self._worker.close()
        if self._retraining is not None:
            self._retraining.close()

    def watch(self) -> str:
        """Look after the served version like `Probation.watch`."""
        return self.probation.watch()

    def _ended(self, record: RoundRecord) -> None:
        if record.outcome in LEARNED and record.newest_ns is not None:
            self._learned[record.sender] = record.number, record.newest_ns
        if record.sender:
            self._turns.append(record.sender)
        if record.rolled_back:
            record.reason = f"{record.reason}; {record.rolled_back}"
        self._retrain(record)

    def _run(self, record: RoundRecord) -> None:
        record.rolled_back = rolled_back_since_last(self.log)
        try:
            self._round(record)
        except (WarmWorkerError, ConnectionError, TimeoutError):
            self._worker.close()  # the next round starts another
            raise

    def _round(self, record: RoundRecord) -> None:
        with _timed(record, "champion"):
            registry = Registry(self._model)
            champion = self._champion(registry, record)
        with _timed(record, "telemetry"):
            latest = self._latest()
        record.packets, record.newest_ns = latest.packets.height, latest.newest_ns
        with _timed(record, "validate"):
            latest = self._validate(latest, record)
        packets = latest.packets
        retrained = self._candidate(record)
        with tempfile.TemporaryDirectory() as temporary:
            with _timed(record, "fetch"):
                parent = registry.fetch(champion, Path(temporary) / "champion")
                champion_files = read_files(parent)
                reference = self._fetch_reference(registry, champion, record)
            begin = time.monotonic()
            try:
                tuned = self._tune(latest, parent, retrained, reference)
            except (DeclinedError, ConnectionError, TimeoutError):
                raise
            except WarmWorkerError:
                if self._retraining and retrained:
                    self._workers_lost += 1
                    if self._workers_lost >= MOST_WORKERS_LOST:
                        self._give_up(self._retraining, record)
                raise
            except (OSError, ValueError, RuntimeError):
                if self._retraining and retrained:  # whatever the cause, the next round tunes the champion
                    self._give_up(self._retraining, record)
                raise
            whole = time.monotonic() - begin
            # Starting the worker if needed, and the way to it and back.
            record.seconds |= {"workers": whole - sum(tuned.seconds.values()), **tuned.seconds}
            record.figures, record.loss = tuned.figures, tuned.loss
            record.remembered = tuned.remembered
            record.psi = dict(sorted(tuned.psi.items(), key=lambda item: -item[1]))
            record.retrain = max(tuned.psi.values()) > self._params.drift
            with _timed(record, "register"):
                record.version = challenger.register(
                    registry,
                    tuned,
                    Path(temporary) / "challenger",
                    champion=champion,
                    parent=parent,
                    packets=packets,
                    finetune=self._finetune,
                    retrained=retrained,
                )
            self._keep_past(tuned, record)
            if self._retraining and retrained:
                self._give_up(self._retraining, record)  # a failed push is not tried again
        record.reason = tuned.verdict.reason
        passed = tuned.verdict.passed
        if passed and self.probation.shadow_batches:
            with _timed(record, "shadow"):
                worse = self.probation.shadow(record, latest, tuned.files, champion_files)
            if worse:
                passed, record.reason = False, f"worse than the champion in shadow: {worse}"
                registry.decide(record.version, GateDecision(False, record.reason, champion))
        if passed:
            with _timed(record, "push"):
                deploy_version(record.version, judged_against=champion)
        record.outcome = "pushed" if passed else "kept"
        if retrained:
            record.retraining = record.outcome

    def _fetch_reference(
        self, registry: Registry, champion: int, record: RoundRecord
    ) -> Mapping[str, bytes] | None:
        """Return the files of the gate's reference; None where it is the champion, or cannot be read."""
        try:
            number = registry.reference(champion)
            if number == champion:
                return None
            if self._reference is None or self._reference[0] != number:
                self._reference = number, files_of(registry, number)
            return self._reference[1]
        except RegistryError as error:
            say(f"round {record.number}: judged without the reference: {first_line(str(error))}")
            return None

    def _keep_past(self, tuned: TuningResult, record: RoundRecord) -> None:
        """Save the judging slices and the reservoir for later rounds. A full disk keeps the previous ones."""
        try:
            self._slices.keep(tuned.slices)
            if tuned.reservoir is not None:
                self._reservoir.save(tuned.reservoir)
        except OSError as error:
            say(f"round {record.number}: its slice or the reservoir is not saved: {error}")

    def _candidate(self, record: RoundRecord) -> RetrainingResult | None:
        """Return a re-train's result; an unreadable one is dropped, and the round tunes the champion."""
        if self._retraining is None:
            return None
        try:
            return self._retraining.candidate()
        except RetrainError as error:
            say(f"round {record.number}: {first_line(str(error))}")
            self._give_up(self._retraining, record)
            return None

    def _give_up(self, retraining: Retraining, record: RoundRecord) -> None:
        """Drop a re-train's result; it counts as failed unless the round ends otherwise."""
        retraining.drop()
        self._workers_lost = 0
        record.retraining = "failed"

    def _retrain(self, record: RoundRecord) -> None:
        """Report a failed re-train after a round, and start one that is due."""
        if self._retraining is None:
            return
        try:
            self._retraining.finish()
            if record.retrain and not record.retraining and self._retraining.due():
                rate = record.packets / (self._params.lead_in_s + self._params.learn_s + self._params.judge_s)
                latest = self._telemetry(min(SECONDS, MOST_PACKETS / rate), record.sender)
                found = believed(latest.packets, 0)
                if line := found.line() or _gaps(latest):
                    raise RetrainError(line)
                self._retraining.start(replace(latest, packets=found.packets))
                record.retraining = "started"
        except (OSError, ValueError, RuntimeError, pl.exceptions.PolarsError) as error:
            record.retraining = "failed"
            record.reason = f"{record.reason}; {first_line(str(error))}"

    def _latest(self) -> RecentPackets:
        seconds = self._params.lead_in_s + self._params.learn_s + self._params.judge_s
        try:
            return self._telemetry(seconds, "")
        except FileNotFoundError as error:
            raise DeclinedError(str(error)) from error

    def _validate(self, latest: RecentPackets, record: RoundRecord) -> RecentPackets:
        """Return the telemetry without invalid claims.

        Raises:
            DeclinedError: the telemetry is too bad to learn from.
        """
        if latest.packets.is_empty():
            raise DeclinedError("no telemetry")
        name = record.sender = str(latest.packets["trace"][0])
        if latest.damaged:
            say(f"round {record.number}: {latest.damaged}; earlier telemetry is left out")
        number, newest_ns = self._learned.get(name, (0, None))
        if latest.newest_ns == newest_ns:
            raise DeclinedError(f"no telemetry since round {number}")
        # The packets of ACKs from before this program are long gone.
        before = self._unmatched.get(name, latest.unmatched_acks)
        self._unmatched[name] = latest.unmatched_acks
        found = believed(latest.packets, max(latest.unmatched_acks - before, 0))
        packets, record.refused = found.packets, dict(found.refused)
        if found.refused:
            said = ", ".join(f"{count} {kind}" for kind, count in found.refused.items())
            say(f"round {record.number}: impossible claims of sender {name} are refused: {said}")
        if line := found.line():
            raise DeclinedError(line)
        if line := _gaps(latest):
            raise DeclinedError(line)
        validation = ex.Validation()
        limits = self._params.max_unknown_latency, self._params.max_latency_s
        validation.run(ex.packets_check(name, packets, *limits))
        failures = validation.failures
        # Great Expectations leaves each frame in a cycle of references with few objects beside it: by itself
        # the collector would come after some forty rounds and half a gigabyte.
        del validation
        gc.collect()
        if failures:
            raise DeclinedError(f"bad telemetry: {failures[0]}")
        return replace(latest, packets=packets)

    def _tune(
        self,
        latest: RecentPackets,
        parent: Path,
        retrained: RetrainingResult | None,
        reference: Mapping[str, bytes] | None,
    ) -> TuningResult:
        packets = latest.packets
        newest_ns = int(packets["sent_ns"][-1])
        judge_from_ns = newest_ns - round(self._params.judge_s * 1e9)
        trained_on = parent / INPUTS_FILE
        minute = Minute(
            packets=packets,
            beginning=latest.beginning,
            learn_from_ns=judge_from_ns - round(self._params.learn_s * 1e9),
            judge_from_ns=judge_from_ns,
            champion=read_files(parent),
            retrained=retrained.files if retrained else None,
            reference=reference,
            earlier=self._slices.recent(),
            reservoir=self._reservoir.load() if self._params.memory_decisions else EMPTY,
            memory_decisions=self._params.memory_decisions,
            params=self._finetune,
            trained_on=np.load(trained_on, allow_pickle=False) if trained_on.is_file() else None,
            least_decisions=self._params.least_decisions,
            change=self._params.change,
        )
        tuned: TuningResult = self._worker.do(minute)
        return tuned


def _gaps(latest: RecentPackets) -> str:
    """Return why there are too many gaps; empty if there are not."""
    missing, packets = latest.missing_packets, latest.packets.height
    if missing <= MAX_MISSING * packets:
        return ""
    return f"telemetry has gaps: {missing} packets are missing among {packets}"
