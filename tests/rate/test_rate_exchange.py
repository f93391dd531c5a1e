"""The exchange of inputs between forecasts of latency and of rate: its program, its inputs, its command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import polars as pl
import pytest

from pipelines.simulators import build_simulator


def ran(program: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    command = [str(program), *options, f"--out={folder}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_run_has_packets_and_downloads_of_one_sender(tmp_path: Path) -> None:
    program = build_simulator(program="rate-exchange")
    options = ("--seconds=4", "--bytes=300000", "--rate-bps=2e7", "--download-load=0.3", "--load=0.9")
    for folder in ("a", "b"):
        assert ran(program, tmp_path / folder, *options).returncode == 0
    for name in ("packets.csv", "flows.csv", "samples.csv"):  # a seed fixes every byte
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    packets = pl.read_csv(tmp_path / "a" / "packets.csv", infer_schema_length=None)
    flows = pl.read_csv(tmp_path / "a" / "flows.csv", infer_schema_length=None)
    assert packets["sent_ns"].is_sorted()
    assert set(packets["ecn"]) == {0, 1, 2}  # downloads, DCTCP, Cubic
    assert (packets.filter(queue="l4s")["ecn"] == 1).all()
    # A download whose SYN was dropped has no packet.
    assert set(packets.filter(ecn=0)["flow_id"]) == set(flows.drop_nulls("established_ns")["flow_id"])
    known = packets.drop_nulls("latency_us")
    assert not known["retransmitted"].any()
    assert (known["latency_us"] >= 0.9 * 40_000).all()  # a round trip at least, of the nearer receiver
    assert packets["ce_share"].is_between(0, 1).all()
    assert packets.filter(ecn=1)["ce_share"].max() > 0  # the queue marks at this load
    assert packets.filter(ecn=0)["ce_share"].max() == 0
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
