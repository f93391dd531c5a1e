"""The metrics that the parts export, with their labels, and the reference page made from them.

Rules and dashboard may name only these. The help texts stand beside the code that exports a metric.
`python -m swiftqueue.infra.monitoring.metrics > docs/METRICS.md`
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final

# Prometheus jobs: the metrics that each exports, with their labels
OURS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "triton": {
        "swiftqueue_windows_total": ("model", "version"),
        "swiftqueue_refused_requests_total": ("model", "version"),
        "swiftqueue_head_loaded_seconds": ("model", "version", "encoder"),
        "swiftqueue_encoders": (),
        "swiftqueue_sessions": (),
        "swiftqueue_sessions_opened_total": (),
        "swiftqueue_sessions_evicted_total": ("reason",),
        "swiftqueue_resends_total": (),
    },
    "agent": {
        "swiftqueue_agent_batches_total": ("outcome",),
        "swiftqueue_agent_packets_total": ("queue",),
        "swiftqueue_agent_round_trip_seconds": (),
        "swiftqueue_agent_server_version": ("server",),
        "swiftqueue_agent_connected": ("server",),
        "swiftqueue_agent_model_refused": ("server",),
        "swiftqueue_agent_refused_models_total": ("server",),
        "swiftqueue_agent_resends_total": ("server",),
        "swiftqueue_agent_rule_batches_total": (),
        "swiftqueue_agent_stale_answers_total": (),
        "swiftqueue_agent_moved_unacked": (),
        "swiftqueue_agent_guard_receivers": ("state",),
        "swiftqueue_agent_guard_trials_total": (),
        "swiftqueue_agent_guard_stops_total": (),
        "swiftqueue_agent_guard_grown_total": (),
        "swiftqueue_agent_guard_advantage_total": (),
        "swiftqueue_agent_guard_pairs_total": (),
        "swiftqueue_agent_predicted_latency_seconds": (),
        "swiftqueue_agent_prediction_error_seconds": (),
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
# Metrics of Prometheus, Triton and prometheus_client that rules and dashboard use
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

ROOMS: Final = ("serving", "pipelines", "infra")  # the folders whose code exports metrics
_TEXT: Final = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'  # C++ joins strings that follow each other
_CPP: Final = (
    re.compile(rf'\bk(?:Counter|Gauge),\s*"(swiftqueue_\w+)",\s*{_TEXT}'),
    re.compile(rf'\bfamily\(\s*"(\w+)",\s*{_TEXT}'),
)
_PREFIX: Final = re.compile(r'std::string\("(swiftqueue_\w+_)"\) \+ name')  # labels of every family of a file


def exported(project: Path) -> dict[str, str]:
    """Return the help text of each metric that the code in a checkout defines, by the metric's name."""
    found: dict[str, str] = {}
    for room in ROOMS:
        for path in sorted((project / room).rglob("*")):
            if "_build" in path.parts:
                continue
            if path.suffix == ".py":
                found.update(_in_python(ast.parse(path.read_text())))
            elif path.suffix in {".cc", ".h"}:
                found.update(_in_cpp(path.read_text()))
    return found


def _in_python(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or len(node.args) < 2:
            continue
        kind = ast.unparse(node.func).rpartition(".")[2].removesuffix("MetricFamily")
        texts = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
        if kind in {"Counter", "Gauge", "Histogram"} and str(texts[:1]).startswith("['swiftqueue_"):
            name = str(texts[0])
            # prometheus_client adds the suffix to a counter that has none.
            yield name if kind != "Counter" or name.endswith("_total") else f"{name}_total", str(texts[1])


def _in_cpp(text: str) -> Iterator[tuple[str, str]]:
    prefix = _PREFIX.search(text)
    for pattern in _CPP:
        for name, parts in pattern.findall(text):
            said = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', parts))
            yield name if name.startswith("swiftqueue_") else f"{prefix[1] if prefix else ''}{name}", said


def reference(project: Path) -> str:
    """Return docs/METRICS.md: every metric by job, with its labels and its meaning.

    Raises:
        KeyError: a listed metric has no help text in the code.
    """
    helps = exported(project)
    lines = [
        "# Metrics",
        "",
        "Each part exports these on its metrics port, and Prometheus scrapes them under the job's name.",
        "Triton also exports its own `nv_inference_*`.",
        "`python -m swiftqueue.infra.monitoring.metrics > docs/METRICS.md` makes this page from the code.",
    ]
    for job, metrics in OURS.items():
        lines += ["", f"## {job}", ""]
        for name, labels in metrics.items():
            meaning = helps[name].strip().rstrip(".")
            by = f" by {', '.join(labels)}" if labels else ""
            said = f"- `{name}`{by}: {meaning[0].lower()}{meaning[1:]}"
            lines += textwrap.wrap(said, 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(Path.cwd()), end="")
