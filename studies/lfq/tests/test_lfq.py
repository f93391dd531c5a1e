"""LFQ's reward and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from swiftqueue.laboratory.runs import execution
from swiftqueue.laboratory.runs.resolve import cells, identity, resolve
from swiftqueue.laboratory.scenarios.files import load, path_of
from swiftqueue.studies.lfq import settings
from swiftqueue.studies.lfq.flows import best_limit, better_arm, drawn, reward
from swiftqueue.studies.lfq.table import learned


def test_reward_is_throughput_less_what_waits() -> None:
    assert reward(1e6, 0, 10) == pytest.approx(1.0)
    assert reward(1e6, 10, 10) == pytest.approx((1e6 - 10 * 10 * 1446) / 1e6)
    assert reward(1e6, 10, 0.01) == pytest.approx(1 - 0.01 * 10 * 1446e-6)


def test_the_better_arm_is_learned() -> None:
    assert better_arm(7, 1.0, 2.0) == 8
    assert better_arm(7, 2.0, 1.0) == 6
    assert better_arm(7, 1.0, 1.0) == 6  # a shorter queue for the same
    assert better_arm(1, 2.0, 1.0) == 1
    assert better_arm(1000, 1.0, 2.0) == 1000


def test_the_best_limit_is_the_smallest_that_is_nearly_as_good() -> None:
    rewards = {2: 0.5, 8: 0.985, 16: 0.995, 64: 1.0}
    assert best_limit(rewards, 0) == 64
    assert best_limit(rewards, 0.01) == 16
    assert best_limit(rewards, 0.02) == 8
    assert best_limit({2: -1.0, 8: -1.005, 16: -2.0}, 0.01) == 2


def test_more_environments_leave_the_first_ones_as_they_are() -> None:
    few, many = settings.load(["environments=10"]), settings.load(["environments=500"])
    assert [drawn(few, n)[0] for n in range(10)] == [drawn(many, n)[0] for n in range(10)]
    found = [drawn(many, n)[0] for n in range(300)]
    assert {one.tcp for one in found} == {"new_reno", "bic"}
    assert all(5 <= one.mbps <= 25 and 5 <= one.rtt_ms <= 25 for one in found)
    assert all(3.75 <= one.seconds <= 6.25 for one in found)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("alpha=1", "--set alpha=1: lfq.yaml has no such key[^\\n]*"),
        ("environments=1", "lfq.yaml: environments: Input should be greater than or equal to 5[^\\n]*"),
        ("tcps=[vegas]", "lfq.yaml: tcps: there is no 'vegas'[^\\n]*"),
        ("limits=[5, 4]", "lfq.yaml: limits: give each once[^\\n]*"),
        ("mbps=[9, 5]", "lfq.yaml: mbps: 9 is above 5[^\\n]*"),
        ("literal_flows=39", "lfq.yaml: literal_flows: 39 are no batch; give 0, or 40 or more"),
        ("validation=0.9999", "lfq.yaml: validation: 0.9999 leaves none of 1000 environments"),
    ],
)
def test_settings_that_cannot_be_are_said_before_anything_is_simulated(override: str, says: str) -> None:
    with pytest.raises(ValueError, match=f"^{says}$"):
        settings.load([override])


@pytest.mark.parametrize(
    ("name", "limit"), [("counterfactual-10", 100), ("offline-10", 25), ("online-10", 25)]
)
def test_a_flow_begins_as_in_training(project: Path, name: str, limit: int) -> None:
    """The literal rules begin with one limit alone: from 100 each decision would be out of range."""
    disc = learned(project / "docs" / "laboratory" / "models" / "lfq" / f"{name}.safetensors")
    assert disc.attributes["FlowLimit"] == str(limit)


def test_a_run_is_known_by_what_its_weights_are(tmp_path: Path) -> None:
    """Not by the file's name; the program gets a path that is there, and no hash."""
    raw = yaml.safe_load(path_of("confucius-web").read_text())
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"one")
    disc = {"type": "swiftqueue::LfqQueueDisc", "attributes": {"Weights": str(weights)}}
    raw["axis"] = {"label": "rule", "points": {"LFQ": {"set": {"bottlenecks.0.disc": disc}}}}
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(raw))
    scenario = load(file)
    cell = next(cells("mine", scenario))
    run = resolve(scenario, cell, {"kind": "default"}, [])
    given = execution.with_paths(execution.Job("x", run))["bottlenecks"][0]["disc"]
    assert given == disc
    assert run["bottlenecks"][0]["disc"]["content"]
    weights.write_bytes(b"two")
    other = resolve(scenario, cell, {"kind": "default"}, [])
    assert identity(other, "program") != identity(run, "program")
    weights.unlink()
    says = rf"^bottlenecks\.0\.disc\.attributes\.Weights: {re.escape(str(weights))} cannot be read$"
    with pytest.raises(ValueError, match=says):
        resolve(scenario, cell, {"kind": "default"}, [])
