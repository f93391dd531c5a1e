"""The virtual queue: exactly the stated rules, no leak, and a forecast of the queues that it can know."""

# Shapes: D decisions, H horizon (8 packets), C columns of a row.

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from virtual_queue_oracle import RATES, VirtualQueueOracle
from window_tables import MS, table_of, tables

from swiftqueue.feature_store.events.beginning import Beginning
from swiftqueue.feature_store.events.virtual_queue import (
    COLUMNS,
    Rule,
    VirtualQueueRows,
    replay_virtual_queue,
)
from swiftqueue.models.forecasters.forecaster import Forecaster
from swiftqueue.models.forecasters.queries import column, replayed
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.repeated.forecaster import RepeatedLatency, RepeatedParams
from swiftqueue.models.scoring.metrics import score_predictions
from swiftqueue.models.training.protocol import Slice
from swiftqueue.models.virtual_queue.forecaster import VirtualQueue, VirtualQueueParams

FEW = settings(max_examples=40, deadline=None)
# 64 packets, 1 ms apart, whose ACKs come 20 ms later; every fifth classic.
STEADY = table_of(
    [
        (MS, 20 * MS + i * 10_000, False, 1500, i % 3, i % 2, "classic" if i % 5 == 0 else "l4s")
        for i in range(64)
    ]
)
# ACKs at 2 s, where a packet's waiting is given up, and beyond a minute, where the packet is forgotten.
LATE = table_of(
    [
        (500 * MS, (2000 * MS, 61_000 * MS, 1999 * MS, None)[i % 4], False, 1500, 0, 0, "l4s")
        for i in range(160)
    ]
)


def rows_of(packets: pl.DataFrame, queue: int = -1, told: str = "all") -> VirtualQueueRows:
    return replay_virtual_queue(packets, np.arange(0, packets.height - 7, 8), queue=queue, told=told)


@pytest.mark.slow
@FEW
@given(tables(40), st.sampled_from([-1, 0, 1]))
@example(STEADY, -1)
@example(LATE, 1)
def test_rows_are_the_oracles(packets: pl.DataFrame, queue: int) -> None:
    oracle, got, rows = VirtualQueueOracle(packets), rows_of(packets, queue), packets.to_dicts()
    for d in range(len(got.queue_DH)):
        ahead = {"classic": 0, "l4s": 0}
        for place in range(8):
            packet = rows[8 * d + place]
            name = packet["queue"] if queue < 0 else ("classic", "l4s")[queue]
            assert got.queue_DH[d, place] == (name == "l4s")
            expected = oracle.row(8 * d, packet["receiver_id"], name, ahead[name])
            row = dict(zip(COLUMNS, got.row_DHC[d, place].tolist(), strict=True))
            for key, value in expected.items():
                rounded = pytest.approx(value, rel=1e-6, abs=1e-7, nan_ok=True)
                exact = value if not math.isnan(value) else rounded
                assert row[key] == (rounded if key in RATES else exact), (d, place, key)
            ahead[name] += packet["size_bytes"]


@FEW
@given(tables(), st.data())
@example(STEADY, None)
def test_cutting_a_trace_changes_nothing_before(packets: pl.DataFrame, data: st.DataObject | None) -> None:
    batch = 5 if data is None else data.draw(st.integers(0, packets.height // 8 - 1))
    cut_ns = int(packets["sent_ns"][: 8 * batch + 1].max())  # type: ignore[arg-type]
    unknown = pl.col("acked_ns") > cut_ns
    cut = packets[: 8 * (batch + 1)].with_columns(
        acked_ns=pl.when(unknown).then(None).otherwise("acked_ns"),
        latency_us=pl.when(unknown).then(None).otherwise("latency_us"),
    )
    for queue in (-1, 0, 1):
        whole = rows_of(packets, queue).row_DHC[: batch + 1]
        assert rows_of(cut, queue).row_DHC.tobytes() == whole.tobytes()


@FEW
@given(tables(), st.integers(-(10**18), 10**18))
def test_shifting_absolute_time_changes_nothing(packets: pl.DataFrame, shift_ns: int) -> None:
    shifted = packets.with_columns(pl.col("sent_ns", "acked_ns") + shift_ns)
    assert rows_of(shifted).row_DHC.tobytes() == rows_of(packets).row_DHC.tobytes()


def fifo(packets: int, us_per_byte: float, others: float, seed: int = 1) -> pl.DataFrame:
    """A sender's bursts in a queue that others fill for a share of the time; 10 ms away, one receiver."""
    rng = np.random.default_rng(seed)
    now_us = free_us = 0.0
    rows, before_us = [], 0.0
    for packet in range(packets):
        now_us += float(rng.exponential(60 if packet // 300 % 2 else 700))
        size = int(rng.choice([200, 1500]))
        drained = (1 - others) * (now_us - before_us)  # the rest of the time goes to the others' bytes
        free_us = max(0.0, free_us - drained)
        latency_ns = round((10_000 + free_us) * 1000)
        rows.append((round((now_us - before_us) * 1000), latency_ns, False, size, 0, 0, "l4s"))
        free_us += us_per_byte * size
        before_us = now_us
    return table_of(rows)


@pytest.mark.parametrize(("us_per_byte", "others"), [(0.16, 0.0), (0.32, 0.4)])
def test_the_right_rule_forecasts_a_fifo_exactly(us_per_byte: float, others: float) -> None:
    """Once a latency is known: bursts that build a queue are seen before their ACKs come."""
    table = fifo(3000, us_per_byte, others)
    rows = replay_virtual_queue(table, np.arange(1000, 2900))
    came_D = table["latency_us"].to_numpy()[1000:2900]
    assert came_D.max() > 30_000
    rule = Rule(us_per_byte, 1 - others, 0.0)
    # A queue that was empty in between has drained less than it could.
    sent_ns, latency_us = table["sent_ns"].to_numpy(), table["latency_us"].to_numpy()
    newest_D = np.searchsorted(
        sent_ns, sent_ns[1000:2900] - (rows.column("since_us")[:, 0] * 1e3).astype(int)
    )
    busy = np.array([latency_us[a : d + 1].min() > 10_001 for d, a in enumerate(newest_D, 1000)])
    assert busy.sum() > 300
    said_D = rows.forecast_us((rule, rule))[:, 0]
    error_D = np.abs(said_D - came_D)[busy]
    assert np.percentile(error_D, 90) < 5  # the least latency is known to a packet's time
    repeated_D = np.abs(rows.column("least_us")[:, 0] + rows.column("queueing_us")[:, 0] - came_D)[busy]
    assert error_D.mean() < 0.2 * repeated_D.mean()


def test_the_rates_are_found_online() -> None:
    table = fifo(6000, 0.32, 0.4)
    rows = replay_virtual_queue(table, np.arange(0, 5992, 8))
    assert rows.column("us_per_byte")[0, 0] == rows.column("drained")[0, 0] == 0
    assert rows.column("us_per_byte")[-1, 0] == pytest.approx(0.32, rel=0.15)
    assert rows.column("drained")[-1, 0] == pytest.approx(0.6, rel=0.15)
    online = Rule.online()
    said = rows.forecast_us((online, online))[-1, 0]
    same = Rule(*(float(rows.column(name)[-1, 0]) for name in RATES), online.overdue)
    assert said == rows.forecast_us((same, same))[-1, 0]


def test_a_packet_that_does_not_come_back_is_seen_before_its_ack() -> None:
    """20 ms are usual; packet 8 is 180 ms late, and packet 16 is decided 100 ms after it was sent."""
    usual = [(2 * MS, 20 * MS, False, 1500, 0, 0, "l4s")] * 8
    late = [(2 * MS, 200 * MS, False, 1500, 0, 0, "l4s"), *[(MS, 200 * MS, False, 1500, 0, 0, "l4s")] * 7]
    last = [(93 * MS, 200 * MS, False, 1500, 0, 0, "l4s"), *[(0, 200 * MS, False, 1500, 0, 0, "l4s")] * 7]
    rows = replay_virtual_queue(table_of([*usual, *late, *last]), np.array([16]))
    assert rows.column("overdue_us")[0, 0] == pytest.approx(80_000)
    for overdue in (0.0, 0.5, 1.0):
        rule = Rule(0, 0, overdue)
        assert rows.forecast_us((rule, rule))[0, 0] == pytest.approx(20_000 + overdue * 80_000)
    # A lost packet is not waited for: a packet sent later has left the queue.
    lost = [(2 * MS, None, False, 1500, 0, 0, "l4s"), *usual[1:], *usual, *last]
    assert replay_virtual_queue(table_of(lost), np.array([16])).column("overdue_us")[0, 0] == 0


def test_what_was_known_before_a_log_is_its_receivers_least() -> None:
    known = Beginning(least_us={"receiver": {0: 5_000.0}})
    rows = replay_virtual_queue(STEADY, np.array([40]), beginning=known)
    assert rows.column("least_us")[0].tolist() == [5_000.0, *rows.column("least_us")[0, 1:].tolist()]
    plain = replay_virtual_queue(STEADY, np.array([40]))
    own = rows.column("queueing_us") - plain.column("queueing_us")
    assert (own >= 0).all()
    with pytest.raises(ValueError, match="invalid beginning of a log: a receiver's least latency"):
        replay_virtual_queue(
            STEADY, np.array([40]), beginning=Beginning(least_us={"receiver": {0: math.nan}})
        )


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="packet 0: size_bytes 0 must be at least 1"):
        rows_of(STEADY.with_columns(size_bytes=pl.lit(0, pl.Int32)))
    with pytest.raises(ValueError, match="told 'some' is unknown"):
        rows_of(STEADY, told="some")
    with pytest.raises(ValueError, match="decisions must be ascending"):
        replay_virtual_queue(STEADY, np.array([8, 0]))


def test_the_fitted_rule_finds_late_packets_that_repeating_a_latency_does_not(tmp_path: Path) -> None:
    table = fifo(8000, 0.3, 0.2)
    learnt = TracePart("t", table, Slice(0, 700)).to_learn()
    part = TracePart("t", table, Slice(700, 1000))
    last = column(replayed(part).x_DHF, "last_latency_flow_us")
    precision = {}
    for name, kind, params in (
        ("fitted", VirtualQueue, VirtualQueueParams(rates="fitted")),
        ("online", VirtualQueue, VirtualQueueParams(rates="online")),
        ("repeated", RepeatedLatency, RepeatedParams(input="last_latency_queue_us")),
    ):
        said: list[str] = []
        model: Forecaster = kind.fit([learnt], params, 1, said.append)
        scores = score_predictions(model.predict(part), part.latencies_us(), last)
        assert scores["late"]["n_late"] > 100
        precision[name] = scores["late"]["average_precision"]
        assert len(said) == (2 if name == "fitted" else 0)  # a line for each queue
        if name != "repeated":
            with pytest.raises(ValueError, match=r"virtual-queue has no form that Triton serves"):
                model.export(tmp_path)
    assert precision["fitted"] >= 0.95 * precision["online"]
    assert min(precision["fitted"], precision["online"]) > 1.5 * precision["repeated"], precision


def test_a_rule_needs_a_latency_and_knows_a_median_where_none_is_visible() -> None:
    silent = STEADY.with_columns(latency_us=pl.lit(None, pl.Float32))
    with pytest.raises(ValueError, match="no latency is known in the training slices"):
        VirtualQueue.fit([TracePart("t", silent, Slice(0, 8))], VirtualQueueParams(rates="fitted"), 1, print)
    whole = TracePart("t", STEADY, Slice(0, 8))
    model = VirtualQueue.fit([whole], VirtualQueueParams(rates="fitted"), 1, print)
    first = model.predict(replace(whole, decisions=Slice(0, 1)))
    assert set(first.ravel().tolist()) == {np.float32(model.median_us)}
