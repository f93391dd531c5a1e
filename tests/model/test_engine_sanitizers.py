"""The engine under the address, undefined-behaviour and thread sanitizers, with a mutating fuzzer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from engine_models import make_model, save

from serving.engine import LIBRARY


@pytest.mark.slow
def test_hostile_artifacts_and_windows_and_swaps_under_sanitizers(tmp_path: Path) -> None:
    artifact = save(
        tmp_path / "m", make_model(readout="candidates", anchor="last_latency_flow_us"), tokens=136
    )
    ran = subprocess.run(
        ["make", "-j2", "sanitize", f"ARTIFACT={artifact}", "ROUNDS=10000"],
        cwd=LIBRARY.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert len(re.findall(r"of 10000 damaged artifacts refused", ran.stdout)) == 2
    assert len(re.findall(r"^tensors: \d+ of 10000 files accepted", ran.stdout, re.M)) == 2
    assert len(re.findall(r"^swap: 100 heads under \d+ predictions", ran.stdout, re.M)) == 2
