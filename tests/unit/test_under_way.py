"""An `up` that is under way, a second one, and `down` meanwhile; and `make` where nothing is set up."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from toy_world import bottleneck_table, write_table

from swiftqueue.infra.local import processes, sender, under_way
from swiftqueue.infra.local.loop import NoChampionError, start_loop, stop_stack
from swiftqueue.infra.local.parts import PARTS
from swiftqueue.serving.agent.io.packet_log import open_log

# The first champion takes minutes, in a process of its own.
UP = """
import re
import subprocess
from swiftqueue.infra.local.loop import start_loop

def make_champion():
    child = subprocess.Popen(["sleep", "300"])
    print("made by", child.pid, flush=True)
    child.wait()

start_loop(None, speed=1, every_s=60, learn_s=30, judge_s=8, make_champion=make_champion)
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "var"))
    for name in ("MLFLOW_TRACKING_URI", "SWIFTQUEUE_INGEST", "SWIFTQUEUE_DOWN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "var"


@contextmanager
def program(project: Path, text: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a program, and wait for the first line that it says."""
    out = subprocess.PIPE
    with ExitStack() as stack:
        started = subprocess.Popen(
            [sys.executable, "-c", text], stdout=out, stderr=subprocess.STDOUT, text=True, cwd=project
        )
        stack.enter_context(started)
        stack.callback(started.kill)
        assert started.stdout is not None
        yield started, started.stdout.readline()


@pytest.mark.slow
def test_down_ends_an_up_that_is_under_way_and_one_that_waits(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with program(project, UP) as (first, said):
        assert said.startswith("made by"), said
        with program(project, UP) as (second, waits):
            assert f"under way here (pid {first.pid}): waiting" in waits
            stop_stack()
            told = second.communicate(timeout=60)[0]
            assert "`swiftqueue down` came meanwhile: nothing is started" in told
        assert "ended by `swiftqueue down`" in first.communicate(timeout=60)[0]
        made_by = int(said.split()[-1])  # is ended, too
        assert not psutil.pid_exists(made_by) or psutil.Process(made_by).status() == psutil.STATUS_ZOMBIE
    assert f"an `up` or `run` is under way (pid {first.pid}): ending it" in capsys.readouterr().out
    assert [name for name in (under_way.NAME, *PARTS) if processes.record_path(name).exists()] == []


def test_a_down_during_the_setup_holds(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make` reads the token before its setup, and hands it on."""
    monkeypatch.setenv("SWIFTQUEUE_DOWN", under_way.last_down())
    stop_stack()
    with pytest.raises(RuntimeError, match="came meanwhile"):
        start_loop(None, speed=1, every_s=60, learn_s=30, judge_s=8)
    monkeypatch.setenv("SWIFTQUEUE_DOWN", under_way.last_down())
    with pytest.raises(NoChampionError):
        start_loop(None, speed=1, every_s=60, learn_s=30, judge_s=8)


def test_up_ends_with_the_code_of_what_makes_the_first_champion(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    monkeypatch.setattr("swiftqueue.infra.local.main_job._make_and_serve", lambda *_, **__: 3)
    result = CliRunner().invoke(app, ["up", "--live"])
    assert result.exit_code == 3, result.output
    assert "the main job makes the first one" in result.output


@pytest.mark.parametrize(
    ("trace", "bed", "line"), [("nosuch", False, "'nosuch' is neither"), (None, True, "--bed: no tc here")]
)
def test_what_is_missing_is_said_before_the_first_champion_is_made(
    trace: str | None, bed: bool, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swiftqueue.testbed.host.tcp.why_not", lambda: "no tc here")
    with pytest.raises(OSError, match=line):
        start_loop(trace, speed=1, every_s=60, learn_s=30, judge_s=8, bed=bed, make_champion=pytest.fail)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("units --memory 12G --evry 60", "Try 'swiftqueue up --live --help'"),
        ("schedule --rounds -1", "for '--rounds'"),
        ("schedule --least-decisions 0", "for '--least-decisions'"),
        ("schedule --metrics-port 65536", "for '--metrics-port'"),
        ("schedule --telemetry README.md", "for '--telemetry': dir 'README.md' is a file"),
        ("extract docs -o var/packets", "file 'docs' is a directory"),
        ("study var/study docs", "file 'docs' is a directory"),
        ("bench extract --gigabytes -1", "for '--gigabytes'"),
        ("agent --listen a --deadline-us -4", "for '--deadline-us'"),
        ("part mlflow --port -4", "for '--port'"),
        ("udp echo --port -4", "for '--port'"),
        ("monitor picture --output x.png --minutes -3", "--minutes -3: must be above 0"),
        ("extract a.pcap -o README.md", "README.md is a file; extract needs a folder"),
        ("forecasts -o README.md", "README.md is a file; forecasts needs a folder"),
        ("tune -o README.md", "README.md is a file; tune needs a folder"),
        ("trace simulate README.md", "README.md is a file; a packet table needs a folder"),
        ("lab run figure8 --output README.md", "README.md is a file; the laboratory needs a folder"),
        (
            "up --every 60 --trace x --retrain start --bed",
            "for --trace, --every, --retrain, --bed: only --live",
        ),
        ("up --every 300", "for --every: only --live"),  # what it is without the option, too
    ],
)
def test_an_option_that_cannot_be_or_would_be_ignored_is_refused(
    words: str, named: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from swiftqueue.cli.app import app

    monkeypatch.chdir(project)
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code in (1, 2), result.output
    assert named in f"{' '.join(result.output.split())} {result.exception}"
    assert [name for name in (under_way.NAME, *PARTS) if processes.record_path(name).exists()] == []


@pytest.mark.parametrize("target", ["down", "status"])
def test_make_down_and_status_work_before_setup(project: Path, tmp_path: Path, target: str) -> None:
    command = ["make", "--no-print-directory", f"--file={project / 'Makefile'}", "STATE=state", target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("not set up yet, so nothing of it runs"), done.stdout + done.stderr
    assert (done.returncode == 0) is (target == "down")
    assert (tmp_path / "state/live/down").exists() is (target == "down")


def test_make_hands_the_last_down_to_up_before_its_setup(project: Path, tmp_path: Path) -> None:
    (tmp_path / "state/live").mkdir(parents=True)
    (tmp_path / "state/live/down").write_text("a-token\n")
    program = tmp_path / ".venv/bin/swiftqueue"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho told $SWIFTQUEUE_DOWN\n")
    program.chmod(0o755)
    command = ["make", f"--file={project / 'Makefile'}", "STATE=state", "--assume-old=setup", "up"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "told a-token" in done.stdout, done.stdout + done.stderr


# A benchmark that ends what it started on its way out, as all of them do.
BENCH = """
import sys, time
import swiftqueue.benchmarks.rows
from swiftqueue.cli.app import main

def measure(*_, **__):
    try:
        print("measuring", flush=True)
        time.sleep(300)
    finally:
        print("Triton is stopped", flush=True)

swiftqueue.benchmarks.rows.run_benchmark = measure
sys.argv = ["swiftqueue", "bench", "swap"]
main()
"""


@pytest.mark.slow
def test_a_benchmark_that_is_told_to_end_leaves_nothing_behind(project: Path) -> None:
    with program(project, BENCH) as (started, said):
        assert said == "measuring\n"
        started.terminate()
        assert "Triton is stopped" in started.communicate(timeout=60)[0]


def test_what_the_parts_say_has_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """An agent that was started again left a line without one."""
    agent = tmp_path / "agent"
    agent.write_text('#!/bin/sh\necho \'{"event": "ready", "version": 3, "problem": ""}\'\nkill -9 $$\n')
    agent.chmod(0o755)
    monkeypatch.setattr(sender.agent_process, "BINARY", agent)
    monkeypatch.setattr(sender.time, "sleep", lambda seconds: sys.exit())  # before the next one
    write_table(tmp_path / "t", bottleneck_table("short", seconds=0.5))
    log = open_log(str(tmp_path / "t"), 0, None)
    with pytest.raises(SystemExit):
        sender.send_for_ever(log, 1, "unix:x", 1)
    said = capfd.readouterr().out.splitlines()
    assert [line[20:] for line in said][1:] == [
        "ready, version 3",
        "the agent ended with code -9: starting another",
    ]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in said)
