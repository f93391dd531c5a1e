"""Discs that look at flows: their rules, pages and a call through them, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from cpp_suite import passed

from swiftqueue.laboratory.command import Request, run_lab
from swiftqueue.laboratory.runs import execution, experience, programs
from swiftqueue.laboratory.runs.resolve import Cell, cells, resolve
from swiftqueue.laboratory.scenarios.files import load, path_of

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

SHORT: dict[str, Any] = {"about": "short", "figure": None, "seconds": 12, "warmup_s": 2, "seeds": [1]}
RULES = {
    name: {"set": {"bottlenecks.0.disc": {"type": disc, "attributes": {}}}}
    for name, disc in (("FIFO", "ns3::FifoQueueDisc"), ("Confucius", "swiftqueue::ConfuciusQueueDisc"))
}
TWO_PAGES = {"kind": "pages", "pages": 2, "first_s": 3.0, "every_s": 4.0, "sizes": [[15_000] * 20, [1000]]}


def scenario(folder: Path, **changes: Any) -> Path:
    """The project's confucius-web with two rules and two pages; one that extends it has all its points."""
    own = yaml.safe_load(path_of("confucius-web").read_text())
    shared = yaml.safe_load(path_of(own["extends"]).read_text())
    raw = {**shared, **own, "extends": shared["extends"]}
    raw["environment"]["senders"]["cross"]["groups"]["web"]["traffic"] = TWO_PAGES
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**raw, **SHORT, "axis": {"label": "rule", "points": RULES}, **changes}))
    return path


@pytest.fixture(scope="module")
def program() -> Path:
    return programs.build()[0]


@pytest.mark.long
def test_rules_one_by_one() -> None:
    """The C++ suite without a network: weights, shares, thresholds, order, limits."""
    assert passed("flow-queue-discs-test") == 13


def simulate(program: Path, folder: Path, run: dict[str, Any]) -> dict[str, Any]:
    (folder / execution.RUNS).mkdir(exist_ok=True)
    problem = execution.execute(program, folder, execution.Job("one", run))
    assert problem is None, problem
    summary: dict[str, Any] = json.loads((folder / execution.RUNS / "one" / execution.SUMMARY).read_text())
    return summary


def a_run(folder: Path) -> dict[str, Any]:
    short = load(scenario(folder))
    cell: Cell = next(cells("mine", short))
    return resolve(short, cell, {"kind": "default"}, [])


@pytest.mark.long
def test_copa_alone_fills_the_link_with_a_queue_of_few_packets(program: Path, tmp_path: Path) -> None:
    """Theory: 1 / delta = 2 packets on average."""
    run = a_run(tmp_path)
    run["seconds"] = 20
    run["senders"] = run["senders"][:1]
    call = run["senders"][0]["groups"][0]
    call |= {"traffic": {"kind": "greedy"}, "start_s": [0, 0]}
    summary = simulate(program, tmp_path, run)
    queueing = summary["senders"]["s1"]["classic"]["queueing_us"]
    packets = queueing["mean"] / (1500 * 8 / 20)  # us / (us a packet at 20 Mbit/s)
    assert 1 <= packets <= 5
    assert summary["bottlenecks"][0]["utilisation"] >= 0.95


def test_rates_of_a_link_are_followed(program: Path, tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run["senders"] = run["senders"][:1]
    run["senders"][0]["groups"][0]["traffic"] = {"kind": "greedy"}
    run["bottlenecks"][0]["rates"] = [[0, 20e6], [2, 5e6]]
    goodput = simulate(program, tmp_path, run)["senders"]["s1"]["classic"]["goodput_bps"]
    assert 3.5e6 < goodput < 5e6


def test_what_comes_and_what_makes_room_for_it_are_both_counted(program: Path, tmp_path: Path) -> None:
    """A disc drops either for one reason."""
    run = a_run(tmp_path) | {"warmup_s": 0}
    full = {"type": "swiftqueue::FairQueueDisc", "attributes": {"MaxSize": "20p"}}
    run["bottlenecks"][0]["disc"] = full
    summary = simulate(program, tmp_path, run)
    dropped = sum(flows["dropped"] for flows in summary["classes"].values())
    assert sum(summary["bottlenecks"][0]["drops"].values()) >= dropped > 0


@pytest.mark.long
def test_pages_and_a_call_have_their_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = scenario(tmp_path)
    assert run_lab(Request([str(path)]), tmp_path / "lab") == 0
    table = experience.load(tmp_path / "lab")
    assert table["point"].to_list() == ["Confucius", "FIFO"]
    for row in table.iter_rows(named=True):
        assert row["pages"] == 2
        assert row["pages_unfinished"] == 0
        # a handshake and a flight of the page, and no more than the 300 KB take at 20 Mbit/s and a second
        assert 0.08 < row["load_mean_s"] <= row["load_p95_s"] < 1.2
        assert row["frames"] == 500
        assert 0.02 < row["frame_p50_s"] <= row["frame_p99_s"]
        assert row["call_mbps"] > 10 > row["web_mbps"] > 0
    assert table["stall_s"][0] <= table["stall_s"][1]
    # the published table stands for runs whose folders are not there
    for run in (tmp_path / "lab" / execution.RUNS).iterdir():
        for file in run.iterdir():
            file.unlink()
        run.rmdir()
    capfd.readouterr()
    assert run_lab(Request([str(path)]), tmp_path / "lab") == 0
    assert "2 of 2 have their result already" in capfd.readouterr().out
    assert experience.load(tmp_path / "lab").equals(table)


def test_confucius_says_which_class_a_flow_is_in(program: Path, tmp_path: Path) -> None:
    """A greedy flow of Cubic alone fills the buffer and ends in the long class; FIFO has no classes."""
    run = a_run(tmp_path) | {"outputs": ["classes"]}
    run["senders"] = run["senders"][:1]
    run["senders"][0]["groups"][0] |= {"tcp": "cubic", "traffic": {"kind": "greedy"}, "start_s": [0, 0]}
    bottleneck = run["bottlenecks"][0]
    bottleneck["disc"] = {"type": "swiftqueue::ConfuciusQueueDisc", "attributes": {"MaxSize": "1000p"}}
    summary = simulate(program, tmp_path, run)
    where = dict.fromkeys((*experience.KEY, "run", "program"), "") | {"seed": 1}
    (row,) = experience.classes_of(where, summary)
    assert (row["sender"], row["tcp"]) == ("s1", "cubic")
    assert (row["classes"][0], row["classes"][-1]) == (0, 3)
    assert len(row["classes"]) in (119, 120)
    bottleneck["disc"] = {"type": "ns3::FifoQueueDisc", "attributes": {}}
    problem = execution.execute(program, tmp_path, execution.Job("refused", run))
    assert problem == "outputs: classes need a bottleneck whose disc is swiftqueue::ConfuciusQueueDisc"


def test_decisions_out_of_range_are_counted(program: Path, tmp_path: Path) -> None:
    """Calls and pages are other traffic than the single greedy flows that the network learned from."""
    run = a_run(tmp_path)
    run["seconds"] = 6
    weights = "docs/laboratory/models/lfq/counterfactual-10.safetensors"
    attributes = {"Weights": weights, "MaxSize": "1000p", "FlowLimit": "100"}
    disc = {"type": "swiftqueue::LfqQueueDisc", "attributes": attributes, "content": "x"}
    run["bottlenecks"][0]["disc"] = disc
    counted = simulate(program, tmp_path, run)["bottlenecks"][0]["lfq"]
    assert counted["decisions"] > 100
    assert 0 < counted["fallbacks"] <= counted["decisions"]


@pytest.mark.long
def test_a_control_has_nothing_to_choose_without_l4s_flows(tmp_path: Path) -> None:
    path = scenario(tmp_path, controls=["default", "random"])
    assert run_lab(Request([str(path)], seconds=6), tmp_path / "lab") == 0
    from swiftqueue.laboratory.runs.results import load as load_results

    table = load_results(tmp_path / "lab").filter(pl.col("control") == "random")
    assert set(table["reason"]) == {"the captured sender has no L4S flow to choose for"}


@pytest.mark.parametrize(
    ("disc", "says"),
    [
        (
            {"type": "swiftqueue::ConfuciusQueueDisc", "attributes": {"Lambda": 4}},
            "mine.yaml: axis.points.one: bottlenecks.0.disc.attributes.Lambda: swiftqueue::Confucius",
        ),
        (
            {"type": "swiftqueue::FairQueueDisc", "attributes": {"FlowLimit": 0}},
            "mine.yaml: axis.points.one: bottlenecks.0.disc.attributes.FlowLimit: '0' is no ",
        ),
        (
            {"type": "swiftqueue::LfqQueueDisc", "attributes": {"Weights": "pyproject.toml"}},
            "mine.yaml: axis.points.one: bottlenecks.0.disc.attributes.Weights: ",
        ),
        (
            {"type": "swiftqueue::FlowQueueDisc"},
            "mine.yaml: axis.points.one: bottlenecks.0.disc.type: there is no queue disc",
        ),
    ],
)
def test_a_disc_that_cannot_be(tmp_path: Path, disc: object, says: str) -> None:
    axis = {"label": "", "points": {"one": {"set": {"bottlenecks.0.disc": disc}}}}
    path = scenario(tmp_path, axis=axis)
    with pytest.raises(ValueError, match=f"^{re.escape(says)}[^\n]*$"):
        run_lab(Request([str(path)]), tmp_path / "lab")


def test_the_projects_scenarios_can_be_set_up(program: Path) -> None:
    from swiftqueue.laboratory.command import check_discs

    for name in ("confucius-web", "who-picks"):
        found = load(path_of(name))
        assert found.axis is not None
        points = list(found.axis.points)[:11]  # the rules; the further points have another call
        axis = replace_points(found, points)
        check_discs(program, {name: axis})


def replace_points(found: Any, points: list[str]) -> Any:
    axis = found.axis.model_copy(update={"points": {name: found.axis.points[name] for name in points}})
    return found.model_copy(update={"axis": axis})
