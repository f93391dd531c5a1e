"""Rounds of the rate model: what teaches, what judges, and what is pushed; Triton is real in integration."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from rate_flows import untrained, write_flows

from swiftqueue.models.registry.registry import CHALLENGER, CHAMPION, GateDecision, Registry
from swiftqueue.pipelines.live import runner
from swiftqueue.pipelines.live.scheduler import line
from swiftqueue.studies.rate.model import networks
from swiftqueue.studies.rate.model.flows import Flows, load
from swiftqueue.studies.rate.model.gate import Bench, HeldOut
from swiftqueue.studies.rate.model.tuning import (
    HEAD,
    TUNED_ON,
    RateRoundParams,
    divide,
    identity,
    trained_on,
    tune_head,
)
from swiftqueue.studies.rate.samples.tables import FLOWS, SAMPLES, paths_in, read_path, write_path
from swiftqueue.studies.rate.stages import register as rate_register
from swiftqueue.studies.rate.stages import rounds as rate_rounds
from swiftqueue.studies.rate.stages.rounds import RateRecord, RateRounds

MODEL = "swiftqueue-rate"
PARAMS = RateRoundParams(
    seed=1, epochs=8, batch_size=32, learning_rate=1e-3, judge_share=0.25, least_flows=20
)


def add_path(
    folder: Path, name: str, source: str = "p0", change: Callable[..., Any] = lambda *two: two
) -> None:
    """Another path, with the flows of one that is there, or what is made of them."""
    samples, flows = change(*read_path(folder, source))
    write_path(folder, name, {"format": 1, "kind": "train", "options": {"name": name}}, samples, flows)


def ended(n: int) -> Callable[..., Any]:
    """Flows that end after n packets."""

    def change(samples: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        truth = [name for name in flows.columns if name.startswith(("rate_", "at_"))]
        nothing = {name: pl.lit(None, pl.Int64) for name in truth}
        return samples.filter(pl.col("sample") < n), flows.with_columns(
            samples=pl.lit(n, pl.Int64), **nothing
        )

    return change


def constant(samples: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Flows of one rate."""
    rates = [name for name in flows.columns if name.startswith("rate_")]
    return samples, flows.with_columns(**{name: pl.lit(1_000_000, pl.Int64) for name in rates})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four paths to learn from, two held out; 24 flows each, of which two end after three ACKs."""
    folder = tmp_path_factory.mktemp("flows")
    write_flows(folder, train=4, held_out=2, flows=24, short=2)
    return folder


def all_of(every: Flows, place: int) -> np.ndarray:
    return every.started_N[every.path_N == place]


def test_the_newest_flows_of_each_path_judge_and_never_teach(folder: Path) -> None:
    every, paths = load(folder), paths_in(folder)
    ids = {name: identity(name, path) for name, path in paths.items()}
    found = divide(every, paths, trained=(), tuned=(), share=0.25)
    assert (found.came, found.short, found.new) == (96, 8, {ids[f"p{i}"]: f"p{i}" for i in range(4)})
    assert len(found.learn) == 4 * 16
    assert len(found.judge) == 4 * 6 + 2 * 22  # all of a held-out path
    for place in range(4):
        assert all_of(found.learn, place).max() < all_of(found.judge, place).min()
        assert all_of(found.judge, place).max() == all_of(every, place).max()
    # A round later: p0 has taught and goes on so, by the same flows; the stages' network knew p1 and p5.
    later = divide(every, paths, trained={ids["p1"], ids["p5"]}, tuned={ids["p0"]}, share=0.25)
    assert set(later.new.values()) == {"p2", "p3"}
    assert set(later.taught.values()) == {"p0", "p2", "p3"}
    assert set(later.learn.path_N) == {0, 2, 3}
    assert set(later.judge.path_N) == {0, 2, 3, 4}


def test_a_rate_that_was_not_known_yet_teaches_nothing_and_what_is_not_taught_is_not_judged(
    folder: Path,
) -> None:
    every, paths = load(folder), paths_in(folder)
    at_NH = every.at_NH.copy()
    at_NH[:, -1] = every.started_N + 60e9  # the last horizon is reached after twelve more flows have begun
    found = divide(replace(every, at_NH=at_NH), paths, trained=(), tuned=(), share=0.25)
    for place in range(4):
        own = found.learn.path_N == place
        known = found.learn.at_NH[own, -1] < all_of(found.judge, place).min()
        assert known.any()
        np.testing.assert_array_equal(np.isfinite(found.learn.y_NH[own, -1]), known)
    assert np.isfinite(found.judge.y_NH).all()
    at_NH[:, -1] = np.inf
    found = divide(replace(every, at_NH=at_NH), paths, trained=(), tuned=(), share=0.25)
    assert np.isnan(found.judge.y_NH[:, -1]).all()
    assert np.isfinite(found.judge.y_NH[:, :-1]).all()
    # The others of the gate are judged all the same, where there is something to judge by.
    bench = Bench.of(found.learn, found.learn, HeldOut.in_order(found.judge))
    assert all(one.figures.pair_mape is None and one.figures.grid_mape for one in bench.naive.values())


def test_a_path_is_known_by_what_it_is_and_not_by_its_name_or_kind(folder: Path) -> None:
    paths = paths_in(folder)
    assert identity("p0", paths["p0"]) == identity("p0", {**paths["p0"], "kind": "held-out"})
    assert len({identity("p0", paths["p0"]), identity("p1", paths["p0"]), identity("p0", paths["p1"])}) == 3
    assert trained_on({"made_of": {"paths": paths}}) == {identity(f"p{i}", paths[f"p{i}"]) for i in range(4)}


@pytest.mark.parametrize("kind", list(networks.KINDS))
def test_the_head_alone_changes(folder: Path, kind: str) -> None:
    network, flows = untrained(kind, 1).eval(), load(folder)
    flows = flows.take(flows.samples_N == flows.samples_N.max())
    before = {name: value.clone() for name, value in network.state_dict().items()}
    (tuned, (was, now)), (again, _) = (tune_head(network, flows, PARAMS) for _ in range(2))
    assert now < was
    assert not tuned.training
    for name, value in tuned.state_dict().items():
        assert torch.equal(network.state_dict()[name], before[name])  # it was a copy
        assert torch.equal(value, again.state_dict()[name])
        assert torch.equal(value, before[name]) != name.startswith(f"{HEAD}.")
    # The cache holds the whole network's answers: the error is that of the tuned network itself.
    log_NSH = torch.from_numpy(networks.predict_all(tuned, flows)).float()
    errors = networks.percentage_errors(log_NSH, torch.from_numpy(flows.y_NH).float())[:, 4:]
    assert float(errors.mean()) == pytest.approx(now, rel=1e-4)
    with torch.no_grad():
        network.get_parameter(f"{HEAD}.bias").fill_(torch.nan)
    with pytest.raises(ValueError, match=r"the head diverged .*; lower rate_round\.learning_rate"):
        tune_head(network, flows, PARAMS)


def in_place_of_onnx(folder: Path) -> None:
    """Write a network with the signature of ours: an export takes seconds, and nobody serves it here."""
    from onnx import TensorProto, helper, save

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None]) for name in ("window", "rates")]
    node = helper.make_node("Identity", ["window"], ["rates"])
    save(helper.make_model(helper.make_graph([node], "none", ends[:1], ends[1:])), folder / "model.onnx")


class World:
    """A registry with a champion, flows, and a Triton that takes all."""

    def __init__(self, root: Path, flows: Path, champion: Path) -> None:
        self.flows = Path(shutil.copytree(flows, root / "flows"))
        self.registry = Registry(MODEL)
        self.pushed: list[int] = []
        self.down = False
        judged = GateDecision(True, "set by a test", None)
        first = self.registry.add(champion, judged=judged, tags={}, params={}, metrics={})
        self.registry.set_alias(CHAMPION, first)

    def deploy(self, version: int, *, judged_against: int, kind: str) -> None:
        assert (judged_against, kind) == (self.registry.alias(CHAMPION), "rate")
        if self.down:
            raise OSError("Triton does not answer")
        assert not self.registry.refusal(version)
        self.registry.set_alias(CHAMPION, version)
        self.pushed.append(version)

    def run(self, **changed: Any) -> RateRecord:
        """A round of a program that has just been started."""
        return RateRounds(self.flows, PARAMS.model_copy(update=changed), MODEL).run()


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("champion") / "network"
    networks.save(folder, untrained("transformer", 1).eval(), {"seed": 1, "made_of": {"paths": {}}})
    in_place_of_onnx(folder)
    return folder


@pytest.fixture
def world(tmp_path: Path, folder: Path, champion: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    world = World(tmp_path, folder, champion)
    monkeypatch.setattr(runner, "serve_champion", lambda kind: None)
    monkeypatch.setattr(rate_rounds, "deploy_version", world.deploy)
    monkeypatch.setattr(rate_rounds, "export_onnx", in_place_of_onnx)
    return world


@pytest.mark.slow
def test_a_round_takes_new_flows_and_pushes_what_the_gate_passed(world: World, tmp_path: Path) -> None:
    first = world.run()
    assert (first.number, first.outcome, first.version, first.parent) == (1, "pushed", 2, 1), first.reason
    assert world.pushed == [2]
    assert (first.flows, set(first.paths.values())) == (96, {"p0", "p1", "p2", "p3"})
    assert set(first.seconds) == {"champion", "fetch", "flows", "train", "judge", "push", "total"}
    assert {"challenger", "champion", "linear", "min-rtt"} <= set(first.figures)
    assert "; 96 flows; not worse than the champion: error over all pairs" in line(first)
    tags = world.registry.tags(2)
    assert {name: tags[name] for name in ("parent_version", "reference_version", "protocol", "source")} == {
        "parent_version": "1", "reference_version": "1", "protocol": "live", "source": "flows/flows"
    }  # fmt: skip
    _, about = networks.load(world.registry.fetch(2, tmp_path / "two"))
    assert about[TUNED_ON] == first.paths
    assert rate_register._champions_paths(world.registry) == set(
        first.paths.values()
    )  # so no stage judges by them

    second = world.run()
    assert (second.number, second.outcome, second.version) == (2, "declined", None)
    assert second.reason == f"{world.flows}: no flows since round 1"
    for name in ("p6", "p7"):
        add_path(world.flows, name)
    third = world.run()
    assert third.outcome in ("pushed", "kept"), third.reason
    assert set(third.paths.values()) == {"p6", "p7"}
    assert third.parent == 2
    assert world.registry.reference(third.version or 0) == 1  # the bar that does not move
    figures = third.figures["challenger"]
    assert figures["flows"] == 6 * 6 + 2 * 22  # the newest of the first round judge again
    log = RateRounds(world.flows, PARAMS, MODEL).history()
    assert [one["outcome"] for one in log] == [first.outcome, second.outcome, third.outcome]
    assert log[0]["paths"] == first.paths
    # The champion itself says what it learned from, where the log is gone.
    (tmp_path / "state" / "live" / "rounds-rate.jsonl").unlink()
    gone = world.run()
    if third.outcome == "pushed":
        assert gone.reason == f"{world.flows}: no flows that the champion has not learned from"


@pytest.mark.slow
def test_a_push_that_fails_is_tried_again_and_a_worse_head_is_kept(world: World) -> None:
    world.down = True
    failed = world.run()
    assert (failed.outcome, failed.reason) == ("failed", "Triton does not answer")
    assert (failed.version, world.registry.alias(CHALLENGER)) == (2, 2)
    world.down = False
    again = world.run()
    assert (again.outcome, again.version) == ("pushed", 2), again.reason  # the same head, found again
    assert world.pushed == [2]

    for name in ("p6", "p7"):
        add_path(world.flows, name)
    worse = world.run(learning_rate=3.0)
    assert worse.outcome == "kept"
    assert worse.reason.startswith("worse than the champion: error over all pairs")
    assert world.registry.tags(worse.version or 0)["gate"] == "failed"
    assert (world.pushed, world.registry.alias(CHAMPION)) == ([2], 2)
    assert world.run().outcome == "declined"  # it has learned from them, for good or ill


@pytest.mark.slow
def test_what_is_unsound_is_one_line_and_teaches_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = world.flows / "path=p1" / SAMPLES
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:100])
    record = world.run()
    assert record.outcome == "declined"
    assert str(damaged) in record.reason
    assert "\n" not in record.reason
    damaged.write_bytes(whole)
    (world.flows / "path=p1" / FLOWS).rename(world.flows / "away")
    assert world.run().outcome == "declined"
    (world.flows / "away").rename(world.flows / "path=p1" / FLOWS)
    rest = world.flows.parent / "rest"
    rest.mkdir()
    for place in range(4):
        (world.flows / f"path=p{place}").rename(rest / f"path=p{place}")
    add_path(world.flows, "three", "p4", ended(3))
    record = world.run()
    assert record.reason == (
        f"{world.flows}: 24 flows came (24 ended too soon), 0 teach and 0 judge; "
        "at least 20 of each are needed"
    )
    (rest / "path=p0").rename(world.flows / "path=p0")
    assert ": 48 flows came (26 ended too soon), 16 teach and 50 judge;" in world.run().reason
    for place in (1, 2, 3):
        (rest / f"path=p{place}").rename(world.flows / f"path=p{place}")
    add_path(world.flows, "even", "p0", constant)
    record = world.run()
    assert record.outcome in ("pushed", "kept"), record.reason
    assert record.flows == 24 + 5 * 24
    assert [one["outcome"] for one in RateRounds(world.flows, PARAMS, MODEL).history()][:4] == [
        "declined"
    ] * 4

    def slowly(folder: Path) -> Flows:
        add_path(folder, "late")
        return load(folder)

    with monkeypatch.context() as patch:
        patch.setattr(rate_rounds, "load", slowly)
        assert "a path came while they were read" in world.run().reason
    shutil.rmtree(world.flows)
    assert world.run().reason.startswith(f"no flows under {world.flows}")
    world.registry.remove_alias(CHAMPION)
    record = world.run()
    assert record.outcome == "declined"
    assert record.reason.startswith("the registry has no champion; `dvc repro studies/rate/dvc.yaml` and")
    assert asdict(record)["version"] is None
