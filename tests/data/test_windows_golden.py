"""Golden windows: yesterday's bytes, for this build and for every other implementation."""

from __future__ import annotations

import json

from make_golden_windows import GOLDEN, make_events, replay, replay_stream

from feature_store.events.event_stream import INPUTS, event_schema_hash
from feature_store.events.windows import FEATURES, schema_hash


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


def test_the_event_stream_gives_the_golden_rows_bit_for_bit() -> None:
    golden = json.loads((GOLDEN / "windows.json").read_text())
    assert golden["event_schema_hash"] == event_schema_hash(), (
        "the definition changed: see make_golden_windows.py"
    )
    assert golden["event_inputs"] == len(INPUTS)
    rows = sum(8 if event[0] == "window" else 1 for event in golden["events"])
    expected = (GOLDEN / "events.bin").read_bytes()
    assert len(expected) == rows * len(INPUTS) * 4
    assert replay_stream(golden["events"]) == expected


def test_the_script_writes_the_committed_log() -> None:
    golden = json.loads((GOLDEN / "windows.json").read_text())
    without_in_flight = [[*e[:2], 0, *e[3:]] if e[0] == "window" else e for e in golden["events"]]
    assert without_in_flight == json.loads(json.dumps(make_events()))
