"""The Grafana dashboard, as a list of panels; `swiftqueue monitor dashboard` writes its JSON.

The JSON is built with Grafana's own types. `picture.py` draws the same panels without Grafana.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from swiftqueue.common.atomic import write_file

FILE: Final = "swiftqueue.json"
DATASOURCE: Final = "swiftqueue-prometheus"  # uid in grafana/provisioning/datasources
WIDTH: Final = 24  # Grafana's grid
HEIGHT: Final = 7


@dataclass(frozen=True)
class Query:
    """A PromQL query and the legend of its series; `{{label}}` stands for a series' label."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One graph."""

    title: str
    unit: str  # Grafana's unit names
    description: str
    queries: tuple[Query, ...]
    stacked: bool = False


def _rate(metric: str, by: str) -> tuple[Query, ...]:
    return (Query(f"sum by ({by}) (rate({metric}[1m]))", f"{{{{{by}}}}}"),)


def _quantiles(metric: str, *quantiles: float, prefix: str = "") -> tuple[Query, ...]:
    return tuple(
        Query(f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[1m])))", f"{prefix}p{100 * q:g}")
        for q in quantiles
    )


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Served model": (
        Panel(
            "Version",
            "none",
            "Version that answers a real request, and the one that each agent last saw at each server.",
            (
                Query("swiftqueue_served_version", "{{server}}"),
                Query("swiftqueue_agent_server_version", "{{instance}} sees {{server}}"),
            ),
        ),
        Panel(
            "Age of the served version",
            "s",
            "A saw-tooth: it falls to zero at each push. Above 900 s three rounds brought nothing.",
            (Query("swiftqueue_served_version_age_seconds", "{{server}}"),),
        ),
        Panel(
            "Rounds in 15 minutes",
            "short",
            "Rounds by outcome; kept: the gate refused, declined: telemetry, skipped: the one before ran.",
            (Query("sum by (outcome) (increase(swiftqueue_rounds_total[15m]))", "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Refused models",
            "short",
            "1 while an agent cannot use the model there (damaged, or made for other features).",
            (
                Query("swiftqueue_agent_model_refused", "{{instance}} refuses {{server}}"),
                Query("sum(increase(swiftqueue_agent_refused_models_total[15m]))", "in 15 minutes"),
            ),
        ),
    ),
    "Prediction, as the sender sees it": (
        Panel(
            "Round trip",
            "s",
            "Time from the agent's request to the answer.",
            _quantiles("swiftqueue_agent_round_trip_seconds", 0.5, 0.9, 0.99),
        ),
        Panel(
            "Batches",
            "cps",
            "late: the prediction missed its deadline; late, error and no_model keep the default marking.",
            _rate("swiftqueue_agent_batches_total", "outcome"),
            stacked=True,
        ),
        Panel(
            "Deadline misses",
            "percentunit",
            "Share of all batches.",
            (Query("swiftqueue:agent_deadline_misses:ratio_rate1m", "late"),),
        ),
        Panel(
            "Decisions by queue",
            "pps",
            "Packets sent, by the queue they were marked for.",
            _rate("swiftqueue_agent_packets_total", "queue"),
            stacked=True,
        ),
        Panel(
            "Sessions",
            "short",
            "Senders whose events a server keeps; sessions opened, evicted and asked for again in a minute.",
            (
                Query("sum(swiftqueue_sessions)", "kept"),
                Query("sum(increase(swiftqueue_sessions_opened_total[1m]))", "opened"),
                Query(
                    "sum by (reason) (increase(swiftqueue_sessions_evicted_total[1m]))", "evicted: {{reason}}"
                ),
                Query("sum(increase(swiftqueue_resends_total[1m]))", "asked for again"),
                Query("sum by (server) (increase(swiftqueue_agent_resends_total[1m]))", "lost by {{server}}"),
            ),
        ),
        Panel(
            "Moved and not acknowledged",
            "short",
            "Beyond a share of the packets in flight the controller moves no more.",
            (
                Query("swiftqueue_agent_moved_unacked", "{{instance}}"),
                Query("sum(increase(swiftqueue_agent_stale_answers_total[1m]))", "stale answers a minute"),
            ),
        ),
        Panel(
            "The guard",
            "short",
            "Receivers by the guard's state; trials, stops and compared pairs a minute.",
            (
                Query("sum by (state) (swiftqueue_agent_guard_receivers)", "{{state}}"),
                Query("sum(increase(swiftqueue_agent_guard_trials_total[1m]))", "trials"),
                Query("sum(increase(swiftqueue_agent_guard_stops_total[1m]))", "stops"),
                Query("sum(increase(swiftqueue_agent_guard_grown_total[1m]))", "stops for growth"),
                Query("sum(increase(swiftqueue_agent_guard_advantage_total[1m]))", "stops for advantage"),
                Query("sum(increase(swiftqueue_agent_guard_pairs_total[1m]))", "pairs"),
            ),
        ),
        Panel(
            "Prediction error",
            "s",
            "|predicted - seen| latency, as ACKs come in.",
            (
                *_quantiles("swiftqueue_agent_prediction_error_seconds", 0.5, 0.9, 0.99),
                Query("swiftqueue:agent_prediction_error_seconds:mean_rate5m", "mean, 5 min"),
            ),
        ),
    ),
    "Server": (
        Panel(
            "Requests by version",
            "reqps",
            "Two versions overlap during a swap; refusals are requests with impossible windows.",
            (
                *_rate('nv_inference_request_success{model="swiftqueue"}', "version"),
                Query(
                    'sum by (version) (rate(nv_inference_request_failure{model="swiftqueue"}[1m]))',
                    "{{version}} refused",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Time in the server",
            "s",
            "Means over requests: all, waiting for a free instance, computing.",
            (
                Query("swiftqueue:triton_request_seconds:mean_rate1m", "request"),
                *(
                    Query(
                        f'sum(rate(nv_inference_{part}_duration_us{{model="swiftqueue"}}[1m])) / (sum(rate('
                        'nv_inference_request_success{model="swiftqueue"}[1m])) > 0) / 1e6',
                        name,
                    )
                    for part, name in (("queue", "queue"), ("compute_infer", "compute"))
                ),
            ),
        ),
        Panel(
            "Versions in memory",
            "short",
            "Heads loaded (they share an encoder) and distinct encoders.",
            (
                Query("count(swiftqueue_head_loaded_seconds)", "heads"),
                Query("sum(swiftqueue_encoders)", "encoders"),
            ),
        ),
    ),
    "Telemetry": (
        Panel(
            "Events stored",
            "cps",
            "Durable: an event counts once it would survive a kill.",
            _rate("swiftqueue_ingest_events_total", "kind"),
            stacked=True,
        ),
        Panel(
            "Batches",
            "cps",
            "Batches by outcome (busy and failed ones are sent again), and refusals by reason.",
            (
                *_rate("swiftqueue_ingest_batches_total", "outcome"),
                Query("sum by (reason) (rate(swiftqueue_ingest_refused_total[1m]))", "refused: {{reason}}"),
            ),
        ),
        Panel(
            "Duplicates, gaps and drops",
            "short",
            "Counts a minute. Duplicates are harmless retries; a gap is telemetry that never came.",
            (
                Query(
                    "sum(increase(swiftqueue_agent_telemetry_dropped_frames_total[1m]))",
                    "frames dropped by agents",
                ),
                Query("sum(increase(swiftqueue_ingest_duplicates_total[1m]))", "duplicates"),
                Query("sum(increase(swiftqueue_ingest_gaps_total[1m]))", "gaps"),
                Query("sum(increase(swiftqueue_ingest_missing_events_total[1m]))", "events missing"),
            ),
        ),
        Panel(
            "Append and compaction",
            "s",
            "Time of one append, until it is on the disk, and of one run of the compaction.",
            (
                *_quantiles("swiftqueue_ingest_append_seconds", 0.5, 0.99),
                *_quantiles("swiftqueue_ingest_compact_seconds", 0.99, prefix="compaction "),
            ),
        ),
        Panel(
            "Waiting batches",
            "short",
            "When the queue is full, senders are told to wait.",
            (Query("sum by (instance) (swiftqueue_ingest_queue_depth)", "{{instance}}"),),
        ),
        Panel(
            "Senders",
            "short",
            "Senders at the agents, and decisions a minute that their sockets did not take.",
            (
                Query("swiftqueue_agent_senders", "at {{instance}}"),
                Query("sum(increase(swiftqueue_agent_refused_senders_total[1m]))", "refused"),
                Query("sum(increase(swiftqueue_agent_undelivered_decisions_total[1m]))", "undelivered"),
            ),
        ),
        Panel(
            "Packets remembered",
            "short",
            "Packets whose ACK may still come, at each agent, and packets given up early a minute.",
            (
                Query("swiftqueue_agent_remembered_packets", "at {{instance}}"),
                Query("sum(increase(swiftqueue_agent_overflowed_packets_total[1m]))", "given up early"),
            ),
        ),
    ),
    "Rounds": (
        Panel(
            "Seconds by step",
            "s",
            "Seconds of the last round by step.",
            (Query('swiftqueue_round_step_seconds{step!="total"}', "{{step}}"),),
            stacked=True,
        ),
        Panel(
            "Gate decisions in an hour",
            "short",
            "Challengers that passed, and challengers that were refused.",
            (Query("sum by (decision) (increase(swiftqueue_gate_decisions_total[1h]))", "{{decision}}"),),
            stacked=True,
        ),
        Panel(
            "Drift of the inputs",
            "none",
            "Largest population stability index of an input; beyond --drift a full re-train is due.",
            (
                Query("swiftqueue_input_drift_psi", "index"),
                Query(
                    "sum(increase(swiftqueue_retrain_proposed_total[1h]))", "re-trains proposed in an hour"
                ),
                Query(
                    "sum by (event) (increase(swiftqueue_retrains_total[1h]))",
                    "re-trains {{event}} in an hour",
                ),
            ),
        ),
    ),
    "Processes": (
        Panel("Up", "none", "1 where the last scrape succeeded.", (Query("up", "{{job}} {{instance}}"),)),
        Panel(
            "Memory",
            "bytes",
            "A line that keeps rising is a leak.",
            (Query("process_resident_memory_bytes", "{{job}} {{instance}}"),),
        ),
        Panel("Open files", "short", "As above.", (Query("process_open_fds", "{{job}} {{instance}}"),)),
    ),
}


def panels() -> list[Panel]:
    """Return all panels, in the order they are shown."""
    return [panel for row in ROWS.values() for panel in row]


def dashboard_json() -> str:
    """Return Grafana's JSON of the dashboard."""
    from grafana_foundation_sdk.builders import common, prometheus, timeseries
    from grafana_foundation_sdk.builders.dashboard import Dashboard, Row
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.common import GraphDrawStyle, LegendDisplayMode, StackingMode
    from grafana_foundation_sdk.models.common import VisibilityMode as Points
    from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos

    source = DataSourceRef(type_val="prometheus", uid=DATASOURCE)

    def build(panel: Panel, position: GridPos, number: int) -> timeseries.Panel:
        drawn = (
            timeseries.Panel()
            .id(number)
            .title(panel.title)
            .description(panel.description)
            .unit(panel.unit)
            .datasource(source)
            .grid_pos(position)
            .draw_style(GraphDrawStyle.LINE)
            .show_points(Points.NEVER)
            .min(0)
            .fill_opacity(25 if panel.stacked else 0)
            .stacking(
                common.StackingConfig().mode(StackingMode.NORMAL if panel.stacked else StackingMode.NONE)
            )
            .legend(common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST))
        )
        for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
            drawn = drawn.with_target(
                prometheus.Dataquery()
                .expr(query.expr)
                .legend_format(query.legend)
                .ref_id(letter)
                .datasource(source)
                .range()
            )
        return drawn

    board = (
        Dashboard("SwiftQueue: the live loop")
        .uid("swiftqueue")
        .tags(["swiftqueue"])
        .description("From telemetry to a prediction: is the served model fresh, in time, and right?")
        .readonly()
        .refresh("5s")
        .time("now-30m", "now")
    )
    top, number = 0, 1
    for title, row in ROWS.items():
        board = board.with_row(Row(title).id(number).grid_pos(GridPos(h=1, w=WIDTH, x=0, y=top)))
        top, number = top + 1, number + 1
        per_line = min(len(row), 3)
        for k, panel in enumerate(row):
            width = WIDTH // per_line
            x, y = (k % per_line) * width, top + (k // per_line) * HEIGHT
            board = board.with_panel(build(panel, GridPos(h=HEIGHT, w=width, x=x, y=y), number))
            number += 1
        top += -(-len(row) // per_line) * HEIGHT
    return json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def main(
    output: Annotated[
        Path, typer.Option(help="folder for the file; Grafana's SWIFTQUEUE_DASHBOARDS names it")
    ] = Path("var/dashboards"),
) -> None:
    """Write Grafana's JSON of the dashboard.

    Example: swiftqueue monitor dashboard --output var/dashboards
    """
    output.mkdir(parents=True, exist_ok=True)
    write_file(output / FILE, dashboard_json())
    print(f"{output / FILE}: {len(panels())} panels")
