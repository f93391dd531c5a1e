"""Whatever is wrong with flows or networks is one line that names it; plain TCP goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
import torch
from rate_flows import write_flows
from test_rate_engine import made_in
from typer.testing import CliRunner, Result

from swiftqueue.cli.app import app
from swiftqueue.studies.rate.model import networks
from swiftqueue.studies.rate.testbed.flows import KernelPath


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flows of which two of each path end after three samples, and a network of each kind."""
    root = tmp_path_factory.mktemp("rates")
    write_flows(root / "flows", train=1, held_out=1, flows=4, short=2)
    for kind in networks.KINDS:
        made_in(root, kind)
    return root


@pytest.fixture
def here(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "rates"))


def forecast(root: Path, kind: str = "transformer", *more: str) -> Result:
    given = [str(root / "flows"), "--artifact", str(root / f"{kind}-"), *more]
    return CliRunner().invoke(app, ["rate", "forecast", *given])


@pytest.mark.parametrize("kind", networks.KINDS)
def test_a_flow_that_ends_after_three_samples_goes_on_as_plain_tcp(good: Path, kind: str) -> None:
    said = forecast(good, kind)
    assert said.exit_code == 0, said.output
    lines = [line for line in said.stdout.splitlines() if "no forecast" in line]
    line = "no forecast, plain TCP goes on: the flow has 3 samples; a forecast takes 5 to 35"
    assert lines == [f"path p{path}, flow {flow}: {line}" for path in (0, 1) for flow in (0, 1)]
    assert said.stdout.splitlines()[-1] == "8 flows, 4 without a forecast"
    assert ("forecasts are PyTorch's: " in said.stderr) == (kind == "lstm")
    found = json.loads(forecast(good, kind, "--json", "--samples", "15").stdout)
    assert [("bytes_per_s" in one, "plain_tcp" in one) for one in found[:3]] == [
        (False, True),
        (False, True),
        (True, False),
    ]


def test_a_path_collected_otherwise_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """Its folder's name has rate, round trip, buffer and seed only."""
    write_flows(tmp_path, train=1, held_out=0, flows=2)
    path = KernelPath(20, 50, flows=2)
    (tmp_path / "path=p0").rename(place := tmp_path / f"path={path.name}")
    about = {"kind": "train", "source": "kernel", "flows_whole": 2, "options": asdict(path)}
    (place / "path.json").write_text(json.dumps(about))

    def collect(*more: str) -> Result:
        return CliRunner().invoke(app, ["rate", "collect", str(tmp_path), "--flows", "2", *more])

    said = collect()
    assert said.exit_code == 0, said.output
    assert f"path {path.name}: is there" in said.stderr
    assert said.stdout == ""
    assert json.loads(collect("--json").stdout) == {"path": path.name, **about}
    for more, line in (
        (["--load", "0.3"], "load 0.2, and is asked for with 0.3"),
        (["--flows", "9"], "flows 2, and is asked for with 9"),
        (["--jitter-ms", "2"], "jitter_ms 0.0, and is asked for with 2.0"),
        (["--held-out"], "kind train, and is asked for with held-out"),
    ):
        # A path that is not there comes first, and is not begun.
        refused = collect("--rate-mbps", "10", "--rate-mbps", "20", *more)
        assert str(refused.exception) == f"{place} was made with {line}; name another folder"


@pytest.mark.parametrize("kind", networks.KINDS)
@pytest.mark.parametrize("bias", [1e4, -1e4])
def test_a_forecast_of_infinity_or_0_is_none(here: Path, kind: str, bias: float) -> None:
    network, _ = made_in(here, kind)
    torch.nn.init.constant_(network.out.bias, bias)  # type: ignore[union-attr,arg-type]
    networks.save(here / f"{kind}-", network, {})
    said = forecast(here, kind)
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert lines[-1] == "8 flows, 8 without a forecast"
    assert sum("not a rate; the sender goes on without it" in line for line in lines) == 4


def other_columns(flows: Path) -> None:
    pl.DataFrame({"time": [1.0], "rate": [2.0]}).write_parquet(flows / "path=p0" / "samples.parquet")


def no_parquet(flows: Path) -> None:
    (flows / "path=p0" / "flows.parquet").write_bytes(b"PK\x03\x04 something else")


def no_table(flows: Path) -> None:
    (flows / "path=p0" / "samples.parquet").unlink()


def no_flows(flows: Path) -> None:
    shutil.rmtree(flows)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (other_columns, "not a table of flows"),
        (no_parquet, "flows.parquet cannot be read"),
        (no_table, "samples.parquet"),
        (no_flows, "no flows under"),
    ],
)
def test_a_foreign_table_is_one_line(here: Path, spoil: Callable[[Path], None], line: str) -> None:
    spoil(here / "flows")
    said = forecast(here)
    assert said.exit_code == 1
    assert isinstance(said.exception, OSError | ValueError)  # the program turns it into one line
    assert line in str(said.exception)
    assert "\n" not in str(said.exception)


def test_a_network_of_another_definition_is_one_line(here: Path) -> None:
    file = here / "transformer-" / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema_hash": "f" * 64}))
    said = forecast(here)
    assert said.exit_code == 1
    assert f"{file}: made for samples {'f' * 64}, not " in str(said.exception)
    shutil.rmtree(here / "transformer-")
    line = f"no network at {here}/transformer-; `dvc repro studies/rate/dvc.yaml` makes it; "
    line += "or name one: --artifact"
    assert str(forecast(here).exception) == line
