"""Samples of a kernel's BBR: tables of records, then a short run on the bed, and what stays after SIGKILL."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from feature_store.rate.definition import NAMES, inputs
from feature_store.rate.tables import checked, paths_in, read_path
from laboratory.bed.programs import SAMPLER, SAMPLER_OBJECT, why_not_built
from laboratory.bed.rate_flows import RECORD, KernelPath, collect, tables, why_not

CANNOT = why_not()
needs_sampler = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
UNBUILT = why_not_built(SAMPLER, SAMPLER_OBJECT)
needs_loader = pytest.mark.skipif(UNBUILT is not None, reason=str(UNBUILT))
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def records(flow: int, since_ns: int, acks: int) -> np.ndarray:
    """A flow that delivers a packet an ACK, at 1 MB/s from its tenth on."""
    found = np.zeros(acks, RECORD)
    found["flow"], found["since_ns"], found["number"] = flow, since_ns, np.arange(acks)
    fields = found["fields"]
    fields[:, NAMES.index("ts")] = 50_000 + 1000 * np.arange(acks)
    fields[:, NAMES.index("delivered")] = 1 + np.arange(acks)
    fields[:, NAMES.index("bbr_bw")] = np.where(np.arange(acks) < 10, 0, 1_000_000)
    return found


def test_records_become_tables_and_a_flow_with_a_hole_is_left_out() -> None:
    later, first, holed = records(7, 9_000, 130), records(8, 2_000, 20), records(9, 5_000, 100)
    samples, flows = checked("made-up", *tables(np.concatenate([later, first, np.delete(holed, 40)])))
    assert flows["flow"].to_list() == [0, 1]
    assert flows["samples"].to_list() == [20, 130]
    assert flows["started_ns"].to_list() == [0, 7_000]
    assert flows["rate_62_bytes_per_s"].to_list() == [None, 1_000_000]
    assert flows["at_125_ns"].to_list() == [None, 7_000 + 1000 * (50_000 + 124_000)]
    assert flows["rate_250_bytes_per_s"].null_count() == 2
    assert len(samples) == 20 + 35
    nothing, none = tables(np.zeros(0, RECORD))
    assert len(nothing) == len(none) == 0


def test_a_path_that_cannot_be_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"^load 0: must be above 0$"):
        KernelPath(20, 50, load=0)


@needs_sampler
@pytest.mark.slow
def test_every_ack_of_a_real_kernels_flows_is_sampled(tmp_path: Path) -> None:
    path = KernelPath(rate_mbps=20, rtt_ms=40, flows=3, bytes=1_000_000, load=0.3)
    said = collect(path, tmp_path, "held-out")
    assert (said["flows_whole"], said["lost"]) == (3, 0)
    assert paths_in(tmp_path)[path.name]["source"] == "kernel"
    samples, flows = read_path(tmp_path, path.name)
    assert said["acks"] == flows["samples"].sum()
    # A megabyte is 691 packets of 1,448 bytes; the last number of packets that all flows reach is 500.
    assert flows["rate_500_bytes_per_s"].null_count() == 0
    assert (flows["rate_500_bytes_per_s"] < 20e6 / 8 * 1.1).all()
    for flow in flows["flow"]:
        raw = samples.filter(flow=flow).select(NAMES).to_numpy()
        assert np.isfinite(inputs(raw)).all()  # counts never fall, nothing is negative
        assert raw[0, NAMES.index("min_rtt")] >= 40_000
    assert CONTROLS.read_text().split().count("sq_rate") == 0


@needs_loader
@needs_sampler
def test_nothing_stays_when_the_sampler_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [SAMPLER, "collect", SAMPLER_OBJECT, tmp_path / "records"], stdout=subprocess.PIPE, text=True
    ) as sampler:
        assert sampler.stdout is not None
        assert json.loads(sampler.stdout.readline())["event"] == "ready"
        assert "sq_rate" in CONTROLS.read_text().split()
        second = subprocess.run(
            [SAMPLER, "collect", SAMPLER_OBJECT, tmp_path / "other"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode != 0
        assert second.stderr == "sq_rate: somebody else has it, or its flows do\n"
        sampler.send_signal(signal.SIGKILL)
    gone: Callable[[], bool] = lambda: "sq_rate" not in CONTROLS.read_text().split()  # noqa: E731
    wait_until(gone, "the congestion control is gone")
