"""The program as it is built gives the published one's results, and so its results are gone on with."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from sampled import some

from swiftqueue.laboratory.command import Request, run_lab
from swiftqueue.laboratory.runs import canary, programs
from swiftqueue.laboratory.runs.execution import Job
from swiftqueue.laboratory.runs.programs import Equals
from swiftqueue.laboratory.runs.results import COMPLETE, FILE, KEY, load

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def program() -> Path:
    return programs.build()[0]


@pytest.fixture(scope="module")
def runs() -> dict[str, Job]:
    """The canaries that this CPU's kernel has digests of: all, or a sample of four by commit."""
    known = Equals.load().canaries
    of_here = {name: job for name, job in canary.canaries().items() if name in known}
    assert len(of_here) >= 24
    return {name: of_here[name] for name in some(sorted(of_here), 4)}


def test_the_program_gives_the_published_ones_results(program: Path, runs: dict[str, Job]) -> None:
    known = Equals.load().canaries
    assert canary.digests(program, runs) == {name: known[name] for name in runs}


@pytest.mark.long
def test_a_program_is_listed_once_proven_and_not_where_a_result_differs(
    program: Path,
    runs: dict[str, Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = next(iter(runs))
    monkeypatch.setattr(canary, "canaries", lambda: {name: runs[name]})
    listed, own = tmp_path / "programs.json", programs.hash_of(program)
    known = Equals(["published"], Equals.load().canaries)
    known.save(listed)
    for _ in range(2):
        assert canary.prove(listed) == 0
        assert Equals.load(listed) == replace(known, programs=["published", own])
    # another seed's results stand for those of a program that does other things
    other = Job(runs[name].identity, {**runs[name].run, "seed": 2}, runs[name].artifact)
    monkeypatch.setattr(canary, "canaries", lambda: {name: other})
    known.save(listed)
    capfd.readouterr()
    assert canary.prove(listed) == 1
    assert Equals.load(listed) == known
    assert name in capfd.readouterr().out
    monkeypatch.setattr(canary, "canaries", lambda: {"on another kernel": runs[name]})
    with pytest.raises(ValueError, match="has no canary 'on another kernel'"):
        canary.prove(listed)
    proven = replace(known, programs=["published", own])  # which gives a canary without a digest its own
    proven.save(listed)
    assert canary.prove(listed) == 0
    added = {"on another kernel": known.canaries[name]}
    assert Equals.load(listed) == replace(proven, canaries=known.canaries | added)


def test_published_results_are_gone_on_with(
    program: Path,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Figure 8 as published, without a model: nothing is simulated again, and the rows are the same."""
    listed = tmp_path / "programs.json"
    known = Equals.load()
    replace(known, programs=[*known.programs, programs.hash_of(program)]).save(listed)
    monkeypatch.setattr(programs, "LISTED", listed)
    published = project / "docs" / "laboratory"
    (tmp_path / "lab").mkdir()
    shutil.copy(published / FILE, tmp_path / "lab")
    controls = ["default", "no_l4s", "oracle", "last_latency"]
    request = Request(["figure8"], controls=controls)

    def figure8() -> pl.DataFrame:
        of_it = load(tmp_path / "lab").filter(pl.col("scenario") == "figure8", pl.col("status") == COMPLETE)
        of_it = of_it.filter(pl.col("control").is_in(controls))
        return of_it.sort(KEY).drop("parameters")  # whose profile may have its former name

    before = figure8()
    assert run_lab(request, tmp_path / "lab") == 0
    # those of oracle_in_order that were run are read, too
    assert "runs: 42 of 42 have their result already" in capfd.readouterr().out
    assert figure8().equals(before)
