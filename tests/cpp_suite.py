"""A C++ suite of the simulator, built and run."""

from __future__ import annotations

import subprocess

from swiftqueue.pipelines.simulators import build_simulator


def passed(program: str) -> int:
    """How many lines say PASS, once nothing fails: one a case, and one for the suite."""
    done = subprocess.run([build_simulator(program=program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.count("PASS")
