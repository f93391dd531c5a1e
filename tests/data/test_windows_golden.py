"""Golden windows: yesterday's bytes, for this build and for every other implementation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from make_golden_windows import GOLDEN, make_events, replay

from feature_store.windows import FEATURES, schema_hash


def test_windows_are_the_golden_ones_bit_for_bit() -> None:
    golden = json.loads((GOLDEN / "windows.json").read_text())
    assert golden["schema_hash"] == schema_hash(), "the definition changed: see make_golden_windows.py"
    assert golden["features"] == len(FEATURES)
    windows, in_flight = replay(golden["events"], golden["tokens"])
    assert in_flight == [e[2] for e in golden["events"] if e[0] == "window"]
    expected = (GOLDEN / "windows.bin").read_bytes()
    size = golden["tokens"] * golden["features"] * 4
    differing = [i for i, w in enumerate(windows) if w != expected[i * size : (i + 1) * size]]
    assert differing == []
    assert len(expected) == len(windows) * size


def test_the_script_writes_the_committed_log() -> None:
    golden = json.loads((GOLDEN / "windows.json").read_text())
    without_in_flight = [[*e[:2], 0, *e[3:]] if e[0] == "window" else e for e in golden["events"]]
    assert without_in_flight == json.loads(json.dumps(make_events()))


@pytest.mark.slow
def test_the_sanitizers_find_nothing(project: Path) -> None:
    done = subprocess.run(
        ["make", "-C", "feature_store", "sanitize"], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "40 senders, nothing found" in done.stdout
