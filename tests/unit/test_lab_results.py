"""Results and report: what is kept, which intervals come out, and what the words say of which figures."""

from __future__ import annotations

import base64
import json
import math
import multiprocessing
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lab_rows import run_row, runs_of, table

from swiftqueue.laboratory.report.comparison import Place, places
from swiftqueue.laboratory.report.measures import MOVED, QUEUEING_P99
from swiftqueue.laboratory.report.page import make_report
from swiftqueue.laboratory.report.tables import brief, cell, chance, markdown, verdict
from swiftqueue.laboratory.report.targets import targets as judged
from swiftqueue.laboratory.runs import results
from swiftqueue.laboratory.runs.resolve import Cell, PlannedRun
from swiftqueue.laboratory.runs.results import LATER, NOT_RUN, SCHEMA, forget, load, merge
from swiftqueue.laboratory.runs.rows import complete, not_run
from swiftqueue.laboratory.scenarios.files import load as load_scenario
from swiftqueue.laboratory.scenarios.files import path_of
from swiftqueue.models.scoring.intervals import corrected, estimate, paired_change


def test_an_interval_is_students() -> None:
    found = estimate([1.0, 2.0, 3.0])
    assert found is not None
    assert found.low is not None
    # t(0.975, 2) = 4.303, s = 1, so 2 - 4.303 / sqrt(3)
    assert (found.mean, round(found.low, 3), found.n) == (2.0, -0.484, 3)
    one = estimate([4.0])
    assert one is not None
    assert (one.mean, one.low, one.high) == (4.0, None, None)
    assert not one.below(5)
    assert estimate([]) is None


def test_a_change_is_paired_by_seed() -> None:
    base = {1: 10.0, 2: 100.0, 3: 55.0}
    ours = {seed: value * 0.5 for seed, value in base.items()} | {9: 1e6}
    change = paired_change(ours, base)
    assert change is not None
    assert change.mean == pytest.approx(-0.5)
    assert change.high == pytest.approx(-0.5)  # however the seeds differ
    assert change.n == 3


def test_a_row_has_what_the_report_says_of_its_scenario(tmp_path: Path) -> None:
    scenario = load_scenario(path_of("sweep-rtt"))
    described = {"about": scenario.about, "figure": "11", "axis_log": False}
    described["axis_label"] = "propagation one way, ms"
    asked = PlannedRun(Cell("mine", "20 ms", 20.0, "uncoupled", "model", 1), run={})
    assert described.items() <= not_run(asked, scenario, "no model").items()

    quantiles = dict.fromkeys(("count", "mean", "p50", "p90", "p99", "p999", "max", "cdf"))
    numbers = dict.fromkeys(("packets", "arrived", "dropped", "reordered", "retransmissions"), 1)
    delays = dict.fromkeys(("queueing_us", "one_way_us", "latency_us"), quantiles)
    group = {"goodput_bps": 1e6, **numbers, **delays}
    sender = {"name": "s1", "groups": [{"ecn": "ect1", "dupack_threshold": 3}]}
    run = {"seconds": 30.0, "warmup_s": 5.0, "control": {"kind": "model"}, "senders": [sender]}
    groups = {"l4s": group, "classic": group}
    summary = {"run": run, "senders": {"s1": groups}, "classes": groups}
    summary |= {"classic_share": 0.5, "moved": {"share": 0.1}}
    summary |= {"decisions": {"unforeseen": 4}}
    none = {"count": 0, "unfinished": 0, "bytes": 0, "unfinished_bytes": 0, "byte_mean_s": None}
    some = {"count": 2, "unfinished": 1, "bytes": 300, "unfinished_bytes": 60, "byte_mean_s": 0.5}
    other = {"count": 1, "unfinished": 0, "bytes": 100, "unfinished_bytes": 0, "byte_mean_s": 1.3}
    summary |= {"messages": {"s1": {"l4s": some, "classic": other}, "cross": {"l4s": none, "classic": none}}}
    (tmp_path / "trace.json").write_text(json.dumps({"packets": 40}))
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "cost.json").write_text(json.dumps({"cpu_s": 3.0, "engine_s": 1.0}))
    row = complete(asked, scenario, "hash", "program", tmp_path)
    figures = {"warmup_s": 5.0, "engine_wall_s": 1.0, "cpu_s": 3.0, "unforeseen_share": 0.1}
    assert (described | figures).items() <= row.items()
    messages = (row["s1_message_us"], row["cross_message_us"], row["unfinished_share"])
    assert messages == (pytest.approx(0.7e6), None, 0.15)
    assert set(row) <= set(SCHEMA)
    del summary["decisions"]  # which other controls do not have
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    assert complete(asked, scenario, "hash", "program", tmp_path)["unforeseen_share"] is None


def test_newer_rows_take_the_place_of_older_ones(tmp_path: Path) -> None:
    merge(tmp_path, [run_row("default", 1, 10.0), run_row("oracle", 1, 10.0)])
    merge(tmp_path, [run_row("default", 1, 20.0)])
    assert load(tmp_path).select("control", "queueing_p99_us").rows() == [("default", 20.0), ("oracle", 10.0)]
    assert [p.name for p in tmp_path.iterdir()] == [results.FILE]


def test_a_scenarios_rows_can_be_taken_out(tmp_path: Path) -> None:
    merge(tmp_path, [run_row("default", 1), run_row("default", 1, scenario="other")])
    forget(tmp_path, ["mine", "never run"])
    assert load(tmp_path)["scenario"].to_list() == ["other"]


def _write_for_ever(output: Path) -> None:
    while True:
        merge(output, [run_row("default", seed) for seed in range(1, 40)])


def test_a_killed_writer_leaves_the_results_whole(tmp_path: Path) -> None:
    merge(tmp_path, [run_row("default", seed) for seed in range(1, 40)])
    for _ in range(3):
        writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(tmp_path,))
        writer.start()
        writer.join(0.3)
        writer.kill()
        writer.join()
        assert load(tmp_path).height == 39


def test_results_from_before_the_tail_are_read(tmp_path: Path) -> None:
    """What they lack is null; their quantiles end with the maximum."""
    old = table([run_row("default", 1, 10_000, queueing_max_us=80.0)])
    old = old.with_columns(pl.Series("queueing_cdf_us", [[0.0, 5.0, 70.0]]))
    for lacks, longest_us in ((LATER, 70.0), (LATER[-3:], 80.0)):
        old.drop(lacks).write_parquet(tmp_path / results.FILE)
        (row,) = load(tmp_path).iter_rows(named=True)
        assert list(row) == list(SCHEMA)
        assert {name: row[name] for name in LATER} == dict.fromkeys(LATER) | {"queueing_max_us": longest_us}
        assert row["queueing_p99_us"] == 10_000


def test_results_of_another_version_are_refused(tmp_path: Path) -> None:
    older = pl.DataFrame([run_row("default", 1)], schema=SCHEMA).drop("unforeseen_share")
    for other in (pl.DataFrame({"scenario": ["a"]}), older):
        other.write_parquet(tmp_path / results.FILE)
        with pytest.raises(ValueError, match=r"results\.parquet was made by another version; .* remove it"):
            load(tmp_path)


def test_damaged_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / results.FILE
    table([run_row("default", 1)]).write_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"results\.parquet is damaged; give another --output, or remove it"):
        load(tmp_path)


SAME_SHARE = {"share_of": "model"}
HERE = Place("mine", "", "uncoupled")


def verdict_of(controls: dict[str, float], control: str = "model", **common: Any) -> tuple[str, str]:
    return verdict(table(runs_of(controls, **common)), HERE, control)


def noisy(*shares: float, **figures: Any) -> list[dict[str, Any]]:
    """The model's rows, whose P99 changes by another share with each seed, beside five of default."""
    rows = [run_row("default", seed) for seed in range(1, len(shares) + 1)]
    return rows + [run_row("model", s, 10_000 * x, **figures) for s, x in enumerate(shares, 1)]


def test_a_gain_within_its_costs_helps() -> None:
    controls = {"default": 1, "model": 0.6, "oracle": 0.5}
    assert verdict_of(controls) == ("helps", "helps")
    assert verdict_of(controls, "oracle") == ("helps", "helps")
    assert verdict_of(controls, "default") == verdict_of(controls, "random") == ("–", "")


@pytest.mark.parametrize(
    ("cost", "within", "words"),
    [
        ({"rtt_p99_us": 44_000.0}, 41_900.0, "harms: RTT P99 +10.0 % (by 10.0 or more)"),
        ({"s1_goodput_bps": 4.5e7}, 4.95e7, "harms: S1's goodput -10.0 % (by 10.0 or more)"),
        ({"classic_share": 0.1}, 0.185, "harms: the classic flows' share -50.0 % (by 50.0 or more)"),
        ({"cross_goodput_bps": 3.6e7}, 3.95e7, "harms: cross traffic's goodput -10.0 % (by 10.0 or more)"),
    ],
)
@pytest.mark.parametrize("p99", [0.6, 1.0, 1.2])
def test_costs_beyond_their_limits_harm_whatever_p99_does(
    p99: float, cost: dict[str, float], within: float, words: str
) -> None:
    controls = {"default": 1, "model": p99}
    longer = "P99 +20.0 % (by 20.0 or more), " if p99 > 1 else ""
    assert verdict_of(controls, model=cost) == (words.replace("harms: ", f"harms: {longer}"), "harms")
    assert verdict_of(controls, model=dict.fromkeys(cost, within)) == verdict_of(controls)


@pytest.mark.parametrize(
    ("shares", "said", "kind", "target"),
    [
        ((1.010, 1.011, 1.009, 1.010, 1.010), "no harm", "no-harm", "held"),
        ((0.990, 0.991, 0.989, 0.990, 0.990), "helps", "helps", "held"),
        ((1.010, 1.030, 0.990, 1.010, 1.010), "not settled (11 seeds might)", "open", "not settled"),
        ((1.08, 1.4, 0.8, 1.02, 1.1), "not settled (93 seeds might)", "open", "not settled"),
        ((1.03, 1.05, 1.01, 1.03, 1.03), "not settled (11 seeds might)", "open", "not settled"),
        ((1.08, 1.09, 1.07, 1.08, 1.08), "harms: P99 +8.0 % (by 7.3 or more)", "harms", "not held"),
    ],
)
def test_a_verdict_and_its_target_agree(shares: tuple[float, ...], said: str, kind: str, target: str) -> None:
    place = Place("figure8", "", "rfc9332")
    of_place = {"scenario": "figure8", "profile": "rfc9332", "seconds": 300.0}
    rows = table([row | of_place for row in noisy(*shares)])
    assert verdict(rows, place, "model") == (said, kind)
    (found,) = [t for t in judged(rows) if t.wanted == "P99 queueing at most 2 % higher"]
    assert found.said == target


def test_a_longer_tail_harms_where_p99_falls() -> None:
    """As under rfc9332: P99 is as it was, and one packet in a thousand waits in the longer queue."""
    tails = {"queueing_p999_us": 12_000.0, "queueing_max_us": 60_000.0, "queueing_packets": 5e5}
    short = tails | {"queueing_max_us": 10_000.0}
    controls = {"default": 1, "model": 0.6}
    assert verdict_of(controls, default=short, model=short) == ("helps", "helps")
    longest = "harms: the longest wait +500.0 % (by 500.0 or more)"
    assert verdict_of(controls, default=short, model=tails) == (longest, "harms")
    p999 = short | {"queueing_p999_us": 15_000.0}
    assert verdict_of(controls, default=short, model=p999)[0].startswith("harms: P99.9 +25.0 %")
    few = {"queueing_packets": 99_999.0}  # of which P99.9 would rest on fewer than a hundred
    assert verdict_of(controls, default=short | few, model=p999 | few) == ("helps", "helps")
    fewer = {"queueing_packets": 9_999.0}
    assert verdict_of(controls, default=fewer, model=fewer) == ("not enough packets", "open")
    assert verdict_of(controls, default=short | fewer, model=tails | fewer) == (longest, "harms")


def test_longer_messages_harm() -> None:
    """Where they were measured: then they have a column of their own."""
    controls = {"default": 1, "model": 0.6}
    took = {"default": {"s1_message_us": 4e6}, "model": {"s1_message_us": 5e6}}
    harms = "harms: S1's messages +25.0 % (by 25.0 or more)"
    assert verdict_of(controls, **took) == (harms, "harms")
    said = markdown(table(runs_of(controls, **took)))
    assert "| control | S1, Mbit/s | cross, Mbit/s | classic, % | S1's messages, s | moved, %" in said
    assert "S1's messages" not in markdown(table(runs_of(controls)))


@pytest.mark.slow
def test_regret_has_a_column_where_it_was_scored(tmp_path: Path) -> None:
    rows = runs_of({"default": 1, "model": 0.6}, choice_right_share=0.625, choice_regret_mean_us=3_500.0)
    assert "| right, % | regret, ms |" in markdown(table(rows))
    merge(tmp_path, rows)
    assert "<th>regret, ms</th>" in page_of(tmp_path)
    assert "regret" not in markdown(table(runs_of({"default": 1, "model": 0.6})))


def test_no_limit_is_finer_than_a_packets_time() -> None:
    """3 % of 2.86 ms is less than the 120 us that a packet takes at 100 Mbit/s, but not than 1.2 us."""
    rows = runs_of({"default": 1, "model": 1.03})
    for rate_bps, said in ((100e6, "no harm"), (10e9, "harms: P99 +3.0 % (by 3.0 or more)")):
        parameters = json.dumps({"bottlenecks": [{"rate_bps": rate_bps}, {"rate_bps": 50e9}]})
        for row in rows:
            row |= {"parameters": parameters}
        scaled = [row | {"queueing_p99_us": row["queueing_p99_us"] * 0.286} for row in rows]
        assert verdict(table(scaled), HERE, "model")[0] == said


def test_what_is_asked_at_many_places_needs_more_to_be_settled() -> None:
    """By Holm: the least of four chances counts four times, the next three, none less than one before."""
    assert corrected([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert corrected([0.9, 0.8]) == [1, 1]
    assert corrected([]) == []
    shares = (0.85, 0.95, 0.80, 0.98, 0.88)  # p = 0.018: settled alone, and not among four
    alone = table([row | {"point": "a"} for row in noisy(*shares)])
    at = Place("mine", "a", "uncoupled")
    assert verdict(alone, at, "model") == ("helps", "helps")
    three = [row | {"point": point} for point in "bcd" for row in noisy(1.1, 0.9, 1.0, 1.05, 0.95)]
    among = pl.concat([alone, table(three)])
    assert verdict(among, at, "model") == ("no harm", "no-harm")
    few = [row for row in three if row["seed"] < 5]  # places that can settle nothing are not counted
    assert verdict(pl.concat([alone, table(few)]), at, "model") == ("helps", "helps")


def test_four_seeds_settle_nothing() -> None:
    assert verdict(table(noisy(0.1, 0.1, 0.1, 0.1)), HERE, "model") == (
        "not settled (4 seeds; 5 seeds might)",
        "open",
    )
    dear = {"classic_share": 0.1}
    said = "not settled (4 seeds; 5 seeds might): the classic flows' share -50.0 % (-50.0…-50.0)"
    assert verdict(table(noisy(0.1, 0.1, 0.1, 0.1, **dear)), HERE, "model") == (said, "open")


def test_a_change_is_one_of_geometric_means() -> None:
    """Ten times less, and half as much again: the mean of both is -20 %, and would end below -100 %."""
    change = paired_change({1: 1.0, 2: 30.0}, {1: 10.0, 2: 20.0})
    assert change is not None
    assert change.mean == pytest.approx(math.sqrt(0.1 * 1.5) - 1)
    assert change.low is not None
    assert change.high is not None
    assert -1 < change.low < change.mean < change.high
    doubled = paired_change({1: 2.0, 2: 5.0}, {1: 1.0, 2: 10.0})  # and halved
    assert doubled is not None
    assert doubled.mean == pytest.approx(0)
    assert doubled.chance(0, below=True) == doubled.chance(0, below=False) == pytest.approx(0.5)
    at_limit = doubled.chance(1.0, below=True)  # as far below twice as much as it is above half
    assert at_limit == pytest.approx(doubled.chance(-0.5, below=False))


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1e9), st.floats(1e-3, 1e9)), min_size=2, max_size=9))
def test_no_change_falls_by_more_than_all(pairs: list[tuple[float, float]]) -> None:
    change = paired_change(*(dict(enumerate(values)) for values in zip(*pairs, strict=True)))
    assert change is not None
    assert change.low is not None
    assert change.high is not None
    slack = 1e-9 * (1 + abs(change.mean))
    assert -1 <= change.low <= change.mean + slack
    assert change.mean <= change.high + slack


def test_where_nothing_is_left_nothing_is_settled() -> None:
    change = paired_change({1: 0.0, 2: 30.0, 3: 1.0}, {1: 10.0, 2: 20.0, 3: 0.0})
    assert change is not None
    assert (change.mean, change.low, change.n) == (-1, None, 2)
    assert change.chance(0, below=True) == 1
    assert verdict(table(noisy(0.5, 0.5, 0.5, 0.5, 0.0)), HERE, "model")[1] == "open"


def test_a_figures_interval_is_within_what_is_possible() -> None:
    rows = [run_row("default", seed, moved_share=s) for seed, s in enumerate((0.0, 0.0, 1.0, 1.0, 1.0), 1)]
    assert cell(table(rows), HERE, "default", MOVED) == ("60.0", "0.0…100.0")
    assert cell(table(rows[:4]), HERE, "default", MOVED) == ("50.0", "")  # few seeds say little of the spread
    rows = [run_row("default", seed, 9_000.0 if seed == 5 else 100.0) for seed in range(1, 6)]
    assert cell(table(rows), HERE, "default", QUEUEING_P99).interval.startswith("0.00…")


@pytest.mark.slow
def test_points_come_in_the_order_of_the_numbers_in_their_names_and_those_left_out_in_one_line(
    tmp_path: Path,
) -> None:
    names = ["20 ms, k 0", "1 ms, k 2", "5 ms, k 1", "1 ms, k 0"]
    rows = [row for name in names for row in runs_of({"default": 1, "oracle": 0.9}, point=name)]
    assert [place.point for place in places(table(rows))] == [names[3], names[1], names[2], names[0]]
    left_out = {"status": NOT_RUN, "reason": "left out by --points"}
    rows += [
        dict.fromkeys(SCHEMA)
        | {key: rows[0][key] for key in ("scenario", "profile", "about")}
        | {"point": point, "control": control, "seed": seed}
        | left_out
        for point in ("10 ms", "3 ms")
        for control in ("default", "oracle")
        for seed in (1, 2)
    ]
    merge(tmp_path, rows)
    page = page_of(tmp_path)
    assert page.count("left out by --points") == 1
    assert "not run at 3 ms, 10 ms: left out by --points" in page
    assert "3 ms</h3>" not in page


def test_what_is_not_settled_says_how_many_seeds_might() -> None:
    said, kind = verdict(table(noisy(0.9, 1.1, 1.0)), HERE, "model")
    assert kind == "open"
    found = re.fullmatch(r"not settled \(3 seeds; (\d+) seeds might\)", said)
    assert found is not None
    assert int(found[1]) > 5
    assert verdict(table(noisy(0.5, 2.08)), HERE, "model")[0] == "not settled (2 seeds; over 998 seeds might)"


def test_one_seed_settles_nothing() -> None:
    dear = {"classic_share": 0.1}
    assert verdict(table(noisy(0.1)), HERE, "model") == ("not settled (1 seed)", "open")
    cost = "not settled (1 seed): the classic flows' share -50.0 %"
    assert verdict(table(noisy(0.1, **dear)), HERE, "model") == (cost, "open")


def test_only_random_marking_of_the_models_share_is_compared_with_it() -> None:
    controls = {"default": 1, "model": 0.6, "random": 0.8}
    same = table(runs_of(controls, random=SAME_SHARE))
    assert chance(same, HERE, "model") == "-25.0 % (-25.0…-25.0)"
    assert chance(same, HERE, "random") == chance(same, HERE, "oracle") == "–"
    assert chance(table(runs_of(controls, random={"share_of": "oracle"})), HERE, "model") == "–"
    rows = runs_of(controls, random=SAME_SHARE)
    for row in rows:
        if row["control"] == "random" and row["seed"] > 3:
            row |= {"share_of": "oracle", "queueing_p99_us": 1.0}
    assert chance(table(rows), HERE, "model") == "-25.0 % (-25.0…-25.0)"


def swept() -> list[dict[str, Any]]:
    return [
        row
        for at, gain in ((10, 1.0), (100, 0.9), (1000, 0.5))
        for profile in ("rfc9332", "uncoupled")
        for row in runs_of(
            {"default": 1, "oracle": gain, "random": 0.95}, point=str(at), at=float(at), profile=profile
        )
    ]


def page_of(output: Path, *scenarios: str) -> str:
    return make_report(output, scenarios)[0].read_text()


@pytest.mark.long
@pytest.mark.slow
def test_the_page_shows_every_control_profile_and_gap(tmp_path: Path) -> None:
    rows = runs_of({"default": 1, "model": 0.6, "oracle": 0.5, "random": 0.9}, scenario="figure8")
    rows += runs_of({"default": 1, "oracle": 0.9}, scenario="figure8", profile="rfc9332")
    rows += swept()
    rows.append(
        dict.fromkeys(SCHEMA)
        | {"scenario": "figure8", "point": "", "profile": "rfc9332", "control": "model", "seed": 1}
        | {"status": NOT_RUN, "reason": "no --artifact was given"}
    )
    merge(tmp_path, rows)
    page = page_of(tmp_path)
    assert page.count('src="data:image/png;base64,') == 4  # how it opens, two of figure 8, one of the sweep
    assert "After the paper's figure 7b." in page
    assert "rfc9332, model: not run (1 run): no --artifact was given" in page
    assert "not asked for: no_l4s, oracle_in_order, last_latency, virtual_queue<" in page  # of figure 8
    assert "not asked for: no_l4s, oracle_in_order, last_latency, virtual_queue, model<" in page
    assert "take reordering for loss by: 3 duplicate ACKs" in page
    assert "Short runs of heavy-tailed messages vary: these figures are of 8 s after the warm-up." in page
    for word in ("goodput", "classic flows&#39; share", "RTT P99", "retransmitted", "reordered"):
        assert word in page, word
    for column in ("RTT P90, ms", "one-way P90, ms", "S1 L4S goodput", "S1 classic goodput", "CPU, s"):
        assert f"<th>{column}" in page, column
    assert "http" not in page  # self-contained
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "report").glob("*.png")}
    assert set(pictures) == {"opening.png", "figure8-1.png", "figure8-2.png", "mine.png"}
    assert all(base64.b64encode(picture).decode() in page for picture in pictures.values())
    assert page_of(tmp_path) == page  # the same results, the same page

    written = (tmp_path / "report" / "table.md").read_text()
    _, opened, missing = written.partition(f" |\n\n{markdown(load(tmp_path))}\n")
    assert opened
    assert missing.splitlines() == [
        "- figure8: rfc9332, model: not run (1 run): no --artifact was given",
        "- figure8: not asked for: no_l4s, oracle_in_order, last_latency, virtual_queue",
        "- mine: not asked for: no_l4s, oracle_in_order, last_latency, virtual_queue, model",
    ]


def test_each_scenario_has_a_table_and_a_sweep_one_of_each_point() -> None:
    rows = runs_of({"default": 1, "model": 0.6, "oracle": 0.5, "random": 0.9}, scenario="figure8")
    tables = markdown(table(rows + swept()))
    for profile in ("rfc9332", "uncoupled"):
        of_the_sweep = tables.partition(f"| `{profile}` | at | default, ms | random | oracle |")[2]
        assert [line.split(" | ")[1:5] for line in of_the_sweep.split("\n\n")[0].splitlines()[2:]] == [
            ["10", "10.00", "**-5**", "+0"],
            ["100", "10.00", "**-5**", "**-10**"],
            ["1000", "10.00", "**-5**", "**-50**"],
        ]
    _, _, rest = tables.partition("**figure8, `uncoupled`** (5 seeds)\n\n")
    scenario = rest.partition("\n\n")[0].splitlines()
    assert len(scenario) == 2 + 4  # all controls
    assert scenario[-1].startswith("| model | helps | -40.0 % (-40.0…-40.0) | – | 6.00 |")
    _, _, rest = tables.partition("**mine: oracle** against `default`\n\n")
    assert len(rest.partition("\n\n")[0].splitlines()) == 2 + 6  # the sweep's points


def test_a_table_in_brief_names_the_models_costs_beyond_their_limits() -> None:
    dear = {"rtt_p99_us": 44_000.0, "classic_share": 0.1, "moved_share": 0.3}
    for costs, said in (({}, "none"), (dear, "RTT P99 **+10**, the classic flows' share **-50**")):
        rows = runs_of({"default": 1, "model": 0.6}, point="10", at=10.0, model=costs)
        assert brief(table(rows), "uncoupled")[-1] == f"| mine | 10 | 10.00 | **-40** | {said} |"


def test_each_rule_of_loss_is_named_with_its_scenarios() -> None:
    rows = [run_row("default", 1, scenario=name, reordering=rule) for name, rule in (("a", "x"), ("b", "y"))]
    rows.append(run_row("no_l4s", 1, scenario="a", reordering="3 duplicate ACKs"))
    assert markdown(table(rows)).endswith("\n\nS1's L4S flows take reordering for loss by: x (a); y (b)\n")


@pytest.mark.slow
def test_a_users_scenario_is_not_taken_for_the_projects(tmp_path: Path) -> None:
    """What it is, and its axis, stand in the results: no file of that name is looked for."""
    rows = runs_of({"default": 1, "oracle": 0.5}, scenario="sweep-rtt", point="near", about="My own", at=1.0)
    merge(tmp_path, rows)
    page = page_of(tmp_path)
    assert "<p>My own</p>" in page
    assert "sweep-rtt: over load" in page
    assert "After the paper" not in page


@pytest.mark.slow
def test_long_runs_have_no_word_about_short_ones(tmp_path: Path) -> None:
    merge(tmp_path, runs_of({"default": 1, "oracle": 0.5}, seconds=300.0))
    assert "Short runs" not in page_of(tmp_path)


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="has no results yet; `swiftqueue lab run SCENARIO` makes them"
    ):
        make_report(tmp_path)
