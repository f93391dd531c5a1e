"""A run of the test bed whose owner is killed: nothing of it may stay."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
from waiting import wait_until

from swiftqueue.testbed.host.hosts import clean, leftovers
from swiftqueue.testbed.host.programs import CONTROLS


def check_nothing_stays(source: str, programs: int, controls: set[str], folder: Path, project: Path) -> None:
    """Run `source`, kill it once it has started so many programs, and look for what it has left.

    `controls` are the congestion controls that it registers.
    """
    gone = lambda: not controls & set(CONTROLS.read_text().split())  # noqa: E731
    wait_until(gone, "another bed runs")
    begin = "import sys; from pathlib import Path; folder = Path(sys.argv[1])"
    command = [sys.executable, "-c", begin + source, str(folder)]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.DEVNULL) as owner:
        family = psutil.Process(owner.pid)
        wait_until(lambda: len(family.children(recursive=True)) >= programs, "its programs did not start")
        children = family.children(recursive=True)
        owner.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    wait_until(gone, "the congestion control is still there")
    clean()
    assert leftovers() == []
