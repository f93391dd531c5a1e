"""What a sender claims and cannot be."""

from __future__ import annotations

import polars as pl
import pytest
from toy_world import bottleneck_table

from swiftqueue.feature_store.quality.claims import KINDS, believed


@pytest.fixture(scope="module")
def packets() -> pl.DataFrame:
    return bottleneck_table("a", seconds=10, swing_ms=30)


def lies(packets: pl.DataFrame, every: int, column: pl.Expr) -> pl.DataFrame:
    """The table with another value of `latency_us` in every so many packets of known latency."""
    told = pl.col("latency_us").is_not_null() & (pl.col("packet") % every == 0)
    return packets.with_columns(latency_us=pl.when(told).then(column).otherwise("latency_us"))


def test_an_honest_sender_is_believed(packets: pl.DataFrame) -> None:
    found = believed(packets, 0)
    assert found.refused == {}
    assert found.line() == ""
    assert found.packets.equals(packets)


@pytest.mark.parametrize(
    ("kind", "lie"),
    [
        ("latency_below_path", pl.lit(1.0)),  # below any
        ("latency_below_path", pl.lit(9_000.0)),  # the way alone takes 20 ms
        ("latency_above_times", pl.col("latency_us") + 5_000),
    ],
)
def test_a_latency_that_cannot_be_is_unknown_and_counted(
    packets: pl.DataFrame, kind: str, lie: pl.Expr
) -> None:
    told = lies(packets, 200, lie.cast(pl.Float32))
    found = believed(told, 0)
    assert list(found.refused) == [kind]
    assert 40 < found.refused[kind] <= 50
    assert found.line() == ""
    was, now = (table["latency_us"].null_count() for table in (packets, found.packets))
    assert now - was == found.refused[kind]
    assert found.packets.drop("latency_us").equals(packets.drop("latency_us"))
    many = believed(lies(packets, 20, lie.cast(pl.Float32)), 0)
    if many.refused:  # so many low ones are the receiver's usual ones, if they are above any path's least
        assert many.line().startswith("sender a makes impossible claims: ")
        assert kind in many.line()


def test_a_line_carries_no_more_than_a_line(packets: pl.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_MOST_MBPS", "20")
    assert believed(packets, 0).refused == {}  # 6 Mbit/s
    at_once = packets.with_columns(sent_ns=pl.col("sent_ns") // 10**9 * 10**9)
    found = believed(at_once, 0)
    assert found.refused["rate"] > 0.9 * packets.height
    assert " rate among 10000 packets" in found.line()


def test_acks_of_nothing_count(packets: pl.DataFrame) -> None:
    assert believed(packets, 100).line() == ""
    assert believed(packets, 101).line() == (
        "sender a makes impossible claims: 101 ack_of_nothing among 10000 packets"
    )
    assert KINDS[-1] in believed(packets, 1).refused
