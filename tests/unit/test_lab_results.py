"""Results and report: what is kept, which intervals come out, and what the words say of which figures."""

from __future__ import annotations

import base64
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from lab_rows import run_row, runs_of, table

from infra.lab import results
from infra.lab.findings import cpu_times, findings, sweep_summary
from infra.lab.intervals import estimate, paired_change
from infra.lab.report import make_report
from infra.lab.results import NOT_RUN, SCHEMA, forget, load, merge
from infra.lab.rows import complete, not_run
from infra.lab.runs import Asked, Cell
from infra.lab.scenario_file import load as load_scenario
from infra.lab.scenario_file import path_of
from infra.lab.tables import brief, markdown
from infra.lab.targets import targets as judged


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
    asked = Asked(Cell("mine", "20 ms", 20.0, "premise", "model", 1), run={})
    assert described.items() <= not_run(asked, scenario, "no model").items()

    quantiles = dict.fromkeys(("mean", "p50", "p90", "p99", "cdf"))
    numbers = dict.fromkeys(("packets", "arrived", "dropped", "reordered", "retransmissions"), 1)
    delays = dict.fromkeys(("queueing_us", "one_way_us", "latency_us"), quantiles)
    group = {"goodput_bps": 1e6, **numbers, **delays}
    sender = {"name": "s1", "groups": [{"ecn": "ect1", "dupack_threshold": 3}]}
    run = {"seconds": 30.0, "warmup_s": 5.0, "control": {"kind": "model"}, "senders": [sender]}
    groups = {"l4s": group, "classic": group}
    summary = {"run": run, "senders": {"s1": groups}, "classes": groups}
    summary |= {"classic_share": 0.5, "moved": {"share": 0.1}}
    summary |= {"decisions": {"unforeseen": 4}}
    (tmp_path / "trace.json").write_text(json.dumps({"packets": 40}))
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    (tmp_path / "cost.json").write_text(json.dumps({"cpu_s": 3.0, "engine_s": 1.0}))
    row = complete(asked, scenario, "hash", "program", tmp_path)
    figures = {"warmup_s": 5.0, "engine_wall_s": 1.0, "cpu_s": 3.0, "unforeseen_share": 0.1}
    assert (described | figures).items() <= row.items()
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


def said(controls: dict[str, float], **common: Any) -> tuple[str, str]:
    common["random"] = SAME_SHARE | common.get("random", {})
    (sentence,) = findings(table(runs_of(controls, **common)))
    return sentence.kind, sentence.text


def test_a_gain_within_its_costs_helps() -> None:
    kind, text = said(
        {"default": 1, "model": 0.6, "oracle": 0.5, "random": 0.9},
        model={"moved_share": 0.3},
        oracle={"moved_share": 0.4},
    )
    assert kind == "helps"
    assert "selection by the model lowers P99 queueing: -40.0 % (-40.0…-40.0) (95 %, 5 seeds)" in text
    assert "moving 30.0 %" in text
    assert "Its costs stay within the limits." in text
    assert "gets 80 % of the oracle's gain" in text
    assert "random marking of the same share: -33.3 %" in text
    assert "so the choice matters" in text


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"rtt_p99_us": 44_000.0}, r"RTT P99 \+10\.0 % .*at most 5 % more"),
        ({"s1_goodput_bps": 4.5e7}, r"S1's goodput -10\.0 % .*at least 98 %"),
        ({"classic_share": 0.1}, r"the classic flows' share -50\.0 % .*at least 90 %"),
    ],
)
def test_a_gain_that_costs_too_much_harms(cost: dict[str, float], words: str) -> None:
    reordered = {"moved_share": 0.3, "reordered_share": 0.1}
    kind, text = said({"default": 1, "model": 0.6, "oracle": 0.5}, model=reordered | cost)
    assert kind == "harms"
    assert re.search(f"It costs too much: {words}", text)
    assert ("What the queue gains, reordering takes back" in text) == ("rtt_p99_us" in cost)


@pytest.mark.parametrize(
    ("p99", "cost", "words"),
    [
        (
            0.6,
            {},
            "RTT P99 rises, though no more is reordered or sent again: reordered packets 0.00 % → 0.00 %",
        ),
        (1.2, {"reordered_share": 0.1}, "RTT P99 rises: reordered packets 0.00 % → 10.00 %"),
        (0.6, {"retransmitted_share": 0.1}, "What the queue gains, retransmission takes back: reordered"),
    ],
)
def test_reordering_takes_back_only_a_gain_and_only_where_it_rose(
    p99: float, cost: dict[str, float], words: str
) -> None:
    longer = {"moved_share": 0.3, "rtt_p99_us": 44_000.0}
    _, text = said({"default": 1, "model": p99, "oracle": 0.5}, model=longer | cost)
    assert words in text
    assert "reordering takes back" not in text


def test_moves_are_counted_and_not_compared_one_by_one() -> None:
    moved = {"model": {"moved_share": 0.3, "unforeseen_share": 0.05}, "oracle": {"moved_share": 0.3}}
    _, text = said({"default": 1, "model": 0.9, "oracle": 0.5}, **moved)
    assert "It moves 30.0 %, the oracle 30.0 %. 5.0 % of S1's packets are L4S ones without a dec" in text
    assert "others" not in text


def test_random_marking_of_another_share_is_not_compared() -> None:
    controls = {"default": 1, "model": 0.6, "random": 0.9}
    _, text = said(controls, model={"moved_share": 0.3}, random={"share_of": "oracle"})
    assert "same share" not in text
    assert "Random marking moved the oracle's share, so it says nothing of the choice." in text
    rows = runs_of(controls, model={"moved_share": 0.3}, random=SAME_SHARE)
    for row in rows:
        if row["control"] == "random" and row["seed"] > 3:
            row |= {"share_of": "oracle", "queueing_p99_us": 1.0}
    (sentence,) = findings(table(rows))
    assert "Against random marking of the same share with 3 of the seeds: -33.3 %" in sentence.text


def test_a_model_that_moves_too_little_is_told_why() -> None:
    kind, text = said(
        {"default": 1, "model": 0.99, "oracle": 0.5},
        model={"moved_share": 0.01},
        oracle={"moved_share": 0.4},
    )
    assert kind == "helps"
    assert "It moves too few: the oracle moves 40.0 %" in text


def test_noise_is_nothing() -> None:
    rows = runs_of({"default": 1, "oracle": 1})
    rows += [run_row("model", s, 10_000 * x) for s, x in enumerate((0.9, 1.1, 1.0, 1.2, 0.83), 1)]
    (sentence,) = findings(table(rows))
    assert sentence.kind == "nothing"
    assert "not settled, its mean within the 2 % that count as no harm." in sentence.text
    assert "There is no room to speak of" in sentence.text


@pytest.mark.parametrize(
    ("shares", "kind", "words", "verdict"),
    [
        ((1.010, 1.011, 1.009, 1.010, 1.010), "nothing", ": no harm.", "held"),
        ((0.990, 0.991, 0.989, 0.990, 0.990), "helps", "lowers P99 queueing", "held"),
        (
            (1.010, 1.030, 0.990, 1.010, 1.010),
            "nothing",
            "not settled, its mean within the 2 %",
            "not settled",
        ),
        ((1.08, 1.4, 0.8, 1.02, 1.1), "nothing", "not settled, its mean above the 2 %", "not settled"),
        ((1.03, 1.05, 1.01, 1.03, 1.03), "harms", "raises P99 queueing", "not settled"),
        ((1.08, 1.09, 1.07, 1.08, 1.08), "harms", "raises P99 queueing", "not held"),
    ],
)
def test_a_sentence_and_its_target_agree(
    shares: tuple[float, ...], kind: str, words: str, verdict: str
) -> None:
    here: dict[str, Any] = {"scenario": "figure8", "profile": "rfc9332", "seconds": 300.0}
    rows = [run_row("default", seed, **here) for seed in range(1, 6)]
    rows += [run_row("model", s, 10_000 * x, moved_share=0.3, **here) for s, x in enumerate(shares, 1)]
    (sentence,) = findings(table(rows))
    assert sentence.kind == kind
    assert words in sentence.text
    (target,) = [t for t in judged(table(rows)) if t.wanted == "P99 queueing at most 2 % higher"]
    assert target.said == verdict


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ({"rtt_p99_us": 44_000.0}, r"RTT P99 \+10\.0 % "),
        ({"s1_goodput_bps": 4.5e7}, r"S1's goodput -10\.0 % "),
        ({"classic_share": 0.1}, r"the classic flows' share -50\.0 % "),
    ],
)
def test_costs_without_a_gain_are_harm(cost: dict[str, float], words: str) -> None:
    rows = runs_of({"default": 1, "oracle": 1})
    for seed, share in enumerate((0.9, 1.1, 1.0, 1.2, 0.8), 1):
        rows.append(run_row("model", seed, 10_000 * share, moved_share=0.3, **cost))
    (sentence,) = findings(table(rows))
    assert sentence.kind == "harms"
    assert "no harm" not in sentence.text
    assert re.search(f"no gain is settled. It costs too much: {words}", sentence.text)


def test_an_oracle_that_costs_too_much_harms() -> None:
    kind, text = said({"default": 1, "oracle": 0.5}, oracle={"moved_share": 0.4, "classic_share": 0.1})
    assert kind == "harms"
    assert "There is room" in text
    assert "Its costs are too high: the classic flows' share -50.0 %" in text


def test_a_model_that_moves_nothing_is_said() -> None:
    kind, text = said({"default": 1, "model": 1, "oracle": 0.5, "random": 1}, oracle={"moved_share": 0.4})
    assert kind == "nothing"
    assert "the model moved no packet, so nothing changed. There is room" in text
    assert "It moves too few: the oracle moves 40.0 %" in text
    assert "random" not in text


def test_a_worse_queue_harms() -> None:
    kind, text = said({"default": 1, "model": 1.2, "oracle": 1.1})
    assert kind == "harms"
    assert "raises P99 queueing: +20.0 %" in text
    assert "even the oracle makes P99 worse" in text


def test_an_oracle_that_chance_beats_is_no_bound() -> None:
    moved = {"model": {"moved_share": 0.7}, "random": {"moved_share": 0.7}, "oracle": {"moved_share": 0.6}}
    _, text = said({"default": 1, "model": 0.6, "oracle": 0.6, "random": 0.5}, **moved)
    assert "It is no upper bound: 70.0 % moved by chance change P99 by -50.0 %" in text
    _, text = said({"default": 1, "model": 0.6, "oracle": 0.5, "random": 0.6}, **moved)
    assert "upper bound" not in text
    moved["random"] = {"moved_share": 1e-4}
    _, text = said({"default": 1, "model": 0.6, "oracle": 0.6, "random": 0.5}, **moved)
    assert "upper bound" not in text  # 0.0 % moved are nothing moved


@pytest.mark.parametrize(
    ("random", "words"),
    [
        (0.8, "-25.0 % (-25.0…-25.0), so the choice matters."),
        (0.5, "+20.0 % (+20.0…+20.0), so choosing did worse than chance."),
        (0.6, "+0.0 % (+0.0…+0.0), so no choice is shown."),
    ],
)
def test_a_choice_is_compared_with_chance(random: float, words: str) -> None:
    _, text = said({"default": 1, "model": 0.6, "random": random}, model={"moved_share": 0.3})
    assert f"Against random marking of the same share: {words}" in text


def test_room_that_is_not_settled_is_not_denied() -> None:
    rows = runs_of({"default": 1, "model": 1})
    rows += [run_row("oracle", s, 10_000 * x) for s, x in enumerate((0.3, 1.1, 0.5, 1.2, 0.6), 1)]
    (sentence,) = findings(table(rows))
    assert "There is no room that is settled: the oracle changes P99 by -26.3 %" in sentence.text


def test_a_share_without_a_choice_speaks_for_itself() -> None:
    kind, text = said({"default": 1, "random": 0.7}, random={"moved_share": 0.25})
    assert kind == "helps"
    assert "25.0 % moved by chance change P99 by -30.0 %" in text
    kind, text = said({"default": 1, "random": 0.7}, random={"moved_share": 1.0, "classic_share": 0.1})
    assert kind == "harms"
    assert "It costs too much: the classic flows' share -50.0 %" in text


def test_one_seed_settles_nothing() -> None:
    moved = {"moved_share": 0.5}
    rows = [run_row("default", 1), run_row("model", 1, 1000, **moved), run_row("oracle", 1, 900, **moved)]
    rows.append(run_row("random", 1, 5000, share_of="model", **moved))
    (sentence,) = findings(table(rows))
    assert sentence.kind == "nothing"
    assert "by -90.0 % (1 seed, which settles nothing)" in sentence.text
    assert "not settled, though its mean is lower" in sentence.text
    assert "of the same share: -80.0 %, 1 seed, which settles nothing." in sentence.text


def test_without_a_model_the_oracle_speaks_and_without_both_nobody() -> None:
    kind, text = said({"default": 1, "oracle": 0.5}, oracle={"moved_share": 0.4})
    assert kind == "helps"
    assert text.endswith(
        "There is room: the oracle changes P99 by -50.0 % (-50.0…-50.0), moving 40.0 %. No model was run."
    )
    assert said({"default": 1})[0] == "note"


def swept(**of_oracle: float) -> list[dict[str, Any]]:
    return [
        row
        for at, gain in ((10, 1.0), (100, 0.9), (1000, 0.5))
        for profile in ("rfc9332", "premise")
        for row in runs_of(
            {"default": 1, "oracle": gain, "random": 0.95},
            point=str(at),
            at=float(at),
            profile=profile,
            oracle=of_oracle if at != 100 else {},
        )
    ]


def test_a_sweep_is_summed_up_by_where_it_helps() -> None:
    lines = sweep_summary(table(swept()))
    assert [s.text for s in lines] == [
        f"mine, {profile}, oracle: lowers P99 queueing at 100 (-10 %), 1000 (-50 %); "
        "no settled gain or harm at 10 (+0 %)."
        for profile in ("premise", "rfc9332")
    ]
    assert {s.kind for s in lines} == {"mixed"}


def test_a_sweep_is_as_red_at_the_top_as_below() -> None:
    """Points where costs break the limits are named with them, and judged as below."""
    runs = table(swept(rtt_p99_us=44_000.0, classic_share=0.1))
    costs = "RTT P99 +10 %; the classic flows' share -50 %"
    assert sweep_summary(runs)[0].text == (
        f"mine, premise, oracle: lowers P99 queueing at 100 (-10 %); lowers P99 queueing, "
        f"but costs too much, at 1000 (-50 %; {costs}); no settled gain or harm, "
        f"but costs too much, at 10 (+0 %; {costs})."
    )
    dear = runs.filter(pl.col("point") != "100")
    assert {s.kind for s in sweep_summary(dear)} == {s.kind for s in findings(dear)} == {"harms"}


def test_what_the_model_costs_is_said() -> None:
    both = {"default": 1, "model": 1}
    rows = runs_of(both, scenario="figure8", model={"cpu_s": 1.4})
    rows += runs_of(both, point="10", at=10.0, model={"cpu_s": 1.2})
    rows += runs_of(both, point="20", at=20.0, model={"cpu_s": 1.3})
    rows += runs_of({"default": 1}, scenario="many-flows", default={"cpu_s": 312.0})
    assert [s.text for s in cpu_times(table(rows))] == [
        "figure8, premise: CPU time with the model against default: 1.40 times (1.40…1.40); "
        "at most 3 times is wanted.",
        "many-flows, premise: CPU time of a run: default 312 s; at most 600 s is wanted.",
        "mine, premise: CPU time with the model against default: 1.20 times (1.20…1.20) at 10, "
        "1.30 times (1.30…1.30) at 20.",
    ]


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
    page = make_report(tmp_path).read_text()
    assert page.count('src="data:image/png;base64,') == 3  # two of figure 8, one of the sweep
    assert "After the paper's figure 7b." in page
    assert "rfc9332, model: not run (1 runs): no --artifact was given" in page
    assert "not asked for: no_l4s, oracle_in_order, last_latency<" in page  # of figure 8
    assert "not asked for: no_l4s, oracle_in_order, last_latency, model<" in page
    assert "take reordering for loss by: 3 duplicate ACKs" in page
    assert "Short runs of heavy-tailed messages vary: these figures are of 8 s after the warm-up." in page
    for word in ("goodput", "classic flows&#39; share", "RTT P99", "retransmitted", "reordered"):
        assert word in page, word
    for column in ("RTT P90, ms", "one-way P90, ms", "S1 L4S goodput", "S1 classic goodput", "CPU, s"):
        assert f"<th>{column}" in page, column
    assert "http" not in page  # self-contained
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "report").glob("*.png")}
    assert set(pictures) == {"figure8-1.png", "figure8-2.png", "mine.png"}
    assert all(base64.b64encode(picture).decode() in page for picture in pictures.values())
    assert make_report(tmp_path).read_text() == page  # the same results, the same page

    written = (tmp_path / "report" / "table.md").read_text()
    assert markdown(load(tmp_path)) == written
    tables, _, rule = written.rpartition("\n\n")
    assert rule == "S1's L4S flows take reordering for loss by: 3 duplicate ACKs\n"
    *rest, sweeps = (part.splitlines() for part in tables.split("\n\n| scenario"))
    targets, scenarios = rest[0], rest[1][:-12]
    costs = "the model's costs beyond their limits |"
    assert rest[1][-12:] == [
        line
        for profile in ("premise", "rfc9332")
        for line in (
            "",
            f"| `{profile}` | at | default, ms | random | oracle | {costs}",
            "|---|---|---|---|---|---|",
            "| mine | 10 | 10.00 | **-5** | +0 | – |",
            "| mine | 100 | 10.00 | **-5** | **-10** | – |",
            "| mine | 1000 | 10.00 | **-5** | **-50** | – |",
        )
    ]
    assert targets[0] == "| target | wanted | measured | oracle | seeds | verdict |"
    assert len(scenarios) == 2 + 4 + 2  # all controls
    assert any(
        line.startswith("| figure8 | premise | model | -40.0 % (-40.0…-40.0) | 6.00 |") for line in scenarios
    )
    assert sweeps[0] == (
        " | profile | at | default P99, ms | random | random: RTT P99 | random: S1's goodput "
        "| random: classic share | oracle | oracle: RTT P99 | oracle: S1's goodput | oracle: classic share |"
    )
    assert len(sweeps) == 2 + 6  # the sweep's points
    costs = " | ".join(["+0.0 % (+0.0…+0.0)"] * 3)
    changes = f"-5.0 % (-5.0…-5.0) | {costs} | -10.0 % (-10.0…-10.0) | {costs}"
    assert f"| mine | premise | 100 | 10.00 | {changes} |" in sweeps


def test_a_table_in_brief_names_the_models_costs_beyond_their_limits() -> None:
    dear = {"rtt_p99_us": 44_000.0, "classic_share": 0.1, "moved_share": 0.3}
    for costs, said in (({}, "none"), (dear, "RTT P99 **+10**, the classic flows' share **-50**")):
        rows = runs_of({"default": 1, "model": 0.6}, point="10", at=10.0, model=costs)
        assert brief(table(rows))[-1] == f"| mine | 10 | 10.00 | **-40** | {said} |"


def test_each_rule_of_loss_is_named_with_its_scenarios() -> None:
    rows = [run_row("default", 1, scenario=name, reordering=rule) for name, rule in (("a", "x"), ("b", "y"))]
    rows.append(run_row("no_l4s", 1, scenario="a", reordering="3 duplicate ACKs"))
    assert markdown(table(rows)).endswith("\n\nS1's L4S flows take reordering for loss by: x (a); y (b)\n")


def test_a_users_scenario_is_not_taken_for_the_projects(tmp_path: Path) -> None:
    """What it is, and its axis, stand in the results: no file of that name is looked for."""
    rows = runs_of({"default": 1, "oracle": 0.5}, scenario="sweep-rtt", point="near", about="My own", at=1.0)
    merge(tmp_path, rows)
    page = make_report(tmp_path).read_text()
    assert "<p>My own</p>" in page
    assert "sweep-rtt: over load" in page
    assert "After the paper" not in page


def test_long_runs_have_no_word_about_short_ones(tmp_path: Path) -> None:
    merge(tmp_path, runs_of({"default": 1, "oracle": 0.5}, seconds=300.0))
    assert "Short runs" not in make_report(tmp_path).read_text()


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match="has no results yet; `swiftqueue lab run SCENARIO` makes them"
    ):
        make_report(tmp_path)
