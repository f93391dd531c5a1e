"""Scenarios: the project's own are sound, what is wrong gets one line, and runs are what they say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from infra.lab.runs import Cell, Model, cells, control_of, identity, resolve
from infra.lab.scenario import CONTROLS
from infra.lab.scenario_file import FOLDER, environment_at, load, names, path_of


@pytest.fixture
def small() -> dict[str, Any]:
    """A scenario of its own, as YAML holds it."""
    default: dict[str, Any] = yaml.safe_load((FOLDER / "default.yaml").read_text())
    return default


def written(folder: Path, raw: object) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(raw, sort_keys=False))
    return path


def put(raw: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(raw)
    *path, last = key.split(".")
    tree: Any = changed
    for part in path:
        tree = tree[int(part)] if isinstance(tree, list) else tree[part]
    tree[last] = value
    return changed


@pytest.mark.parametrize("name", names())
def test_the_projects_scenarios_are_sound(name: str) -> None:
    scenario = load(path_of(name))
    assert scenario.about
    for cell in cells(name, scenario):
        assert environment_at(scenario, cell.point, name).senders["s1"].groups
    if not name.startswith("map-"):  # the maps ask what the standard queue leaves
        assert scenario.profiles == ["rfc9332", "premise"]
    if name != "split":  # asks what no choice at all is worth
        assert set(scenario.controls) == set(CONTROLS)
    assert len(scenario.seeds) >= (3 if name == "small" else 5)


def test_what_the_paper_has_is_there() -> None:
    figure8 = load(path_of("figure8")).environment
    s1, cross = figure8.senders["s1"].groups, figure8.senders["cross"].groups
    assert (s1["l4s"].flows, s1["classic"].flows, cross["l4s"].flows) == (6, 4, 10)
    assert (figure8.bottlenecks[0].mbps, figure8.rtt_ms, figure8.bottlenecks[0].buffer_bdp) == (100, 40, 2)

    def swept(name: str) -> list[float | None]:
        axis = load(path_of(name)).axis
        assert axis is not None
        return [point.at for point in axis.points.values()]

    assert (swept("sweep-flows")[0], swept("sweep-flows")[-1]) == (10, 1000)
    assert swept("sweep-buffer") == [2, 5, 10, 20]
    assert swept("sweep-rtt") == [20, 50, 100, 200]
    axis = load(path_of("sweep-congestion-control")).axis
    assert axis is not None
    assert list(axis.points) == ["DCTCP", "Prague", "Cubic", "BBR"]


def test_a_sweep_of_flows_has_as_many_as_it_says() -> None:
    for name in ("sweep-flows", "map-flows"):
        scenario = load(path_of(name))
        assert scenario.axis is not None
        for point, described in scenario.axis.points.items():
            groups = [
                (key, group)
                for sender in environment_at(scenario, point, name).senders.values()
                for key, group in sender.groups.items()
            ]
            counted = [g.flows for key, g in groups if name == "sweep-flows" or key != "classic"]
            assert sum(counted) == described.at


S1 = "environment.senders.s1.groups"


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("extra", 1, "mine.yaml: extra: unknown key"),
        ("environment.bottlenecks.0.speed", 3, "mine.yaml: environment.bottlenecks.0.speed: unknown key"),
        (f"{S1}.l4s.traffic.burst", 3, f"mine.yaml: {S1}.l4s.traffic.burst: unknown key"),
        (f"{S1}.l4s.flows", -1, f"{S1}.l4s.flows: input should be greater than or equal to 0"),
        (f"{S1}.l4s.flows", 1.5, f"{S1}.l4s.flows: "),
        (f"{S1}.l4s.tcp", "reno", f"{S1}.l4s.tcp: input should be 'dctcp', "),
        (f"{S1}.l4s.ecn", "ect0", f"{S1}.l4s.ecn: dctcp is always ect1".replace("environment.", "", 1)),
        (f"{S1}.l4s.receiver", "r9", "there is no 'r9', there is r1"),
        (f"{S1}.l4s.traffic", {"kind": "noise"}, f"{S1}.l4s.traffic: "),
        (
            "environment.bottlenecks.0.buffer_bdp",
            0.001,
            "a queue of 500 bytes, smaller than a packet of 1500",
        ),
        ("environment.bottlenecks", [], "environment.bottlenecks: "),
        ("environment.rtt_ms", float("nan"), "environment.rtt_ms: "),
        ("environment.receivers.r1", {"router": 2}, "receivers.r1.router: 2 is beyond the last, 1"),
        ("seeds", [1, 1], "seeds: one stands there twice"),
        ("seeds", [], "seeds: "),
        ("seeds", [1001], "seeds.0: input should be less than 1000 (is 1001)"),
        ("explore.seeds", [1], "explore.seeds.0: input should be greater than or equal to 1000 (is 1)"),
        ("warmup_s", 60, "warmup_s: 60 s leave nothing of 60 s"),
        ("controls", ["oracle"], "controls: default must be among them"),
        ("controls", ["default", "magic"], "controls: there is no 'magic', there is default, "),
        ("profiles", ["linux"], "profiles.0: input should be 'rfc9332' or 'premise' (is 'linux')"),
        ("axis", {"label": "x", "points": {"a": {"set": {"rtt": 3}}}}, "the environment has no key 'rtt'"),
        ("axis", {"label": "x", "points": {"a": {"set": {"rtt_ms": 0}}}}, "axis.points.a: rtt_ms: "),
        ("axis", {"label": "x", "points": {"a": {"set": {"bottlenecks.7.mbps": 0}}}}, "has no key"),
        ("extends", "nothing", "extends: there is no other 'nothing', beside it or of the project"),
        ("extends", "mine", "extends: there is no other 'mine'"),
        ("extends", 3, "extends: 3 is no name of a scenario"),
    ],
)
def test_what_is_wrong_gets_one_line(
    small: dict[str, Any], tmp_path: Path, key: str, value: object, line: str
) -> None:
    with pytest.raises(ValueError, match=r"^mine\.yaml: ") as error:
        load(written(tmp_path, put(small, key, value)))
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scenario_of_ones_own_extends_the_projects(tmp_path: Path) -> None:
    path = tmp_path / "figure8.yaml"  # even under its name
    path.write_text("extends: figure8\nseconds: 12\n")
    assert load(path) == load(path_of("figure8")).model_copy(update={"seconds": 12.0})
    (tmp_path / "one.yaml").write_text("extends: other\n")
    (tmp_path / "other.yaml").write_text("extends: one\n")
    with pytest.raises(ValueError, match=r"^other\.yaml: extends: there is no other 'one'"):
        load(tmp_path / "one.yaml")


def test_no_flow_at_the_captured_sender_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    none = put(put(small, f"{S1}.l4s.flows", 0), f"{S1}.classic.flows", 0)
    with pytest.raises(ValueError, match=r"mine\.yaml: environment\.senders\.s1\.groups: .* has no flow"):
        load(written(tmp_path, none))


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "", "- x\n- y"])
def test_a_file_that_is_no_scenario_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"mine\.yaml: .*(not a mapping|not valid YAML)") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_an_unknown_scenario_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match=r"figure9: no such scenario; there is .*figure8"):
        path_of("figure9")


def run_of(
    name: str, control: str = "default", profile: str = "premise", seed: int = 1, seconds: float = 300
) -> dict[str, Any]:
    scenario = load(path_of(name)).model_copy(update={"seconds": seconds})
    point = next(iter(scenario.axis.points)) if scenario.axis else ""
    cell = Cell(name, point, None, profile, control, seed)
    model = Model(Path("/models/a"), "c0ffee")
    chosen = control_of(environment_at(scenario, point, name), control, model=model, share=0.25)
    return resolve(scenario, cell, chosen, [])


def test_units_come_out_right() -> None:
    run = run_of("figure8")
    # 100 Mbit/s · 40 ms = 500,000 bytes; two of them
    assert run["bottlenecks"] == [{"rate_bps": 100_000_000, "delay_ms": 19.8, "buffer_bytes": 1_000_000}]
    way_ms = run["senders"][0]["delay_ms"] + 19.8 + run["receivers"][0]["delay_ms"]
    assert 2 * way_ms == pytest.approx(40)
    far = run_of("receivers")["receivers"]
    assert [r["delay_ms"] for r in far] == pytest.approx([0.1, 5.1, 15.1])
    two = run_of("map-two-bottlenecks")
    assert sum(b["delay_ms"] for b in two["bottlenecks"]) + 0.2 == pytest.approx(20)
    assert run["senders"][0]["groups"][0]["traffic"]["rate_bps"] == 5_000_000


def test_a_runs_identity_is_what_it_depends_on_and_nothing_else() -> None:
    base = identity(run_of("figure8"), "program")
    assert base == identity(run_of("figure8"), "program")
    others = [
        identity(run_of("figure8"), "another program"),
        identity(run_of("figure8", seed=2), "program"),
        identity(run_of("figure8", profile="rfc9332"), "program"),
        *(identity(run_of("figure8", control=c), "program") for c in CONTROLS if c != "default"),
    ]
    assert len({base, *others}) == len(others) + 1
    # the same run, asked for by another scenario
    swept = run_of("sweep-buffer") | {"warmup_s": 10.0}
    assert identity(swept, "program") == base


def test_the_models_folder_is_not_in_the_run() -> None:
    assert run_of("figure8", control="model")["finetune"] is None  # it would come after the end
    run = run_of("figure8", control="model", seconds=900)
    assert "/models/a" not in json.dumps(run)
    assert run["control"]["artifact"] == "c0ffee"
    assert run["finetune"] == {"every_s": 300.0, "span_s": 60.0, "apply_after_s": 5.0, "command": []}


def packet_table(folder: Path, sent: list[tuple[int, float, int]]) -> None:
    """Rows of (flow, time in ms, IP length)."""
    rows = [
        {
            "trace": "t",
            "packet": i,
            "flow_id": f,
            "sent_ns": round(ms * 1e6),
            "size_bytes": size,
            "retransmitted": False,
        }
        for i, (f, ms, size) in enumerate(sent)
    ]
    part = folder / "trace=t" / "minute=0"
    part.mkdir(parents=True)
    pl.DataFrame(rows).write_parquet(part / "part-0.parquet")


def test_a_replay_has_the_tables_statistics(small: dict[str, Any], tmp_path: Path) -> None:
    # two flows: bursts of 2, 1 and 1 packets, 100 ms apart
    sent = [
        (f, start + at, 1052)
        for f in (0, 1)
        for start in (0, 100, 200)
        for at in ((0, 1) if start == 0 else (0,))
    ]
    packet_table(tmp_path / "packets", sorted(sent, key=lambda row: row[1]))
    traffic = {"kind": "replay", "packets": str(tmp_path / "packets")}
    scenario = load(written(tmp_path, put(small, f"{S1}.l4s.traffic", traffic)))
    run = resolve(scenario, Cell("mine", "", None, "premise", "default", 1), {"kind": "default"}, [])
    replay = run["senders"][0]["groups"][0]["traffic"]
    assert replay["gaps_us"][0] == [100_000, 0]
    assert replay["gaps_us"][-1] == [100_000, 1]
    assert (replay["bytes"][0], replay["bytes"][-1]) == ([1000, 0], [2000, 1])
    assert replay["durations_s"][-1] == [pytest.approx(0.2), 1]
    shares = [share for _, share in replay["bytes"]]
    assert shares == sorted(shares)


@pytest.mark.parametrize(
    ("sent", "trace", "line"),
    [
        (None, None, "no such folder of packet tables"),
        ([(0, 0, 1000)], "u", "'u' is not in .*; it has t"),
        ([(0, 0, 1000), (0, 1, 1000)], None, "has no pause of 10 ms"),
    ],
)
def test_a_replay_of_nothing_gets_one_line(
    small: dict[str, Any],
    tmp_path: Path,
    sent: list[tuple[int, float, int]] | None,
    trace: str | None,
    line: str,
) -> None:
    if sent:
        packet_table(tmp_path / "packets", sent)
    traffic = {"kind": "replay", "packets": str(tmp_path / "packets"), "trace": trace}
    scenario = load(written(tmp_path, put(small, f"{S1}.l4s.traffic", traffic)))
    with pytest.raises(ValueError, match=rf"^senders\.s1\.groups\.l4s\.traffic.*{line}"):
        resolve(scenario, Cell("mine", "", None, "premise", "default", 1), {"kind": "default"}, [])
