"""The live loop's unit under a real systemd, which runs in namespaces of its own and knows no other unit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mutants
import psutil
import pytest
from conftest import PROJECT
from fault_loop import ENDED_WELL, FIRST, HEAL_S, environment_of
from of_state import processes_of
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.infra.local.units import NAME
from swiftqueue.pipelines.live.rounds_log import LOG_FILE, read

SYSTEMD = Path("/lib/systemd/systemd")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes: with SWIFTQUEUE_TEST_ALL=1"),
    pytest.mark.skipif(os.geteuid() != 0 or not SYSTEMD.exists(), reason="needs root and systemd"),
]
# The targets that systemd wants of any system are empty here.
TARGETS = ("default", "sysinit", "basic", "shutdown", "umount", "final", "exit")
BOOT = f"""
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir /run/systemd
for folder in /etc/systemd/system /lib/systemd/system; do mount -t tmpfs tmpfs $folder; done
for target in {" ".join(TARGETS)}; do
  printf '[Unit]\\nDefaultDependencies=no\\n' > /etc/systemd/system/$target.target
done
sed 's/^After=.*/DefaultDependencies=no/' "$1" > /etc/systemd/system/{NAME}
container=lxc exec {SYSTEMD} --system --show-status=0
"""


class Machine:
    """A systemd that knows our unit, and what it says of it."""

    def __init__(self, unit: Path) -> None:
        own = ["unshare", "--pid", "--mount", "--cgroup", "--ipc", "--uts", "--fork", "--mount-proc"]
        # The unit brings its own environment.
        bare = {"PATH": os.environ["PATH"]}
        self._shell = subprocess.Popen([*own, "bash", "-ec", BOOT, "boot", unit], env=bare)
        wait_until(lambda: self.run("systemctl", "show").returncode == 0, "systemd does not answer")

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command beside this systemd's services."""
        inits = psutil.Process(self._shell.pid).children()
        if not inits:
            return subprocess.CompletedProcess(command, 1)
        enter = ["nsenter", "-t", str(inits[0].pid), "-m", "-p", "-C", *map(str, command)]
        return subprocess.run(enter, capture_output=True, text=True, check=False)

    def says(self, name: str) -> str:
        """Return a property of the unit."""
        return self.run("systemctl", "show", NAME, f"--property={name}", "--value").stdout.strip()

    def keeper_is_up_again(self, before: str, restarts: int) -> bool:
        """Return whether systemd has started another keeper since, and holds it for well."""
        told = [self.says(name) for name in ("ActiveState", "NRestarts")]
        return told == ["active", str(restarts)] and self.says("MainPID") not in ("0", before)

    def end(self) -> None:
        """End it and all that runs in its namespaces."""
        for init in psutil.Process(self._shell.pid).children():
            init.kill()
        self._shell.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="swiftqueue-systemd-", dir=Path.home()))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def test_systemd_keeps_the_loop(folder: Path, make_artifact: Callable[..., Path]) -> None:
    swiftqueue = Path(sys.executable).with_name("swiftqueue")
    write_table(folder / "packets", bottleneck_table("live", seconds=20))
    environment = environment_of(folder / "state") | {"XDG_CONFIG_HOME": str(folder)}
    options = ["--trace", str(folder / "packets"), "--every=3", "--learn=4", "--judge=2"]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    for command in (
        [sys.executable, "-c", FIRST, str(make_artifact(1, onnx=True))],
        [str(swiftqueue), "units", "--memory", "12G", *options],
    ):
        subprocess.run(command, env=environment | path, cwd=PROJECT, check=True)
    machine = Machine(folder / "systemd" / "user" / NAME)
    try:
        begun = machine.run("systemctl", "start", NAME)  # returns once the keeper has said that it is ready
        assert begun.returncode == 0, begun.stderr
        log = folder / "state" / "live" / LOG_FILE
        wait_until(lambda: any(one["outcome"] in ENDED_WELL for one in read(log)), "no round", HEAL_S)
        first = machine.says("MainPID")
        machine.run("systemctl", "kill", "--kill-who=main", "--signal=KILL", NAME)
        wait_until(lambda: machine.keeper_is_up_again(first, 1), lambda: machine.says("StatusText"), HEAL_S)
        second = machine.says("MainPID")
        machine.run("systemctl", "kill", "--kill-who=main", "--signal=STOP", NAME)  # until the watchdog
        wait_until(lambda: machine.keeper_is_up_again(second, 2), "it is not restarted", HEAL_S)
        assert machine.says("MemoryMax") == str(12 << 30)
        rounds = len(read(log))
        wait_until(lambda: len(read(log)) > rounds, "no round after the restarts", HEAL_S)
        machine.run("systemctl", "stop", NAME)
        assert machine.says("ActiveState") == "inactive"
        assert processes_of(folder / "state") == []
    finally:
        machine.end()
        for process in processes_of(folder / "state"):
            process.send_signal(signal.SIGKILL)
