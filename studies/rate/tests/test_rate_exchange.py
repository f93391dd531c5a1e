"""The exchange of inputs between forecasts of latency and of rate: its program, its inputs, its command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from feature_store.packets.schema import HORIZON
from pipelines.simulators import build_simulator
from studies.rate.experiments.exchange import (
    EXCHANGED,
    LATENCY_MODELS,
    OTHERS,
    OWN,
    PLACEBO,
    RATE_MODELS,
    TOLD,
    compare,
    others_at,
    queries_of,
    state_at_decision,
    with_forecasts,
)  # fmt: skip
from studies.rate.experiments.exchange_runs import DOWNLOADS, PACKETS, STATE, Traffic, make
from studies.rate.samples.tables import SAMPLE_SCHEMA
from swiftqueue.cli.app import app

N = 64


def ran(program: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [str(program), *options, f"--out={folder}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def packets() -> pl.DataFrame:
    """Three flows in both queues, a packet a millisecond, each acknowledged 20 to 60 ms later."""
    draw = np.random.default_rng(1)
    flow = draw.integers(0, 3, N)
    sent = np.arange(N) * 1_000_000
    latency = draw.integers(20_000, 60_000, N)
    columns = {
        "trace": ["made up"] * N, "packet": np.arange(N), "sent_ns": sent, "flow_id": flow,
        "receiver_id": flow % 2, "size_bytes": [1480] * N, "ecn": (flow == 0).astype(int),
        "queue": np.where(flow == 0, "l4s", "classic"), "acked_ns": sent + 1000 * latency,
        "latency_us": latency, "retransmitted": [False] * N, "lost": [False] * N,
    }  # fmt: skip
    state = {name: draw.integers(1, 1000, N).astype(float) for name in STATE}
    return pl.DataFrame(columns | state).cast(dict(PACKETS)).select(PACKETS.names())


def test_nothing_from_after_a_decision_is_told() -> None:
    table = packets()
    forecasts = pl.DataFrame({"at_ns": [5_000_000, 40_500_000], "bytes_per_s": [1e6, 2e6]})
    run = Traffic("uncoupled", 1, table, SAMPLE_SCHEMA.to_frame(), DOWNLOADS.to_frame())
    told = with_forecasts(queries_of(run.packets), run.packets, forecasts).told_NE
    assert told.shape == (N, len(TOLD))
    for first in range(0, N, HORIZON):
        now = table["sent_ns"][first]
        later = pl.int_range(pl.len()) > first
        other = table.with_columns(
            pl.when(later).then(0).otherwise(pl.col(name)).alias(name) for name in STATE
        )
        changed = Traffic("uncoupled", 1, other, run.samples, run.flows)
        known = forecasts.filter(pl.col("at_ns") <= now)
        assert np.array_equal(
            with_forecasts(queries_of(changed.packets), changed.packets, known).told_NE[
                first : first + HORIZON
            ],
            told[first : first + HORIZON],
            equal_nan=True,
        )
        acked_later = pl.col("acked_ns") > now
        other = table.with_columns(latency_us=pl.when(acked_later).then(1.0).otherwise("latency_us"))
        assert others_at(other, 1, now) == pytest.approx(others_at(table, 1, now), nan_ok=True)
    state = state_at_decision(table)
    flow_0 = table["flow_id"].to_numpy()
    assert np.isnan(state[(flow_0 != flow_0[0]) & (np.arange(N) < HORIZON)]).all()  # not yet seen
    assert (state[:HORIZON][flow_0[:HORIZON] == flow_0[0]] == table.select(STATE).to_numpy()[0]).all()
    assert told[0, -2:].tolist() == pytest.approx([np.nan, np.nan], nan_ok=True)
    assert told[HORIZON, -2:].tolist() == [1e6, 3000]  # the 5th millisecond's, at the 8th


def test_latencies_of_the_other_flows_alone_are_told() -> None:
    table = packets()
    now = table["sent_ns"][-1]
    told = dict(zip(OTHERS, others_at(table, 0, now), strict=True))
    assert np.isnan([told[f"l4s_{what}_us"] for what in ("last", "average", "least")]).all()  # its own queue
    came = table.filter((pl.col("flow_id") != 0) & (pl.col("acked_ns") <= now)).sort("acked_ns")
    assert told["classic_last_us"] == came["latency_us"][-1]
    assert told["classic_least_us"] == came["latency_us"].min()
    assert told["classic_least_us"] < told["classic_average_us"] < came["latency_us"].max()


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    run = Traffic("uncoupled", 1, packets(), SAMPLE_SCHEMA.to_frame(), DOWNLOADS.to_frame())
    with pytest.raises(ValueError, match="two odd and two even seeds are needed"):
        compare([run])
    answer = CliRunner().invoke(app, ["rate", "exchange", "--profile", "fifo", "-o", str(tmp_path)])
    assert str(answer.exception) == "profile fifo: must be one of uncoupled, rfc9332"


@pytest.mark.long
@pytest.mark.slow
def test_the_command_answers_both_questions(tmp_path: Path) -> None:
    command = ["rate", "exchange", "--seeds", "4", "--seconds", "5", "--profile", "uncoupled"]
    program = Path(sys.executable).with_name("swiftqueue")
    answer = subprocess.run(
        [str(program), *command, "-o", str(tmp_path), "--json"], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads((tmp_path / "exchange.json").read_text())["exchange"]["uncoupled"]
    assert found["seeds"] == [1, 2, 3, 4]
    assert set(found["latency"]) == set(LATENCY_MODELS)
    assert set(found["rate"]) == set(RATE_MODELS)
    for cell in (found["latency"]["mlp"]["mae_ms"], found["rate"]["xgboost"]["62"]):
        assert cell[OWN]["n"] == 4
        difference = cell[EXCHANGED]["mean"] - cell[PLACEBO]["mean"]
        assert cell["than_placebo"]["mean"] == pytest.approx(difference)
        assert cell["verdict"] in {"better", "worse", "not settled"}
    program = build_simulator(program="rate-exchange")
    made = sorted((tmp_path / "runs").iterdir())
    assert len(made) == 4
    (made[0] / "packets.parquet").write_bytes((made[0] / "flows.parquet").read_bytes())
    with pytest.raises(ValueError, match="its packets are damaged; remove the folder and run again"):
        make(program, tmp_path / "runs", [("uncoupled", seed) for seed in (1, 2, 3, 4)], 5.0)


@pytest.mark.slow
def test_a_run_has_packets_and_downloads_of_one_sender(tmp_path: Path) -> None:
    program = build_simulator(program="rate-exchange")
    options = ("--seconds=4", "--bytes=300000", "--rate-bps=2e7", "--download-load=0.3", "--load=0.9")
    for folder in ("a", "b"):
        assert ran(program, tmp_path / folder, *options).returncode == 0
    for name in ("packets.csv", "flows.csv", "samples.csv"):  # a seed fixes every byte
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    sent = pl.read_csv(tmp_path / "a" / "packets.csv", infer_schema_length=None)
    flows = pl.read_csv(tmp_path / "a" / "flows.csv", infer_schema_length=None)
    assert sent["sent_ns"].is_sorted()
    assert set(sent["ecn"]) == {0, 1, 2}  # downloads, DCTCP, Cubic
    assert (sent.filter(queue="l4s")["ecn"] == 1).all()
    # A download whose SYN was dropped has no packet.
    assert set(sent.filter(ecn=0)["flow_id"]) == set(flows.drop_nulls("established_ns")["flow_id"])
    known = sent.drop_nulls("latency_us")
    assert not known["retransmitted"].any()
    assert (known["latency_us"] >= 0.9 * 40_000).all()  # a round trip at least, of the nearer receiver
    assert sent["ce_share"].is_between(0, 1).all()
    assert sent.filter(ecn=1)["ce_share"].max() > 0  # the queue marks at this load
    assert sent.filter(ecn=0)["ce_share"].max() == 0
    assert (known["rate_bytes_per_s"] < 1.1 * 10 * 20e6 / 8).all()
    assert (flows["established_ns"] - flows["started_ns"]).drop_nulls().min() >= 0.9 * 40e6
    assert len(pl.read_csv(tmp_path / "a" / "samples.csv").filter(flow=0)) == min(flows["samples"][0], 35)

    for option, said in (
        ("--profile=fifo", "profile fifo: must be uncoupled or rfc9332\n"),
        ("--load=0", "a value cannot be; see --help\n"),
    ):
        bad = ran(program, tmp_path / "bad", option)
        assert (bad.returncode, bad.stderr) == (1, said)
        assert not list((tmp_path / "bad").iterdir())
