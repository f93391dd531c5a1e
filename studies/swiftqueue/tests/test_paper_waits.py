"""The paper's waits: what it claims of P99 asked at each point, with a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_rows import NO_NOISE, run_row, table

from swiftqueue.laboratory.command import Request
from swiftqueue.studies.swiftqueue import waits
from swiftqueue.studies.swiftqueue.verdicts import NOT_RUN, NOT_SETTLED, REFUTED, REPRODUCED


def rows(parts: dict[str, float], seeds: int = 5, scenario: str = "paper-queue") -> list[dict[str, object]]:
    """The model's P99 as a part of default's, at points of an axis."""
    return [
        run_row(control, seed, 10_000 * part * noise, scenario=scenario, point=point)
        for point, of_model in parts.items()
        for control, part in (("default", 1.0), ("model", of_model))
        for seed, noise in enumerate(NO_NOISE[:seeds], 1)
    ]


ALL = ["2 BDP", "5 BDP", "10 BDP", "15 BDP", "20 BDP"]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        (dict.fromkeys(ALL, 0.5), REPRODUCED),
        (dict.fromkeys(ALL, 0.66), REPRODUCED),  # 33 % are claimed there, and not figure 7b's 36
        ({**dict.fromkeys(ALL, 0.5), "20 BDP": 0.8}, REFUTED),
        ({**dict.fromkeys(ALL, 0.5), "20 BDP": 0.67}, NOT_SETTLED),
        (dict.fromkeys(ALL[:4], 0.5), NOT_SETTLED),  # a point was not run
        ({"2 BDP": 0.8}, REFUTED),
        ({}, NOT_RUN),
    ],
)
def test_a_claim_is_asked_at_each_point(parts: dict[str, float], word: str) -> None:
    assert waits.said(table(rows(parts)), waits.EXHIBITS["figure-10-p99"]) == word


def test_few_seeds_settle_nothing() -> None:
    runs = table(rows({"2 BDP": 0.8}, seeds=4))
    assert waits.said(runs, waits.EXHIBITS["figure-10-p99"]) == NOT_RUN


def test_what_the_paper_does_not_claim_is_not_refuted() -> None:
    """The paper says that P99 was not evaluated in figure 12."""
    lines = waits.table(table(rows({"DCTCP": 0.5, "BBR": 1.2}, scenario="paper-tcp")))
    said = [line.split(" | ")[-2:] for line in lines[-3:]]
    assert said[:2] == [["no claim", "none |"], ["no claim", "P99 +20 % |"]]  # its harm is
    assert said[2] == ["**no claim**: `swiftqueue paper waits figure-12-p99`", "– |"]


def test_each_exhibit_has_its_paper_axis_and_five_seeds_of_300_s() -> None:
    axes = {name: one.points() for name, one in waits.EXHIBITS.items()}
    assert axes["figure-9-p99"] == ["10", "20", "50", "100", "500"]
    assert axes["figure-10-p99"] == ["2 BDP", "5 BDP", "10 BDP", "15 BDP", "20 BDP"]
    assert axes["figure-11-p99"] == ["20 ms", "40 ms", "100 ms", "150 ms", "200 ms"]
    for one in waits.EXHIBITS.values():
        scenario = waits.load(waits.path_of(one.scenario))
        assert (scenario.seconds, len(scenario.seeds)) == (300, 5)
        assert set(one.small) <= set(one.points())


def test_the_table_has_a_command_beside_each_verdict() -> None:
    lines = waits.table(table(rows({"2 BDP": 0.5, "20 BDP": 0.8})))
    of_queue = [line for line in lines if line.startswith("| Figure 10")]
    assert [line.split(" | ")[1] for line in of_queue] == ["2 BDP", "20 BDP", "2 of 5 points"]
    assert [line.split(" | ")[3] for line in of_queue] == ["-33 % or more"] * 3
    assert of_queue[0].endswith("| reproduced | none |")
    assert of_queue[1].endswith("| refuted | none |")
    assert of_queue[2].endswith("**refuted**: `swiftqueue paper waits figure-10-p99` | – |")
    assert lines[2].endswith("not run: `swiftqueue paper waits figure-7b` | – |")
    with pytest.raises(ValueError, match="no wait 'figure-7c'; did you mean figure-7b"):
        waits.chosen(["figure-7c"])
    with pytest.raises(ValueError, match="no wait 'figure-9'; did you mean figure-9-p99"):
        waits.chosen(["figure-9"])


def test_the_small_form_runs_two_points_of_each_axis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The laboratory gets each scenario once, with `default` and the model."""
    asked: list[Request] = []
    monkeypatch.setattr(waits, "run_lab", lambda request, output: asked.append(request) or 0)
    assert waits.run_waits([], "models", tmp_path, small=True) == 0
    assert [request.scenarios for request in asked] == [
        *(["figure8"], ["paper-flows"], ["paper-queue"], ["paper-delay"], ["paper-tcp"])
    ]
    assert [request.points for request in asked[:2]] == [None, ["10", "100"]]
    assert {(request.seconds, tuple(request.controls or ())) for request in asked} == {
        (30, ("default", "model"))
    }
    assert waits.run_waits(["figure-9-p99"], "models", tmp_path, small=False) == 0
    assert (asked[-1].points, asked[-1].seconds) == (None, None)
