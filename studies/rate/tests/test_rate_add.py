"""A foreign trace of tcp_info: a path like any other, or one line that says what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from rate_flows import samples_of, write_flows
from typer.testing import CliRunner, Result

from common.section import read
from pipelines.stage import StageError
from studies.rate.commands import PARAMS_FILE
from studies.rate.samples.definition import NAMES
from studies.rate.samples.tables import paths_in, read_path
from studies.rate.stages.simulate import RateSimulateParams, simulate
from swiftqueue.cli.app import app

CUT = Path(__file__).resolve().parents[3] / "tests" / "data" / "captures" / "broken_gzip.pcap.gz"


def trace() -> pl.DataFrame:
    """Two flows of 200 ACKs; the first begins with what the SYN's ACK says."""
    rows = [{"flow": 7, **dict.fromkeys(NAMES, 0)}]
    rows += [{"flow": 7, **row} for row in samples_of(2e6, 40_000, 200)]
    rows += [{"flow": 9, **row} for row in samples_of(5e6, 90_000, 200)]
    return pl.DataFrame(rows).with_columns(comment=pl.lit("not taken"))


def added(file: Path, root: Path, *more: str) -> Result:
    return CliRunner().invoke(app, ["rate", "add", str(file), "-o", str(root / "flows"), *more])


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_trace_becomes_a_path_beside_the_others(tmp_path: Path, form: str) -> None:
    write_flows(tmp_path / "flows", train=1, held_out=1, flows=4)
    file = tmp_path / f"office.{form}"
    given = trace()
    given.write_csv(file) if form == "csv" else given.write_parquet(file)
    said = added(file, tmp_path, "--held-out", "--json")
    assert said.exit_code == 0, said.output
    assert json.loads(said.stdout)["path"] == "added-office"
    about = paths_in(tmp_path / "flows")["added-office"]
    assert (about["kind"], about["source"], about["flows"], about["samples"]) == ("held-out", "added", 2, 400)
    samples, flows = read_path(tmp_path / "flows", "added-office")
    assert flows["samples"].to_list() == [200, 200]
    at = given.filter((pl.col("flow") == 9) & (pl.col("delivered") >= 125)).row(0, named=True)
    assert flows["rate_125_bytes_per_s"][1] == at["bbr_bw"]
    assert flows["rate_250_bytes_per_s"].to_list() == [None, None]
    # Without times one flow begins where the one before ended.
    assert flows["started_ns"].to_list() == [0, 1000 * given.filter(flow=7)["ts"][-1]]
    assert flows["at_125_ns"][1] == flows["started_ns"][1] + 1000 * at["ts"]
    assert len(samples) == 70
    assert samples.filter(flow=0).select(NAMES).row(0) == given.select(NAMES).row(1)


def test_a_trace_that_counts_the_syn_as_linux_does(tmp_path: Path) -> None:
    """Its ACK has delivered one packet of one byte, and is left out as well."""
    counts = [pl.col("delivered", "bytes_acked") + 1]
    trace().with_columns(counts).write_parquet(tmp_path / "linux.parquet")
    assert added(tmp_path / "linux.parquet", tmp_path).exit_code == 0
    samples, flows = read_path(tmp_path / "flows", "added-linux")
    assert flows["samples"].to_list() == [200, 200]
    first = samples.filter(sample=0).select("delivered", "bytes_acked")
    assert first.rows() == [(2, 1441)] * 2


def changed(column: str, value: object) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.with_columns(
        pl.when(pl.int_range(pl.len()) == 50).then(value).otherwise(pl.col(column)).alias(column)
    )


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (lambda t: t.drop("bbr_bw"), "column bbr_bw is missing (1 are)"),
        (lambda t: t.with_columns(rtt=pl.col("rtt") + 0.5), "column rtt is of type Float64"),
        (changed("rtt", None), "row 50, column rtt: has no value"),
        (changed("rtt", -1), "flow 7, sample 50: a field is negative, a count falls"),
        (changed("delivered", 0), "flow 7, sample 50: a field is negative, a count falls"),
        (changed("delivered", -1), "flow 7, sample 50: a field is negative, a count falls"),
        (lambda t: t.with_columns(bbr_bw=2**63 - 1), "must be above 0, below 1 Tbit/s"),
        (changed("bytes_acked", 0), "flow 7, sample 50: a field is negative, a count falls"),
        (changed("delivery_rate_app_limited", 2), "flow 7, sample 50: "),
        (
            lambda t: t.with_columns(ts=pl.col("ts") + pl.when(pl.col("flow") == 9).then(2**62).otherwise(0)),
            "flow 9, started_ns + 1000 ts of an ACK is beyond 2^63 ns",
        ),
        (
            lambda t: t.with_columns(started_ns=pl.lit(2**63 - 1)),
            "flow 7, started_ns + 1000 ts of an ACK is beyond 2^63 ns",
        ),
        (lambda t: t.clear(), "no flow has delivered a packet"),
        (lambda t: t.with_columns(delivered=0), "no flow has delivered a packet"),
    ],
)
def test_what_is_no_trace_is_one_line(
    tmp_path: Path, spoil: Callable[[pl.DataFrame], pl.DataFrame], line: str
) -> None:
    file = tmp_path / "bad.parquet"
    spoil(trace()).write_parquet(file)
    said = added(file, tmp_path)
    assert said.exit_code != 0
    assert line in str(said.exception or said.output)
    assert str(file) in str(said.exception or said.output)
    assert not (tmp_path / "flows" / "path=added-bad").exists()


def test_a_name_that_is_taken_and_a_file_that_is_none(tmp_path: Path) -> None:
    file = tmp_path / "one.csv"
    trace().write_csv(file)
    assert added(file, tmp_path).exit_code == 0
    for given, more, line in (
        (file, [], "is there; choose another name"),
        (file, ["--name", "../x"], "a name has letters"),
        (tmp_path / "none.csv", [], "there is no such file"),
        (CUT, ["--name", "r"], f"{CUT}: cannot be read: "),
        (tmp_path / "rubbish.csv", ["--name", "r"], "rubbish.csv"),
        (tmp_path / "rubbish.parquet", ["--name", "r"], "rubbish.parquet"),
    ):
        if "rubbish" in given.name:
            given.write_bytes(b"\x00\xff\xfe" * 100)
        said = added(given, tmp_path, *more)
        assert said.exit_code != 0
        assert line in str(said.exception or said.output)


@pytest.mark.parametrize("source", ["added", "kernel"])
def test_a_path_that_was_not_simulated_is_left_alone(tmp_path: Path, project: Path, source: str) -> None:
    params = read(project / PARAMS_FILE, RateSimulateParams)
    name = next(iter(params.paths()))
    file = tmp_path / "office.csv"
    trace().write_csv(file)
    assert added(file, tmp_path, "--name", name).exit_code == 0
    about = tmp_path / "flows" / f"path={name}" / "path.json"
    about.write_text(about.read_text().replace('"added"', f'"{source}"'))
    with pytest.raises(ValueError, match=rf"path={name} was not simulated \(source {source}\)"):
        simulate(params, tmp_path / "flows", Path("/nowhere"))
    about.parent.rename(tmp_path / "flows" / "path=office")  # a name that nobody asks for
    with pytest.raises(StageError, match="ended with 1"):
        simulate(params, tmp_path / "flows", Path("/bin/false"))
    assert list(paths_in(tmp_path / "flows")) == ["office"]
