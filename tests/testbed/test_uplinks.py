"""Two uplinks on the bed: the kernel of a gateway routes each packet by the DSCP of its alternative."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_program import AgentProgram, local_model, needs_agent
from overheard import Overheard
from typer.testing import CliRunner
from waiting import wait_until

from swiftqueue.cli.app import app
from swiftqueue.serving.agent.marking.udp_command import BINARY
from swiftqueue.serving.agent.marking.udp_command import why_not_built as no_udp
from swiftqueue.testbed.host import dscp_rules, router_log, tcp, tcp_traffic
from swiftqueue.testbed.host.checks import capability, own_network
from swiftqueue.testbed.host.programs import MARK_OBJECT, MARKER
from swiftqueue.testbed.host.uplinks import BedUplink, UplinkBed, UplinkPlan, figures, run, uplinks_of

CANNOT = no_udp() or capability("uplinks").why_not
needs_uplinks = pytest.mark.skipif(CANNOT is not None, reason=str(CANNOT))
NO_MARKER = capability("tc_bpf").why_not
needs_marker = pytest.mark.skipif(NO_MARKER is not None, reason=str(NO_MARKER))
UPLINKS = (BedUplink(20, 5, 0), BedUplink(20, 12, 0))
HOSTS = ["10.77.0.2", *(["fd77::2"] if Path("/proc/sys/net/ipv6").is_dir() else [])]
QUEUES = (0, 1, 1, 0, 1, 0, 0, 1)


def echoing(bed: UplinkBed, stack: ExitStack, host: str, *words: object) -> int:
    command = bed.b(BINARY, "echo", "--host", host, "--port", "0", *words)
    echo = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(echo.terminate)
    assert echo.stdout is not None
    return int(json.loads(echo.stdout.readline())["port"])


def of_ours(records: np.ndarray) -> np.ndarray:
    return records[records["packet"] >= 0]


@needs_uplinks
@pytest.mark.parametrize("host", HOSTS)
def test_packets_of_each_mark_arrive_by_their_link_and_answers_go_back_by_it(
    tmp_path: Path, host: str
) -> None:
    path, log = tmp_path / "agent.sock", tmp_path / "router"
    agent = Overheard(path, queues=QUEUES)
    with UplinkBed(UPLINKS, (10, 46), log=log) as bed, ExitStack() as stack:
        port = echoing(bed, stack, host)
        words = ["--host", host, "--port", port, "--agent", path, "--rate-mbps", 4, "--ahead-ms", 200]
        words += ["--seconds", 1, "--dscp", "10,46"]
        ran = subprocess.run(bed.a(BINARY, "send", *words), capture_output=True, text=True, check=False)
    agent.join()
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout)
    records = router_log.read(log)
    ours = of_ours(records)
    assert len(ours) == said["packets"] == said["acked"] > 100
    assert ours["dscp"].tolist() == [(10, 46)[link] for link in ours["link"]]
    decided = agent.sent()
    # What the agent was told, and what the router saw, of each packet: ECT(1) is alternative 1.
    told = {p: ecn & 1 for p, ecn in decided.items()}
    assert {p: int(link) for p, link in zip(ours["packet"], ours["link"], strict=True) if p in told} == told
    assert sum(QUEUES[p % 8] == 0 == alternative for p, alternative in told.items()) > 0.2 * len(told)
    back = records[(records["kind"] == router_log.BACK) & (records["source_port"] == port)]
    assert len(back) == len(ours)
    assert [int((back["link"] == link).sum()) for link in (0, 1)] == [
        int((ours["link"] == link).sum()) for link in (0, 1)
    ]


@pytest.mark.slow
@needs_uplinks
@needs_marker
@pytest.mark.parametrize("ecn", [1, 0])
def test_tcp_packets_take_the_uplink_that_was_decided_with_and_without_ecn(tmp_path: Path, ecn: int) -> None:
    path, log, seen = tmp_path / "agent.sock", tmp_path / "router", tmp_path / "follow.csv"
    agent = Overheard(path, queues=QUEUES)
    take = [sys.executable, tcp_traffic.__file__, "take", HOSTS[0], tcp.PORT]
    follow = [MARKER, "follow", "lan0", path, f"--port={tcp.PORT}", "--ahead=48", f"--log={seen}"]
    with UplinkBed(UPLINKS, (10, 46), log=log) as bed, ExitStack() as stack:
        subprocess.run(bed.a("sh", "-c", f"echo {ecn} > /proc/sys/net/ipv4/tcp_ecn"), check=True)
        attach = bed.a(MARKER, "attach", "lan0", MARK_OBJECT, "--dscp=10,46")
        subprocess.run(attach, check=True, stdout=subprocess.DEVNULL)
        follower, _ = stack.enter_context(tcp.running(bed.a(*follow), "the follower"))
        stack.enter_context(tcp.running(bed.b(*take), "the receiver"))
        send = [sys.executable, tcp_traffic.__file__, "send", HOSTS[0], tcp.PORT, "2", "cubic"]
        subprocess.run(bed.a(*send), check=True, stdout=subprocess.DEVNULL)
        follower.terminate()
        tcp.summary(follower)
    agent.join()
    told = {int(f["packet"]): f for f in agent.frames() if f["type"] == 2}
    came = tcp.data_packets(router_log.read(log))
    assert len(came) == len(told) > 500
    alternatives = [int(told[packet]["queue"]) for packet in sorted(told)]
    # A device has its queue, so each link keeps its order, and the two together do not.
    for link in (0, 1):
        assert sum(came["link"] == link) == alternatives.count(link) > 20
        assert set(came["dscp"][came["link"] == link].tolist()) == {(10, 46)[link]}
    codepoints = {int(f["ecn"]) for f in told.values()}
    assert codepoints >= {1, 2} if ecn else codepoints == {0}
    with seen.open() as file:
        decided = [
            int(row["packet"]) for row in csv.DictReader(file) if row["kind"] == "sent" and row["b"] == "1"
        ]
    assert len(decided) > 20
    assert {packet: int(told[packet]["queue"]) for packet in decided} == {p: QUEUES[p % 8] for p in decided}


@needs_uplinks
def test_a_mark_that_the_gateway_does_not_route_takes_uplink_0_and_is_counted(tmp_path: Path) -> None:
    log = tmp_path / "router"
    with UplinkBed(UPLINKS, (10, 46), log=log) as bed, ExitStack() as stack:
        words = ["--host", HOSTS[0], "--port", echoing(bed, stack, HOSTS[0]), "--seconds", "0.2"]
        command = bed.a(BINARY, "send", *words, "--dscp", "10,34")
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = figures(router_log.read(log), UplinkPlan(UPLINKS, (10, 46)))
    assert found["unrouted"] == said["packets"] == said["acked"] > 50
    assert found["diverted"] == 0
    assert [each["carried"] for each in found["by_uplink"]] == [said["packets"], 0]


@needs_uplinks
@pytest.mark.parametrize("uplink", [0, 1])
def test_what_is_marked_for_a_dead_uplink_takes_the_other_and_is_counted(tmp_path: Path, uplink: int) -> None:
    # The receiver's log: the sender's holds an unanswered packet, and all after it, for a minute.
    log, came = tmp_path / "router", tmp_path / "came.csv"
    classic = ["--classic"] if uplink == 0 else []
    with UplinkBed(UPLINKS, (0, 46), log=log) as bed, ExitStack() as stack:
        port = echoing(bed, stack, HOSTS[0], "--log", came)
        words = ["--host", HOSTS[0], "--port", port, "--seconds", "600"]
        command = bed.a(BINARY, "send", *words, "--dscp", "0,46", *classic)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:

            def arrived() -> int:
                return len(came.read_text().splitlines())

            wait_until(lambda: arrived() > 100, "nothing arrives")
            bed.cut(uplink)
            before = arrived()
            wait_until(lambda: arrived() > before + 300, "nothing arrives after the cut")
            sender.terminate()
            said = json.loads(sender.communicate()[0])
    found = figures(router_log.read(log), UplinkPlan(UPLINKS, (0, 46)))
    assert found["by_uplink"][uplink]["marked"] >= said["acked"]
    assert found["diverted"] == found["by_uplink"][1 - uplink]["carried"] > 200
    ours = of_ours(router_log.read(log))
    last = np.flatnonzero(ours["link"] == uplink)[-1]
    assert set(ours["link"][last + 1 :].tolist()) == {1 - uplink}


@pytest.mark.slow
@needs_uplinks
def test_a_run_gives_a_row_for_each_control_and_a_cut_is_told() -> None:
    plan = UplinkPlan(uplinks_of(("20:10:12", "20:15:12")), seconds=2, frame_packets=4, cut=(1, 1.0))
    rows = run(plan)
    assert [(row["scenario"], row["control"]) for row in rows] == [
        ("uplinks", "pinned_0"),
        ("uplinks", "pinned_1"),
    ]
    for row in rows:
        assert row["sender"]["packets"] == 4 * row["sender"]["frames"] > 300
        assert row["lost"] == row["sender"]["packets"] - row["arrived"]
        assert 10 < row["frame_p50_ms"] <= row["frame_p99_ms"] <= row["frame_max_ms"]
        assert row["frames_whole"] <= row["frames"] <= row["sender"]["frames"]
        assert row["unrouted"] == 0
    assert rows[0]["diverted"] == 0
    assert rows[1]["diverted"] > 0
    missing = Path("/nowhere/agent.sock")
    with pytest.raises(RuntimeError, match="agent socket /nowhere/agent"):
        run(UplinkPlan(UPLINKS, seconds=0.1, agent=missing))


@needs_agent
@pytest.mark.slow
@needs_uplinks
def test_the_real_agent_steers_a_calls_frames(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    with AgentProgram("--listen", path, "--local", local_model(tmp_path)) as agent:
        rows = run(UplinkPlan(UPLINKS, seconds=2, agent=path))
        summary = agent.end()
    row = rows[-1]
    assert row["control"] == "agent"
    assert row["sender"]["decided"] > 100
    assert summary["decided"] >= row["sender"]["batches_decided"] > 20
    marked = [each["marked"] for each in row["by_uplink"]]
    assert marked == [each["carried"] for each in row["by_uplink"]]
    assert marked == [row["sender"]["ect0"], row["sender"]["ect1"]]


def test_the_figures_of_a_log_are_those_counted_by_hand() -> None:
    """Frames of two packets: whole in 30 ms over uplink 1, whole in 12 ms after a detour, and not whole."""
    rows = [
        # packet, arrived, started, written, kind, dscp, link
        (0, 0, 1, 20, router_log.FORWARD, 46, 1),
        (1, 1, 2, 30, router_log.FORWARD, 46, 1),
        (2, 10, 12, 22, router_log.FORWARD, 46, 0),
        (3, 10, 10, 21, router_log.FORWARD, 0, 0),
        (4, 40, 41, 50, router_log.FORWARD, 7, 0),
        (5, 40, 41, -1, router_log.DROPPED, 46, 1),
    ]
    log = np.zeros(len(rows), router_log.RECORD)
    for at, (packet, arrived, started, written, kind, dscp, link) in enumerate(rows):
        log[at]["packet"], log[at]["kind"], log[at]["dscp"], log[at]["link"] = packet, kind, dscp, link
        for name, ms in (("arrived_ns", arrived), ("started_ns", started), ("written_ns", written)):
            log[at][name] = ms * 1_000_000
    found = figures(log, UplinkPlan(UPLINKS, (0, 46), frame_packets=2))
    assert (found["arrived"], found["diverted"], found["unrouted"]) == (5, 1, 1)
    assert [(each["marked"], each["carried"]) for each in found["by_uplink"]] == [(1, 3), (4, 3)]
    assert (found["frames"], found["frames_whole"]) == (3, 2)
    assert (found["frame_p50_ms"], found["frame_max_ms"]) == (21, 30)
    assert found["by_uplink"][1]["wait_p50_ms"] == 1
    assert found["reordered_share"] == 2 / 5  # written: 0, 3, 2, 1, 4
    empty = figures(log[:0], UplinkPlan(UPLINKS))
    assert (empty["arrived"], empty["frame_p99_ms"], empty["reordered_share"]) == (0, None, None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--uplink", "20:10:12"], "--uplink: given 1 times; a mark chooses between two uplinks"),
        (["--uplink", "20:10:12"] * 3, "--uplink: given 3 times; a mark chooses between two uplinks"),
        (["--uplink", "20:10:12", "--uplink", "20:10"], "--uplink 20:10: must be RATE:DELAY:CROSS"),
        (["--uplink", "20:10:12", "--uplink", "0:10:1"], "--uplink 0:10:1: must be RATE:DELAY:CROSS"),
        (["--uplink", "20:10:12", "--uplink", "5:nan:1"], "--uplink 5:nan:1: must be RATE:DELAY:CROSS"),
        (["--dscp", "46,46"], "--dscp 46,46: must be two different numbers from 0 to 63"),
        (["--dscp", "0,64"], "--dscp 0,64: must be two different numbers from 0 to 63"),
        (["--dscp", "EF"], "--dscp EF: must be two numbers from 0 to 63"),
        (["--cut", "2@5"], "--cut 2@5: must be an uplink, 0 or 1, and a second of the run"),
        (["--cut", "1@10"], "--cut 1@10: must be an uplink, 0 or 1, and a second of the run"),
        (["--send-mbps", "0"], "--send-mbps 0: must be above 0, and finite"),
        (["--flows", "2"], "--flows: not an option of uplinks"),
    ],
)
def test_bad_arguments_get_one_line(words: list[str], line: str) -> None:
    ran = CliRunner().invoke(app, ["bed", "run", "uplinks", *words])
    said: Any = ran.exception if ran.exception and not isinstance(ran.exception, SystemExit) else ran.output
    assert ran.exit_code != 0
    assert line in str(said)


@needs_uplinks
def test_a_rule_that_is_there_already_is_one_line() -> None:
    script = '"$0" "$1" 46 101 && "$0" "$1" 46 101'
    command = [*own_network(), "sh", "-c", script, sys.executable, dscp_rules.__file__]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (1, "a rule for DSCP 46: File exists\n")


@needs_uplinks
def test_a_kernel_without_the_selector_is_one_line() -> None:
    """It ignores an attribute that it does not know, so the rule would be one for every packet."""
    script = "import socket, dscp_rules as rules; rules.DSCP = 99; rules.add(socket.AF_INET, 46, 101)"
    ran = subprocess.run(
        [*own_network(), sys.executable, "-c", script],
        cwd=Path(dscp_rules.__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    said = ran.stderr.splitlines()[-1]
    assert said == "OSError: the kernel takes no rule by DSCP; Linux 6.13 and later do"
