"""The tc/eBPF marker: every codepoint and checksum on packets of our own, then on a kernel's real TCP."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from swiftqueue.serving.agent import process as agent_process
from swiftqueue.testbed.host.checks import capability, own_network
from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER, why_not_built

UNBUILT = why_not_built(MARKER, MARK_OBJECT)
CANNOT = UNBUILT or capability("tc_bpf").why_not
needs_bpf = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
needs_marker = pytest.mark.skipif(UNBUILT is not None, reason=str(UNBUILT))
NOT_ECT, ECT1, ECT0 = 0, 1, 2


def say(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(MARKER), *map(str, arguments)], capture_output=True, text=True, check=False)


@needs_bpf
def test_every_codepoint_becomes_what_was_wanted_and_nothing_else_changes() -> None:
    """IPv4 and IPv6, all sent and wanted codepoints, valid and stale, with and without data and DSCPs."""
    ran = say("bench", MARK_OBJECT, 1000)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    said = json.loads(ran.stdout)
    assert said["tried"] == said["right"] == 3 * 96


@pytest.fixture(scope="module", params=["4", "6"])
def wire(request: pytest.FixtureRequest) -> dict[str, Any]:
    program = Path(__file__).with_name("marked_tcp.py")
    command = ["unshare", "--net", sys.executable, str(program), str(MARKER), str(MARK_OBJECT), request.param]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return dict(json.loads(ran.stdout))


@needs_bpf
def test_a_registered_flows_packets_leave_as_decided(wire: dict[str, Any]) -> None:
    """Packet n of the flow gets codepoint n % 8 of the decision, its first packets too."""
    assert wire["decided"] == [ECT1, ECT0, NOT_ECT, ECT1, ECT0, NOT_ECT, ECT1, ECT0] * 8
    assert wire["unregistered"] == [ECT0] * 16  # as the kernel sends them
    assert wire["wrong_checksums"] == 0


@needs_bpf
def test_a_decision_that_ran_out_means_plain_ect1(wire: dict[str, Any]) -> None:
    assert wire["before_the_end"].count(ECT0) > 0
    assert wire["stale"] == [ECT1] * 16


@needs_bpf
def test_full_segments_are_marked_one_by_one(wire: dict[str, Any]) -> None:
    """No super-packet reaches the marker, and half of some 14,000 segments each get their codepoint."""
    bulk = wire["bulk"]
    assert bulk["gso"] == 0
    assert bulk["packets"] > 20_000_000 // 1460
    assert bulk["ect1"] + bulk["ect0"] == bulk["packets"] - bulk["left_alone"]
    assert bulk["decided"] == bulk["packets"] - bulk["left_alone"]
    assert abs(bulk["ect1"] - bulk["ect0"]) <= bulk["left_alone"] + 1
    if sum(wire["bulk_seen"]) == bulk["packets"]:  # the packet socket kept up
        assert wire["bulk_seen"][:3] == [bulk["left_alone"], bulk["ect1"], bulk["ect0"]]


@needs_bpf
@pytest.mark.parametrize("end", ["follower_ended", "follower_killed"])
def test_a_flow_that_was_followed_can_be_set_and_forgotten(wire: dict[str, Any], end: str) -> None:
    """It is plain ECT(1) with a follower that has no decision, and after that one's end until it is set."""
    seen = wire[end]
    for lines in seen["refused"]:
        assert len(lines) == 1
        assert lines[0].endswith(": `mark follow` follows it, or did a second ago")
    assert seen["marked"] == [ECT1] * 16 + [ECT0] * 8
    assert seen["followed"] == [False]  # said once
    assert seen["left"] == 0
    assert seen["tries"] == 1 or end == "follower_killed"


@needs_bpf
def test_each_packet_has_the_dscp_of_its_alternative(wire: dict[str, Any]) -> None:
    """Beside the codepoint, which stays the kernel's where the connection has no ECN; checksums are right."""
    seen = wire["dscp"]
    wanted = [1, 2, 0, 1, 2, 0, 1, 2]
    dscps = [(63, 46)[codepoint & 1] for codepoint in wanted]
    assert seen["decided"] == {"codepoints": wanted, "dscps": dscps}
    assert seen["without_ecn"] == {"codepoints": [NOT_ECT] * 8, "dscps": dscps}
    assert seen["unregistered"] == {"codepoints": [ECT0] * 8, "dscps": [0] * 8}
    assert seen["stale"] == {"codepoints": [ECT1] * 8, "dscps": [46] * 8}
    assert seen["wrong_checksums"] == 0
    assert seen["said"] == [63, 46]
    assert seen["counts"] == {"decided": [5, 3 + 8], "without_ecn": [5, 3]}


@needs_bpf
def test_nothing_stays_after_detach(wire: dict[str, Any]) -> None:
    assert wire["detached"] == [ECT0] * 8
    assert "clsact" not in wire["qdiscs"]
    assert wire["flows_after_forget"] == 0


@needs_marker
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("attach", "no-such-device", MARK_OBJECT), "device no-such-device: No such device"),
        (("status", "e'0"), "device e'0: a quote or backslash in its name"),
        (("set", "lo", "-1", "12121212", 50), "cookie -1: must be a number from 0 to"),
        (("set", "lo", 17, "1212121", 50), "codepoints 1212121: must be 8 digits"),
        (("set", "lo", 17, "12121213", 50), "codepoints 12121213: must be 8 digits"),
        (("set", "lo", 17, "12121212", "soon"), "milliseconds soon: must be a number"),
        (("bench", "/nowhere/mark.bpf.o", 10), "/nowhere/mark.bpf.o"),
        (("attach", "lo", MARK_OBJECT, "--dscp=0,0"), "--dscp: both alternatives have DSCP 0"),
        (("attach", "lo", MARK_OBJECT, "--dscp=0,64"), "--dscp: DSCP 64 is not 0 to 63"),
        (("attach", "lo", MARK_OBJECT, "--dscp=46"), "--dscp 46: must be two numbers"),
        (("now",), "say: attach DEV OBJECT"),
    ],
)
def test_bad_arguments_get_one_line(arguments: tuple[Any, ...], line: str) -> None:
    ran = say(*arguments)
    assert ran.returncode in (1, 2)
    assert line in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@needs_bpf
@pytest.mark.parametrize("path", ["/usr/sbin:/usr/bin:/sbin:/bin", "/nowhere"])  # without `tc`
def test_another_filter_of_the_device_outlives_detach(path: str) -> None:
    script = """
        ip link set lo up && "$0" attach lo "$1" &&
        tc filter add dev lo ingress prio 7 bpf direct-action object-file "$1" section tc &&
        PATH="$2" "$0" detach lo && tc filter show dev lo ingress
    """
    command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT), path]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "pref 7 bpf" in ran.stdout


@needs_bpf
def test_an_attach_that_fails_leaves_the_device_as_it_was() -> None:
    """Its second filter meets another program's in its place: its first one goes, the other's stays."""
    script = """
        ip link set lo up && tc qdisc add dev lo clsact &&
        tc filter add dev lo ingress prio 20819 handle 20819 bpf direct-action object-file "$1" section tc &&
        ip -d link show lo > before && ! "$0" attach lo "$1" &&
        ip -d link show lo | cmp - before && tc filter show dev lo egress && echo ingress: &&
        tc filter show dev lo ingress && tc filter del dev lo ingress prio 20819 &&
        tc qdisc del dev lo clsact && "$0" attach lo "$1" && "$0" detach lo && tc qdisc show dev lo
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert "device lo: tc: File exists" in ran.stderr
    egress, rest = ran.stdout.split("ingress:\n")
    assert egress == ""
    assert "pref 20819 bpf" in rest
    assert "clsact" not in rest


@needs_bpf
def test_detach_takes_no_qdisc_that_attach_did_not_make() -> None:
    """Without a marker it says so and changes nothing: no clsact, somebody's, somebody's `ingress`."""
    script = """
        ip link set lo up && ! "$0" detach lo &&
        tc qdisc add dev lo clsact && ! "$0" detach lo && tc qdisc show dev lo clsact &&
        "$0" attach lo "$1" >&2 && "$0" detach lo >&2 && tc qdisc show dev lo clsact &&
        tc qdisc del dev lo clsact && tc qdisc add dev lo ingress && ! "$0" detach lo && tc qdisc show dev lo
    """
    command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert [line.split()[1] for line in ran.stdout.splitlines()] == ["clsact", "clsact", "noqueue", "ingress"]
    assert ran.stderr.count("device lo: no marker is attached\n") == 3


@needs_bpf
def test_a_device_whose_qdisc_has_no_egress_is_refused_with_what_to_do() -> None:
    """Its advice, followed, lets the marker be attached."""
    script = """
        ip link set lo up && tc qdisc add dev lo ingress && ip -d link show lo > before &&
        ! "$0" attach lo "$1" 2> said && ip -d link show lo | cmp - before &&
        tc filter show dev lo ingress >> said && sed 's/.*`\\(tc [^`]*\\)`.*/\\1/' said > advice &&
        sh -e advice && "$0" attach lo "$1"
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        said = (Path(folder) / "said").read_text()
    assert ran.returncode == 0, ran.stderr + ran.stdout + said
    assert said.startswith("device lo: its qdisc `ingress` takes no filters at egress")
    assert len(said.splitlines()) == 1  # no filter is left there


@needs_bpf
def test_the_advice_on_another_versions_marker_takes_it_off() -> None:
    """One that `tc` put there lacks a map; after the command that the line says, the device is as it was."""
    script = """
        ip link set lo up && tc qdisc add dev lo clsact && for at in egress ingress; do
        tc filter add dev lo $at prio 20819 handle 20819 bpf da object-file "$1" section tc; done &&
        ip -d link show lo > before && ip link set lo gso_max_segs 1 && ! "$0" detach lo 2> said &&
        sed 's/.*`\\(.*\\)`.*/\\1/; s/DEVICE/lo/g' said > advice && sh -e advice &&
        ip -d link show lo | cmp - before && "$0" attach lo "$1" && "$0" detach lo
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        said = (Path(folder) / "said").read_text()
    assert "no such map sq_attachment" in said
    assert ran.returncode == 0, ran.stderr + ran.stdout


@needs_marker
def test_who_has_no_privilege_is_told_so() -> None:
    """A user who is not root gets a line with the reason, not a half-attached filter."""
    prefix = []
    if os.geteuid() == 0:
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    with tempfile.TemporaryDirectory() as folder:  # the project may lie where others cannot look
        Path(folder).chmod(0o755)
        for file in (MARKER, MARK_OBJECT):
            shutil.copy(file, folder)
        command = [*prefix, f"{folder}/{MARKER.name}", "attach", "lo", f"{folder}/{MARK_OBJECT.name}"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "root, or CAP_NET_ADMIN and CAP_SYS_ADMIN, are needed): Operation not permitted" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.long
@needs_bpf
def test_the_bench_says_what_a_packet_costs() -> None:
    from swiftqueue.benchmarks.marker import measure

    rows = {row.name: row for row in measure(1)}
    assert rows["right codepoints"].ours == 100
    assert rows["dearest of them"].ours > rows["marked as the kernel had"].reference > 0
    if agent_process.why_not_built() is None:
        assert rows["answer to map, p99"].ours > 0
        assert 0 < rows["packets with a decision"].ours <= 100


@pytest.mark.parametrize("option", ["--port", "--plain-port"])
@pytest.mark.parametrize(
    ("port", "line"), [(0, "or equal to 1"), (-1, "or equal to 1"), (65536, "or equal to 65535")]
)
def test_a_port_that_there_is_not_is_refused(option: str, port: int, line: str) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    ran = CliRunner().invoke(app, ["mark", "follow", "lo", option, str(port)])
    assert ran.exit_code == 2
    assert f"Invalid value for '{option}'" in ran.stderr
    assert line in ran.stderr


def test_a_benchmark_that_cannot_run_here_is_left_out_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`make bench` goes on then; any other failure ends it."""
    from typer.testing import CliRunner

    from swiftqueue.benchmarks import marker
    from swiftqueue.benchmarks.rows import UnsupportedMachineError
    from swiftqueue.cli.app import app

    def cannot(rounds: int) -> None:
        raise UnsupportedMachineError("tc_bpf: not here")

    def fails(rounds: int) -> None:
        raise RuntimeError("95 of 96 codepoints are right")

    monkeypatch.setattr(marker, "measure", cannot)
    left_out = CliRunner().invoke(app, ["bench", "marker"])
    assert (left_out.exit_code, left_out.stdout) == (0, "bench marker is left out: tc_bpf: not here\n")
    monkeypatch.setattr(marker, "measure", fails)
    assert CliRunner().invoke(app, ["bench", "marker"]).exit_code != 0
