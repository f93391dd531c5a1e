"""DualPI2 (RFC 9332) in ns-3: its rules one by one, then its promises with real TCP flows on a link."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pipelines.simulate import build_simulator


@pytest.fixture(scope="module")
def programs(project: Path) -> Path:
    """The folder of the built test programs."""
    build_simulator()  # what both share, under the lock of that build
    built = subprocess.run(
        ["make", "--no-print-directory", "-C", project / "simulation", "test-dual-pi2"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return project / "build" / "simulation"


@pytest.mark.slow  # compiles two ns-3 programs; the run itself takes a second
def test_rules_one_by_one(programs: Path) -> None:
    """The C++ suite without a network: classifier, scheduler, AQMs, overload, limits, conservation."""
    result = subprocess.run(
        [programs / "dual-pi2-queue-disc-test"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASS") > 30
