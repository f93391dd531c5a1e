"""Who exports which metric, with which labels: what rules and dashboard may name.

A test compares it with the metrics that the code defines.
"""

from __future__ import annotations

from typing import Final

# Jobs, as Prometheus calls them: names of our metrics, their labels
OURS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "triton": {
        "swiftqueue_windows_total": ("model", "version"),
        "swiftqueue_refused_requests_total": ("model", "version"),
        "swiftqueue_head_loaded_seconds": ("model", "version", "encoder"),
        "swiftqueue_encoders": (),
    },
    "agent": {
        "swiftqueue_agent_batches_total": ("outcome",),
        "swiftqueue_agent_packets_total": ("queue",),
        "swiftqueue_agent_round_trip_seconds": (),
        "swiftqueue_agent_server_version": ("server",),
        "swiftqueue_agent_connected": ("server",),
        "swiftqueue_agent_model_refused": ("server",),
        "swiftqueue_agent_refused_models_total": ("server",),
        "swiftqueue_agent_stale_answers_total": (),
        "swiftqueue_agent_moved_unacked": (),
        "swiftqueue_agent_guard_receivers": ("state",),
        "swiftqueue_agent_guard_trials_total": (),
        "swiftqueue_agent_guard_stops_total": (),
        "swiftqueue_agent_guard_grown_total": (),
        "swiftqueue_agent_guard_advantage_total": (),
        "swiftqueue_agent_guard_pairs_total": (),
        "swiftqueue_agent_prediction_error_seconds": (),
        "swiftqueue_agent_forecasts_total": ("outcome",),
        "swiftqueue_agent_forecast_seconds": (),
        "swiftqueue_agent_rate_connections": (),
        "swiftqueue_agent_senders": (),
        "swiftqueue_agent_refused_senders_total": (),
        "swiftqueue_agent_remembered_packets": (),
        "swiftqueue_agent_overflowed_packets_total": (),
        "swiftqueue_agent_undelivered_decisions_total": (),
        "swiftqueue_agent_telemetry_dropped_frames_total": (),
    },
    "ingest": {
        "swiftqueue_ingest_events_total": ("kind",),
        "swiftqueue_ingest_batches_total": ("outcome",),
        "swiftqueue_ingest_refused_total": ("reason",),
        "swiftqueue_ingest_duplicates_total": (),
        "swiftqueue_ingest_gaps_total": (),
        "swiftqueue_ingest_missing_events_total": (),
        "swiftqueue_ingest_append_seconds": (),
        "swiftqueue_ingest_queue_depth": (),
        "swiftqueue_ingest_compact_seconds": (),
        "swiftqueue_ingest_compact_failures_total": (),
    },
    "scheduler": {
        "swiftqueue_rounds_total": ("outcome",),
        "swiftqueue_round_step_seconds": ("step",),
        "swiftqueue_gate_decisions_total": ("decision",),
        "swiftqueue_served_version": ("server",),
        "swiftqueue_served_version_age_seconds": ("server",),
        "swiftqueue_round_interval_seconds": (),
        "swiftqueue_input_drift_psi": (),
        "swiftqueue_retrain_proposed_total": (),
        "swiftqueue_retrains_total": ("event",),
        "swiftqueue_rollbacks_total": (),
        "swiftqueue_claims_refused_total": ("kind",),
    },
    "keeper": {
        "swiftqueue_part_restarts_total": ("part",),
        "swiftqueue_part_start_failures_total": ("part",),
        "swiftqueue_disk_free_bytes": (),
        "swiftqueue_disk_size_bytes": (),
        "swiftqueue_part_up": ("part",),
    },
}
# Of Prometheus, Triton and prometheus_client
OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "up": (),
    "nv_inference_request_success": ("model", "version"),
    "nv_inference_request_failure": ("model", "version", "reason"),
    "nv_inference_count": ("model", "version"),
    "nv_inference_exec_count": ("model", "version"),
    "nv_inference_request_duration_us": ("model", "version"),
    "nv_inference_queue_duration_us": ("model", "version"),
    "nv_inference_compute_infer_duration_us": ("model", "version"),
    "process_resident_memory_bytes": (),
    "process_open_fds": (),
}
