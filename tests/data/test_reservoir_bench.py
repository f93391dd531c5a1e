"""The walk that judges the reservoir, on a made-up sender: nothing of what scores a round has taught it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from toy_world import START_NS, bottleneck_table

from benchmarks import reservoir
from pipelines.live import minute as live

pytestmark = pytest.mark.slow  # it trains heads


@pytest.fixture
def short(make_artifact: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setattr(reservoir, "PRETRAINED", make_artifact(1))
    for name, value in {"EVERY_S": 2.0, "LEARN_S": 3.0, "JUDGE_S": 1.0, "LEAD_IN_S": 1.0}.items():
        monkeypatch.setattr(reservoir, name, value)


def test_both_arms_walk_a_trace_and_their_difference_is_paired(
    short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[live.Minute] = []
    tune = live.tune

    def watched(minute: live.Minute) -> Any:
        seen.append(minute)
        return tune(minute)

    monkeypatch.setattr(live, "tune", watched)
    table = bottleneck_table("live", seconds=12, episodes=True)
    found = list(reservoir.walk(table))
    assert [one["at_s"] for one in found] == [5.0, 7.0, 9.0]
    (arm,) = reservoir.ARMS
    assert [one.memory_windows for one in seen] == [0, reservoir.ARMS[arm]] * 3
    for number, one in enumerate(seen):
        at_ns = int(table["sent_ns"][0]) + round(found[number // 2]["at_s"] * 1e9)
        assert int(one.packets["sent_ns"].max()) < at_ns  # type: ignore[arg-type]
        assert one.packets.filter(pl.col("acked_ns") > at_ns).is_empty(), (
            "what is not acknowledged is unknown"
        )
        assert at_ns > START_NS
    assert seen[0].reservoir.kept == ()
    assert seen[2].reservoir.kept == (), "the arm without has none"
    assert seen[3].reservoir.kept != ()
    rows = reservoir.rows(found)
    assert rows[-1].name.startswith(reservoir.NAMES[reservoir.LOG])
    assert rows[-1].rounds == len(found)
    gains = [one[arm][reservoir.LOG] - one[reservoir.WITHOUT][reservoir.LOG] for one in found]
    assert any(gains), "the arms serve different heads"
    assert f"(difference {sum(gains) / len(gains):+.4f}, " in rows[-1].name
    assert rows[-1].ratio == pytest.approx(rows[-1].reference / rows[-1].ours)


def test_a_folder_without_packets_is_one_line(short: None, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no packet table; `swiftqueue extract FILE -o "):
        reservoir.measure(1, str(tmp_path))
