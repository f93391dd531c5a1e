"""The test bed: its router beside an ideal queue, its marks and drops, hosts that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import wait_until

from swiftqueue.serving.agent.marking.udp_command import BINARY
from swiftqueue.serving.agent.marking.udp_command import why_not_built as no_udp
from swiftqueue.testbed.host import checks, router_log, tcp
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed, clean, leftovers, run_folder
from swiftqueue.testbed.host.lateness import in_stalls, lateness
from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER, ROUTER, why_not_built
from swiftqueue.testbed.host.run import Plan, figures, run, send
from swiftqueue.testbed.host.selfcheck import NO_AQM, ideal_due_ns, selfcheck

CANNOT = no_udp() or capability("router").why_not
needs_bed = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
UNBUILT = why_not_built(ROUTER)
needs_router = pytest.mark.skipif(UNBUILT is not None, reason=str(UNBUILT))


def literal_due_ns(sent: list[int], sizes: list[int], rate_bps: float, delay_ns: float) -> list[float]:
    """An ideal link with one queue, packet by packet."""
    out, left = [], 0.0
    for at, size in zip(sent, sizes, strict=True):
        left = max(left, at) + size * 8 / rate_bps * 1e9
        out.append(left + delay_ns)
    return out


def test_the_ideal_link_is_the_literal_one() -> None:
    random = np.random.default_rng(1)
    sent = np.cumsum(random.exponential(500_000, 2000)).astype(np.int64) + 10**15
    sizes = random.integers(64, 1500, 2000)
    expected = literal_due_ns(sent.tolist(), sizes.tolist(), 20e6, 5e6)
    assert np.allclose(ideal_due_ns(sent, sizes, 20e6, 5e6), expected, rtol=0, atol=2.0)  # ns, at 10^15


def test_what_falls_into_a_stall_and_its_backlog_is_masked() -> None:
    due = np.array([0.0, 9e6, 10e6, 12e6, 21.9e6, 22.1e6, 40e6])
    masked = in_stalls(due, np.array([10_000_000]), np.array([12_000_000]), 2e6)
    assert masked.tolist() == [False, False, True, True, True, False, False]
    # A short stall within the backlog of a longer one ends nothing.
    masked = in_stalls(due, np.array([10_000_000, 12_100_000]), np.array([12_000_000, 12_200_000]), 2e6)
    assert masked.tolist() == [False, False, True, True, True, False, False]


def stalled_at(begin_ns: int, end_ns: int) -> np.ndarray:
    log = np.zeros(1, router_log.RECORD)
    log["kind"], log["arrived_ns"], log["written_ns"] = router_log.STALL, begin_ns, end_ns
    return log


def test_lateness_is_that_of_the_packets_outside_stalls() -> None:
    """1,000 packets a ms apart, 1 to 1,000 us late; a stall of 1 ms masks those due within 1 + 4 + 5 ms."""
    due = np.arange(1000) * 1_000_000
    written = due + np.arange(1, 1001) * 1000
    whole = lateness(written, due, stalled_at(0, 0)[:0], 5e6).columns()
    assert whole == pytest.approx(
        {"late_p50_us": 500.5, "late_p99_us": 990.01, "late_p999_us": 999.001, "stalled_share": 0}
    )
    found = lateness(written, due, stalled_at(990_000_000, 991_000_000), 5e6)
    assert len(found.kept_us_K) == 990
    assert found.columns() == pytest.approx(
        {"late_p50_us": 495.5, "late_p99_us": 980.11, "late_p999_us": 989.011, "stalled_share": 0.01}
    )
    none = {"late_p50_us": None, "late_p99_us": None, "late_p999_us": None}
    assert lateness(written, due, stalled_at(0, 900_500_000), 0).columns() == none | {"stalled_share": 1}
    few = lateness(written[:99], due[:99], stalled_at(0, 0)[:0], 0)
    assert few.columns() == none | {"stalled_share": 0}
    assert lateness(due[:0], due[:0], stalled_at(0, 1), 0).columns() == none | {"stalled_share": None}


def test_each_capability_has_its_reason() -> None:
    found = checks.check()
    assert {"namespaces", "tun", "tc_bpf", "btf", "router", "compiler"} <= {c.name for c in found}
    for one in found:
        assert one.reason
        assert "\n" not in one.reason
        assert one.why_not is None if one.can else one.why_not == f"{one.name}: {one.reason}"


@pytest.mark.long
@needs_bed
def test_the_router_delivers_as_an_ideal_link(tmp_path: Path) -> None:
    """Every packet once, in order, and none before an ideal link would; the rate is the link's."""
    found = selfcheck(20.0, 3.0)
    assert found.packets > 3000
    # A busy machine's; `bed selfcheck` says how near it is.
    assert abs(found.rate_error) < 0.2
    assert found.error_p50_us < 20_000
    log, sent_log = tmp_path / "router", tmp_path / "sent.csv"
    with Bed(rate_mbps=10, delay_ms=5, log=log, queue=NO_AQM | {"max_bytes": 9e6}) as bed:
        send(bed, 12.0, 1.0, "--classic", "--log", sent_log)
    records = router_log.read(log)
    ours = records[(records["kind"] == router_log.FORWARD) & (records["packet"] >= 0)]
    assert np.array_equal(ours["packet"], np.arange(len(ours)))
    sent_ns = np.loadtxt(sent_log, delimiter=",", skiprows=1, usecols=2, dtype=np.int64)
    assert len(sent_ns) == len(ours)
    due_ns = ideal_due_ns(sent_ns, np.full(len(ours), 1228), 10e6, 5e6)
    assert (ours["written_ns"] - due_ns > -1000).all()  # rounding
    # In virtual time it is exact: each packet starts when the one before it has left, or when it comes.
    through = records[records["kind"] == router_log.FORWARD]  # the kernel says something too, now and then
    left_ns = through["due_ns"] - 5_000_000
    assert np.array_equal(through["started_ns"] + through["bytes"].astype(np.int64) * 800, left_ns)
    assert np.array_equal(through["started_ns"][1:], np.maximum(through["arrived_ns"][1:], left_ns[:-1]))
    assert bed.summary["cpu_s"] > 0


@needs_bed
def test_too_few_packets_are_no_busy_machine() -> None:
    with pytest.raises(RuntimeError, match=r"0\.5 Mbit/s: \d+ packets are too few; give more --seconds"):
        selfcheck(0.5, 1.0)


@pytest.mark.long
@needs_bed
@pytest.mark.parametrize("host", [ADDRESS_B, "fd77::2"])
def test_a_full_queue_marks_what_may_be_marked_and_drops_the_rest(tmp_path: Path, host: str) -> None:
    """The receiver's kernel sees CE where the log says so: checksums are right, or it would see nothing."""
    seen: dict[str, dict[str, Any]] = {}
    for kind in ("l4s", "classic"):
        log, echo_log = tmp_path / kind, tmp_path / f"{kind}.csv"
        with Bed(rate_mbps=5, delay_ms=2, log=log, queue={"overload": "delay", "l_aqm": "step"}) as bed:
            echo = bed.b(BINARY, "echo", "--host", host, "--port", "4433", "--log", echo_log)
            with subprocess.Popen(echo, stdout=subprocess.PIPE, text=True) as receiver:
                assert receiver.stdout is not None
                receiver.stdout.readline()
                options = ["--host", host, "--port", "4433", "--rate-mbps", "6", "--seconds", "2"]
                classic = ["--classic"] if kind == "classic" else []
                command = bed.a(BINARY, "send", *options, *classic)
                ran = subprocess.run(command, capture_output=True, text=True, check=False)
                receiver.terminate()
        assert ran.returncode == 0, ran.stderr
        seen[kind] = json.loads(ran.stdout)
        records = router_log.read(log)
        ours = records[records["packet"] >= 0]
        forward = ours[ours["kind"] == router_log.FORWARD]
        marked = set(forward["packet"][forward["verdict"] >= router_log.FIRST_MARK].tolist())
        rows = [line.split(",") for line in echo_log.read_text().splitlines()[1:]]
        assert {int(row[1]) for row in rows if row[3] == "3"} == marked
        assert {int(row[1]) for row in rows} == set(forward["packet"].tolist())
    assert seen["l4s"]["arrived_ce"] > 100
    assert seen["classic"]["arrived_ce"] == 0
    assert seen["classic"]["acked"] < seen["classic"]["packets"]  # Not-ECT is dropped instead


@pytest.mark.slow
@needs_bed
def test_a_run_gives_a_row_for_each_seed() -> None:
    rows = run(Plan(profile="uncoupled", rate_mbps=20, cross_mbps=12, send_mbps=6, seconds=1, seeds=2))
    assert [(row["source"], row["seed"], row["control"]) for row in rows] == [
        ("kernel", 1, "default"),
        ("kernel", 2, "default"),
    ]
    for row in rows:
        assert row["packets"] == row["sender"]["packets"] > 300
        assert row["lost"] == row["packets"] - row["sender"]["acked"]
        assert row["wait_p50_ms"] <= row["wait_p99_ms"] <= row["wait_max_ms"] < 1000
        assert row["classic_share"] == 0
        assert 0 <= row["stalled_share"] <= 1
    with pytest.raises(RuntimeError, match="agent socket /nowhere/agent"):
        run(Plan(cross_mbps=0, send_mbps=1, seconds=0.1, agent=Path("/nowhere/agent.sock")))
    with pytest.raises(ValueError, match="rate_mbps 0: must be above 0"):
        run(Plan(rate_mbps=0))
    with pytest.raises(ValueError, match="--profile fifo: must be one of"):
        Plan(profile="fifo")
    empty = np.zeros(0, router_log.RECORD)
    assert figures(empty, empty, 0)["packets"] == 0


@pytest.mark.slow
@needs_bed
@pytest.mark.skipif(tcp.why_not() is not None, reason=str(tcp.why_not()))
def test_a_run_of_tcp_gives_the_same_rows() -> None:
    """Two connections fill the link; without an agent all they send is plain ECT(1)."""
    plan = Plan(profile="uncoupled", rate_mbps=10, cross_mbps=2, flows=2, seconds=2, traffic="tcp")
    (row,) = run(plan)
    assert (row["source"], row["control"], row["traffic"]) == ("kernel", "default", "tcp")
    assert row["packets"] > 500
    assert row["classic_share"] <= 0.05  # the kernel's retransmissions are Not-ECT
    assert 2 < row["sender"]["goodput_mbps"] < 10
    assert 20 <= row["sender"]["latency_p50_ms"] <= row["sender"]["latency_p99_ms"]
    with pytest.raises(RuntimeError, match=r"agent /nowhere/agent\.sock did not answer"):
        run(Plan(seconds=0.1, traffic="tcp", agent=Path("/nowhere/agent.sock")))
    with pytest.raises(ValueError, match="--traffic quic: must be udp or tcp"):
        Plan(traffic="quic")


def of_the_bed(mark: str) -> list[int]:
    """Processes that have this text among their words."""
    others = (one for one in psutil.process_iter(["pid", "cmdline"]) if one.pid != os.getpid())
    return [one.pid for one in others if any(mark in word for word in one.info["cmdline"] or ())]


SCRIPT = """
import subprocess, sys
from pathlib import Path
from swiftqueue.testbed.host.hosts import Bed
step, log = sys.argv[1], Path(sys.argv[2])
with Bed(rate_mbps=10, log=log) as bed:
    if step == "router":
        print("here", flush=True); input()
    words = ["echo", "--host", "10.77.0.2", "--port", "4433", "--log", f"{log}.echo"]
    echo = subprocess.Popen(bed.b("{binary}", *words), stdout=subprocess.PIPE)
    echo.stdout.readline()
    if step == "receiver":
        print("here", flush=True); input()
    words = ["send", "--host", "10.77.0.2", "--port", "4433", "--seconds", "100", "--log", f"{log}.sent"]
    send = subprocess.Popen(bed.a("{binary}", *words))
    print("here", flush=True); input()
"""


@needs_bed
@pytest.mark.parametrize("step", ["router", "receiver", "traffic"])
def test_nothing_is_left_of_a_bed_whose_owner_is_killed(tmp_path: Path, step: str, project: Path) -> None:
    mark = f"bed-{uuid.uuid4().hex}"
    script = tmp_path / "owner.py"
    script.write_text(SCRIPT.replace("{binary}", str(BINARY)))
    command = [sys.executable, str(script), step, str(tmp_path / mark)]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=project)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"here\n"
    wanted = {"router": 2, "receiver": 3, "traffic": 4}[step]
    wait_until(lambda: len(of_the_bed(mark)) == wanted, lambda: f"{of_the_bed(mark)}, not {wanted} processes")
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not of_the_bed(mark), lambda: f"left: {of_the_bed(mark)}")
    assert leftovers() == clean() == []


OF_A_RUN = """
from pathlib import Path
from swiftqueue.testbed.host.hosts import run_folder
with run_folder() as folder:
    Path(folder, "router").touch()
    print(folder, flush=True); input()
"""


def test_the_files_of_a_run_that_was_killed_go_and_those_of_one_that_runs_stay(project: Path) -> None:
    command = [sys.executable, "-c", OF_A_RUN]
    owner = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=project, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().rstrip("\n"))
    assert leftovers() == clean() == []
    assert (folder / "router").is_file()
    owner.kill()
    owner.communicate()
    assert leftovers() == [folder]
    with run_folder() as own:  # the next run's
        assert Path(own).is_dir()
        assert not folder.exists()


@needs_bed
def test_a_clock_that_is_set_makes_no_owner_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    booted = psutil.boot_time()
    with Bed(rate_mbps=10):
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600)
        assert leftovers() == []


# The adopter, and the owner of a router with a shell between them, so that the two do not end together.
ADOPTER = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER: it adopts, and not PID 1
owner = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
print(owner.stdout.readline().decode().strip(), flush=True)
owner.wait()
input()
"""
OWNED = """
import os, subprocess
from swiftqueue.testbed.host import hosts
words = " ".join(hosts.Bed(rate_mbps=10)._command)
shell = f"{words} >/dev/null & echo $!; wait"
env = os.environ | {hosts.OWNER: hosts._owner()}
held = subprocess.Popen(["sh", "-c", shell], env=env, stdout=subprocess.PIPE)
print(held.stdout.readline().decode(), flush=True)
os._exit(0)
"""


@needs_bed
def test_a_router_that_somebody_adopted_is_found_and_ended(project: Path) -> None:
    """Its owner is gone and a subreaper has it; one whose owner lives is left alone."""
    command = [sys.executable, "-c", ADOPTER, OWNED]
    adopter = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=project, text=True)
    try:
        assert adopter.stdout is not None
        pid = int(adopter.stdout.readline())
        with Bed(rate_mbps=10) as bed:
            wait_until(lambda: leftovers() == [pid], lambda: f"{leftovers()}, not {pid}")
            assert clean() == [pid]
            wait_until(lambda: leftovers() == [], "it is still there")
            assert bed.process.poll() is None
    finally:
        adopter.kill()
        adopter.communicate()


@pytest.mark.slow
@needs_bed
def test_packets_that_wait_cost_their_own_length(tmp_path: Path) -> None:
    """Thousands of small packets on their way, half a second each way, are not thousands of buffers."""
    with Bed(rate_mbps=100, delay_ms=500, log=tmp_path / "log") as bed:
        sent = send(bed, 4.0, 1.0, "--bytes", 16)  # of 44 bytes on the link
        used = psutil.Process(bed.process.pid).memory_info().rss
    assert sent["packets"] > 5000
    assert used < 64 << 20


@needs_bed
def test_a_log_that_cannot_be_written_is_said() -> None:
    command = [str(ROUTER), "--seconds=0.1", "--cross-mbps=20", "--log=/dev/full"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "/dev/full: could not be written\n")


@needs_bed
def test_a_killed_router_is_said_and_takes_its_devices_along(tmp_path: Path) -> None:
    with Bed(rate_mbps=10, log=tmp_path / "log") as bed:
        bed.process.kill()
        bed.process.wait()
        with pytest.raises(RuntimeError, match="did not start on host b"):
            send(bed, 1.0, 1.0)
    assert bed.summary == {}


@needs_bed
def test_what_could_not_be_written_to_its_host_is_lost(tmp_path: Path) -> None:
    """Host b's device is down: no packet counts as passed."""
    with Bed(rate_mbps=10, delay_ms=1, log=tmp_path / "log") as bed:
        subprocess.run(bed.b("ip", "link", "set", "tun0", "down"), check=True)
        datagram = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('{ADDRESS_B}', 9))"
        subprocess.run(bed.a(sys.executable, "-c", datagram), check=True)
        time.sleep(0.2)
    records = router_log.read(tmp_path / "log")
    ours = records[records["destination_port"] == 9]
    assert ours["kind"].tolist() == [router_log.DROPPED]
    assert (ours["due_ns"] == -1).all()
    assert (ours["written_ns"] == -1).all()


@needs_router
@pytest.mark.parametrize(
    ("header", "program"),
    [
        ("router/dual_pi2.h", ROUTER),
        ("loader/../bpf/mark.h", MARKER),
        ("bpf/mark.h", MARK_OBJECT),
    ],
)
def test_a_header_that_changes_builds_its_programs_anew(project: Path, header: str, program: Path) -> None:
    if why := why_not_built(program):
        pytest.skip(why)
    command = ["make", "-C", "testbed", "--dry-run", f"--what-if={header}"]
    ran = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    assert f"/{program.name}.partial" in ran.stdout


@needs_router
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--rate-mbps", "0"), "--rate-mbps 0: must be a number from 0.01"),
        (("--rate-mbps", "inf"), "--rate-mbps inf: must be a number"),
        (("--delay-ms", "-1"), "--delay-ms -1: must be a number from 0"),
        (("--set", "target=1"), "--set target: the queue has no such parameter"),
        (("--set", "l_aqm=gentle"), "--set l_aqm=gentle: must be ramp or step"),
        (("--set", "coupling=two"), "--set coupling two: must be a number"),
        (("--set", "coupling"), "--set coupling : must be a number"),
        (("--spin",), "--spin: not an option"),
        (("now",), "now: not understood"),
    ],
)
def test_bad_arguments_get_one_line(arguments: tuple[str, ...], line: str) -> None:
    ran = subprocess.run([str(ROUTER), *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 2
    assert line in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
