"""A stage killed midway leaves no result, and run again it gives what an undisturbed run gives."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml
from waiting import wait_until

from swiftqueue.benchmarks.synthetic_capture import write_capture
from swiftqueue.pipelines.experiments.dvc_command import dvc_environment

pytestmark = pytest.mark.slow

PACKETS = 600_000  # about a second of work a stage, so that there is a middle


def command(folder: Path, output: str) -> list[str]:
    arguments = ["--trace=capture", f"--file={folder / 'capture.pcap'}", "--latency=acks"]
    return [sys.executable, "-m", "swiftqueue.pipelines.extract", *arguments, f"--output={folder / output}"]


def kill_midway(call: list[str], partial: Path) -> None:
    """Start a stage and kill it once it has written something."""
    process = subprocess.Popen(call)
    while not (partial.is_dir() and any(p.is_file() and p.stat().st_size for p in partial.rglob("*"))):
        assert process.poll() is None, "the stage ended before it could be killed"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def digest(folder: Path) -> dict[str, str]:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.long
def test_nothing_half_written(tmp_path: Path) -> None:
    write_capture(tmp_path / "capture.pcap", PACKETS)
    subprocess.run(command(tmp_path, "packets"), check=True)
    call = command(tmp_path, "again")
    whole, result = (tmp_path / name / "trace=capture" for name in ("packets", "again"))
    partial = result.with_name(f".{result.name}.partial")
    kill_midway(call, partial)
    assert not result.exists()
    subprocess.run(call, check=True)
    again = digest(result)
    assert again
    assert not partial.exists()
    assert again == digest(whole)
    # A result that is there outlives a later run that is killed.
    kill_midway(call, partial)
    assert digest(result) == again


SLOW_STAGE = """
import subprocess, sys
from pathlib import Path
from swiftqueue.pipelines.stage import run_stage

def main() -> None:
    simulator = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(10_000)"])
    Path("pids.partial").write_text(f"{simulator.pid}")
    Path("pids.partial").rename("pids")
    simulator.wait()

run_stage("slow", main)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    "how", ["the terminal's SIGINT", "SIGTERM to DVC", "SIGKILL to DVC", "our command's SIGINT"]
)
def test_no_stage_outlives_its_dvc(tmp_path: Path, project: Path, how: str) -> None:
    """However it is interrupted, no process goes on writing, and the next `dvc repro` finds nothing busy."""
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "stage.py").write_text(SLOW_STAGE)
    stage = {"cmd": f"{project}/pipelines/run slow.stage", "deps": ["slow"], "outs": ["pids"]}
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"slow": stage}}))
    environment = dvc_environment() | {"PYTHONPATH": f"{project}:{tmp_path}"}
    dvc = [sys.executable, "-m", "dvc"]
    subprocess.run([*dvc, "init", "--no-scm", "--quiet"], cwd=tmp_path, env=environment, check=True)
    ours = "from pathlib import Path; from swiftqueue.pipelines.experiments.dvc_command import run_dvc; "
    ours += "run_dvc(['repro'], Path.cwd())"
    command = [sys.executable, "-c", ours] if how.startswith("our") else [*dvc, "repro"]
    command = ["env", "--default-signal=INT", *command]  # a shell's background job ignores it

    def start() -> tuple[subprocess.Popen[bytes], list[psutil.Process]]:
        (tmp_path / "pids").unlink(missing_ok=True)
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)
        wait_until(
            lambda: (tmp_path / "pids").is_file() or process.poll() is not None, "the stage did not begin"
        )
        assert process.poll() is None
        return process, [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]

    def gone(processes: list[psutil.Process]) -> bool:
        return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)

    process, started = start()
    assert len(started) >= 3  # DVC, the stage, its simulator
    if how.startswith("the terminal"):
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal({"SIGT": signal.SIGTERM, "SIGK": signal.SIGKILL}.get(how[:4], signal.SIGINT))
    process.wait()
    wait_until(lambda: gone(started), "a process goes on without DVC")
    process, _ = start()  # it is not "busy"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
