"""The paper's waits: a claim of 36 % less P99 asked at each point, with a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab_rows import NO_NOISE, run_row, table

from infra.paper import waits
from infra.paper.verdicts import NOT_RUN, NOT_SETTLED, REFUTED, REPRODUCED
from laboratory.command import Request


def rows(parts: dict[str, float], seeds: int = 5) -> list[dict[str, object]]:
    """The model's P99 as a part of default's, at points of an axis."""
    return [
        run_row(control, seed, 10_000 * part * noise, scenario="paper-tcp", point=point)
        for point, of_model in parts.items()
        for control, part in (("default", 1.0), ("model", of_model))
        for seed, noise in enumerate(NO_NOISE[:seeds], 1)
    ]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"DCTCP": 0.5, "Cubic": 0.5, "BBR": 0.5}, REPRODUCED),
        ({"DCTCP": 0.5, "Cubic": 0.5, "BBR": 0.8}, REFUTED),
        ({"DCTCP": 0.5, "Cubic": 0.5, "BBR": 0.64}, NOT_SETTLED),
        ({"DCTCP": 0.5, "Cubic": 0.5}, NOT_SETTLED),  # a point was not run
        ({"DCTCP": 0.8}, REFUTED),
        ({}, NOT_RUN),
    ],
)
def test_a_claim_is_asked_at_each_point(parts: dict[str, float], word: str) -> None:
    assert waits.said(table(rows(parts)), waits.EXHIBITS["figure-12-p99"]) == word


def test_few_seeds_settle_nothing() -> None:
    runs = table(rows({"DCTCP": 0.8}, seeds=4))
    assert waits.said(runs, waits.EXHIBITS["figure-12-p99"]) == NOT_RUN


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
    lines = waits.table(table(rows({"DCTCP": 0.5, "BBR": 0.8})))
    assert [line.split(" | ")[1] for line in lines[-3:]] == ["DCTCP", "BBR", "2 of 3 points"]
    assert lines[-3].endswith("| reproduced |")
    assert lines[-2].endswith("| refuted |")
    assert lines[-1].endswith("**refuted**: `swiftqueue lab paper figure-12-p99` |")
    assert lines[2].endswith("not run: `swiftqueue lab paper figure-7b` |")
    with pytest.raises(ValueError, match="no wait 'figure-7c'; did you mean figure-7b"):
        waits.chosen(["figure-7c"])


def test_the_small_form_runs_two_points_of_each_axis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is asked of the laboratory: each scenario once, `default` and the model."""
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
