"""The pages of docs/results, the README's table and its pictures are what the published data give."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from lab_rows import runs_of
from lab_rows import table as table_of

from benchmarks import published
from benchmarks import queues as bench
from benchmarks.published import Published
from benchmarks.rows import Row
from common.json_file import read_object
from infra.results import confucius, evaluations, forecasters, lfq, lfq_traces, queues, replayed, web_pages
from infra.results.pages import END, FOLDER, filled, rewrite
from infra.results.pictures import coverage
from infra.results.tables import TABLES, Data
from laboratory.lfq import traces
from laboratory.report import confucius as lab_confucius
from laboratory.report import who_picks
from laboratory.report.judging import SERVED
from laboratory.runs import execution, experience, results
from laboratory.scenarios.schema import PROFILES
from models.scoring.plot_style import svg

ROW = Row("a thing", 2.0, 1.0, "another", 2.0, "s", 3)


@pytest.fixture(scope="module")
def data(project: Path) -> Data:
    return Data.load(project)


@pytest.fixture
def copy(project: Path, tmp_path: Path) -> Path:
    """What the command reads and writes, in a folder of its own."""
    for path in ("docs/results", "docs/laboratory"):
        shutil.copytree(project / path, tmp_path / path, ignore=shutil.ignore_patterns("models", "*.png"))
    shutil.copy(project / "README.md", tmp_path)
    return tmp_path


@pytest.mark.slow
def test_every_page_and_picture_is_drawn_from_the_data(copy: Path) -> None:
    """What was typed is drawn anew, and nothing else differs from what is committed."""
    page, picture = copy / FOLDER / "figure8.md", copy / FOLDER / "p99.svg"
    was, shown = page.read_text(), picture.read_bytes()
    page.write_text(was.replace("| 35.75 |", "| 25.75 |"))
    assert page.read_text() != was
    picture.write_bytes(shown[:-100])
    assert rewrite(copy) == [FOLDER / "p99.svg", FOLDER / "figure8.md"], "to draw them: swiftqueue results"
    assert (page.read_text(), picture.read_bytes()) == (was, shown)


def test_every_table_has_its_page(project: Path) -> None:
    pages = [project / "README.md", *(project / FOLDER).glob("*.md")]
    shown = [name for page in pages for name in re.findall(r"<!-- table: (\S+) -->", page.read_text())]
    assert sorted(shown) == sorted(TABLES)
    index = (project / FOLDER / "README.md").read_text()
    assert all(f"[{page.stem}]({page.name})" in index for page in pages if page.stem != "README")


def test_the_headline_is_of_what_is_served_as_soon_as_that_is_published(data: Data) -> None:
    names = ["fresh-figure8", "fresh-worst-wait", "fresh-ladder-rfc9332", "fresh-guard"]
    without = replace(data, runs=data.runs.filter(~pl.col("scenario").str.starts_with("fresh-")))
    assert all(line.endswith("* |") for line in TABLES["summary"](without) if "P99 wait" in line)
    for name in names:
        assert TABLES[name](without)[0].startswith("Nothing is published yet: `swiftqueue lab run fresh-")
    controls = {"default": 1.0, "random": 0.8, "model": 0.5}
    rows = [row for p in PROFILES for row in runs_of(controls, scenario=SERVED, profile=p)]
    served = replace(without, runs=pl.concat([without.runs, table_of(rows)]))
    said = [line for line in TABLES["summary"](served) if "P99 wait" in line]
    assert len(said) == 2
    assert all("-50.0 %" in line and "by chance -20.0 %" in line for line in said)
    assert not any("* |" in line for line in said)
    assert any("| model | " in line for line in TABLES["fresh-figure8"](served))


def test_a_page_that_cannot_be_drawn_is_named(data: Data) -> None:
    with pytest.raises(ValueError, match=r"x\.md: there is no table no-such; these are: targets"):
        filled(f"<!-- table: no-such -->\n{END}\n", Path("x.md"), {"targets": list})
    with pytest.raises(ValueError, match=f"x.md: table targets has no line {END}"):
        filled("<!-- table: targets -->\n", Path("x.md"), {"targets": list})
    empty = Data({}, data.runs, {})
    with pytest.raises(ValueError, match="has no wifi: swiftqueue results --scores wifi FILE"):
        TABLES["wifi"](empty)
    with pytest.raises(ValueError, match="has no swap: swiftqueue bench swap --publish"):
        TABLES["bench-swap"](empty)


def test_pictures_are_readable_on_light_and_dark_pages(project: Path) -> None:
    for name in ("sender.svg", "p99.svg", "coverage.svg", "premise-map.svg"):
        text = (project / FOLDER / name).read_text()
        assert len(text) < 100_000
        assert not re.search(
            r"(fill|stroke): ?(#ffffff|#000000|white|black)", text
        )  # no ground, no black ink
        assert "<text" in text  # not drawn as outlines
        assert not re.search(r"\b20\d\d-\d\d-\d\d", text)


def test_a_benchmark_takes_the_place_of_its_old_figures(copy: Path) -> None:
    path = copy / published.FILE
    before = published.load(path)
    published.publish("swap", [ROW], path)
    after = published.load(path)
    assert after["swap"].rows == [ROW]
    assert {k: v for k, v in after.items() if k != "swap"} == {k: v for k, v in before.items() if k != "swap"}
    assert "| a thing | 2 s | 1 s | another | 2 |" in TABLES["bench-swap"](Data.load(copy))
    path.write_text('{"swap": {}}')
    with pytest.raises(ValueError, match=r"bench\.json is damaged \(.*: restore it with git"):
        published.publish("swap", [ROW], path)
    with pytest.raises(ValueError, match=r"bench\.json is not here: run this in the project's folder"):
        published.load(copy / "no" / "bench.json")


def test_nothing_is_published_outside_the_project(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["results", "--tuning", str(project / FOLDER / "tuning.json")])
    assert "run this in the project's folder" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_no_table_holds_becomes_a_list(copy: Path) -> None:
    published.publish("swap", [Row("x" * 200, 2.0, 1.0, "y", 2.0, "us", 3)], copy / published.FILE)
    lines = TABLES["bench-swap"](Data.load(copy))
    assert "- **2 µs**:" in lines
    assert not any(line.startswith("|") for line in lines)


def test_the_published_scores_are_near_those_under_version_control(project: Path) -> None:
    """Another machine trains another model of the same settings; more than that is another evaluation."""
    headline = json.loads((project / "data/evaluation/metrics.json").read_text())
    shown = read_object(project / evaluations.FILE)["late-packets"]
    assert (shown["n"], shown["n_late"]) == (headline["n"], headline["n_late"])
    for method in ("finetuned", "xgboost", "last_flow"):
        ours, theirs = shown["methods"][method], headline[method]
        assert ours["average_precision"] == pytest.approx(theirs["average_precision"], abs=0.02)
        assert ours["mae_ms"] == pytest.approx(theirs["mae_ms"], abs=0.1)


def test_scores_that_are_none_are_refused(copy: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"all": {}}')
    before = (copy / evaluations.FILE).read_bytes()
    with pytest.raises(ValueError, match=r"other\.json is no scores\.json of the stage evaluate"):
        evaluations.take("wifi", other, copy / evaluations.FILE)
    assert (copy / evaluations.FILE).read_bytes() == before


def recorded(latency_us: list[float | None], queue: str = "l4s") -> pl.DataFrame:
    """What `replay` records: a packet each 100 ms."""
    n = len(latency_us)
    return pl.DataFrame(
        {
            "decision_ns": [100_000_000 * i for i in range(n)],
            "queue_sent": [queue] * n,
            "queue_chosen": ["classic" if i % 2 else "l4s" for i in range(n)],
            "predicted_us": [1_000.0] * n,
            "latency_us": latency_us,
        }
    )


def test_two_seconds_are_those_whose_latency_varies_most(tmp_path: Path) -> None:
    path = tmp_path / "replay.parquet"
    recorded([1_000.0] * 20 + [1_000.0, 90_000.0] * 10 + [None] * 5).write_parquet(path)
    found = replayed.two_seconds(path)
    assert found.shape == (20, 4)
    assert found["time_ms"].to_list() == pytest.approx([100 * i for i in range(20)])
    assert found["latency_ms"].max() == 90
    assert found["moved"].to_list() == [0, 1] * 10
    recorded([1_000.0], queue="classic").write_parquet(path)
    with pytest.raises(ValueError, match="no packet was decided and acknowledged"):
        replayed.two_seconds(path)
    recorded([1_000.0]).drop("queue_sent").write_parquet(path)
    with pytest.raises(ValueError, match=r'replay\.parquet is nothing that .* column "queue_sent"[^\n]*$'):
        replayed.two_seconds(path)
    recorded([1_000.0]).cast({"latency_us": pl.String}).write_parquet(path)
    with pytest.raises(ValueError, match=r"replay\.parquet is nothing that [^\n]*$"):
        replayed.two_seconds(path)
    path.write_text("no Parquet")
    with pytest.raises(ValueError, match="cannot be read"):
        replayed.two_seconds(path)


SEEDS_DIFFER = [-0.04, 0.20]


@pytest.mark.parametrize(
    ("ends", "lower_is_better", "found"),
    [
        ([[0.01, 0.20], [0.03, 0.10]], False, "**better**"),
        ([[0.01, 0.20], [0.03, 0.10]], True, "**worse**"),
        ([[-0.30, -0.10], [-0.20, -0.01]], True, "**better**"),
        ([[-0.30, -0.10], [-0.20, -0.01]], False, "**worse**"),
        ([[-0.02, 0.20], [0.01, 0.10]], False, "no worse"),
        ([[-0.20, 0.02], [-0.10, 0.01]], True, "no worse"),
        ([SEEDS_DIFFER, [0.01, 0.10]], False, "not settled"),
        ([[-0.20, 0.03], [-0.10, -0.01]], True, "not settled"),
        ([None, [0.01, 0.10]], False, "not settled"),
    ],
)
def test_a_verdict_needs_all_intervals(
    ends: list[list[float] | None], lower_is_better: bool, found: str
) -> None:
    assert forecasters.verdict(ends, 0.02, lower_is_better=lower_is_better) == found


@pytest.mark.slow
def test_coverage_is_that_of_the_published_levels(data: Data) -> None:
    found = forecasters.covered(data.forecasters)
    assert {one.kind for one in found} == set(forecasters.CHOICES)
    for one in found:
        head = data.forecasters[f"calibration-{one.kind}"]["variants"][one.variant][one.form]
        assert (one.levels, one.shares) == (head["coverage"]["levels"], head["coverage"]["share"])
    one = replace(found[0], levels=[0.5, 0.9], shares=[0.4, 0.95])
    assert one.off_points == pytest.approx(7.5)
    picture = svg(lambda: coverage(found)).decode()
    assert all(f"{kind}<" in picture for kind in forecasters.CHOICES)
    assert picture != svg(lambda: coverage([replace(each, shares=each.levels) for each in found])).decode()
    with pytest.raises(
        ValueError, match="has no calibration-web: swiftqueue results --forecasts calibration-web"
    ):
        forecasters.coverages({})
    mean = {"variants": {"event-stream": {"seeds": 1, "tuned": {}, "pretrained": {}}}}
    with pytest.raises(ValueError, match="calibration-web: event-stream has no quantiles"):
        forecasters.coverages({**data.forecasters, "calibration-web": mean})


def test_no_verdict_without_both_networks_on_every_kind(data: Data) -> None:
    one = data.forecasters["wifi"]
    alone = {**one, "variants": {"event-stream": one["variants"]["event-stream"]}}
    for found in (
        {},
        {**data.forecasters, "wifi": alone},
        {**data.forecasters, "wifi": {**one, "against": "mlp"}},
    ):
        with pytest.raises(ValueError, match=r"has no event-stream beside window on (fresh|wifi)"):
            forecasters.verdicts(found)


def scored(precision: float) -> dict[str, Any]:
    return {"average_precision": {"mean": precision}, "mae_ms": {"mean": 4.0}, "regret_ms": {"mean": 1.0}}


def test_a_verdict_over_draws_of_traffic_asks_for_each_of_them() -> None:
    draws = {
        name: {
            "variants": {
                "event-stream": {"tuned": scored(0.7 + 0.01 * number)},
                "window": {"tuned": scored(0.6 + 0.012 * number)},
            }
        }
        for number, name in enumerate(forecasters.DRAWS)
    }
    lines = forecasters.over_draws(draws)
    assert len(lines) == 2 + 3 * (len(draws) + 1)
    assert "| mean | AP late | 0.720 | 0.624 | +0.096 (+0.092 to +0.100) | **better** |" in lines
    assert "| mean | MAE, ms | 4.00 | 4.00 | +0.00 (+0.00 to +0.00) | no worse |" in lines
    with pytest.raises(ValueError, match="has no video-long-1203"):
        forecasters.over_draws({name: draw for name, draw in draws.items() if name != "video-long-1203"})
    del draws["video-long-1203"]["variants"]["window"]
    with pytest.raises(ValueError, match="has no event-stream beside window on each of"):
        forecasters.over_draws(draws)


def test_two_layers_are_judged_over_the_draws_of_each_long_kind() -> None:
    draws = {
        f"{kind}-{seed}": {
            "variants": {
                "event-stream-2": {"tuned": scored(0.5 + 0.01 * number)},
                "window": {"tuned": scored(0.6 + 0.012 * number)},
            }
        }
        for kind in forecasters.LONG
        for number, seed in enumerate(forecasters.LAYERS_SEEDS)
    }
    lines = forecasters.layers(draws)
    assert len(lines) == 2 + 4 * 3
    worse = "0.520 | 0.624 | -0.104 (-0.108 to -0.100) | **worse** |"
    assert f"| web-long, 5 draws | AP late | `window` | {worse}" in lines
    del draws["video-long-1303"]["variants"]["event-stream-2"]
    with pytest.raises(ValueError, match="has no event-stream-2 beside window on each of video-long-1301"):
        forecasters.layers(draws)


def test_a_window_costs_more_where_it_is_longer(data: Data) -> None:
    """As many tokens as the path's packets in flight, 64 at least; a band of events has one length."""
    lines = forecasters.cost(data.forecasters)
    assert "| web-varying-long | 16.0 to 18.8 | 2.0 | 7.9 to 9.4 |" in lines
    assert "| wifi-five | 9.4 | 2.0 | 4.7 |" in lines
    with pytest.raises(ValueError, match="has no web-long-1301"):
        forecasters.cost({})


def test_a_summary_of_unknown_latencies_has_no_share_of_late_packets(data: Data) -> None:
    unknown = {**data.forecasters["wifi"], "n": 0, "n_late": 0, "base_rate": None}
    assert forecasters.measured(unknown).endswith("all test slices: 0 packets, 0 of them late (share –).")


def noticed(scenario: str, point: str, seed: int, **columns: float) -> dict[str, object]:
    """A row of what users noticed, of which the other columns are null."""
    key = {"scenario": scenario, "point": point, "profile": "rfc9332", "control": "default", "seed": seed}
    return {**dict.fromkeys(experience.SCHEMA), **key, **columns}


def test_who_picks_has_a_row_for_each_rule_profile_and_control() -> None:
    rows = [
        noticed(
            who_picks.WHO, "nobody: FIFO", seed, stall_per_page_s=seed / 1000, frame_p99_s=0.1, call_mbps=9.0
        )
        for seed in (1, 3)
    ]
    rows.append(
        {**noticed(who_picks.WHO, who_picks.BY_SENDER, 1, web_mbps=3.0, call_mbps=9.0), "control": "oracle"}
    )
    rows.append(noticed(who_picks.WHO, "nobody: FIFO; GCC calls", 1, frame_p99_s=0.1))
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    *_, nobody, sender = queues.who(runs)
    assert (
        nobody == "| nobody: FIFO | 2 | 2.0 (-10.7 to 14.7) | 100 (100 to 100) | – | – | 9.0 (9.0 to 9.0) |"
    )
    assert sender == "| sender: oracle | 1 | – | – | – | – | 9.0 |"
    assert queues.who_else(runs)[2:] == ["| nobody: FIFO; GCC calls | 1 | – | 100 | – | – | – |"]
    assert (
        queues.who_shares(runs)[-1] == "| sender: oracle | 1 | – | 3.00 | 0.80 | – |"
    )  # (9 + 3)² / 2(9² + 3²)
    assert queues.who_waits(runs)[-1] == "| sender: oracle | 1 | – | not enough packets | – | – |"


def test_a_told_model_stands_beside_its_queue_without_a_choice() -> None:
    told = f"{who_picks.BOTH}DualPI2, weights by age; told ages"
    assert who_picks.who_rule(told, "rfc9332", "model") == "both: weights by age, model, told ages"
    assert who_picks.who_rule(told, "uncoupled", "default") == "both: weights by age, uncoupled"


def test_a_rule_is_judged_beside_nobody_and_a_sender_beside_its_queue() -> None:
    """FqCoDel's frames come in half the time; the sender changes nothing that could be told from chance."""
    rows = []
    for seed in range(1, 6):
        wide = 1 + seed / 100
        rows += [
            noticed(who_picks.WHO, "nobody: FIFO", seed, frame_p99_s=0.1 * wide, load_mean_s=0.2),
            noticed(who_picks.WHO, "flow: FqCoDel", seed, frame_p99_s=0.05, load_mean_s=0.2 * wide**2),
            noticed(who_picks.WHO, who_picks.BY_SENDER, seed, frame_p99_s=0.02, load_mean_s=0.1),
            noticed(
                who_picks.WHO, who_picks.BY_SENDER, seed, frame_p99_s=0.02 * (0.5 + seed / 5), load_mean_s=0.1
            )
            | {"control": "oracle"},
        ]
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    found = {v.figure: v for v in who_picks.who_picks(runs)}
    assert found["flow: FqCoDel: frame P99 over nobody: FIFO"].verdict == "held"
    assert found["flow: FqCoDel: page load time over nobody: FIFO"].verdict == "not held"
    assert found["label: DualPI2: frame P99 over nobody: FIFO"].measured == pytest.approx(0.19, abs=0.01)
    own = found["sender: oracle: frame P99 over label: DualPI2"]
    assert (own.verdict, own.measured) == ("not settled", pytest.approx(1.1))
    assert not any(figure.startswith("nobody") for figure in found)


def test_the_worst_cheat_is_named() -> None:
    rows = [
        noticed(who_picks.CHEATS, f"label: priority, {cheat}", seed, call_mbps=10.0, web_mbps=web)
        for cheat, web in (("honest", 40.0), ("churn", 30.0), ("mislabelled", 10.0))
        for seed in range(1, 6)
    ]
    rows += [row | {"control": "random", "web_mbps": 1.0} for row in rows]  # of no rule
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    line = "| label: priority | 5 | 80 (80 to 80) | 75 (75 to 75) | 50 (50 to 50) | churn, 75 |"
    assert queues.cheats(runs)[-1] == line
    (verdict,) = who_picks.who_picks_cheats(runs)
    assert (verdict.measured, verdict.verdict) == (pytest.approx(0.75), "not held")


def test_lfqs_tables_are_of_one_initial_window(data: Data) -> None:
    window = pl.lit(10, pl.Int64).alias("initial_window")
    both = pl.concat([data.lfq, data.lfq.with_columns(window, pl.col("goodput_mbps", "limit_mean") * 2)])
    for table in (lfq.of_400, lfq.correlations, lfq.best_of, lfq.beyond):
        assert table(both) == table(data.lfq)


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


def test_pages_are_compared_one_by_one_with_those_of_fair_queuing() -> None:
    """The same page of the same seed; under fair queuing itself there is nothing to compare."""
    key = {**dict.fromkeys(experience.PAGES_SCHEMA), "scenario": "confucius-web"}
    rows = [
        key
        | {"point": f"{rule}, Copa", "seed": seed, "load_s": load, "stall_s": stall, "frame_worst_s": stall}
        for seed in (1, 2)
        for rule, load, stall in (
            ("Confucius", [1.0, 1.0], [0.0, 0.6]),
            ("FQ+FIFO", [1.5, 0.5 * seed], [0.0, 0.0]),
        )
    ]
    pages = pl.DataFrame(rows, schema=experience.PAGES_SCHEMA)
    lines = [line.split(" | ")[1:] for line in web_pages.table(pages)[2:]]
    assert lines == [["FQ+FIFO", "4", "100", "0", "–", "0 |"], ["Confucius", "4", "50", "50", "75", "50 |"]]
    assert len(web_pages.picture(pages).axes) == 3
    assert web_pages.picture(pages.clear()).axes


def test_a_class_is_right_where_its_tcp_belongs_behind_the_warm_up() -> None:
    rows = [
        {"seed": 1, "tcp": tcp, "warmup_s": 0.2, "every_s": 0.1, "classes": classes}
        for tcp, classes in (("cubic", [3, 0, 3, 3, None]), ("gcc", [3, 1, 1, 1, 1]))
    ]
    classes = pl.DataFrame(rows, schema=experience.CLASSES_SCHEMA)
    assert lab_confucius.right_class(classes) == {1: pytest.approx((2 / 4 + 1) / 2)}


def test_what_a_packet_costs_is_judged_by_size_and_growth() -> None:
    ns = {"FqCoDel": (300, 300, 400, 500), "LFQ": (400, 500, 2500, 600), "SJF": (100, 200, 900, 9000)}
    rows = [
        Row(bench.name_of(rule, flows), ns.get(rule, (1, 1, 1, 1))[i], 1, "FqCoDel", 1, "ns/packet", 3)
        for rule in bench.DISCS
        for i, flows in enumerate(bench.FLOWS)
    ]
    published = Published("2026-11-25", "abc", "a machine", "", rows)
    lines = queues.costs(published)
    assert lines[2] == "| FqCoDel | 0.30 | 0.30 | 0.40 | 0.50 | 1.67 | held |"
    assert "| SJF | 0.10 | 0.20 | 0.90 | 9.00 | 45.00 | not held |" in lines
    assert "| LFQ | 0.40 | 0.50 | 2.50 | 0.60 | 1.20 | not held |" in lines
    said = {v.figure: v.verdict for v in bench.verdicts(rows)}
    assert said["LFQ: us a packet at 100 flows"] == said["SJF: growth from 10 to 1000 flows"] == "not held"
    assert said["SJF: us a packet at 100 flows"] == said["LFQ: growth from 10 to 1000 flows"] == "held"
    why = {v.figure: v.reason for v in bench.verdicts(rows)}
    assert why["LFQ: growth from 10 to 1000 flows"] == "with 1000 flows the network answers at every packet"
    assert why["LFQ, no network: growth from 10 to 1000 flows"] is None
    before = [row for row in rows if not row.name.startswith(bench.LFQ_ALONE)]
    assert len(bench.verdicts(before)) == len(bench.verdicts(rows)) - 2


def test_figures_of_calls_that_were_not_run_are_left_out() -> None:
    columns = {"stall_per_page_s": 0.1, "stalling_pages_share": 0.1, "load_mean_s": 0.2}
    rows = [
        noticed(queues.WEB, f"{rule}, GCC", seed, **columns)
        for rule in ("Confucius", "FIFO", "FQ+FIFO", "FqCoDel")
        for seed in range(1, 6)
    ]
    lines = queues.web_verdicts(pl.DataFrame(rows, schema=experience.SCHEMA))
    assert len(lines) == 2 + 4
    assert all("| GCC: " in line for line in lines[2:])
    assert lines[-1] == "| GCC: share of pages that stall | at most 0.2 | 0.100 (0.100 to 0.100) | held |"
    assert lines[3].endswith("| not held |")  # as much stall as FqCoDel


def test_confucius_tables_show_what_was_run() -> None:
    """Only scenarios with runs; the corrected bound is the closed form; Jain's index is of all flows."""
    assert [round(1e3 * confucius.later_s(flows)) for flows in (8, 19, 100)] == [140, 188, 232]
    rows = [
        noticed(confucius.FLOWS, f"{rule}, GCC, 60", seed, stall_per_page_s=0.0, load_mean_s=load)
        for rule, load in (("Confucius", 0.8), ("FQ+FIFO", 0.5))
        for seed in range(1, 6)
    ]
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    key = {"scenario": "confucius-mix", "point": "Confucius, GCC", "profile": "rfc9332", "control": "default"}
    flows = pl.DataFrame(
        [
            {**dict.fromkeys(experience.FLOWS_SCHEMA), **key, "seed": seed, "sender": tcp, "tcp": tcp}
            | {"goodput_mbps": rate, "queueing_p99_s": 0.05}
            for seed in range(1, 6)
            for tcp, rate in (("gcc", 1.0), ("bbr", 3.0))
        ],
        schema=experience.FLOWS_SCHEMA,
    )
    seen = {"warmup_s": 0.0, "every_s": 0.1, "sender": "bbr", "tcp": "bbr", "classes": [1, 2, 2, 2]}
    classes = pl.DataFrame(
        [{**dict.fromkeys(experience.CLASSES_SCHEMA), **key, "seed": seed} | seen for seed in range(1, 6)],
        schema=experience.CLASSES_SCHEMA,
    )
    assert any("| 0.750 (0.750 to 0.750) |" in line for line in confucius.verdicts(runs, flows, classes))
    probing = {"scenario": pl.lit("confucius-probing"), "point": pl.lit("Confucius, BBR, 20 ms")}
    (changed,) = confucius.verdicts(runs.clear(), flows.clear(), classes.with_columns(**probing))[2:]
    assert "20 ms: changes of class | at most 0 | 1.000 (1.000 to 1.000) | not held |" in changed
    lines = confucius.verdicts(runs, flows, classes.clear())
    assert "| `confucius-flows` | 60 flows: stall, s | at most 0 | 0.000 (0.000 to 0.000) | held |" in lines
    assert any("gcc: round trip P99, s | at most 0.07 | 0.090" in line for line in lines)
    assert not any("confucius-sizes" in line for line in lines)
    assert confucius.bounds(runs)[2:] == ["| 60 | 361 | 223 | 300 (300 to 300) |"]
    (shared,) = confucius.shares(flows)[2:]
    assert shared.startswith("| `confucius-mix` | Confucius, GCC | 5 | 0.80 (0.80 to 0.80) | 1.0 (1.0 to")
    assert shared.endswith("| 3.0 (3.0 to 3.0) |")
    alone = flows.with_columns(
        scenario=pl.lit("confucius-occupancy"), point=pl.lit("FIFO, BBR, 4G"), occupancy=pl.lit(0.5)
    )
    assert not confucius.shares(alone)[2:]
    assert not confucius.shares(flows.with_columns(scenario=pl.lit("lfq-flows")))[2:]  # has a page of its own
    (bbr,) = (line for line in confucius.occupancies(alone) if "| BBR | 4G | 5 |" in line)
    assert "| 0.500 (0.500 to 0.500) | – |" in bbr
    judged = confucius.verdicts(runs.clear(), alone, classes.clear())
    assert "| `confucius-occupancy` | BBR: part of the buffer | at least 0.2 | 0.500" in "\n".join(judged)
    assert len(confucius.pages(runs)) == 2 + 2


def truth(*packets: tuple[float, float | None, bool]) -> pl.DataFrame:
    """Of packets: when they came, in ms; how long they waited, in ms, None if unknown; whether dropped."""
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


def test_the_published_queue_traces_are_of_all_rules_tcps_and_paths(data: Data) -> None:
    lines = lfq_traces.table(data.traces)[2:]
    assert len(lines) == 3 * 2
    assert lines[0].startswith("| 25 Mbit/s, 15 ms | New Reno | ")
    assert lines[-1].startswith("| 15 Mbit/s, 5 ms | BIC | ")
    assert all(line.endswith(" / 1000 |") and "–" not in line for line in lines)


def test_variants_of_the_same_packets_join_a_published_entry(tmp_path: Path) -> None:
    path, scores = tmp_path / "forecasters.json", tmp_path / "scores.json"

    def take(*variants: str, mae: float = 0.5, **other: Any) -> dict[str, Any]:
        forms = {
            form: {"mae_ms": {"mean": mae, "less_reference": {"mean": 0.1}}, "pinball_ms": None}
            for form in ("tuned", "pretrained")
        }
        about = {"traces": ["t"], "protocol": "paper", "within_training": False, "against": "a"}
        packets = {"n": 9, "n_late": 3, "base_rate": 1 / 3}
        summary = {**about, **packets, **other, "variants": dict.fromkeys(variants, forms)}
        scores.write_text(json.dumps(summary))
        said = forecasters.take("kind", scores, path)
        found: dict[str, Any] = json.loads(path.read_text())["kind"]
        return {**found, "said": said}

    assert take("a")["said"] == f"{path}: kind is new"
    joined = take("a", "b", mae=0.7)  # measured again, as a whole
    assert joined["variants"]["a"]["tuned"]["mae_ms"]["mean"] == 0.7
    joined = take("a", "c", mae=0.9)
    assert joined["said"] == f"{path}: kind has a, b, c"
    assert [one["tuned"]["mae_ms"]["mean"] for one in joined["variants"].values()] == [0.7, 0.7, 0.9]
    assert "less_reference" not in joined["variants"]["c"]["tuned"]["mae_ms"]  # from another run of `a`
    assert joined["machine"].count("; c on 20") == 1
    for other in ({"n_late": 4}, {"choice": {"never_ms": 1.0}}):
        replaced = take("d", **other)
        assert list(replaced["variants"]) == ["d"]
        assert replaced["said"].endswith(f"takes the place of one whose {next(iter(other))} is another")
        take("a")


def test_regrets_of_a_draw_that_is_not_published_are_one_line(data: Data) -> None:
    whole = data.forecasters
    assert len(forecasters.beside_fixed(whole)) == 2 + len(forecasters.LONG)
    less = {name: one for name, one in whole.items() if name != forecasters.draws_of("video-long")[0]}
    with pytest.raises(ValueError, match="video-long-1301"):
        forecasters.beside_fixed(less)
