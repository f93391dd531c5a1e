"""Flows as they are: the paper's figures 5 to 7."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from rate_flows import write_flows
from typer.testing import CliRunner

from swiftqueue.cli.app import app
from swiftqueue.studies.rate.model.plain import plain, quartiles
from swiftqueue.studies.rate.results import pictures as rate_pictures
from swiftqueue.studies.rate.results import published as rates
from swiftqueue.studies.rate.results.pages import tables


def test_quartiles_are_of_what_is_known() -> None:
    found = quartiles([4.0, None, 0.0, 2.0, 1.0, 3.0])
    assert found == {"n": 5, "least": 0.0, "lower": 1.0, "median": 2.0, "upper": 3.0, "most": 4.0}
    assert quartiles([None])["median"] is None


def test_flows_are_described_and_published(tmp_path: Path) -> None:
    """Over two folders; flows of three ACKs count where they have an estimate, and nowhere else."""
    write_flows(tmp_path / "a", train=2, held_out=1, flows=4, short=1)
    write_flows(tmp_path / "b", train=1, held_out=0, flows=4)
    file = tmp_path / "plain.json"
    folders = [str(tmp_path / name) for name in "ab"]
    done = CliRunner().invoke(app, ["rate", "plain", *folders, "-o", str(file)])
    assert done.exit_code == 0, done.output
    assert "16 flows; quartiles over flows" in done.output
    found = json.loads(file.read_text())["plain"]
    assert found == plain([tmp_path / name for name in "ab"])
    paths = {(one["rtt_ms"], one["n"]) for one in found["downloads"]}
    assert len(paths) == 3  # the first path of either folder is the same
    assert sorted(n for _, n in paths) == [3, 3, 7]
    assert [one["median"] for one in found["downloads"]] == pytest.approx([2.0] * 3)  # made so
    flows = [pl.read_parquet(one) for one in sorted(tmp_path.glob("*/path=*/flows.parquet"))]
    at_62 = pl.concat(flows)["rate_62_bytes_per_s"].drop_nulls() * 8e-6
    assert found["estimates"]["62"]["n"] == len(at_62) == 13
    assert found["estimates"]["62"]["median"] == pytest.approx(at_62.median())
    samples = pl.concat(pl.read_parquet(one) for one in tmp_path.glob("*/path=*/samples.parquet"))
    at_5 = samples.filter(sample=4)["bbr_bw"]
    assert found["estimates"]["5"]["most"] == pytest.approx(at_5.max() * 8e-6)
    growth = found["growth"]["5-62"]
    assert growth["n"] == 13
    assert 1 < growth["least"] <= growth["median"] <= growth["most"]

    (tmp_path / rates.FILE).parent.mkdir(parents=True)
    rates.take(file, tmp_path)
    published = rates.load(tmp_path)
    page = tables(published)["rate-plain"]()
    assert any(line.startswith("| 62 | ") for line in page)
    assert rate_pictures.plain(published).axes

    before = (tmp_path / rates.PLAIN_FILE).read_bytes()
    for about in (tmp_path / "b").glob("path=*/path.json"):
        about.write_text(json.dumps(json.loads(about.read_text()) | {"source": "kernel"}))
    for which, source in ((folders, "mixed"), (folders[1:], "kernel")):
        assert CliRunner().invoke(app, ["rate", "plain", *which, "-o", str(file)]).exit_code == 0
        with pytest.raises(ValueError, match=rf"its flows are of source {source}; there is a page for ns3"):
            rates.take(file, tmp_path)
    assert (tmp_path / rates.PLAIN_FILE).read_bytes() == before


def test_a_page_without_them_says_so() -> None:
    assert tables({})["rate-plain"]() == [
        "Nothing is published yet: `swiftqueue rate plain`, then `swiftqueue rate results FILE`."
    ]


def test_a_folder_without_flows_is_one_line(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["rate", "plain", str(tmp_path / "nothing")])
    assert done.exit_code != 0
    assert isinstance(done.exception, SystemExit | OSError | ValueError)
    assert "nothing" in str(done.exception) + done.output
