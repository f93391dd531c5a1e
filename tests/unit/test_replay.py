"""Replay without a server: the events it feeds, the windows they make, the counts it gives."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import toy_world

from swiftqueue.feature_store.events.event_window import EventWindow
from swiftqueue.pipelines.live.encoding import event_windows
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io.packet_log import open_log
from swiftqueue.serving.agent.predictors.reference_client import AgentDecision, DecisionCounts
from swiftqueue.serving.agent.replay import RECORD_SCHEMA, as_frame, decide_all, record_table, replay_trace
from swiftqueue.serving.agent.replay_view import sparkline


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    toy_world.write_table(tmp_path, toy_world.uneven_table(1_203, 2_000_000))
    return tmp_path


class WindowKeeper:
    """Keeps the default-queue window of every decision, as SenderAgent computes it."""

    def __init__(self, tokens: int) -> None:
        self.window = EventWindow(tokens)
        self.windows: list[np.ndarray] = []
        self.sent = self.window.sent
        self.acked = self.window.acked

    def decide(self, first: int, decision_ns: int, *columns: np.ndarray) -> AgentDecision:
        self.windows.append(self.window.window(decision_ns, *columns)[0])
        return AgentDecision("no_model", tuple(columns[-1]))


def test_replayed_windows_are_the_offline_ones_bit_for_bit(folder: Path) -> None:
    log = open_log(str(folder), 0, None)
    keeper = WindowKeeper(64)
    for _ in decide_all(log, keeper, speed=0):  # type: ignore[arg-type]
        pass
    (offline_BWF,) = event_windows(toy_world.uneven_table(1_203, 2_000_000), 64)
    assert np.array_equal(np.stack(keeper.windows), offline_BWF)


def test_a_folder_of_one_trace_and_the_trace_folder_mean_the_same(folder: Path) -> None:
    assert (
        open_log(str(folder), 0, None).batches
        == open_log(str(folder / "trace=uneven"), 0, None).batches
        == range(150)
    )


def test_seconds_cut_the_trace(folder: Path) -> None:
    log = open_log(str(folder), 0, 0.5)
    assert 0 < len(log.batches) < 150
    assert log.sent_ns[-1] - log.sent_ns[0] <= 500_000_000


def test_a_later_start_sees_the_same_windows(folder: Path) -> None:
    """What was sent before the start fills the window, so its decisions are those of the whole replay."""
    whole, late = open_log(str(folder), 0, None), open_log(str(folder), 0.4, 0.2)
    first, last = late.batches[0], late.batches[-1]
    assert (
        late.sent_ns[first * 8] - late.sent_ns[0]
        >= 400_000_000
        > late.sent_ns[first * 8 - 8] - late.sent_ns[0]
    )
    assert late.sent_ns[-1] - late.sent_ns[0] <= 600_000_000
    seen = []
    for log in (whole, late):
        keeper = WindowKeeper(64)
        numbers = [batch for batch, _, _ in decide_all(log, keeper, speed=0)]  # type: ignore[arg-type]
        assert numbers == list(log.batches)
        seen.append(keeper.windows)
    assert np.array_equal(np.stack(seen[0][first : last + 1]), np.stack(seen[1]))


@pytest.mark.parametrize(
    ("trace", "error", "line"),
    [
        ("no-such-trace", FileNotFoundError, "neither a packet-table folder nor a trace"),
        ("EMPTY", ValueError, "holds no packet table"),
        ("TWO", ValueError, "holds 2 traces: name .*trace=NAME"),
        ("SHORT", ValueError, "less than one batch of 8"),
    ],
)
def test_what_cannot_be_replayed_is_named(
    tmp_path: Path, trace: str, error: type[Exception], line: str
) -> None:
    for name, traces in (("EMPTY", []), ("TWO", ["a", "b"]), ("SHORT", ["a"])):
        (tmp_path / name).mkdir()
        for each in traces:
            few = toy_world.uneven_table(7, 2_000_000).with_columns(trace=pl.lit(each))
            toy_world.write_table(tmp_path / name, few)
    path = tmp_path / trace
    with pytest.raises(error, match=line):
        open_log(str(path) if path.exists() else trace, 0, None)


@pytest.mark.parametrize(
    ("speed", "deadline_us", "seconds"),
    [
        (-1.0, 1, None),
        (math.nan, 1, None),
        (math.inf, 1, None),
        (1.0, 0, None),
        (1.0, 1, 0.0),
        (1.0, 1, math.nan),
    ],
)
def test_parameters_out_of_range_are_refused(
    folder: Path, speed: float, deadline_us: int, seconds: float | None
) -> None:
    with pytest.raises(ValueError, match="must be"):
        replay_trace(str(folder), speed=speed, deadline_us=deadline_us, seconds=seconds, as_json=True)


@pytest.mark.parametrize("agent", ["C++", "Python"])
def test_without_a_server_every_batch_keeps_its_default_and_is_counted(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    agent: str,
) -> None:
    import json
    import socket

    if agent == "Python":
        monkeypatch.setattr("swiftqueue.serving.agent.process.BINARY", tmp_path / "agent" / "_build" / "none")
    elif reason := agent_process.why_not_built():
        pytest.skip(reason)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and never listening: nobody can answer there
        monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", str(unused.getsockname()[1]))
        monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
        monkeypatch.setattr("swiftqueue.serving.agent.replay.FIRST_MODEL_S", 0.2)
        code = replay_trace(str(folder), speed=0, deadline_us=2_000, seconds=None, as_json=True)
    shown = capsys.readouterr()
    summary = json.loads(shown.out)
    assert ("the Python client decides" in shown.err) == (agent == "Python")
    assert "batches keep their default marking" in shown.err
    assert code == 1
    assert summary["batches"] == summary["failed"] == 150
    assert summary["failed_by_reason"] == {"error": 0, "no_model": 150}
    recorded = pl.read_parquet(summary["output"])
    assert recorded.height == 1_200
    assert (recorded["queue_chosen"] == recorded["queue_sent"]).all()


def test_counts_add_up() -> None:
    counts = DecisionCounts(batches=10, decided=4, late=3, error=2, no_model=1)
    assert counts.batches == counts.decided + counts.late + counts.failed


def test_sparkline_marks_the_unknown() -> None:
    assert sparkline([0.0, None, 1.0], 0.0, 1.0) == "▁·█"


def test_record_has_a_row_per_packet(folder: Path) -> None:
    log = open_log(str(folder), 0, None)
    y_2H = np.full((2, 8), 7.0, dtype=np.float32)
    decided = as_frame(0, 5, AgentDecision("decided", (0,) * 8, y_2H, 3, 500.0))
    late = as_frame(1, 6, AgentDecision("late", (1,) * 8))
    table = record_table(log, np.concatenate([decided, late]))
    assert table.schema == pl.Schema(RECORD_SCHEMA)
    assert table["packet"].to_list() == list(range(16))
    assert table["version"].to_list() == [3] * 8 + [None] * 8
    assert table["round_trip_us"].to_list() == [500.0] * 8 + [None] * 8
    assert table["predicted_us"].null_count() == 8
    assert table["outcome"].to_list() == ["decided"] * 8 + ["late"] * 8
    assert table["queue_chosen"].to_list() == ["classic"] * 8 + ["l4s"] * 8
    assert table["latency_us"].to_list() == [
        None if math.isnan(us) else us for us in log.latency_us[:16].tolist()
    ]
