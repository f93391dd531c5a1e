"""Scenarios with two uplinks: what is wrong gets one line, and runs are what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from swiftqueue.laboratory.report.uplinks import (
    judge,
    places_in_brief,
    tables,
)
from swiftqueue.laboratory.runs import experience
from swiftqueue.laboratory.runs.experience import UPLINKS_SCHEMA
from swiftqueue.laboratory.runs.resolve import cells, control_of, resolve
from swiftqueue.laboratory.scenarios.files import environment_at, load, path_of
from swiftqueue.testbed.host import scenario as bed

FIRST = {"name": "first", "mbps": 20, "delay_ms": 15, "dscp": 0, "buffer_bdp": 4}
SECOND = FIRST | {"name": "second", "dscp": 8}


def refused(folder: Path, environment: dict[str, Any], **changes: Any) -> str:
    """The line that refuses a scenario which differs from `uplinks-equal` in some keys."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": "uplinks-equal", "environment": environment, **changes}))
    with pytest.raises(ValueError, match=r"^mine\.yaml: ") as error:
        load(path)
    assert "\n" not in str(error.value)
    return str(error.value).removeprefix("mine.yaml: ")


def of_s1(**groups: Any) -> dict[str, Any]:
    return {"senders": {"s1": {"groups": groups}}}


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"uplinks": [FIRST]}, "environment.uplinks: 1 given; a mark chooses between two"),
        (
            {"uplinks": [FIRST, SECOND, SECOND | {"name": "third", "dscp": 9}]},
            "environment.uplinks: 3 given; a mark chooses between two",
        ),
        (
            {"uplinks": [FIRST, SECOND | {"name": "first"}]},
            "environment.uplinks.1.name: 'first' is the first one's; give another",
        ),
        (
            {"uplinks": [FIRST, SECOND | {"dscp": 0}]},
            "environment.uplinks.1.dscp: 0 is the first one's; give another",
        ),
        ({"uplinks": [FIRST, SECOND | {"mark": 1}]}, "environment.uplinks.1.mark: unknown key"),
        (
            {"bottlenecks": [{"mbps": 20, "buffer_bdp": 2}]},
            "environment.uplinks: bottlenecks are given too; set bottlenecks: [] for uplinks",
        ),
        ({"uplinks": []}, "environment.bottlenecks: there is none; give bottlenecks, or two uplinks"),
        (
            {"uplinks": [FIRST | {"routed": False}, SECOND | {"dies_s": 5}]},
            "environment.uplinks: nothing is left to S1's packets; one must be routed and never die",
        ),
        (
            {
                "uplinks": [
                    FIRST,
                    SECOND | {"trace": "x.txt", "allotted": {"every_s": 15, "least": 0.5, "most": 2}},
                ]
            },
            "environment.uplinks.1.allotted: its rates are the trace's; give one of both",
        ),
        (
            of_s1(web_first={"uplink": "third"}),
            "environment.senders.s1.groups.web_first.uplink: there is no 'third', there is first and second",
        ),
        (
            {"senders": {"cross_first": {"groups": {"web": {"uplink": None}}}}},
            "environment.senders.cross_first.groups.web.uplink: is missing; "
            "only the captured sender's groups are steered",
        ),
        (
            of_s1(copa_calls={"uplink": "first"}, gcc_calls={"uplink": "first"}),
            "environment.senders.s1.groups: each has its uplink, so there is nothing to steer",
        ),
        (
            of_s1(web_first={"dscp": 3}),
            "environment.senders.s1.groups.web_first.dscp: the uplink's mark is its DSCP",
        ),
        (
            {"controls": {"moved_response": "classic"}},
            "environment.controls.moved_response: classic is for one link; uplinks leave ECN alone",
        ),
    ],
)
def test_wrong_uplinks_are_one_line(environment: dict[str, Any], line: str, tmp_path: Path) -> None:
    assert refused(tmp_path, environment) == line


def test_controls_and_scores_of_one_link_are_refused(tmp_path: Path) -> None:
    assert refused(tmp_path, {}, controls=["default", "no_l4s"]) == "controls: no_l4s is not for uplinks"
    assert refused(tmp_path, {}, regret=True) == "regret: is of one link's two queues, not of uplinks"
    mine = tmp_path / "mine.yaml"
    mine.write_text(yaml.safe_dump({"extends": "default", "controls": ["default", "least_mean"]}))
    with pytest.raises(ValueError, match=r"^mine\.yaml: controls: least_mean is for two uplinks$"):
        load(mine)
    mine.write_text(yaml.safe_dump({"extends": "default", "environment": of_s1(classic={"uplink": "first"})}))
    with pytest.raises(ValueError, match="there is no 'first', the scenario has none"):
        load(mine)


def run_of(name: str, point: str, seed: int = 321) -> dict[str, Any]:
    scenario = load(path_of(name))
    (cell,) = (
        cell
        for cell in cells(name, scenario)
        if (cell.point, cell.control, cell.seed) == (point, "default", seed)
    )
    return resolve(scenario, cell, {"kind": "default"}, [])


def rate_of(run: dict[str, Any], uplink: int | None) -> float:
    """The load that flows pinned to an uplink offer in messages and video."""
    return sum(
        float(group["flows"] * group["traffic"]["rate_bps"])
        for sender in run["senders"]
        for group in sender["groups"]
        if group.get("uplink") == uplink and group["traffic"]["kind"] in ("messages", "video")
    )


def test_a_run_says_which_link_each_group_takes_and_scales_by_the_load() -> None:
    light, heavy = (run_of("uplinks-equal", point) for point in ("0.4", "0.8"))
    assert [link["name"] for link in light["uplinks"]] == ["first", "second"]
    assert light["bottlenecks"][0]["delay_ms"] == 15
    s1 = {group["traffic"]["kind"]: group for group in light["senders"][0]["groups"]}
    assert "uplink" not in s1["real_time"]
    for uplink in (0, 1):
        assert rate_of(heavy, uplink) == pytest.approx(2 * rate_of(light, uplink))
    probes = [g for g in heavy["senders"][0]["groups"] if g["traffic"]["kind"] == "cbr"]
    assert {group["traffic"]["rate_bps"] for group in probes} == {5120}
    assert heavy["hold"] == "batch"


def test_capacity_is_allotted_anew_by_the_seed() -> None:
    rates = [run_of("uplinks-periodic", "0.6", seed)["bottlenecks"][1]["rates"] for seed in (321, 322)]
    assert rates[0] == run_of("uplinks-periodic", "0.8", 321)["bottlenecks"][1]["rates"]
    for one in rates:
        assert [at for at, _ in one] == [0, 15, 30, 45]
        assert all(10e6 <= rate <= 30e6 for _, rate in one)
    assert rates[0] != rates[1]


def test_the_three_comparisons_differ_in_what_they_compare() -> None:
    environment = environment_at(load(path_of("uplinks-equal")), "", "x")
    found = {
        name: control_of(environment, name, model=None, share=0)["of"]
        for name in ("least_mean", "least_latency", "least_srtt")
    }
    assert found == {"least_mean": "mean", "least_latency": "last", "least_srtt": "smoothed"}


def test_the_bed_refuses_uplinks(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mine: the bed has one link, no uplinks$"):
        bed.run("mine", load(path_of("uplinks-equal")), tmp_path, print)


def results(**of_controls: dict[str, float]) -> pl.DataFrame:
    """Rows of five seeds at two loads, whose figures are spread by the seed alone."""
    rows = []
    for control, figures in of_controls.items():
        for point in ("0.6", "0.8"):
            for seed in range(1, 6):
                same = {"frame_p99_s": 0.1, "cross_message_p99_s": 2.0, "cross_mbps": 10.0} | figures
                drawn = {name: value * (1 + 0.1 * seed) for name, value in same.items()}
                place = {"scenario": "mine", "point": point, "profile": "rfc9332", "control": control}
                rows.append({**place, "seed": seed, "spurious_share": 0.0, **drawn})
    return pl.DataFrame(rows, schema_overrides=UPLINKS_SCHEMA).with_columns(
        pl.lit(0.1).alias(name)
        for name in ("stall_s", "one_way_p99_s", "moved_share", "reordered_share", "retransmitted_share")
    )


def test_the_report_pairs_seeds_and_names_settled_harm() -> None:
    found = results(
        default={},
        least_latency={"frame_p99_s": 0.06},
        model={"frame_p99_s": 0.05, "cross_message_p99_s": 2.2, "cross_mbps": 9.0, "spurious_share": 0.05},
    )
    gains, costs, wanted = tables(found)
    last, ours = ([row for row in gains.rows if row[1] == name] for name in ("least_latency", "model"))
    assert last[0][6] == "-40.0 % (-40.0…-40.0) *"
    assert ours[0][6] == "-50.0 % (-50.0…-50.0) *"
    assert ours[0][8] == "-16.7 % (-16.7…-16.7) *"
    assert ours[0][7] == "–"  # averages were not run
    harms = {row[1]: row[6] for row in costs.rows}
    assert harms == {
        "default": "–",
        "least_latency": "none settled",
        "model": "cross messages, cross goodput, spurious retransmissions",
    }
    verdicts = {one.figure: one.verdict for one in judge(found)}
    assert verdicts["frame P99 at load 0.6, network over pinned"] == "held"
    assert verdicts["frame P99 at load 0.8, network over last latency"] == "held"
    assert verdicts["frame P99 at load 0.8, network over virtual queue"] == "not settled"  # not run
    assert len(wanted.rows) == len(verdicts)
    assert all(line.startswith("|") for line in gains.markdown()[3:])


def test_the_page_says_in_a_line_for_each_place_what_holds_and_who_harms() -> None:
    found = results(
        default={},
        always={"frame_p99_s": 0.12},
        least_latency={"frame_p99_s": 0.06, "cross_message_p99_s": 2.4},
        model={"frame_p99_s": 0.05},
        trees={"frame_p99_s": 0.059, "cross_mbps": 9.0},
    ).with_columns(scenario=pl.lit("uplinks-mine"))
    lines = [line.split(" | ")[4:] for line in places_in_brief(found)[2:]]
    assert lines[::2] == [["+20 % *", "-40 % *", "-50 % *", "-41 % * |"]] * 2
    assert lines[1::2] == [["+0 %", "+20 % (messages)", "+0 %", "+0 % (goodput) |"]] * 2


def test_publishing_replaces_a_scenarios_rows_and_leaves_others(tmp_path: Path) -> None:
    rows = results(default={}).with_columns(run=pl.lit("r"), program=pl.lit("p"))
    rows = rows.with_columns(unrouted=pl.lit(0, pl.Int64), diverted=pl.lit(0, pl.Int64))
    for folder, name, less in (("ours", "mine", 1.0), ("theirs", "mine", 2.0), ("theirs", "other", 3.0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        made = rows.with_columns(pl.col("frame_p99_s") / less, scenario=pl.lit(name)).select(*UPLINKS_SCHEMA)
        before = experience.load(tmp_path / folder, experience.UPLINKS)
        pl.concat([before, made]).write_parquet(tmp_path / folder / experience.UPLINKS)
    experience.publish(tmp_path / "ours", "mine", tmp_path / "theirs")
    found = experience.load(tmp_path / "theirs", experience.UPLINKS)
    by_name = {str(name): own.drop("scenario") for (name,), own in found.group_by("scenario")}
    ours = experience.load(tmp_path / "ours", experience.UPLINKS).drop("scenario")
    assert set(by_name) == {"mine", "other"}
    assert by_name["mine"].equals(ours)
    assert by_name["other"]["frame_p99_s"].to_list() == pytest.approx((ours["frame_p99_s"] / 3).to_list())
    assert not (tmp_path / "theirs" / experience.FILE).exists()  # nothing of it was there to publish


def test_few_seeds_settle_nothing() -> None:
    found = results(default={}, least_latency={"frame_p99_s": 0.06}).filter(pl.col("seed") < 5)
    gains, costs = tables(found)
    assert not [cell for row in gains.rows for cell in row if cell.endswith("*")]
    assert {row[6] for row in costs.rows} == {"–", "none settled"}
