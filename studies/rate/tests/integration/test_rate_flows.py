"""Samples of a kernel's BBR: tables of records, then a short run on the bed, and what stays after SIGKILL."""

from __future__ import annotations

import fcntl
import json
import math
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from waiting import wait_until

from studies.rate.programs import SAMPLER, SAMPLER_OBJECT, why_no_loader
from studies.rate.samples.definition import NAMES, inputs
from studies.rate.samples.tables import checked, paths_in, read_path
from studies.rate.testbed.flows import CONTROL, RECORD, KernelPath, collect, complete, tables, why_not
from testbed.host.programs import wait_for_name

CANNOT = why_not()
needs_sampler = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
UNBUILT = why_no_loader()
needs_loader = pytest.mark.skipif(UNBUILT is not None, reason=str(UNBUILT))
pytestmark = pytest.mark.usefixtures("kernels_controls_alone")
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


SIZE = 100_000


def records(flow: int, since_ns: int, acks: int) -> np.ndarray:
    """A flow that delivers a packet an ACK, at 1 MB/s from its tenth on."""
    found = np.zeros(acks, RECORD)
    found["flow"], found["since_ns"], found["number"] = flow, since_ns, np.arange(acks)
    fields = found["fields"]
    fields[:, NAMES.index("ts")] = 50_000 + 1000 * np.arange(acks)
    fields[:, NAMES.index("delivered")] = 1 + np.arange(acks)
    fields[-1, NAMES.index("bytes_acked")] = SIZE + 1  # and the SYN
    fields[:, NAMES.index("bbr_bw")] = np.where(np.arange(acks) < 10, 0, 1_000_000)
    return found


def test_records_become_tables_and_a_flow_with_a_hole_is_left_out() -> None:
    later, first, holed = records(7, 9_000, 130), records(8, 2_000, 20), records(9, 5_000, 100)
    cut = records(10, 6_000, 100)[:-1]  # its last ACK found no room
    found = tables(complete(np.concatenate([later, first, np.delete(holed, 40), cut]), SIZE))
    samples, flows = checked("made-up", *found)
    assert flows["flow"].to_list() == [0, 1]
    assert flows["samples"].to_list() == [20, 130]
    assert flows["started_ns"].to_list() == [0, 7_000]
    assert flows["rate_62_bytes_per_s"].to_list() == [None, 1_000_000]
    assert flows["at_125_ns"].to_list() == [None, 7_000 + 1000 * (50_000 + 124_000)]
    assert flows["rate_250_bytes_per_s"].null_count() == 2
    assert len(samples) == 20 + 35
    nothing, none = tables(complete(np.zeros(0, RECORD), SIZE))
    assert len(nothing) == len(none) == 0


def test_a_path_that_cannot_be_is_one_line() -> None:
    for wrong, line in (
        ({"load": 0}, "load 0: must be above 0, and finite"),
        ({"buffer_bdp": math.nan}, "buffer_bdp nan: must be above 0, and finite"),
        ({"buffer_bdp": math.inf}, "buffer_bdp inf: must be above 0, and finite"),
        ({"jitter_ms": -1}, "jitter_ms -1: must be 0 or more, and finite"),
    ):
        with pytest.raises(ValueError, match=f"^{line}$"):
            KernelPath(20, 50, **wrong)


@needs_sampler
@pytest.mark.slow
def test_every_ack_of_a_real_kernels_flows_is_sampled(tmp_path: Path) -> None:
    path = KernelPath(rate_mbps=20, rtt_ms=40, flows=3, bytes=1_000_000, load=0.3)
    said = collect(path, tmp_path, "held-out")
    assert (said["flows_whole"], said["lost"]) == (3, 0)
    assert said["router"]["stalled_share"] is not None
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


@contextmanager
def flow() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection over the loopback whose first end has `sq_rate`."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONTROL.encode())
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        with far:
            yield near, far


def unread(pipe: IO[str] | None) -> int:
    """Bytes in a pipe that its reader has not taken."""
    assert pipe is not None
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


# include/uapi/linux/tcp.h, with a sample's names for what it has.
TCP_INFO = np.dtype(
    [
        ("state", "u1"), ("ca_state", "u1"), ("retransmits", "u1"), ("probes", "u1"), ("others", "u1", 3),
        ("delivery_rate_app_limited", "u1"),  # its first bit
        ("rto", "u4"), ("sizes", "u4", 3), ("unacked", "u4"), ("losses", "u4", 4),
        ("last_data_sent", "u4"), ("last_ack_sent", "u4"), ("last_data_rcv", "u4"), ("last_ack_rcv", "u4"),
        ("mtu", "u4", 2), ("rtt", "u4"), ("rttvar", "u4"), ("ssthresh", "u4"), ("snd_cwnd", "u4"),
        ("receiver", "u4", 4), ("total_retrans", "u4"), ("pacing_rate", "u8"), ("max_pacing_rate", "u8"),
        ("bytes_acked", "u8"), ("bytes_received", "u8"), ("segs_out", "u4"), ("segs_in", "u4"),
        ("notsent_bytes", "u4"), ("min_rtt", "u4"), ("data_segs", "u4", 2), ("delivery_rate", "u8"),
        ("busy_time", "u8"), ("rwnd_limited", "u8"), ("sndbuf_limited", "u8"), ("delivered", "u4"),
        ("delivered_ce", "u4"), ("bytes_sent", "u8"), ("bytes_retrans", "u8"), ("dsack_dups", "u4"),
        ("reord_seen", "u4"),
    ]
)  # fmt: skip


@needs_loader
@needs_sampler
def test_a_sample_is_what_the_kernel_says_of_the_connection(tmp_path: Path) -> None:
    """But its age, and BBR's own two, which TCP_INFO does not have; times since something only grow."""
    wait_for_name(CONTROL)
    log = tmp_path / "records"
    with subprocess.Popen([SAMPLER, "collect", SAMPLER_OBJECT, log], stdout=subprocess.PIPE) as sampler:
        assert sampler.stdout is not None
        sampler.stdout.readline()
        with flow() as (near, far):
            near.setblocking(False)
            left = taken = 1_000_000
            while taken:  # the receiver is slow: the flow waits for its window
                with suppress(BlockingIOError):
                    left -= near.send(bytes(left))
                time.sleep(0.02)
                taken -= len(far.recv(1 << 20))

            def info() -> Any:
                said = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 512)
                return np.frombuffer(said, TCP_INFO, 1)[0]

            wait_until(lambda: info()["bytes_acked"] == 1_000_001)  # and the SYN
            said = info()
            sampler.terminate()
            sampler.wait()
    last = dict(zip(NAMES, np.fromfile(log, RECORD)["fields"][-1].tolist(), strict=True))
    known = {name: int(said[name]) for name in NAMES if name in (TCP_INFO.names or ())}
    known["delivery_rate_app_limited"] &= 1
    assert set(NAMES) - set(known) == {"ts", "bbr_bw", "bbr_minrtt"}
    for age in ("last_data_sent", "last_data_rcv", "last_ack_rcv"):
        assert last[age] <= known.pop(age)
    assert {name: last[name] for name in known} == known
    assert known["rwnd_limited"] > 0


@needs_loader
@needs_sampler
@pytest.mark.parametrize("reads", [True, False])
def test_who_asks_is_not_held_up_by_who_does_not_read(tmp_path: Path, reads: bool) -> None:
    """Flows are sampled all the same, and SIGTERM ends it; every question is whole, left out or counted."""
    wait_for_name(CONTROL)
    flows, log = 100, tmp_path / "records"  # all their questions are more than the pipe holds
    with subprocess.Popen(
        [SAMPLER, "collect", SAMPLER_OBJECT, log, "5"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pipesize=4096,
    ) as sampler:  # fmt: skip
        assert sampler.stdin is not None
        assert sampler.stdout is not None
        assert sampler.stderr is not None
        sampler.stdout.readline()
        for _ in range(flows):
            with flow() as (near, far):
                # It ends without an ACK, which could come while the sampler counts.
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                for _ in range(8):  # each is an ACK, at least
                    near.sendall(b"x" * 1000)
                    far.recv(1000, socket.MSG_WAITALL)
                    far.sendall(b"x")
                    near.recv(1)
        lines = []
        if reads:  # once each question was made: when the second answer is taken, all records had been
            for _ in range(2):
                print(file=sampler.stdin, flush=True)
                wait_until(lambda: not unread(sampler.stdin))
            lines.append(json.loads(sampler.stdout.readline()))  # room for the summary, that waits 1 s for it
        sampler.terminate()
        if reads:
            lines += [json.loads(line) for line in sampler.stdout]
            said = lines.pop()
            assert {one["event"] for one in lines} == {"asked"}
            assert (said["flows"], said["lost"]) == (flows, 0)
            assert len(lines) + said["unasked"] == flows
            assert said["unasked"] > 0
        assert sampler.wait(timeout=60) == (0 if reads else 1)
        assert sampler.stderr.read() == ("" if reads else "nobody reads the summary\n")
    records = np.fromfile(log, RECORD)
    assert len(np.unique(records["flow"])) == flows
    assert not reads or len(records) == said["acks"]
