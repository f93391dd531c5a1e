"""`swiftqueue status` on one screen: what is not well, what to do, what is well; and again with --watch."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import wait_until

from swiftqueue.common import json_lines
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import drop_scratch
from swiftqueue.infra.local import keeper, live_options, parts, processes, ray_head, status, under_way
from swiftqueue.infra.local.disk import Disk
from swiftqueue.infra.local.judgement import Judgement
from swiftqueue.infra.local.parts import KEEPER, PAGE, PARTS
from swiftqueue.infra.local.status_screen import lines
from swiftqueue.pipelines.live.rounds_log import LOG_FILE

SLEEPER = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
LIVE = live_options.LiveOptions("x", 1, 60, 30, 8)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    yield tmp_path
    for name in (KEEPER, "ray", "scheduler"):
        processes.stop(name)
    drop_scratch()


def test_every_part_is_judged_kept_and_placed() -> None:
    judged = {*status._JUDGES, *status.FLOWS, parts.MLFLOW, parts.TRITON}
    assert judged == set(PARTS) == set(status.RESTS_ON) == {*keeper.ANSWERS, KEEPER}
    assert PAGE in parts.wanted()


def test_what_is_not_well_comes_before_what_to_do_and_what_is_well() -> None:
    judged = [
        Judgement(False, "ray, below", "first"),
        Judgement(True, "an inference in 2 ms", "triton"),
        Judgement(False, "no answer", "ray"),
        Judgement(True, "TritonDown (page): it is", "alert"),
        Judgement(True, "30 batches", "agent"),
    ]
    assert [line for line, _ in lines(judged, ["do this", "then that"])] == [
        *("first: ray, below", "NOT WELL (1)", "ray: no answer", "ALERTS (1)"),
        *("alert: TritonDown (page): it is", "TO DO", "1. do this", "2. then that"),
        *("WELL (2)", "triton: an inference in 2 ms", "agent: 30 batches"),
    ]
    assert [line for line, _ in lines(judged[1:2], [])] == ["WELL (1)", "triton: an inference in 2 ms"]


def test_what_to_do_depends_on_who_mends_it(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status.what_to_do([Judgement(True, "", "triton")]) == []
    alone = [Judgement(False, "", "triton")]
    assert status.what_to_do(alone) == ["start it: swiftqueue up"]
    unwell = [Judgement(False, "", "scheduler"), Judgement(False, "", "ray")]
    assert status.what_to_do(unwell) == ["start it: swiftqueue up --live"]
    live_options.write(LIVE)
    log = processes.log_path("ray")
    log.parent.mkdir()
    log.touch()
    keeperless = status.what_to_do(unwell)
    assert keeperless == [
        "start the keeper and what is missing: swiftqueue up --live",
        f"read why: tail -50 {log}",  # the cause's, not its effect's
    ]
    processes.start(KEEPER, SLEEPER, {}, {}, lambda: True, 10)
    first, second, last = status.what_to_do(unwell)
    assert first.startswith("wait: the keeper starts")
    assert second == f"read why: tail -50 {log}"
    assert last.endswith("swiftqueue down; swiftqueue up --live")
    again = Judgement(False, "round 3 failed", "scheduler", "wait: the next round tries again")
    empty = Judgement(False, "serves no version", "triton", "swiftqueue deploy")
    effect = Judgement(False, "no batches", "agent")
    assert status.what_to_do([again])[0] == again.remedy  # the keeper mends nothing here
    assert not any(step.startswith("wait: the keeper") for step in status.what_to_do([again]))
    assert status.what_to_do([empty, effect]) == ["swiftqueue deploy"]
    assert status.what_to_do([empty, Judgement(False, "", "mlflow")])[1] == "swiftqueue deploy"
    monkeypatch.setattr(status, "disk", lambda: Disk(free=0, size=640_000_000))
    assert status.what_to_do(unwell) == [f"make room on the disk: du -sh {state}/*"]
    (waits,) = status.what_to_do([*unwell, Judgement(True, "", under_way.NAME)])
    assert waits.startswith("wait: an `up` is under way")


def test_a_part_that_the_keeper_starts_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    live_options.write(LIVE)
    processes.start(KEEPER, SLEEPER, {"metrics": 1}, {}, lambda: True, 10)
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", str(processes.free_ports(1)[0]))
    monkeypatch.setattr(status, "_judge_flow", lambda *_: Judgement(True, ""))
    judged = status.judge()
    log = processes.log_path(KEEPER)
    for name in (parts.TRITON, parts.MLFLOW):
        assert [one.line for one in judged if one.part == name] == [f"the keeper is starting it (log {log})"]


def test_nothing_runs_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_TRITON_GRPC", str(processes.free_ports(1)[0]))
    for ended in ("", " (`swiftqueue down` ended it)"):
        assert status.print_status() == 1
        said = capsys.readouterr().out.splitlines()
        assert said == [
            "NOT WELL (1)",
            f"loop: nothing runs{ended}",
            "TO DO",
            "1. start it: swiftqueue up --live",
        ]
        under_way.end_what_is_under_way()


@pytest.mark.parametrize(
    ("outcomes", "well"),
    [
        (["pushed", "failed"], True),
        (["failed", "failed"], False),
        (["failed"], False),
        (["failed", "kept"], True),
    ],
)
def test_one_failed_round_after_a_good_one_is_said_and_is_well(
    state: Path, monkeypatch: pytest.MonkeyPatch, outcomes: list[str], well: bool
) -> None:
    server = processes.start("scheduler", SLEEPER, {"metrics": 1}, {}, lambda: True, 10)
    told = {"swiftqueue_served_version": 1.0, 'swiftqueue_rounds_total{outcome="failed"}': 1.0}
    monkeypatch.setattr(status, "metrics", lambda url: told)
    (state / "live").mkdir()
    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    for number, outcome in enumerate(outcomes, 1):
        reason = "no Triton server answers at 127.0.0.1:8001; start it: swiftqueue up"
        one = {"number": number, "outcome": outcome, "reason": reason, "ended_boot_s": now_s}
        json_lines.append(state / "live" / LOG_FILE, one)
    judged = status._scheduler(server)
    processes.stop("scheduler")
    assert judged.well == well
    assert f"round {len(outcomes)} {outcomes[-1]}, ended 0 s ago: no Triton server answers at" in judged.line
    assert "start it" not in judged.line
    assert judged.remedy.startswith("wait: the next round tries again")


def test_json_has_the_alerts_apart_from_the_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels, told = {"alertname": "ModelStale", "severity": "ticket"}, {"summary": "old", "action": "look"}
    part, alert = Judgement(False, "no answer", "ray", "do"), status._alert(labels, told)
    monkeypatch.setattr(status, "judge", lambda kind: [part, alert])
    assert status.print_status(as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == {
        "well": False,
        "parts": [{"part": "ray", "well": False, "line": "no answer"}],
        "alerts": [{"name": "ModelStale", "severity": "ticket", "line": "ModelStale (ticket): old; look"}],
        "do": ["do"],
    }


def test_a_watched_ray_is_not_tried_by_a_write_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write imports Ray, five seconds of a core."""
    server = processes.start("ray", SLEEPER, {"gcs": 1}, {}, lambda: True, 10)
    tried: list[str] = []
    answer = [True]
    monkeypatch.setattr(ray_head, "alive", lambda *_: True)
    monkeypatch.setattr(ray_head, "check", lambda address: (tried.append(address), (answer[0], "so"))[1])
    monkeypatch.setattr(status, "_ray_tried", {})
    for _ in range(3):
        assert status._ray(server) == Judgement(True, "so")
    assert len(tried) == 1
    monkeypatch.setattr(ray_head, "alive", lambda *_: False)
    assert not status._ray(server).well
    monkeypatch.setattr(ray_head, "alive", lambda *_: True)
    monkeypatch.setattr(status, "RAY_AGAIN_S", 0.0)
    answer[0] = False
    for _ in range(2):
        assert not status._ray(server).well
    assert len(tried) == 3  # one that is unwell is tried each time


@pytest.mark.slow
@pytest.mark.long
def test_watch_judges_again_and_ends_by_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_TRITON_SERVERS", "127.0.0.1:1")
    monkeypatch.setenv("TERM", "xterm")
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored where pytest runs in the background
        os.execv(SWIFTQUEUE, [SWIFTQUEUE, "status", "--watch"])  # noqa: S606
    said = b""

    def drawn(times: int) -> bool:
        nonlocal said
        while select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 65536)
        return said.count(b"Ctrl-C ends it") >= times

    try:
        wait_until(lambda: drawn(2), lambda: said, 120)
        os.write(terminal, b"\x03")
        _, ended = wait_until(
            lambda: (found := os.waitpid(child, os.WNOHANG))[0] and found, lambda: said, 120
        )
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(ended) == 0
    assert b"NOT WELL (1)" in said
    assert b"Traceback" not in said


def test_watch_and_json_exclude_each_other() -> None:
    ran = subprocess.run(
        [SWIFTQUEUE, "status", "--watch", "--json"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 2
    assert "--watch, --json" in ran.stderr
