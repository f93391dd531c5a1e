"""Every metric that rules and dashboard may name, and who exports it: the one list.

A test compares it with the metrics that the code defines, and with the names in `rules/` and in the
dashboard. Units are in the names; a histogram has the series NAME_bucket, NAME_sum and NAME_count.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """What the value does."""

    counter = "counter"  # only rises
    gauge = "gauge"
    histogram = "histogram"


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    kind: Kind
    job: str  # the job that exports it: triton, agent, ingest, scheduler, keeper
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def series(self) -> set[str]:
        """Names as they stand in queries."""
        if self.kind is Kind.histogram:
            return {f"{self.name}_{part}" for part in ("bucket", "sum", "count")}
        return {self.name}


C, G, H = Kind.counter, Kind.gauge, Kind.histogram

OURS: Final = (
    # The native backend, at Triton's metrics port (docs/SERVING.md)
    Metric("swiftqueue_windows_total", C, "triton", "windows predicted", ("model", "version")),
    Metric(
        "swiftqueue_refused_requests_total",
        C,
        "triton",
        "requests answered with an error",
        ("model", "version"),
    ),
    Metric(
        "swiftqueue_head_loaded_seconds",
        G,
        "triton",
        "Unix time of loading, of each version in memory",
        ("model", "version", "encoder"),
    ),
    Metric("swiftqueue_encoders", G, "triton", "distinct encoders in memory"),
    # The sender's agent
    Metric(
        "swiftqueue_agent_batches_total",
        C,
        "agent",
        "batches of 8: decided, late, error, no_model",
        ("outcome",),
    ),
    Metric("swiftqueue_agent_packets_total", C, "agent", "packets sent, by their queue", ("queue",)),
    Metric("swiftqueue_agent_round_trip_seconds", H, "agent", "request to answer"),
    Metric("swiftqueue_agent_server_version", G, "agent", "version in the last answer", ("server",)),
    Metric("swiftqueue_agent_connected", G, "agent", "1 while answers can be expected", ("server",)),
    Metric("swiftqueue_agent_model_refused", G, "agent", "1 while it refuses the model", ("server",)),
    Metric("swiftqueue_agent_refused_models_total", C, "agent", "models it could not use", ("server",)),
    Metric("swiftqueue_agent_stale_answers_total", C, "agent", "answers after their deadline, dropped"),
    Metric("swiftqueue_agent_moved_unacked", G, "agent", "moved packets without an ACK yet"),
    Metric(
        "swiftqueue_agent_prediction_error_seconds", H, "agent", "|predicted - seen latency| as ACKs come in"
    ),
    Metric("swiftqueue_agent_senders", G, "agent", "senders connected"),
    Metric("swiftqueue_agent_undelivered_decisions_total", C, "agent", "a sender's socket did not take them"),
    Metric("swiftqueue_agent_telemetry_dropped_frames_total", C, "agent", "frames nobody took in time"),
    # The telemetry ingest
    Metric("swiftqueue_ingest_events_total", C, "ingest", "events stored durably", ("kind",)),
    Metric("swiftqueue_ingest_batches_total", C, "ingest", "batches, by what became of them", ("outcome",)),
    Metric("swiftqueue_ingest_refused_total", C, "ingest", "batches refused", ("reason",)),
    Metric("swiftqueue_ingest_duplicates_total", C, "ingest", "batches that came again"),
    Metric("swiftqueue_ingest_gaps_total", C, "ingest", "batches missing in senders' sequences"),
    Metric("swiftqueue_ingest_append_seconds", H, "ingest", "one durable append"),
    Metric("swiftqueue_ingest_queue_depth", G, "ingest", "batches that wait for their append"),
    Metric("swiftqueue_ingest_compact_seconds", H, "ingest", "one run of the compaction"),
    Metric("swiftqueue_ingest_compact_failures_total", C, "ingest", "runs that ended in an error"),
    # The scheduler
    Metric("swiftqueue_rounds_total", C, "scheduler", "rounds by how they ended", ("outcome",)),
    Metric("swiftqueue_round_step_seconds", G, "scheduler", "the last round's seconds", ("step",)),
    Metric("swiftqueue_gate_decisions_total", C, "scheduler", "challengers judged", ("decision",)),
    Metric("swiftqueue_served_version", G, "scheduler", "version that answered a real request", ("server",)),
    Metric("swiftqueue_served_version_age_seconds", G, "scheduler", "since that was registered", ("server",)),
    Metric("swiftqueue_input_drift_psi", G, "scheduler", "largest stability index of an input, last round"),
    Metric("swiftqueue_retrain_proposed_total", C, "scheduler", "rounds whose inputs had drifted"),
    Metric("swiftqueue_retrains_total", C, "scheduler", "full re-trains, by what became of them", ("event",)),
    # The keeper of the live loop
    Metric("swiftqueue_part_restarts_total", C, "keeper", "parts that the keeper started again", ("part",)),
)

OTHERS: Final = (
    Metric("up", G, "prometheus", "1 where the last scrape succeeded"),
    Metric("nv_inference_request_success", C, "triton", "requests answered", ("model", "version")),
    Metric("nv_inference_request_failure", C, "triton", "requests refused", ("model", "version", "reason")),
    Metric("nv_inference_count", C, "triton", "inferences (windows)", ("model", "version")),
    Metric("nv_inference_exec_count", C, "triton", "batches run", ("model", "version")),
    Metric("nv_inference_request_duration_us", C, "triton", "sum over requests", ("model", "version")),
    Metric("nv_inference_queue_duration_us", C, "triton", "sum over requests", ("model", "version")),
    Metric("nv_inference_compute_infer_duration_us", C, "triton", "sum over requests", ("model", "version")),
    # prometheus_client exports it for each Python process
    Metric("process_resident_memory_bytes", G, "ingest", "memory of a process"),
    Metric("process_open_fds", G, "ingest", "open files of a process"),
)


def series() -> set[str]:
    """Every name that a query may use, recording rules aside."""
    return set().union(*(m.series for m in (*OURS, *OTHERS)))
