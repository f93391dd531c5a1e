"""Pages, calls and links of a scenario, what comes of them as rows, and verdicts; nothing is simulated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from swiftqueue.laboratory.report import verdict
from swiftqueue.laboratory.runs import execution, experience, rows
from swiftqueue.laboratory.runs import results as lab_results
from swiftqueue.laboratory.runs.programs import Equals
from swiftqueue.laboratory.runs.resolve import cells, check_tables, identity, resolve
from swiftqueue.laboratory.scenarios.files import load, path_of
from swiftqueue.laboratory.scenarios.pages import drawn, rates_of
from swiftqueue.laboratory.scenarios.traffic import Lognormal, Pages
from swiftqueue.studies.confucius import judges


def mine(folder: Path, **web: Any) -> Path:
    """The project's confucius-web with other pages."""
    traffic = {"kind": "pages", "pages": 3, "first_s": 6.0, "every_s": 2.0, **web}
    groups = {"web": {"traffic": traffic}}
    raw = {
        "extends": "confucius-web",
        "axis": {"label": "", "points": {"one": {"set": {}}}},
        "environment": {"senders": {"cross": {"groups": groups}}},
    }
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_pages_are_drawn_as_the_papers_are_and_the_same_for_the_same_seed() -> None:
    drawing = Pages(
        kind="pages",
        pages=2000,
        first_s=10.0,
        every_s=5.0,
        objects=Lognormal(median=8.0, sigma=0.675, most=50),
        object_bytes=Lognormal(median=15_000.0, sigma=1.0, least=100, most=100_000),
    )
    pages = drawn(drawing, 1)
    assert pages == drawn(drawing, 1)
    assert pages != drawn(drawing, 2)
    assert [page["start_s"] for page in pages[:3]] == [10, 15, 20]
    counts = np.array([len(page["bytes"]) for page in pages])
    assert counts.min() >= 1
    assert counts.max() == 50
    # Three standard errors of the quantiles of 2000 draws
    assert abs(np.median(counts) - 8) <= 1
    assert abs(np.quantile(counts, 0.9) - 19) <= 2
    sizes = np.concatenate([page["bytes"] for page in pages])
    assert (sizes.min(), sizes.max()) >= (100, 100_000)
    assert np.median(sizes) == pytest.approx(15_000, rel=0.05)


def test_given_pages_come_in_turn() -> None:
    pages = Pages(kind="pages", pages=3, first_s=0.0, every_s=1.0, sizes=[[5, 6], [7]])
    assert [page["bytes"] for page in drawn(pages, 1)] == [[5, 6], [7], [5, 6]]


def test_a_run_has_a_flow_for_each_object(tmp_path: Path) -> None:
    scenario = load(mine(tmp_path, sizes=[[5, 6], [7]]))
    run = resolve(scenario, next(cells("mine", scenario)), {"kind": "default"}, [])
    call, web = (sender["groups"][0] for sender in run["senders"])
    assert (call["dscp"], call["traffic"]["least_bps"]) == (46, 100_000)
    assert (web["flows"], "dscp" in web) == (5, False)


def test_pages_of_more_flows_than_a_run_can_have_are_refused_before_it(tmp_path: Path) -> None:
    scenario = load(mine(tmp_path, sizes=[[5] * 10_000]))
    with pytest.raises(
        ValueError, match=r"^mine\.yaml: senders: 30001 flows, at most 20000 can be simulated$"
    ):
        check_tables("mine", scenario)


def test_each_group_of_pages_has_pages_of_its_own() -> None:
    """The others must not load what S1 loads; the first group draws by the seed alone."""
    scenario = load(path_of("pages-and-video"))
    run = resolve(scenario, next(cells("pages-and-video", scenario)), {"kind": "default"}, [])
    groups = [group for sender in run["senders"] for group in sender["groups"]]
    loaded = [group["traffic"]["pages"] for group in groups if group["traffic"]["kind"] == "pages"]
    assert len(loaded) == 2
    assert [page["bytes"] for page in loaded[0]] != [page["bytes"] for page in loaded[1]]
    traffic = scenario.environment.senders["s1"].groups["web"].traffic
    assert isinstance(traffic, Pages)
    assert loaded[0] == drawn(traffic, run["seed"])


@pytest.mark.parametrize(
    ("web", "says"),
    [
        ({"sizes": [[5], []]}, "traffic.sizes.1: a page of 0 flows"),
        ({"sizes": []}, "traffic.sizes: there is no page"),
        ({}, "traffic.sizes: give them, or else objects and object_bytes"),
        ({"sizes": [[5]], "objects": {"median": 1, "sigma": 1, "most": 5}}, "traffic.sizes: give them"),
        ({"pages": 0}, "traffic.pages: input should be greater than or equal to 1 (is 0)"),
        ({"objects": {"median": 0, "sigma": 1, "most": 5}}, "traffic.objects.median: input should be"),
        ({"objects": {"median": 8, "sigma": 1, "most": 0}}, "traffic.objects.most: input should be"),
        (
            {"objects": {"median": 8, "sigma": 1, "least": 6, "most": 5}},
            "traffic.objects.least: 6 is above most",
        ),
    ],
)
def test_pages_that_cannot_be(tmp_path: Path, web: dict[str, Any], says: str) -> None:
    line = f"mine.yaml: environment.senders.cross.groups.web.{says}"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}[^\n]*$"):
        load(mine(tmp_path, **web))


def calling(folder: Path, **call: Any) -> Path:
    """The project's confucius-web with another call."""
    raw = yaml.safe_load(mine(folder, sizes=[[5]]).read_text())
    raw["environment"]["senders"]["s1"] = {"groups": {"call": call}}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_a_call_of_google_congestion_control_begins_at_a_rate_and_no_other_does() -> None:
    scenario = load(path_of("confucius-web"))
    by_point = {cell.point: cell for cell in cells("confucius-web", scenario)}
    for call, tcp, begins in (("GCC", "gcc", 10_000_000), ("Copa", "copa", None)):
        run = resolve(scenario, by_point[f"Confucius, {call}"], {"kind": "default"}, [])
        group = run["senders"][0]["groups"][0]
        # A run without has the name that it had before there was this key.
        assert (group["tcp"], group["traffic"].get("start_bps")) == (tcp, begins)


def test_a_call_without_acks_has_no_threshold_of_them(tmp_path: Path) -> None:
    path = calling(tmp_path, tcp="gcc", dupack_threshold=12)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"axis": None}))
    with pytest.raises(ValueError, match=r"groups\.call\.dupack_threshold: gcc has no ACKs$"):
        load(path)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"tcp": "gcc", "traffic": {"kind": "greedy"}}, "traffic: gcc sends real_time alone, not greedy"),
        ({"tcp": "gcc", "ecn": "ect1"}, "ecn: gcc does not answer marks, so it is always not_ect"),
        ({"traffic": {"start_mbps": 10}}, "traffic.start_mbps: copa finds its first rate itself"),
        ({"traffic": {"start_mbps": 60}}, "traffic.start_mbps: 60 is not between least_mbps and most_mbps"),
        ({"traffic": {"least_mbps": 60}}, "traffic.least_mbps: 60 is above most_mbps"),
    ],
)
def test_calls_that_cannot_be(tmp_path: Path, call: dict[str, Any], says: str) -> None:
    line = f"mine.yaml: environment.senders.s1.groups.call.{says}"
    with pytest.raises(ValueError, match=f"^{re.escape(line)}[^\n]*$"):
        load(calling(tmp_path, **call))


def test_points_have_their_own_profiles_and_controls(tmp_path: Path) -> None:
    found = load(path_of("who-picks"))
    made = [(c.point, c.profile, c.control) for c in cells("who-picks", found) if c.seed == 1]
    assert len([one for one in made if one[0] == "label or sender: DualPI2"]) == 2 * 5
    assert [one[1:] for one in made if one[0] == "nobody: FIFO"] == [("rfc9332", "default")]
    for controls, line in (
        (["always"], "the scenario has no 'always'"),
        ([], "list should have at least 1 item"),
    ):
        raw = {
            "extends": "who-picks",
            "axis": {"points": {"learned limits: LFQ 0.01": {"controls": controls}}},
        }
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(raw))
        with pytest.raises(ValueError, match=rf"LFQ 0\.01\.controls: {line}"):
            load(path)


def test_rates_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.txt"
    trace.write_text("1 20\n2.5 5.5\n40 10\n")
    assert rates_of(None, "key", 9) == {}
    assert rates_of(str(trace), "key", 2) == {"rates": [[0, 20e6], [1, 5.5e6]]}
    for text, seconds, says in (
        ("1 20\n2 5\n", 3.0, f"key: {trace} ends at 2 s, the run at 3 s"),
        ("1 20\n1 5\n", 1.0, f"key: {trace}: line 2 is not a later time and a rate"),
        ("1 0\n", 1.0, f"key: {trace}: line 1 is not a later time and a rate"),
        ("1 20\n2 1e-7\n", 1.0, f"key: {trace}: line 2 is not a later time and a rate of 0.01 Mbit/s"),
        ("one 20\n", 1.0, f"key: {trace}: line 1 is not a later time and a rate"),
    ):
        trace.write_text(text)
        with pytest.raises(ValueError, match="^" + re.escape(says)):
            rates_of(str(trace), "key", seconds)
    with pytest.raises(ValueError, match=r"key: .* cannot be read"):
        rates_of(str(tmp_path / "none.txt"), "key", 1)


def summary(**changes: Any) -> dict[str, Any]:
    """A run of 20 s has pages at 6, 10 and 30 s, and a frame each second."""
    packets = {"packets": 10, "arrived": 8, "reordered": 2, "goodput_bps": 3e6}
    quantiles = {"count": 100_000, "mean": 5e3, "p99": 1e4, "p999": 2e4}
    some = packets | {"queueing_us": quantiles, "latency_us": quantiles}
    none = some | {"packets": 0, "goodput_bps": 0}
    delay = [0.05] * 20
    delay[7], delay[8], delay[11], delay[2] = 0.2, 0.3, 0.19, 5.0
    return {
        "run": {"seconds": 20, "warmup_s": 5, "senders": [{"name": "s1"}, {"name": "web"}]},
        "senders": {"s1": {"l4s": none, "classic": some}, "web": {"l4s": none, "classic": some}},
        "pages": [
            {"start_s": 10, "load_s": None},
            {"start_s": 6, "load_s": 0.5},
            {"start_s": 2, "load_s": 9},
            {"start_s": 30, "load_s": None},
        ],
        "calls": [{"frames_per_s": 1, "made_s": list(range(20)), "delay_s": delay}],
        **changes,
    }


KEYS = {"scenario": "a", "point": "", "profile": "rfc9332", "control": "default", "seed": 1}
ROW = {**KEYS, "run": "r", "program": "p", "artifact": None, "seconds": 20.0, "cpu_s": 1.0}


def test_a_runs_row() -> None:
    row = experience.row_of(ROW, summary())
    assert (row["pages"], row["pages_unfinished"]) == (2, 1)
    assert row["load_mean_s"] == pytest.approx((0.5 + 10) / 2)  # until the end, at least
    assert (row["frames"], row["stall_s"]) == (15, 2)  # 0.19 s are none, and the warm-up counts not
    assert (row["stall_per_page_s"], row["stalling_pages_share"]) == (1, 0.5)
    assert (row["call_mbps"], row["web_mbps"], row["reordered_share"]) == (3, 3, 0.25)
    assert row["rtt_p999_s"] == pytest.approx(0.02)
    pl.DataFrame([row], schema=experience.SCHEMA)


def test_each_page_of_a_run_has_its_own_figures() -> None:
    """From its beginning to the next one's: frames of 6 to 9 s, and of 10 to 19 s."""
    (row,) = experience.pages_of(ROW, summary())
    assert row["load_s"] == [0.5, 10]
    assert row["stall_s"] == [2, 0]
    assert row["frame_worst_s"] == [0.3, 0.19]
    table = pl.DataFrame([row], schema=experience.PAGES_SCHEMA)
    assert table["load_s"].list.mean()[0] == experience.row_of(ROW, summary())["load_mean_s"]
    assert experience.pages_of(ROW, summary(pages=[])) == []
    (row,) = experience.pages_of(ROW, summary(calls=[]))
    assert row["frame_worst_s"] == [0, 0]


def test_no_quantile_rests_on_too_few_packets() -> None:
    """100 packets lie beyond the P99.9 of 100,000."""
    few = summary()
    few["senders"]["s1"]["classic"]["queueing_us"] = {"count": 99_999, "p99": 1e4, "p999": 2e4}
    row = experience.row_of(ROW, few)
    assert (row["queueing_p99_s"], row["queueing_p999_s"]) == (pytest.approx(0.01), None)
    assert row["rtt_p999_s"] == pytest.approx(0.02)


def test_a_frame_that_never_came_is_as_late_as_the_end_shows() -> None:
    call = {"frames_per_s": 10, "made_s": [6.0, 19.9], "delay_s": [None, None]}
    row = experience.row_of(ROW, summary(calls=[call]))
    assert row["stall_s"] == pytest.approx(0.1)
    assert experience.row_of(ROW, summary(calls=[]))["frames"] == 0


def test_what_users_noticed_stays_with_a_run_of_which_there_is_but_a_row(tmp_path: Path) -> None:
    """A command for one seed forgets the others' rows in the tables; a later one for all finds them again.

    One program ran before it was listed: its runs are found by the name that the list gives them.
    """
    scenario = load(path_of("confucius-web"))
    first, *_, last = Equals.load().programs
    ran = []
    for seed, program in ((1, first), (2, last)):
        run = {"profile": "rfc9332", "seed": seed, "outputs": []}
        key = KEYS | {"scenario": "confucius-web", "seed": seed}
        name = {"run": identity(run, program), "program": program}
        ran.append({**key, **name, "status": lab_results.COMPLETE, "parameters": json.dumps(run)})
    lab_results.merge(tmp_path, ran)
    of_runs = [experience.row_of(ROW | row, summary()) for row in ran]
    table = pl.DataFrame(of_runs, schema=experience.SCHEMA)
    table.with_columns(former=pl.lit(1)).write_parquet(tmp_path / experience.FILE)  # a column of before
    rows.keep_rows(tmp_path)
    for seeds in ([1], [1, 2]):
        lab_results.forget(tmp_path, ["confucius-web"])
        for row in ran:
            folder = execution.folder_of(tmp_path, identity(json.loads(row["parameters"]), first))
            if row["seed"] in seeds:
                lab_results.merge(tmp_path, [json.loads((folder / execution.ROW).read_text())])
        experience.collect(tmp_path, {"confucius-web": scenario})
        found = experience.load(tmp_path)
        assert found["seed"].to_list() == seeds
    assert found["program"].to_list() == [first, first]
    assert found["load_mean_s"].to_list() == [one["load_mean_s"] for one in of_runs]


def test_whole_runs_of_a_scenario_are_published_beside_the_others(tmp_path: Path) -> None:
    source, output = tmp_path / "source", tmp_path / "output"
    for folder in (source, output):
        folder.mkdir()
    key = KEYS | {"status": lab_results.COMPLETE}
    lab_results.merge(output, [key | {"scenario": "old"}])
    ran = [key | {"scenario": name} for name in ("new", "another")]
    lab_results.merge(source, [*ran, key | {"scenario": "new", "seed": 2, "status": lab_results.NOT_RUN}])
    lab_results.publish(source, "new", output)
    assert lab_results.load(output).select("scenario", "seed").rows() == [("new", 1), ("old", 1)]
    lab_results.merge(
        output, [key | {"scenario": "new", "profile": "uncoupled", "artifact": "of another profile"}]
    )
    lab_results.merge(output, [key | {"scenario": "new", "seed": 3, "seconds": 40.0}])
    lab_results.publish(source, "new", output)  # The rows that were published for the place go
    found = lab_results.load(output).filter(scenario="new").select("profile", "seed").rows()
    assert found == [(KEYS["profile"], 1), ("uncoupled", 1)]
    lab_results.merge(output, [key | {"scenario": "new", "point": "far", "seconds": 40.0}])
    with pytest.raises(ValueError, match="would keep runs of new with another seconds: run all"):
        lab_results.publish(source, "new", output)
    with pytest.raises(ValueError, match="has no whole run of absent; `swiftqueue lab run absent`"):
        lab_results.publish(source, "absent", output)


def results(folder: Path, stalls: dict[str, list[float]], loads: dict[str, list[float]]) -> Path:
    rows = [
        {
            **dict.fromkeys(experience.SCHEMA),
            **ROW,
            "scenario": "confucius-web",
            "point": f"{rule}, Copa",
            "seed": seed,
            "stall_per_page_s": stall,
            "load_mean_s": loads[rule][seed - 1],
            "stalling_pages_share": stall,
        }
        for rule, all_stalls in stalls.items()
        for seed, stall in enumerate(all_stalls, 1)
    ]
    pl.DataFrame(rows, schema=experience.SCHEMA).write_parquet(folder / experience.FILE)
    return folder


def test_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stalls = {
        "Confucius": [0.10, 0.11, 0.10, 0.09, 0.10],
        "FqCoDel": [0.3, 0.3, 0.3, 0.3, 0.3],
        "FQ+FIFO": [0.12, 0.3, 0.1, 0.2, 0.1],
    }
    loads = {"Confucius": [1.2] * 5, "FqCoDel": [1.0] * 5, "FQ+FIFO": [1.0] * 5}
    found = judges.of_scenario("confucius-web", results(tmp_path, stalls, loads))
    by_figure = {verdict.figure: verdict for verdict in found}
    best = by_figure["Copa: stall over the best unlabelled (FQ+FIFO)"]
    assert (best.verdict, best.seeds) == (verdict.NOT_SETTLED, 5)
    assert best.reason == "without FIFO, CoDel, RED, SJF, HHF"
    over = by_figure["Copa: stall over FqCoDel"]
    assert over.verdict == verdict.HELD
    assert over.measured == pytest.approx(1 / 3)
    assert by_figure["Copa: page load time over FQ+FIFO"].verdict == verdict.NOT_HELD
    assert by_figure["Copa: share of pages that stall"].verdict == verdict.HELD
    assert by_figure["GCC: stall over FqCoDel"].reason == "not run"
    assert verdict.print_verdicts(judges.of_scenario("confucius-web", tmp_path), as_json=True) == 1
    assert len(json.loads(capsys.readouterr().out)) == len(found) == 8


def test_few_seeds_settle_nothing_and_no_stall_is_no_ratio(tmp_path: Path) -> None:
    none = {"Confucius": [0.0] * 4, "FqCoDel": [0.0] * 4, "FQ+FIFO": [0.0] * 4}
    ones = dict.fromkeys(none, [1.0] * 4)
    found = {v.figure: v for v in judges.of_scenario("confucius-web", results(tmp_path, none, ones))}
    assert found["Copa: stall over FqCoDel"].reason == "nothing to be less than: it is 0 there"
    assert found["Copa: share of pages that stall"].verdict == verdict.NOT_SETTLED


def test_where_the_base_is_0_and_ours_is_not_there_is_no_ratio() -> None:
    base = dict(enumerate([1.0, 1.1, 0.9, 1.0, 1.2, 0.0]))
    less = {seed: value / 10 for seed, value in base.items()}
    assert verdict.ratio("x", less, base, 0.5).verdict == verdict.HELD
    found = verdict.ratio("x", {**less, 5: 0.3}, base, 0.5)
    assert (found.verdict, found.measured) == (verdict.NOT_SETTLED, None)
    assert found.reason == "no ratio: ours is above a base of 0 (seed 5)"


def test_figures_over_what_varies_are_each_held_to_their_limit(tmp_path: Path) -> None:
    """No stall to 60 flows, 0.1 s at 100; pages at most 361 ms longer; nobody better in both of them."""

    def row(
        scenario: str, point: str, seed: int, stall: float, load: float, rate: float = 1
    ) -> dict[str, Any]:
        columns = {"stall_per_page_s": stall, "stall_s": stall, "load_mean_s": load, "frame_p99_s": load}
        key = {"scenario": scenario, "point": point, "seed": seed, "call_mbps": rate}
        return {**dict.fromkeys(experience.SCHEMA), **ROW, **columns, **key}

    rows = []
    for seed in range(1, 6):
        for flows, stall in (("5", 0.0), ("60", 0.2 + seed / 100), ("100", 0.09)):
            rows.append(row("confucius-flows", f"Confucius, GCC, {flows}", seed, stall, 1.0 + seed / 100))
            rows.append(row("confucius-flows", f"FQ+FIFO, GCC, {flows}", seed, 1.0, 0.5 + seed / 100))
        rows.append(row("confucius-wifi", "Confucius, GCC, rough", seed, 0.2, 1.0))
        rows.append(row("confucius-wifi", "FIFO, GCC, rough", seed, 0.1, 1.1))
        rows.append(row("confucius-wifi", "SJF, GCC, rough", seed, 0.1, 0.7))
        for rule, stall in (("FIFO", 0.2), ("FqCoDel", 0.5), ("CBQ 1:1", 0.0), ("Confucius", 0.15)):
            rows.append(row("confucius-page", f"{rule}, GCC", seed, stall, 1.0))
        rows.append(row("confucius-cuts", "FIFO, GCC, 16", seed, 12 + seed / 10, 1.0))
        rows.append(row("confucius-elsewhere", "Confucius, behind", seed, 0.0, 0.97, 1.01))
        rows.append(row("confucius-elsewhere", "FIFO, behind", seed, 0.0, 1.0, 1.0))
    pl.DataFrame(rows, schema=experience.SCHEMA).write_parquet(tmp_path / experience.FILE)

    def found(scenario: str) -> dict[str, str]:
        return {one.figure: one.verdict for one in judges.of_scenario(scenario, tmp_path) if one.seeds}

    assert found("confucius-flows") == {
        "5 flows: stall, s": verdict.HELD,
        "5: page load time less FQ+FIFO's, s": verdict.NOT_HELD,
        "60 flows: stall, s": verdict.NOT_HELD,
        "60: page load time less FQ+FIFO's, s": verdict.NOT_HELD,
        "100 flows: stall, s": verdict.HELD,
        "100: page load time less FQ+FIFO's, s": verdict.NOT_HELD,
    }
    assert found("confucius-wifi") == {
        "rough: what FIFO has worse, of stall and load, s": verdict.HELD,
        "rough: what SJF has worse, of stall and load, s": verdict.NOT_HELD,
    }
    page = ("FIFO: stall, s", "FqCoDel: stall, s", "CBQ 1:1: stall, s", "GCC: stall over FqCoDel")
    best = "GCC: stall over the best unlabelled (FIFO)"
    assert found("confucius-page") == {**dict.fromkeys(page, verdict.HELD), best: verdict.NOT_HELD}
    assert found("confucius-cuts") == {"GCC, a sixteenth of the rate: stall, s": verdict.HELD}
    assert found("confucius-elsewhere") == {
        "bottleneck behind: frame P99 apart from FIFO's, part of it": verdict.NOT_HELD,
        "bottleneck behind: load apart from FIFO's, part of it": verdict.NOT_HELD,
        "bottleneck behind: call's rate apart from FIFO's, part of it": verdict.HELD,
    }


def test_each_flow_of_a_run_has_a_row_and_shares_are_judged(tmp_path: Path) -> None:
    """A sender without flows has none; Jain's index is of all flows of a run."""
    run: dict[str, Any] = {
        "seconds": 20,
        "warmup_s": 4,
        "bottlenecks": [{"buffer_bytes": 15_000}],
        "senders": [
            {"name": "s1", "groups": [{"flows": 1, "tcp": "gcc"}]},
            {"name": "web", "groups": [{"flows": 1, "tcp": "cubic"}]},
            {"name": "off", "groups": []},
        ],
    }
    found = experience.flows_of(ROW, summary(run=run))
    assert [(one["sender"], one["tcp"], one["goodput_mbps"]) for one in found] == [
        ("s1", "gcc", 3),
        ("web", "cubic", 3),
    ]
    assert found[0]["rtt_mean_s"] == 5e-3
    # 8 packets in 16 s, each for 5 ms, of room for 10
    assert found[0]["occupancy"] == pytest.approx(8 / 16 * 5e-3 / 10)
    for limit, packets in (
        ("20p", 20),
        ("2kp", 2000),
        ("30000B", 20),
        ("1.5KiB", 1.024),
    ):  # goes before the buffer
        disc = {"disc": {"type": "ns3::FifoQueueDisc", "attributes": {"MaxSize": limit}}}
        limited = run | {"bottlenecks": [run["bottlenecks"][0] | disc]}
        occupancy = experience.flows_of(ROW, summary(run=limited))[0]["occupancy"]
        assert occupancy == pytest.approx(8 / 16 * 5e-3 / packets)
    rows = [
        {
            **found[0],
            "scenario": "confucius-fair",
            "point": f"Confucius, GCC, {flows}",
            "seed": seed,
            "sender": str(k),
        }
        | {"goodput_mbps": 10.0 if k == 0 or flows == 2 else 0.001 * seed}
        for flows in (2, 10)
        for seed in range(1, 6)
        for k in range(flows)
    ]
    pl.DataFrame(rows, schema=experience.FLOWS_SCHEMA).write_parquet(tmp_path / experience.FLOWS)
    fair = {one.figure: one for one in judges.of_scenario("confucius-fair", tmp_path)}
    assert list(fair) == ["2 flows: Jain's index", "10 flows: Jain's index"]
    assert (fair["2 flows: Jain's index"].measured, fair["2 flows: Jain's index"].verdict) == (
        1,
        verdict.HELD,
    )
    assert fair["10 flows: Jain's index"].measured == pytest.approx(0.1, abs=1e-3)
    assert fair["10 flows: Jain's index"].verdict == verdict.NOT_HELD


def test_what_cannot_be_judged(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figure8: no figure is to be reached in it, but in confucius-web"):
        judges.of_scenario("figure8", tmp_path)
    with pytest.raises(ValueError, match="has no results of confucius-web"):
        judges.of_scenario("confucius-web", tmp_path)
    (tmp_path / experience.FILE).write_bytes(b"none")
    with pytest.raises(ValueError, match="is damaged"):
        judges.of_scenario("confucius-web", tmp_path)
