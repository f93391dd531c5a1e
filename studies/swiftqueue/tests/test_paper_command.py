"""`swiftqueue paper` for real, as small as can be: simulated traces, trained forecasters, kept rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from swiftqueue.models.training.protocol import EvaluationProtocol
from swiftqueue.studies.swiftqueue import paper
from swiftqueue.studies.swiftqueue.asked import LSTM, OURS, SHOWN
from swiftqueue.studies.swiftqueue.exhibits import Form
from swiftqueue.studies.swiftqueue.run import run_paper

TINY = Form(
    name="small",  # so that it can be drawn
    seeds=1,
    kinds=EvaluationProtocol("tiny", 2, 0.5, 1),
    kinds_s=6,
    swept=EvaluationProtocol("tiny", 2, 0.5, 1),
    swept_s=6,
    ends_only=True,
    every=(0.5, 1.0),
)
QUICK = {"epochs": 1, "width": 16}
EXHIBITS = ["table-1", "figure-3", "figure-14", "figure-16", "figure-17"]


pytestmark = [pytest.mark.slow, pytest.mark.long("paper")]  # three forecasters learn from a simulated trace


@pytest.fixture(scope="module")
def folder(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    sections = yaml.safe_load((project / "forecasters.yaml").read_text())
    few = {name: sections[name] for name in (OURS, LSTM, "last-flow")}
    for name in (OURS, LSTM):
        few[name] |= QUICK
    (folder / "forecasters.yaml").write_text(yaml.safe_dump(few))
    assert run_paper(EXHIBITS, folder / "out", TINY, folder / "forecasters.yaml") == 0
    return folder


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "small.json").read_text())
    return found


def test_the_rows_are_there_with_what_the_exhibits_draw(folder: Path) -> None:
    rows = summary(folder)["rows"]
    assert {(row["method"], row["trace"]) for row in rows} >= {(OURS, SHOWN), (LSTM, SHOWN)}
    [ours] = [row for row in rows if row["method"] == OURS and row["every"] == 1]
    [lstm] = [row for row in rows if row["method"] == LSTM]
    assert ours["stretch"]["came_ms"] == lstm["stretch"]["came_ms"]
    assert len(ours["stretch"]["came_ms"]) == 150
    assert set(ours["batches"]) == {"1", "2", "4", "8"}
    # Batches of 8 are the decisions themselves.
    assert ours["batches"]["8"] == ours["tuned"]["f1_truth_change"]
    assert 0 <= ours["apart"]["features"] <= 1
    assert 0 < ours["tune_s"]["cached"] < ours["tune_s"]["uncached"]
    for row in rows:
        assert row["tuned"]["n"] > 0
        if row["method"] == "last-flow":  # it has nothing to tune
            assert row["tuned"] == row["pretrained"]


def test_a_second_run_keeps_the_rows_and_a_changed_forecaster_is_computed_again(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in (folder / "out/rows").iterdir()}
    assert run_paper(["table-1"], folder / "out", TINY, folder / "forecasters.yaml") == 0
    assert "4 rows, 4 of them kept" in "".join(capfd.readouterr())
    assert {path.name: path.read_bytes() for path in (folder / "out/rows").iterdir()} == before
    assert len(summary(folder)["rows"]) == len(before)  # those of the other exhibits too
    other = yaml.safe_load((folder / "forecasters.yaml").read_text())
    other["last-flow"]["input"] = "last_latency_us"
    (folder / "other.yaml").write_text(yaml.safe_dump(other))
    assert run_paper(["table-1"], folder / "out", TINY, folder / "other.yaml") == 0
    assert "4 rows, 0 of them kept" in "".join(capfd.readouterr())


def test_the_rows_can_be_published_and_drawn(folder: Path, tmp_path: Path) -> None:
    paper.take(folder / "out" / "small.json", tmp_path / "paper.json")
    one = json.loads((tmp_path / "paper.json").read_text())["small"]
    assert one["rows"] == summary(folder)["rows"]
    assert one["commit"]


def test_what_cannot_be_is_one_line(folder: Path) -> None:
    for names, line in (
        (["figure-99"], "the paper has no exhibit 'figure-99'"),
        (["figure-7a"], "section `bilstm` is missing"),
    ):
        with pytest.raises(ValueError, match=line) as raised:
            run_paper(names, folder / "out", TINY, folder / "forecasters.yaml")
        assert "\n" not in str(raised.value)
