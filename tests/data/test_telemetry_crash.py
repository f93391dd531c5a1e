"""Telemetry loses nothing acknowledged under kill -9 at each step that touches the disk.

A step is a call of the store's Python that changes the disk. Of a compaction's every fourth is tried; each of
them, in two minutes or so, with SWIFTQUEUE_TEST_ALL=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutants import ALL


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("what", "stride", "least"), [("append", 1, 20), ("compact", 1 if ALL else 4, 40)])
@pytest.mark.timeout(3600 if ALL else 600)
def test_killed_at_every_step(tmp_path: Path, what: str, stride: int, least: int) -> None:
    script = Path(__file__).with_name("telemetry_crash.py")
    command = [sys.executable, script, what, tmp_path, str(stride)]
    path = os.pathsep.join([os.getcwd(), str(script.parents[1])])  # the project and what all tests share
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least  # steps until its end; each that was tried was cut short once
