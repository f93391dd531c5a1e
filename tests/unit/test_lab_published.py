"""The laboratory's published results: what README and docs show is what they give."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from infra.lab.model_source import models_by_profile
from infra.lab.results import COMPLETE, load
from infra.lab.tables import brief, markdown


@pytest.fixture(scope="module")
def published(project: Path) -> Path:
    return project / "docs" / "laboratory"


def test_the_tables_are_those_of_the_results(project: Path, published: Path) -> None:
    runs = load(published)
    assert (published / "report" / "table.md").read_text() == markdown(runs)
    assert "\n".join(brief(runs)) in (project / "README.md").read_text()


def test_the_models_are_those_that_were_judged(published: Path, tmp_path: Path) -> None:
    judged = load(published).filter(pl.col("status") == COMPLETE, pl.col("control") == "model")
    models = models_by_profile(str(published / "models" / "figure8"), tmp_path)
    found = judged.select("profile", "artifact").unique().sort("profile").rows()
    assert found == sorted((profile, model.content) for profile, model in models.items())
