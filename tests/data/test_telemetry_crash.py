"""Telemetry under kill -9 at every step that touches the disk: nothing acknowledged is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("what", "least"), [("append", 20), pytest.param("compact", 50, marks=pytest.mark.slow)]
)
def test_killed_at_every_step(tmp_path: Path, what: str, least: int) -> None:
    script = Path(__file__).with_name("telemetry_crash.py")
    done = subprocess.run(
        [sys.executable, script, what, tmp_path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= least  # steps, each of which was cut short once
