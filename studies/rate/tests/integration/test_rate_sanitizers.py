"""The network of rates in C++ under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import mutants
import pytest

from studies.rate.programs import STUDY

sys.path.append(str(Path(__file__).resolve().parents[1]))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes of compilation: make test-all"),
]


def test_rates_in_cpp(tmp_path: Path) -> None:
    """Hostile artifacts and flows of the network that forecasts rates; a flow allocates nothing."""
    from test_rate_engine import made_in

    ran = subprocess.run(
        ["make", "-j2", "sanitize", f"ARTIFACT={made_in(tmp_path)[1]}", "ROUNDS=10000"],
        cwd=STUDY,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert len(re.findall(r"of 10000 damaged artifacts refused", ran.stdout)) == 1
    assert len(re.findall(r"^portable: 201 flows, \d+ refused", ran.stdout, re.M)) >= 1
