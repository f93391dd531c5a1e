"""Scenarios: the project's own are sound, what is wrong gets one line, and runs are what they say."""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA
from swiftqueue.laboratory.command import Request, adjusted, run_lab
from swiftqueue.laboratory.learning.judged_models import (
    check_acks,
    model_at,
    models_by_profile,
    said_acks,
    trees_at,
)
from swiftqueue.laboratory.learning.train import PARAMS, settings, shared, train
from swiftqueue.laboratory.report.judging import FEWEST_PACKETS
from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import (
    Cell,
    Model,
    cells,
    control_of,
    finetuning_content,
    identity,
    resolve,
)
from swiftqueue.laboratory.scenarios.controls import CONTROLS
from swiftqueue.laboratory.scenarios.document import reference
from swiftqueue.laboratory.scenarios.files import FOLDER, environment_at, files_of, full, load, names, path_of
from swiftqueue.laboratory.scenarios.replay import distribution
from swiftqueue.laboratory.scenarios.traffic import Group, Messages
from swiftqueue.pipelines.params.document import load_yaml


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


def refuses(folder: Path, raw: object, line: str) -> None:
    """The scenario is refused in one line, which is the file's name and `line` (a regular expression)."""
    with pytest.raises(ValueError, match=rf"^mine\.yaml: {line}") as error:
        load(written(folder, raw))
    assert "\n" not in str(error.value)


def test_the_reference_page_is_current(project: Path) -> None:
    assert (project / "docs/SCENARIOS.md").read_text() == reference(), (
        "run: python -m swiftqueue.laboratory.scenarios.document > docs/SCENARIOS.md"
    )
    assert "`rtt_ms`** (0.4…20000): Base round trip" in reference()  # by the comment above the key


@pytest.mark.parametrize("name", names())
def test_every_scenario_can_be_resolved(name: str) -> None:
    """Those of the studies too."""
    scenario = load(path_of(name))
    assert scenario.about
    for cell in cells(name, scenario):
        assert environment_at(scenario, cell.point, name).senders["s1"].groups


@pytest.mark.parametrize("name", sorted(one.stem for one in FOLDER.glob("[!_]*.yaml")))
def test_the_projects_scenarios_are_whole(name: str) -> None:
    scenario = load(path_of(name))
    # the maps ask what the standard queue leaves, the guard where the model harms there; one names each disc
    # and pages-and-video and the long ones make captures, nothing is compared in them
    some = ("map-", "pages-and-video", "long-", "figure8-finetuned", "linux-", "uplinks-")
    if not name.startswith(some):
        assert scenario.profiles == ["rfc9332", "uncoupled"]
    # what no choice at all is worth, what the model costs, what a new head and the guard bring, who picks
    fewer = ("many-flows", "figure8-finetuned", "figure8-trainings", "pages-and-video", "long-", "anywhere")
    fewer += ("bed-",)  # what the kernel test bed can do
    fewer += ("fresh-", "surroundings", "small", "linux-", "uplinks-")
    if not name.startswith(fewer):
        assert set(scenario.controls) == set(CONTROLS)
    if not name.startswith("long-"):  # of which a stage takes `explore`
        least = {"pages-and-video": 3, "many-flows": 1}
        assert len(scenario.seeds) >= least.get(name, 5)


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
    assert swept("sweep-rtt") == [10, 20, 50, 100, 200]
    rtt = load(path_of("sweep-rtt"))
    assert rtt.axis is not None
    # one way is `at`; a round trip is twice that: 20 ms, the paper's, may be either
    rtts_ms = [environment_at(rtt, point, "sweep-rtt").rtt_ms for point in rtt.axis.points]
    assert rtts_ms == [20, 40, 100, 200, 400]
    axis = load(path_of("sweep-congestion-control")).axis
    assert axis is not None
    assert list(axis.points) == ["DCTCP", "Prague", "Cubic", "BBR"]


def test_the_full_laboratory_is_one_list() -> None:
    swept = ["sweep-buffer", "sweep-congestion-control", "sweep-flows", "sweep-rtt"]
    mapped = ["map-flows", "map-two-bottlenecks", "map-unresponsive", "map-video"]
    assert full() == ["figure8", "figure8-finetuned", *swept, *mapped, "many-flows"]
    flows = load(path_of("many-flows"))
    assert (flows.seconds, flows.seeds, flows.controls) == (300, [1], ["default", "model"])
    groups = flows.environment.groups()
    assert sum(group.flows for _, _, group in groups) == 500


def test_tuning_the_head_has_no_tuning_beside_it() -> None:
    name = "figure8-finetuned"
    scenario = load(path_of(name))
    runs: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in cells(name, scenario):
        environment = environment_at(scenario, cell.point, name)
        control = control_of(environment, cell.control, model=Model(Path("a"), "c0ffee"), share=0)
        runs[cell.point, cell.control] = resolve(scenario, cell, control, [])
    assert runs["never", "default"] == runs["at 100 s", "default"]  # one run for both
    assert runs["never", "model"] == runs["at 100 s", "model"] | {"finetune": None}
    assert runs["at 100 s", "model"]["finetune"]["every_s"] == 100


def test_a_bottlenecks_disc_is_an_axis(small: dict[str, Any], tmp_path: Path) -> None:
    """Attributes are written as ns-3 reads them; a run without a disc of its own is the one it was."""
    plain = load(written(tmp_path, small))
    cell = Cell("mine", "", None, "rfc9332", "default", 1)
    assert "disc" not in resolve(plain, cell, {"kind": "default"}, [])["bottlenecks"][0]

    disc = {"type": "ns3::DualPi2QueueDisc", "attributes": {"LAqm": "Step", "LStep": "1ms", "CWeight": 0.1}}
    raw = put(small, "environment.bottlenecks.0.disc", disc)
    steps = {"5ms": {"at": 5, "set": {"bottlenecks.0.disc.attributes.LStep": "5ms"}}}
    other = {"type": "ns3::PieQueueDisc", "attributes": {"UseEcn": True}}
    steps["PIE"] = {"at": None, "set": {"bottlenecks.0.disc": other}, "profiles": ["rfc9332"]}  # type: ignore[dict-item]
    swept = load(written(tmp_path, raw | {"axis": {"label": "L step", "points": steps}}))
    found = {c.point: resolve(swept, c, {"kind": "default"}, []) for c in cells("mine", swept)}
    discs = {point: run["bottlenecks"][0]["disc"] for point, run in found.items()}
    assert discs["5ms"] == disc | {"attributes": {"LAqm": "Step", "LStep": "5ms", "CWeight": "0.1"}}
    assert discs["PIE"] == other | {"attributes": {"UseEcn": "true"}}
    views = [environment_at(swept, point, "mine").without_view() for point in discs]
    assert views == [None, "ns3::PieQueueDisc"]


def test_a_scenario_says_how_its_model_is_trained(tmp_path: Path) -> None:
    """`lab train figure8` makes the judged model again; --set has the last word."""
    path = path_of("figure8")
    loop = load_yaml(PARAMS)
    params, origin = settings(load(path), path, "small", [])
    assert params["architecture"] == loop["architecture"] == {"name": "event-stream"}
    assert params["event-stream"] == {**loop["event-stream"], "workers": 1, "epochs": 4}
    assert (origin["acks"], origin["moved_ecn"]) == ("selective", "ect0")
    params, origin = settings(load(path), path, "small", ["event-stream.epochs=3"])
    assert (params["event-stream"]["epochs"], origin["set"][-1]) == (3, "event-stream.epochs=3")
    own = tmp_path / "mine.yaml"
    own.write_text("extends: figure8\ntrain: {event-stream.bands: 64}\n")
    with pytest.raises(ValueError, match=r"^mine\.yaml: train: event-stream\.bands=64: there is no par"):
        settings(load(own), own, "small", [])
    own.write_text("extends: figure8\ntrain: {finetune.epochs: 0}\n")
    with pytest.raises(ValueError, match=r"^mine\.yaml: train: finetune\.epochs is 0; it must be"):
        settings(load(own), own, "small", [])
    with pytest.raises(ValueError, match=r"^architecture\.name is 'lstm'; it must be one of"):
        settings(load(path), path, "small", ["architecture.name=lstm"])
    for name in ("mlp", "window"):
        with pytest.raises(
            ValueError, match=rf"^architecture\.name is {name}; .* but event-stream and trees$"
        ):
            settings(load(path), path, "small", [f"architecture.name={name}"])
    assert settings(load(path), path, "small", ["architecture.name=trees"])[1]["set"][-1].endswith("trees")
    assert "train" not in json.dumps(run_of("figure8"))


def test_a_point_may_have_a_model_of_its_own(tmp_path: Path) -> None:
    """What its `train` says comes after the scenario's; a point without is trained as the scenario says."""
    path = path_of("figure8-trainings")
    scenario = load(path)
    given = {
        point: settings(scenario, path, "small", ["event-stream.epochs=7"], point)
        for point in scenario.points_with_models()
    }
    for point, (params, origin) in given.items():
        assert (params["event-stream"]["seed"], params["event-stream"]["epochs"]) == (int(point), 7)
        assert origin["set"][-1] == "event-stream.epochs=7"
    assert [points for _, points in shared(given)] == [["1"], ["2"], ["3"]]
    assert [points for _, points in shared(given | {"again": given["2"]})] == [["1"], ["2", "again"], ["3"]]
    assert load(path_of("sweep-rtt")).points_with_models() == {}
    for name, key, line in (
        ("one", "tokens", r"axis\.points\.one\.train\.tokens: not of the form SECTION\.KEY"),
        ("a b", "event-stream.band", r"axis\.points\.a b\.train: the point's name must fit"),
    ):
        axis = {"label": "x", "points": {name: {"set": {}, "train": {key: 64}}}}
        refuses(tmp_path, {"extends": "figure8", "axis": axis}, line)


def test_the_models_of_points_are_found_and_the_profiles_stand_in(project: Path, tmp_path: Path) -> None:
    judged = project / "docs" / "laboratory" / "models" / "bed-figure8-flows"
    for point, name in (("0.9", "premise"), ("0.9", "rfc9332"), ("", "premise")):
        profile = "uncoupled" if name == "premise" else name  # as it was called
        shutil.copytree(judged / profile, tmp_path / "models" / point / name)
    found = models_by_profile(str(tmp_path / "models"), tmp_path)
    assert set(found) == {"0.9/uncoupled", "0.9/rfc9332", "uncoupled"}
    assert model_at(found, "0.9", "rfc9332") == found["0.9/rfc9332"]
    assert model_at(found, "0.5", "uncoupled") == model_at(found, "", "uncoupled") == found["uncoupled"]
    assert model_at(found, "0.5", "rfc9332") is None
    shutil.copytree(judged / "rfc9332", tmp_path / "models" / "0.9" / "uncoupled")  # made since
    found = models_by_profile(str(tmp_path / "models"), tmp_path)
    assert found["0.9/uncoupled"].folder == tmp_path / "models" / "0.9" / "uncoupled"


def test_one_folder_holds_the_models_of_several_scenarios_and_trees_beside_them(
    project: Path, tmp_path: Path
) -> None:
    judged = project / "docs" / "laboratory" / "models" / "figure8" / "rfc9332"
    for place in ("one", "one/trees", "one/0.6", "two"):
        shutil.copytree(judged, tmp_path / "models" / place / "rfc9332")
    found = models_by_profile(str(tmp_path / "models"), tmp_path)
    assert set(found) == {f"{place}/rfc9332" for place in ("one", "one/trees", "one/0.6", "two")}
    assert model_at(found, "0.6", "rfc9332", "one") == found["one/0.6/rfc9332"]
    assert model_at(found, "0.8", "rfc9332", "one") == found["one/rfc9332"]
    assert model_at(found, "0.6", "rfc9332", "two") == found["two/rfc9332"]
    assert model_at(found, "0.6", "rfc9332", "three") is None
    assert trees_at(found, "rfc9332", "one") == found["one/trees/rfc9332"]
    assert trees_at(found, "rfc9332", "two") is None


def test_a_placebo_decides_at_other_times_or_is_refused(tmp_path: Path) -> None:
    scenario = load(path_of("figure8"))
    request = Request(["figure8"], controls=["default", "model", "placebo"])
    environment, cell = scenario.environment, Cell("figure8", "", None, "rfc9332", "model", 1)
    control = control_of(environment, "model", model=Model(Path(), ""), share=0)
    run = resolve(adjusted(scenario, request), cell, control, [])
    assert run["outputs"] == ["decisions"], "the placebo repeats them, scored or not"
    assert resolve(scenario, cell, control, [])["outputs"] == []
    with pytest.raises(ValueError, match=r"--controls: .*shift_s: 10 s are not less than the run's 10:"):
        adjusted(scenario.model_copy(update={"seconds": 10.0}), request)
    own = tmp_path / "mine.yaml"
    own.write_text(
        "extends: figure8\ncontrols: [default, model, placebo]\n"
        "environment: {controls: {model: {until_decided: default}}}\n"
    )
    with pytest.raises(ValueError, match="until_decided: only with `previous`"):
        load(own)


def test_points_are_the_product_of_parts(small: dict[str, Any], tmp_path: Path) -> None:
    """The same points as written out, in the same order; `only` leaves others away."""
    first = {"a": {"set": {"rtt_ms": 10}, "at": 1}, "b": {"set": {"rtt_ms": 20}, "at": 2}}
    second = {"x": {"set": {"bottlenecks.0.mbps": 5}, "controls": ["default"]}, "y": {"set": {}}}
    parts = {"label": "l", "parts": {"rtt": first, "rate": second}}
    points = {
        "a, x": {"set": {"rtt_ms": 10, "bottlenecks.0.mbps": 5}, "at": 1, "controls": ["default"]},
        "b, x": {"set": {"rtt_ms": 20, "bottlenecks.0.mbps": 5}, "at": 2, "controls": ["default"]},
        "a, y": {"set": {"rtt_ms": 10}, "at": 1},
        "b, y": {"set": {"rtt_ms": 20}, "at": 2},
    }

    def of(axis: object) -> list[Cell]:
        scenario = load(written(tmp_path, put(small, "axis", axis)))
        return list(cells("mine", scenario))

    assert of(parts) == of({"label": "l", "points": points})
    unnamed = parts | {"join": "; ", "parts": {"rtt": first, "rate": {"x": second["x"], "": second["y"]}}}
    joined = {name.replace(", x", "; x").replace(", y", ""): point for name, point in points.items()}
    assert of(unnamed) == of({"label": "l", "points": joined})
    (tmp_path / "child.yaml").write_text('extends: mine\naxis: {only: ["*, y"]}\n')
    written(tmp_path, put(small, "axis", parts))
    child = load(tmp_path / "child.yaml").axis
    assert child is not None
    assert list(child.points) == ["a, y", "b, y"]
    for wrong, line in (
        (parts | {"only": ["c*"]}, "only: no point is named 'c*'"),
        ({"label": "l", "parts": {"rtt": {}}}, "axis.parts.rtt: has no choices"),
        ({"label": "l", "parts": {key: {"": {}, "x": {}} for key in "pq"}}, "two points are named 'x'"),
        ({"label": "l", "parts": {"one": first, "two": first}}, "another part both set rtt_ms"),
        ({"label": "l", "parts": {"one": {"a": 3}}}, "axis.parts.one.a: not a point of the form"),
        (parts | {"only": [3]}, "no point is named 3"),
    ):
        refuses(tmp_path, put(small, "axis", wrong), f".*{re.escape(line)}")


def test_a_name_means_one_file(tmp_path: Path) -> None:
    """Results are kept by the scenario's name: another file's must not take the place of the project's."""
    (tmp_path / "figure8.yaml").write_text("extends: figure8\n")
    with pytest.raises(ValueError, match="the project has a scenario figure8; give the file another name"):
        files_of(["figure8", str(tmp_path / "figure8.yaml")])
    with pytest.raises(ValueError, match="the project has a scenario figure8"):
        files_of([str(tmp_path / "figure8.yaml")])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text("extends: figure8\n")
    mine = [str(tmp_path / folder / "mine.yaml") for folder in ("a", "b")]
    with pytest.raises(ValueError, match=r"b/mine\.yaml: .*a/mine\.yaml has the same name; give one"):
        files_of(mine)
    assert list(files_of(["figure8", str(path_of("figure8")), mine[0]])) == ["figure8", "mine"]


def model_of(folder: Path, origin: object) -> Model:
    """A model as `_model` finds it, but for its weights."""
    if origin is not None:
        (folder / "origin.json").write_text(json.dumps(origin))
    return Model(folder, "c0ffee", said_acks(folder / "origin.json"))


@pytest.mark.parametrize(
    ("origin", "said"),
    [
        ({"acks": "selective"}, ""),
        (None, "of which ACKs' latencies it learned is not known (it has no origin.json)"),
        ({"scenario": "figure8"}, "an earlier version wrote its origin.json"),
    ],
)
def test_a_model_says_from_which_acks_it_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], origin: object, said: str
) -> None:
    models = dict.fromkeys(("rfc9332", "uncoupled"), model_of(tmp_path, origin))
    check_acks(models, {"figure8": load(path_of("figure8"))})
    printed = capsys.readouterr().out
    assert said in printed
    assert printed.count("\n") == (1 if said else 0)


def test_a_model_of_other_acks_is_refused(tmp_path: Path) -> None:
    models = {"uncoupled": model_of(tmp_path, {"acks": "cumulative"})}
    with pytest.raises(ValueError, match="cumulative ACKs, and S1 learns from selective ones") as error:
        check_acks(models, {"figure8": load(path_of("figure8"))})
    assert "\n" not in str(error.value)
    unmodelled = load(path_of("figure8")).model_copy(update={"controls": ["default"]})
    check_acks(models, {"figure8": unmodelled})  # no model drives it
    with pytest.raises(ValueError, match=r"origin\.json: not what `swiftqueue lab train` writes"):
        model_of(tmp_path, ["acks"])


@pytest.mark.parametrize(
    ("name", "seeds", "found"),
    [
        ("surroundings", 2, [102, 103]),
        ("surroundings", 12, [*range(102, 114)]),
        ("figure8", 3, [1, 2, 3]),
        ("figure8", 7, [*range(1, 8)]),
    ],
)
def test_seeds_are_the_scenarios_first_and_those_after(name: str, seeds: int, found: list[int]) -> None:
    assert adjusted(load(path_of(name)), Request([name], seeds=seeds)).seeds == found


@pytest.mark.parametrize("seconds", [1.0, float("nan"), float("inf")])
def test_a_run_that_cannot_be_is_refused_before_anything_runs(seconds: float) -> None:
    with pytest.raises(ValueError, match=rf"^--seconds {seconds:g}: "):
        adjusted(load(path_of("figure8")), Request(["figure8"], seconds=seconds))


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
CBR = {"kind": "cbr", "mbps": 1, "packet_bytes": 1200}
VIDEO = {"kind": "video", "mbps": 1, "frames_per_s": 60}
UDP = {"flows": 2000, "tcp": "udp", "ecn": "not_ect", "receiver": "r1", "traffic": CBR}
# One of each kind: the numbers of the other bounds are on the reference page, which is held above.
BAD_GROUPS: list[tuple[str, object, str]] = [
    ("traffic", {**CBR, "packet_bytes": 1449}, "traffic.packet_bytes: input should be less than or equal"),
    ("traffic", {**VIDEO, "frames_per_s": 0.01}, "traffic.frames_per_s: input should be greater than"),
    ("start_s", [2, 1], "start_s: 2 is after 1"),
    ("dupack_threshold", 20_000, "dupack_threshold"),
]
BAD_ENVIRONMENTS: list[tuple[str, object, str]] = [
    ("rtt_ms", 0.3, "rtt_ms: input should be greater than or equal to 0.4 (is 0.3)"),
    ("receivers.r 2", {}, "receivers.r 2: string should match pattern"),
    ("senders.s/2", {"groups": {}}, "senders.s/2: string should match pattern"),
    (
        "senders.cross.groups",
        {f"g{i}": UDP for i in range(10)},
        "senders: 20010 flows, at most 20000 can be simu",
    ),
    (
        "senders",
        {f"s{i}": {"groups": {"g": {**UDP, "flows": 1, "ecn": "ect1"}}} for i in range(251)},
        "senders: dictionary should have at most 250 items",
    ),
    (
        "senders.s1.groups.l4s",
        {**UDP, "ecn": "ect1", "flows": 1, "traffic": {"kind": "greedy"}},
        "senders.s1.groups.l4s.traffic: udp cannot be greedy",
    ),
    ("bottlenecks", [{"mbps": 100, "buffer_bdp": 2}] * 9, "bottlenecks: list should have at most 8 items"),
    ("bottlenecks.0.mbps", 0.001, "bottlenecks.0.mbps: input should be greater than or equal to 0.01"),
    ("bottlenecks.0.buffer_bdp", 1e5, "bottlenecks.0.buffer_bdp: 100000 is a queue of 50000000000 bytes, "),
    ("controls.model.max_moved_unacked", 2**40, "controls.model.max_moved_unacked: input should be less"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("extra", 1, "mine.yaml: extra: unknown key"),
        ("environment.bottlenecks.0.speed", 3, "mine.yaml: environment.bottlenecks.0.speed: unknown key"),
        (f"{S1}.l4s.traffic.burst", 3, f"mine.yaml: {S1}.l4s.traffic.burst: unknown key"),
        (  # `mbps` is missing, too
            "environment.bottlenecks",
            [{"mpbs": 100, "buffer_bdp": 2}],
            "mine.yaml: environment.bottlenecks.0.mpbs: unknown key",
        ),
        (f"{S1}.l4s.flows", -1, f"{S1}.l4s.flows: input should be greater than or equal to 0"),
        (f"{S1}.l4s.flows", 1.5, f"{S1}.l4s.flows: "),
        (f"{S1}.l4s.tcp", "reno", f"{S1}.l4s.tcp: input should be 'dctcp', "),
        (f"{S1}.l4s.ecn", "ect0", f"{S1}.l4s.ecn: dctcp is always ect1".replace("environment.", "", 1)),
        (f"{S1}.l4s.receiver", "r9", "there is no 'r9', there is r1"),
        (f"{S1}.l4s.traffic", {"kind": "noise"}, f"{S1}.l4s.traffic: "),
        ("environment.bottlenecks.0.buffer_bdp", 0.001, "a queue of 500 bytes, smaller than a packet"),
        ("environment.bottlenecks", [], "environment.bottlenecks: "),
        ("environment.rtt_ms", float("nan"), "environment.rtt_ms: "),
        ("environment.receivers.r1", {"router": 2}, "receivers.r1.router: 2 is beyond the last, 1"),
        ("seeds", [1, 1], "seeds: a value is given twice"),
        ("seeds", [], "seeds: "),
        ("seeds", [1001], "seeds.0: input should be less than 1000 (is 1001)"),
        ("explore.seeds", [1], "explore.seeds.0: input should be greater than or equal to 1000 (is 1)"),
        ("explore.burst_packets", [0], "explore.burst_packets.0: input should be greater than or equal to 1"),
        ("explore.seconds", 5, "explore.seconds: 5 s are too few: warm-up and starts of flows take 5"),
        ("explore.points", True, "explore.points: needs an axis whose points have no models of their own"),
        ("seconds", float("nan"), "seconds: "),
        ("warmup_s", 60, "warmup_s: 60 s leave nothing of 60 s"),
        ("train", {"tokens": 64}, "mine.yaml: train.tokens: not of the form SECTION.KEY"),
        *((f"{S1}.l4s.{key}", value, f"{S1}.l4s.{line}") for key, value, line in BAD_GROUPS),
        *((f"environment.{key}", value, f"environment.{line}") for key, value, line in BAD_ENVIRONMENTS),
        ("controls", ["oracle"], "controls: default must be among them"),
        ("controls", ["default", "magic"], "controls: there is no 'magic', there is default, "),
        ("profiles", ["linux"], "profiles.0: input should be 'rfc9332' or 'uncoupled' (is 'linux')"),
        ("axis", {"label": "x", "points": {"a": {"set": {"rtt": 3}}}}, "the environment has no key 'rtt'"),
        ("axis", {"label": "x", "points": {"a": {"set": {"rtt_ms": 0}}}}, "axis.points.a: rtt_ms: "),
        ("axis", {"label": "x", "points": {"": {"set": {}}}}, "axis.points.: string should have at least 1"),
        ("axis", {"label": "x", "points": {"a": {"set": {}, "at": float("inf")}}}, "axis.points.a.at: "),
        ("axis", {"label": "x", "log": True, "points": {"a": {"set": {}, "at": 0}}}, "on a logarithmic axis"),
        ("axis", {"label": "x", "points": {"a": {"set": {"bottlenecks.7.mbps": 0}}}}, "has no key"),
        ("extends", "nothing", "extends: there is no other 'nothing', beside it or in the project"),
        ("extends", "mine", "extends: there is no other 'mine'"),
        ("extends", 3, "extends: 3 is no name of a scenario"),
        ("extends", ["default", None], "extends: None is no name of a scenario"),
    ],
)
def test_what_is_wrong_gets_one_line(
    small: dict[str, Any], tmp_path: Path, key: str, value: object, line: str
) -> None:
    anywhere = "" if line.startswith("mine.yaml: ") else ".*"
    refuses(tmp_path, put(small, key, value), anywhere + re.escape(line.removeprefix("mine.yaml: ")))


def test_the_profiles_former_name_is_still_read(small: dict[str, Any], tmp_path: Path) -> None:
    """`premise` is `uncoupled`: in scenario files, and in the hashes by which published runs are known."""
    scenario = load(written(tmp_path, put(small, "profiles", ["rfc9332", "premise"])))
    assert scenario.profiles == ["rfc9332", "uncoupled"]
    refuses(tmp_path, put(small, "profiles", ["uncoupled", "premise"]), "profiles: a value is given twice")
    run = run_of("figure8")
    assert run["profile"] == "uncoupled"
    assert identity(run, "program") == identity(run | {"profile": "premise"}, "program")


def test_a_scenario_of_ones_own_extends_the_projects(tmp_path: Path) -> None:
    path = tmp_path / "figure8.yaml"  # even under its name
    path.write_text("extends: figure8\nseconds: 12\n")
    assert load(path) == load(path_of("figure8")).model_copy(update={"seconds": 12.0})
    longer = "seconds: 13\nwarmup_s: 3\nenvironment: {controls: {model: {guard: true}}}\n"
    (tmp_path / "longer.yaml").write_text(longer)
    (tmp_path / "two.yaml").write_text("extends: [figure8, longer]\nwarmup_s: 4\n")
    two = load(tmp_path / "two.yaml")  # the later of two, and the file itself after both
    assert (two.seconds, two.warmup_s, two.environment.controls.model.guard) == (13, 4, True)
    assert two.seeds == load(path_of("figure8")).seeds
    (tmp_path / "one.yaml").write_text("extends: [figure8, other]\n")
    (tmp_path / "other.yaml").write_text("extends: one\n")
    with pytest.raises(ValueError, match=r"^other\.yaml: extends: there is no other 'one'"):
        load(tmp_path / "one.yaml")


def test_no_flow_at_the_captured_sender_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    none = put(put(small, f"{S1}.l4s.flows", 0), f"{S1}.classic.flows", 0)
    refuses(tmp_path, none, r"environment\.senders\.s1\.groups: .* has no flow")
    # nor is anything to choose or to judge where none of them is an L4S flow
    classic = put(small, f"{S1}.l4s.flows", 0)
    refuses(tmp_path, classic, r"environment\.senders\.s1\.groups: .* has no flow with ecn ect1")
    axis = {"label": "x", "points": {"none": {"set": {"senders.s1.groups.l4s.flows": 0}}}}
    line = r"axis\.points\.none: senders\.s1\.groups: .* has no flow"
    refuses(tmp_path, put(small, "axis", axis), line)
    # of others it means that the group is not there
    alone = load(written(tmp_path, put(small, "environment.senders.cross.groups.l4s.flows", 0)))
    run = resolve(alone, Cell("mine", "", None, "uncoupled", "default", 1), {"kind": "default"}, [])
    assert [sender["name"] for sender in run["senders"]] == ["s1"]


def test_what_does_not_fit_into_the_run_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    late = put(put(small, f"{S1}.classic.start_s", [0, 35]), "seconds", 30)
    refuses(tmp_path, late, r"environment\.s.*start_s: 35 is after the end, 30$")
    later = {"label": "x", "points": {"a": {"set": {"senders.s1.groups.classic.start_s": [0, 61]}}}}
    line = r"axis\.points\.a: s.*start_s: 61 is after the end, 60$"
    refuses(tmp_path, put(small, "axis", later), line)
    short = put(put(small, "environment.controls.model.finetune_every_s", 30), "seconds", 50)
    line = r".*controls\.model\.finetune_span_s: 60 s are more than the run's 50"
    refuses(tmp_path, short, line)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"[1, 2]", "not a mapping of keys"),
        (b"a: [", "line 1: not valid YAML"),
        (b"", "not a mapping of keys"),
        (b"- x\n- y", "not a mapping of keys"),
        (b"extends: figure8\nabout: \xe9", "not text in UTF-8"),
        (b"extends: figure8\nseconds: 30\nseconds: 40", "line 3: seconds: is given twice"),
        (b"extends: figure8\nenvironment: {rtt_ms: 1, rtt_ms: 2}", "line 2: rtt_ms: is given twice"),
    ],
)
def test_a_file_that_is_no_scenario_is_said(tmp_path: Path, text: bytes, line: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"mine\.yaml: {line}$") as error:
        load(path)
    assert "\n" not in str(error.value)


def test_an_unknown_scenario_is_answered_with_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match=r"figure9: no such scenario; did you mean figure8\b"):
        path_of("figure9")


def run_of(
    name: str, control: str = "default", profile: str = "uncoupled", seed: int = 1, seconds: float = 300
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
    content = run["finetune"].pop("content")
    assert run["finetune"] == {"every_s": 300.0, "span_s": 60.0, "apply_after_s": 5.0, "command": []}
    # what a round does is in the identity, and not in what the program gets
    assert content == finetuning_content()
    run["finetune"]["content"] = "other"
    changed = identity(run, "program")
    assert changed != identity(run_of("figure8", control="model", seconds=900), "program")
    given = execution.with_paths(execution.Job(changed, run, Path("/models/a")))
    assert set(given["finetune"]) == {"every_s", "span_s", "apply_after_s", "command"}
    assert given["control"]["artifact"] == "/models/a"


def test_a_run_whose_head_is_tuned_depends_on_what_its_rounds_read(project: Path, tmp_path: Path) -> None:
    params = yaml.safe_load((project / "params.yaml").read_text())
    contents = []
    for section in (None, "finetune", "change", "live"):
        path = tmp_path / f"{section}.yaml"
        path.write_text(yaml.safe_dump(params | ({section: {"other": 1}} if section else {})))
        contents.append(finetuning_content(path))
    unchanged, finetune, change, live = contents
    assert unchanged == live == finetuning_content()
    assert len({unchanged, finetune, change}) == 3


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
    pl.DataFrame(rows, schema=PACKET_SCHEMA).write_parquet(part / "part-0.parquet")


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
    run = resolve(scenario, Cell("mine", "", None, "uncoupled", "default", 1), {"kind": "default"}, [])
    replay = run["senders"][0]["groups"][0]["traffic"]
    assert replay["gaps_us"][0] == [100_000, 0]
    assert replay["gaps_us"][-1] == [100_000, 1]
    assert (replay["bytes"][0], replay["bytes"][-1]) == ([1000, 0], [2000, 1])
    assert replay["durations_s"][-1] == [pytest.approx(0.2), 1]
    shares = [share for _, share in replay["bytes"]]
    assert shares == sorted(shares)


@pytest.mark.parametrize("n", [3, 40, 150, 20_000])
def test_a_replay_keeps_the_means_of_heavy_tails(n: int) -> None:
    """The largest of a hundred values is most of their sum, so it must not be spread over those below."""
    values = 1000 * (1 + np.random.default_rng(1).pareto(1.1, n))
    points = np.array(distribution(values))
    # as the program refuses others, and draws from these
    assert (np.diff(points[:, 0]) >= 0).all()
    assert (np.diff(points[:, 1]) > 0).all()
    assert (points[0].tolist(), points[-1].tolist()) == ([values.min(), 0], [values.max(), 1])
    drawn = np.interp((np.arange(2_000_000) + 0.5) / 2_000_000, points[:, 1], points[:, 0])
    assert drawn.mean() == pytest.approx(values.mean(), rel=0.01)
    for share in (0.01, 0.5, 0.99, 0.999):
        at = np.interp(share, points[:, 1], points[:, 0])
        nearest = np.quantile(values, [max(0, share - 1 / n), min(1, share + 1 / n)])
        assert 0.999 * nearest[0] <= at <= 1.001 * nearest[1]


def test_a_table_that_cannot_be_read_is_said_before_anything_is_built(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "build", lambda: pytest.fail("built"))
    traffic = {"kind": "replay", "packets": str(tmp_path / "packets")}
    path = written(tmp_path, put(small, f"{S1}.l4s.traffic", traffic))
    for command in (
        lambda: run_lab(Request([str(path)]), tmp_path / "lab"),
        lambda: train(str(path), protocol="small", overrides=[], output=tmp_path / "lab"),
    ):
        line = r"^mine\.yaml: senders\.s1\.g.*: no such folder of packet tables"
        with pytest.raises(ValueError, match=line):
            command()
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("sent", "trace", "line"),
    [
        (None, None, "no such folder of packet tables"),
        ([(0, 0, 1000)], "u", "'u' is not in .*; it has t"),
        ([(0, 0, 1000), (0, 1, 1000)], None, "has no pause of 10 ms"),
        ([(0, 0, 1000), (0, 2e6, 1000)], None, r"gaps_us of 2e\+09, at most 1e\+09 can be simulated"),
        ([], None, "holds no packet table"),
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
    elif sent is not None:
        (tmp_path / "packets").mkdir()
    traffic = {"kind": "replay", "packets": str(tmp_path / "packets"), "trace": trace}
    scenario = load(written(tmp_path, put(small, f"{S1}.l4s.traffic", traffic)))
    with pytest.raises(ValueError, match=rf"^senders\.s1\.groups\.l4s\.traffic.*{line}"):
        resolve(scenario, Cell("mine", "", None, "uncoupled", "default", 1), {"kind": "default"}, [])


@pytest.mark.parametrize(
    ("damage", "line"),
    [("cut short", "part-0.parquet cannot be read: "), ("other columns", "not a packet table: ")],
)
def test_a_damaged_replay_gets_one_line(
    small: dict[str, Any], tmp_path: Path, damage: str, line: str
) -> None:
    packet_table(tmp_path / "packets", [(0, 0, 1000), (0, 50, 1000)])
    (file,) = (tmp_path / "packets").rglob("*.parquet")
    if damage == "cut short":
        file.write_bytes(file.read_bytes()[:-50])
    else:
        pl.DataFrame({"a": [1]}).write_parquet(file)
    traffic = {"kind": "replay", "packets": str(tmp_path / "packets"), "trace": None}
    scenario = load(written(tmp_path, put(small, f"{S1}.l4s.traffic", traffic)))
    with pytest.raises(ValueError, match=rf"^senders.*packets: .*{line}") as error:
        resolve(scenario, Cell("mine", "", None, "uncoupled", "default", 1), {"kind": "default"}, [])
    assert "\n" not in str(error.value)


def test_surroundings_leave_published_runs_as_they_are(tmp_path: Path) -> None:
    """Pacing and the answer to marks are in a run only where they change something."""
    scenario, name = load(path_of("surroundings")), "surroundings"
    runs = {
        (cell.point, cell.control): resolve(scenario, cell, {"kind": cell.control}, [])
        for cell in cells(name, scenario)
        if cell.profile == "uncoupled" and cell.seed == 102
    }
    assert runs["classic answer", "model"]["moved_response"] == "classic"
    plain = runs["figure 8", "default"]
    assert runs["classic answer", "default"] == plain
    groups = {key: run["senders"][0]["groups"] for key, run in runs.items()}
    assert [group.get("paced") for group in groups["paced DCTCP", "model"]] == ["on", None]
    assert not any("paced" in group for group in plain["senders"][0]["groups"])
    for changes, line in (
        ("senders: {s1: {groups: {l4s: {tcp: prague, paced: true}}}}", "l4s.paced: only dctcp and cubic"),
        (
            "controls: {moved_response: classic}\n  senders: {s1: {groups: {l4s: {tcp: prague}}}}",
            "controls.moved_response: classic is not possible where senders.s1.groups.l4s.tcp is not dctcp",
        ),
        (
            "controls: {moved_response: classic}\n  senders: {s1: {groups: {l4s: {flows: 1, traffic: "
            "{kind: pages, pages: 1, first_s: 1, every_s: 1, sizes: [[5]]}}}}}",
            "controls.moved_response: classic is not possible where senders.s1.groups.l4s.traffic is pages",
        ),
    ):
        environment = yaml.safe_load(f"  {changes}")
        refuses(tmp_path, {"extends": "figure8", "environment": environment}, f".*{re.escape(line)}")


def test_a_key_that_changes_nothing_is_refused(tmp_path: Path) -> None:
    """Where the file gives it; what it extends may have it."""
    key, value, line = "senders.cross.groups.l4s.dupack_threshold", "ncr", "udp has no ACKs"
    udp = {"tcp": "udp", "traffic": {"kind": "cbr", "mbps": 1, "packet_bytes": 1000}}
    environment: dict[str, Any] = {"senders": {"cross": {"groups": {"l4s": dict(udp)}}}}
    refused = rf"environment\.{key}: {line}$"
    refuses(tmp_path, {"extends": "default", "environment": put(environment, key, value)}, refused)
    on = {"label": "guard", "points": {"off": {"set": {}}, "on": {"set": {"controls.model.guard": True}}}}
    tcp = {"senders.cross.groups.l4s.tcp": "cubic", "senders.cross.groups.l4s.ecn": "ect0"}
    on["points"]["on"]["set"] |= tcp  # type: ignore[index]
    base = {"extends": "default", "environment": put(environment, key, value), "axis": on}
    load(written(tmp_path, base))  # it changes something at one point
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    load(written(tmp_path, {"extends": "base", "axis": None}))
    default = Group.model_fields[key.split(".")[-1]].default
    both = {"default": {"set": {key: default}}, "off": {"set": {key: value}}}
    at_off = {"label": "guard", "points": both}
    refuses(tmp_path, {"extends": "default", "environment": environment, "axis": at_off}, refused)


def test_queues_that_no_profile_sets_up_have_one_and_attributes_are_finite(tmp_path: Path) -> None:
    fair = {"mbps": 100, "buffer_bdp": 2, "disc": {"type": "ns3::FqCoDelQueueDisc"}}
    mine = {"extends": "default", "environment": {"bottlenecks": [fair]}}
    load(written(tmp_path, mine | {"profiles": ["rfc9332"]}))
    line = "profiles: only queues of ns3::DualPi2QueueDisc have several; with ns3::FqCoDelQueueDisc give one"
    refuses(tmp_path, mine | {"profiles": ["rfc9332", "uncoupled"]}, f"{line}$")
    foreign = {"bottlenecks.0.disc": {"type": "ns3::FqCoDelQueueDisc"}}
    axis = {"label": "disc", "points": {"dual": {"set": {}}, "fair": {"set": foreign}}}
    refuses(tmp_path, {"extends": "default", "axis": axis}, rf"axis\.points\.fair: {line}$")
    dual = {"type": "ns3::DualPi2QueueDisc", "attributes": {"CouplingFactor": float("nan")}}
    wrong = {"extends": "default", "environment": {"bottlenecks": [fair | {"disc": dual}]}}
    refuses(tmp_path, wrong, r".*attributes\.CouplingFactor: must be finite, not nan$")


def test_settings_of_the_agent_need_a_control_that_heeds_them(tmp_path: Path) -> None:
    mine = {"extends": "default", "environment": {"controls": {"model": {"guard": True}}}}
    load(written(tmp_path, mine | {"controls": ["default", "anchor"]}))
    line = r"environment\.controls\.model: no control of the scenario heeds it$"
    refuses(tmp_path, mine | {"controls": ["default", "oracle", "flow_split"]}, line)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        ({"page_by_page": True}, "page_by_page: no group has traffic of kind pages$"),
        ({"classes": True}, ".*s1: 10 flows; with `flows: true` a sender has one"),
        (
            {"environment": {"controls": {"moved_ecn": "not_ect", "moved_response": "classic"}}},
            r"environment\.controls\.moved_response: classic answers",
        ),
    ],
)
def test_pages_and_marks_that_are_not_there_are_refused(
    raw: dict[str, Any], line: str, tmp_path: Path
) -> None:
    refuses(tmp_path, {"extends": "default"} | raw, line)


def test_make_lab_has_packets_enough_for_p99() -> None:
    """With room to spare: messages are heavy-tailed, and a seed may offer half of the mean."""
    small = load(path_of("small"))
    l4s = small.environment.senders["s1"].groups["l4s"]
    assert isinstance(l4s.traffic, Messages)
    offered_bits = l4s.flows * l4s.traffic.mbps * 1e6 * (small.seconds - small.warmup_s)
    assert offered_bits / (8 * 1448) > 2 * 100 * FEWEST_PACKETS


def test_a_model_over_windows_of_packets_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"v1-tiny.* ebbf31e4") as error:
        models_by_profile("tests/data/artifacts/v1-tiny", tmp_path)
    assert "\n" not in str(error.value)
