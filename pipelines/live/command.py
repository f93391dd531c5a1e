"""`swiftqueue schedule`: runs the scheduler as a process of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from swiftqueue.common import heartbeat
from swiftqueue.common.say import say
from swiftqueue.common.section import read, read_all
from swiftqueue.common.settings import settings
from swiftqueue.feature_store.telemetry.recent import (
    RecentPackets,
    latest_minutes,
    next_sender,
    sender_weights,
)
from swiftqueue.models.registry.register_params import RegisterParams
from swiftqueue.models.sharp import PAPERS, Change, change_of
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.warm_worker import WarmWorkerError
from swiftqueue.pipelines.live import DRIFT
from swiftqueue.pipelines.live.metrics import Metrics
from swiftqueue.pipelines.live.reservoir import memory_decisions
from swiftqueue.pipelines.live.retrain import Retraining
from swiftqueue.pipelines.live.rounds import RoundParams, Rounds
from swiftqueue.pipelines.live.runner import alone
from swiftqueue.pipelines.live.scheduler import Scheduler, stop_on_signals
from swiftqueue.pipelines.validate import ValidateParams
from swiftqueue.serving.ingest.server import telemetry_dir

PARAMS_FILE: Final = Path("params.yaml")
LEAD_IN_S: Final = 5.0  # several times the history of a decision, at any supported rate


def schedule(
    telemetry: Path | None,
    *,
    sender: str | None,
    every_s: float,
    learn_s: float,
    judge_s: float,
    least_decisions: int,
    limit: int | None,
    metrics_port: int,
    drift: float,
    retrain: bool,
) -> int:
    """Run rounds until told to stop; return 0 if the last one did not fail.

    With `retrain` a full re-train starts when the inputs have drifted; otherwise it is only proposed.

    Raises:
        ValueError: params.yaml, one of its parameters or SWIFTQUEUE_SENDERS is invalid; the line names it.
        OSError: the port is taken, or other rounds of this model run.
    """
    params = read_all(PARAMS_FILE)
    root = telemetry or telemetry_dir()
    weights = sender_weights(settings().senders)

    def of_turn(seconds: float, name: str) -> RecentPackets:
        whose = name or sender or next_sender(root, weights, rounds.turns)
        return latest_minutes(root, whose, seconds / 60, settled=True)

    with alone("schedule.lock", "`swiftqueue schedule`"):
        rounds = Rounds(
            of_turn,
            round_params(
                read(PARAMS_FILE, ValidateParams).model_dump(),
                learn_s=learn_s,
                judge_s=judge_s,
                least_decisions=least_decisions,
                drift=drift,
                remembered=memory_decisions(PARAMS_FILE),
                change=change_of(PARAMS_FILE),
            ),
            read(PARAMS_FILE, FinetuneParams),
            read(PARAMS_FILE, RegisterParams).model_name,
            Retraining(params) if retrain else None,
        )
        metrics = Metrics()
        scheduler = Scheduler(rounds, every_s, metrics)
        port = metrics.serve(metrics_port)
        heartbeat.start()
        stop_on_signals(scheduler)
        url = f"http://{settings().metrics_address}:{port}/metrics"
        say(f"scheduler: a round every {every_s:g} s; metrics at {url}")
        try:
            rounds.warm()  # so that the first round does not wait for the worker
        except (WarmWorkerError, ConnectionError, TimeoutError) as error:
            say(f"scheduler: {error}; each round tries again")
        try:
            scheduler.run(limit, say)
        finally:
            rounds.close()
        return int(rounds.failed())


def round_params(
    validate: Mapping[str, Any],
    *,
    learn_s: float,
    judge_s: float,
    least_decisions: int,
    drift: float = DRIFT,
    lead_in_s: float = LEAD_IN_S,
    remembered: int = 0,
    change: Change = PAPERS,
) -> RoundParams:
    """Return the parameters of a round, with the limits of section `validate`."""
    return RoundParams(
        learn_s=learn_s,
        judge_s=judge_s,
        lead_in_s=lead_in_s,
        least_decisions=least_decisions,
        drift=drift,
        max_unknown_latency=validate["max_unknown_latency"],
        max_latency_s=validate["max_latency_s"],
        memory_decisions=remembered,
        change=change,
    )
