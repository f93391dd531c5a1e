"""The scheduler's metrics for Prometheus (docs/LIVE.md)."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from swiftqueue.common import metrics_page
from swiftqueue.common.settings import settings
from swiftqueue.feature_store.quality.claims import KINDS
from swiftqueue.pipelines.live.rounds_log import OUTCOMES, RETRAINING, RoundRecord
from swiftqueue.serving.deploy.log import age_s
from swiftqueue.serving.triton.endpoint import Triton
from swiftqueue.serving.triton.servers import connected, each

SKIPPED = "skipped"  # outcome of a round whose time came while another was running
SCRAPE_S = 1.5  # seconds for each of two questions to a server; Prometheus gives a scrape 4 s


class _ServedVersionCollector(Collector):
    """The version that answers at each server, and its age, asked of the servers at each scrape."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with connected(SCRAPE_S) as servers:
            answered = each(servers, Triton.served_version)
        served = GaugeMetricFamily(
            "swiftqueue_served_version",
            "version that answered a real inference; 0: none",
            labels=["server"],
        )
        age = GaugeMetricFamily(
            "swiftqueue_served_version_age_seconds",
            "seconds since that version was registered",
            labels=["server"],
        )
        for server, version in zip(servers, answered, strict=True):
            served.add_metric([server.address], version or 0)
            if version is not None and (seconds := age_s(version)) is not None:
                age.add_metric([server.address], seconds)
        yield served
        yield age


class Metrics:
    """The counters of the rounds, served on a port of SWIFTQUEUE_METRICS_ADDRESS."""

    def __init__(self) -> None:
        self._registry = here = CollectorRegistry()
        ProcessCollector(registry=here)  # memory and open files show leaks
        self._rounds = Counter("swiftqueue_rounds", "fine-tuning rounds", ["outcome"], registry=here)
        for outcome in (*OUTCOMES, SKIPPED):
            self._rounds.labels(outcome)
        self._steps = Gauge(
            "swiftqueue_round_step_seconds", "seconds of each step of the last round", ["step"], registry=here
        )
        self._gate = Counter("swiftqueue_gate_decisions", "judged challengers", ["decision"], registry=here)
        for decision in ("passed", "failed"):
            self._gate.labels(decision)
        self._interval = Gauge(
            "swiftqueue_round_interval_seconds", "seconds from one round to the next", registry=here
        )
        self._psi = Gauge(
            "swiftqueue_input_drift_psi",
            "largest population stability index of an input in the last round",
            registry=here,
        )
        self._retrain = Counter(
            "swiftqueue_retrain_proposed", "rounds whose inputs have drifted", registry=here
        )
        self._retrains = Counter("swiftqueue_retrains", "full re-trains by event", ["event"], registry=here)
        for event in RETRAINING:
            self._retrains.labels(event)
        self._rollbacks = Counter(
            "swiftqueue_rollbacks", "served versions that the scheduler put back", registry=here
        )
        self._claims = Counter(
            "swiftqueue_claims_refused", "impossible claims of senders, by kind", ["kind"], registry=here
        )
        for kind in KINDS:
            self._claims.labels(kind)
        here.register(_ServedVersionCollector())

    def serve(self, port: int) -> int:
        """Answer scrapes on a port (0: a free one); return its address."""
        return metrics_page.serve(self._registry, str(settings().metrics_address), port)

    def every(self, seconds: float) -> None:
        """Publish the seconds between rounds."""
        self._interval.set(seconds)

    def skipped(self, rounds: int) -> None:
        """Count rounds whose time came while another was running."""
        self._rounds.labels(SKIPPED).inc(rounds)

    def rolled_back(self) -> None:
        """Count an automatic rollback."""
        self._rollbacks.inc()

    def add(self, record: RoundRecord) -> None:
        """Count a finished round."""
        self._rounds.labels(record.outcome).inc()
        self._steps.clear()  # a declined round has few steps
        for step, seconds in record.seconds.items():
            self._steps.labels(step).set(seconds)
        for kind, count in record.refused.items():
            self._claims.labels(kind).inc(count)
        if record.psi:
            self._psi.set(max(record.psi.values()))
            self._retrain.inc(record.retrain)
        if record.retraining:
            self._retrains.labels(record.retraining).inc()
        if record.version is not None:
            self._gate.labels("failed" if record.outcome == "kept" else "passed").inc()
