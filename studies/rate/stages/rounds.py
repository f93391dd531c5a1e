"""Rounds of the rate model: flows that came, a new linear head, the gate, the registry, Triton.

They are those of the latency model (`pipelines/live/rounds.py`) in outcomes, log, registry and push. A round
is due when a folder has a path that no round has learned from; a path's tables are whole or not there, and
never change.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from swiftqueue.common.say import say
from swiftqueue.common.section import read
from swiftqueue.models.registry.entering import enter
from swiftqueue.models.registry.registry import LIVE, Registry
from swiftqueue.models.registry.store import texts
from swiftqueue.pipelines.live.metrics import Metrics
from swiftqueue.pipelines.live.rounds_log import DeclinedError, RoundRecord
from swiftqueue.pipelines.live.runner import LEARNED, Runner, alone, timed
from swiftqueue.pipelines.live.scheduler import Scheduler, line, stop_on_signals
from swiftqueue.serving.deploy.deployment import deploy_version
from swiftqueue.studies.rate.commands import KIND, PARAMS_FILE
from swiftqueue.studies.rate.model import gate
from swiftqueue.studies.rate.model.flows import load
from swiftqueue.studies.rate.model.networks import export_onnx, save
from swiftqueue.studies.rate.model.networks import load as load_network
from swiftqueue.studies.rate.model.tuning import (
    TUNED_ON,
    Division,
    RateRoundParams,
    divide,
    trained_on,
    tune_head,
)
from swiftqueue.studies.rate.samples.tables import paths_in
from swiftqueue.studies.rate.stages.register import RateRegisterParams

FIRST: Final = "`dvc repro studies/rate/dvc.yaml` and `swiftqueue deploy --model rate` make the first one"

LOG_FILE: Final = "rounds-rate.jsonl"


@dataclass
class RateRecord(RoundRecord):
    """The flows that a round of the rate model had, and its outcome."""

    flows: int = 0  # number of flows that no round has learned from
    paths: dict[str, str] = field(default_factory=dict)  # names of these flows' paths, by identity

    def came(self) -> str:
        """Return in words the flows that it was given."""
        return f"{self.flows} flows"


class RateRounds(Runner[RateRecord]):
    """Rounds on the flows of one folder."""

    def __init__(self, flows: Path, params: RateRoundParams, model: str) -> None:
        """Read what was.

        Args:
            flows: folder of the flows.
            params: how a head is tuned and judged.
            model: name in the registry.
        """
        super().__init__(model, KIND, LOG_FILE, RateRecord, FIRST)
        self._flows, self._params = flows, params

    def _run(self, record: RateRecord) -> None:
        with timed(record, "champion"):
            registry = Registry(self._model)
            champion = self._champion(registry, record)
        with tempfile.TemporaryDirectory() as temporary:
            with timed(record, "fetch"):
                network, about = load_network(registry.fetch(champion, Path(temporary) / "champion"))
            with timed(record, "flows"):
                divided = self._divided(about, record)
            with timed(record, "train"):
                tuned, record.loss = tune_head(network, divided.learn, self._params)
                source = Path(temporary) / "challenger"
                save(source, tuned, {**about, TUNED_ON: {**about.get(TUNED_ON, {}), **divided.taught}})
            with timed(record, "judge"):
                held_out = gate.HeldOut.in_order(divided.judge)
                bench = gate.Bench.of(divided.learn, divided.learn, held_out)
                entered = enter(
                    registry,
                    source,
                    score=bench.score,
                    judge=bench.judge,
                    complete=export_onnx,
                    tags={
                        "schema_hash": str(about["schema_hash"]),
                        "protocol": LIVE,
                        "source": f"flows/{self._flows.name}",
                    },
                    params=texts({RateRoundParams.section: self._params.model_dump()}),
                    metrics=bench.metrics,
                    tuned_from=champion,
                )
        record.version, record.reason = entered.version, entered.verdict.reason
        record.figures = {name: asdict(one) for name, one in bench.figures(entered.scores).items()}
        if entered.verdict.passed:
            with timed(record, "push"):
                deploy_version(entered.version, judged_against=champion, kind=KIND)
        record.outcome = "pushed" if entered.verdict.passed else "kept"

    def _divided(self, about: dict[str, Any], record: RateRecord) -> Division:
        """The flows that teach and judge.

        Raises:
            DeclinedError: they are too few, or a table is damaged.
        """
        tuned, last = set(about.get(TUNED_ON, {})), 0
        for one in self.history():
            if one["outcome"] in LEARNED and isinstance(paths := one.get("paths"), dict):
                tuned |= set(paths)
                last = one["number"]
        try:
            paths, every = paths_in(self._flows), load(self._flows)
            if paths_in(self._flows) != paths:
                raise DeclinedError(
                    f"{self._flows}: a path came while they were read; the next round takes it"
                )
        except (OSError, ValueError) as error:
            raise DeclinedError(str(error)) from error
        share = self._params.judge_share
        found = divide(every, paths, trained=trained_on(about), tuned=tuned, share=share)
        record.flows, record.paths = found.came, dict(found.new)
        if not found.came:
            since = f"since round {last}" if last else "that the champion has not learned from"
            raise DeclinedError(f"{self._flows}: no flows {since}")
        least, ended = self._params.least_flows, f" ({found.short} ended too soon)" if found.short else ""
        if min(len(found.learn), len(found.judge)) < least:
            raise DeclinedError(
                f"{self._flows}: {found.came} flows came{ended}, {len(found.learn)} teach and "
                f"{len(found.judge)} judge; at least {least} of each are needed"
            )
        return found


def schedule(flows: Path, every_s: float | None) -> int:
    """Run one round, or rounds until told to stop; 0 when the last one did not fail.

    Raises:
        ValueError: params.yaml or a parameter of it cannot be; the line names it.
        OSError: other rounds of this model run.
    """
    torch.set_num_threads(1)
    with alone("rate.lock", "`swiftqueue rate round`"):
        params, model = read(PARAMS_FILE, RateRoundParams), read(PARAMS_FILE, RateRegisterParams).model_name
        rounds = RateRounds(flows, params, model)
        if every_s is None:
            say(line(rounds.run()))
            return int(rounds.failed())
        # Nobody scrapes these: the metrics of rounds are the latency model's.
        scheduler = Scheduler(rounds, every_s, Metrics())
        stop_on_signals(scheduler)
        scheduler.run(None, say)
        return int(rounds.failed())
