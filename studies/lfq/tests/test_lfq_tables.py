"""LFQ's tables and the picture of its queues."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from swiftqueue.laboratory.runs import execution, experience, results
from swiftqueue.models.scoring.plot_style import svg
from swiftqueue.studies.lfq import queues as lfq_traces
from swiftqueue.studies.lfq import table as lfq_table
from swiftqueue.studies.lfq import tables as lfq
from swiftqueue.studies.lfq import traces
from swiftqueue.studies.lfq.results import DATA


def test_lfqs_tables_are_of_one_initial_window(project: Path) -> None:
    rows = lfq_table.read(project / DATA)
    window = pl.lit(10, pl.Int64).alias("initial_window")
    both = pl.concat([rows, rows.with_columns(window, pl.col("goodput_mbps", "limit_mean") * 2)])
    for table in (lfq.of_400, lfq.correlations, lfq.best_of, lfq.beyond):
        assert table(both) == table(rows)


def test_many_flows_of_lfq_share_by_jains_index() -> None:
    key = {**dict.fromkeys(experience.FLOWS_SCHEMA), "scenario": "lfq-flows", "point": "LFQ 10, 2"}
    rows = [
        key
        | {
            "seed": seed,
            "sender": str(k),
            "goodput_mbps": 3.0 * k + 1,
            "rtt_mean_s": 0.02,
            "rtt_p99_s": 0.1 * k,
        }
        for seed in range(1, 6)
        for k in range(2)
    ]
    line = lfq.many(pl.DataFrame(rows, schema=experience.FLOWS_SCHEMA))[-1]
    cells = ["5.0 (5.0 to 5.0)", "0.735 (0.735 to 0.735)", "20 (20 to 20)", "100 (100 to 100)"]  # 25 / 2 / 17
    assert line == f"| 2 | LFQ 10 | 5 | {' | '.join(cells)} |"


def truth(*packets: tuple[float, float | None, bool]) -> pl.DataFrame:
    """Return the truth of packets: when they came and how long they waited (ms; None: unknown), and drops."""
    return pl.DataFrame(
        {
            "sent_ns": [round(come * 1e6) for come, _, _ in packets],
            "queueing_us": [None if waited is None else waited * 1e3 for _, waited, _ in packets],
            "dropped": [dropped for *_, dropped in packets],
        },
        schema={"sent_ns": pl.Int64, "queueing_us": pl.Float32, "dropped": pl.Boolean},
    )


def test_the_queue_is_who_waits_at_once() -> None:
    """One waits over a bin without events; dropped ones and who finds nobody do not count."""
    packets = truth((1, 4, False), (5, 30, False), (6, 2, False), (7, None, True), (8.5, 0, False))
    assert traces.longest(packets, 0.07) == [2, 1, 1, 1, 0, 0]
    under_way = truth((41, 1, False), (42, None, False), (43, None, False))
    assert traces.longest(under_way, 0.07) == [0, 0, 0, 0, 2, 2]
    assert traces.longest(truth(), 0.03) == [0, 0]


def test_queue_traces_are_published_from_runs_that_kept_their_truth(tmp_path: Path) -> None:
    point = "LFQ 10; New Reno; 6 Mbit/s, 15 ms"
    key = {"scenario": traces.NAME, "point": point, "profile": "rfc9332", "control": "default", "seed": 1}
    row = {**dict.fromkeys(results.SCHEMA), **key, "run": "r", "program": "p", "seconds": 0.04}
    with pytest.raises(ValueError, match=r"has no runs of lfq-traces: swiftqueue lab run lfq-traces --truth"):
        lfq_traces.take(tmp_path, tmp_path)
    results.merge(tmp_path, [{**row, "status": results.COMPLETE}])
    with pytest.raises(
        ValueError, match=r"truth\.parquet is not there: swiftqueue lab run lfq-traces --truth"
    ):
        lfq_traces.take(tmp_path, tmp_path)
    kept = execution.folder_of(tmp_path, "r")
    kept.mkdir(parents=True)
    truth((1, 25, False), (2, 3, False)).write_parquet(kept / execution.TRUTH_PARQUET)
    (tmp_path / lfq_traces.FOLDER).mkdir(parents=True)
    lfq_traces.take(tmp_path, tmp_path)
    found = traces.load(tmp_path / lfq_traces.FOLDER)
    assert found.select("run", "time_s", "queue_packets").rows() == [
        ("r", 0, 2),
        ("r", 0.01, 1),
        ("r", 0.02, 1),
    ]
    assert lfq_traces.table(found)[2:] == ["| 6 Mbit/s, 15 ms | New Reno | 1 / 2 | – | – | – |"]
    longer = found.with_columns(pl.col("queue_packets") * 10)
    assert svg(lambda: lfq_traces.picture(found)) != svg(lambda: lfq_traces.picture(longer))


def test_the_published_queue_traces_are_of_all_rules_tcps_and_paths(project: Path) -> None:
    lines = lfq_traces.table(traces.load(project / DATA))[2:]
    assert len(lines) == 3 * 2
    assert lines[0].startswith("| 25 Mbit/s, 15 ms | New Reno | ")
    assert lines[-1].startswith("| 15 Mbit/s, 5 ms | BIC | ")
    assert all(line.endswith(" / 1000 |") and "–" not in line for line in lines)
