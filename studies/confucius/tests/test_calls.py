"""A call's frames: how large they are made, and that none waits at its sender."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpp_suite import passed

from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import cells, resolve
from swiftqueue.laboratory.scenarios.files import load, path_of

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

PERIOD_S = 0.02
ONE_WAY_S = 0.02


def test_frames_one_by_one() -> None:
    """The C++ suite without a network: what a frame is at a rate, and beside what waits."""
    assert passed("call-test") == 3


@pytest.mark.long
def test_google_congestion_control() -> None:
    """The C++ suite: its arithmetic in closed form, and a call over a link that loses or changes its rate."""
    assert passed("gcc-test") == 9


@pytest.mark.long
def test_a_call_over_udp_is_followed_as_one_over_tcp(tmp_path: Path) -> None:
    """Frames arrive, S1's goodput is theirs, and the same run gives the same bytes."""
    scenario = load(path_of("confucius-web"))
    cell = next(cell for cell in cells("calls", scenario) if cell.point == "Confucius, GCC")
    run: dict[str, Any] = resolve(scenario, cell, {"kind": "default"}, ["truth"])
    run["senders"] = run["senders"][:1]
    run |= {"seconds": 6, "warmup_s": 1}
    (tmp_path / execution.RUNS).mkdir()
    for name in ("one", "two"):
        assert execution.execute(programs.build()[0], tmp_path, execution.Job(name, run)) is None
    one, two = (tmp_path / execution.RUNS / name / execution.SUMMARY for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    summary = json.loads(one.read_text())
    delay_s = np.array(summary["calls"][0]["delay_s"], np.float64)
    assert np.isnan(delay_s).sum() < 5  # under way at the end
    assert np.nanmin(delay_s) >= ONE_WAY_S
    assert np.nanquantile(delay_s, 0.99) < ONE_WAY_S + 2 * PERIOD_S
    own = summary["senders"]["s1"]["classic"]
    assert 7e6 < own["goodput_bps"] < 14e6  # it begins at 10 Mbit/s, of which nine tenths are frames
    assert own["latency_us"]["count"] == 0  # no ACK says one


@pytest.mark.long
@pytest.mark.parametrize("tcp", ["bbr", "copa"])
def test_no_frame_of_a_lone_call_waits_for_the_one_before(tmp_path: Path, tcp: str) -> None:
    """A frame takes the path, the wait in the router, and its own sending.

    BBR's window is twice what its path holds, so a frame of all of it would wait at the sender. Copa's
    would fall to a tenth, did it go down as fast as it had come up.
    """
    scenario = load(path_of("confucius-web"))
    run: dict[str, Any] = resolve(scenario, next(cells("calls", scenario)), {"kind": "default"}, [])
    run["senders"] = run["senders"][:1]
    run["senders"][0]["groups"][0] |= {"tcp": tcp, "start_s": [0, 0]}
    run |= {"seconds": 20, "warmup_s": 4}
    (tmp_path / execution.RUNS).mkdir()
    assert execution.execute(programs.build()[0], tmp_path, execution.Job("one", run)) is None
    summary = json.loads((tmp_path / execution.RUNS / "one" / execution.SUMMARY).read_text())
    call = summary["calls"][0]
    made_s, delay_s = (np.array(call[name], np.float64) for name in ("made_s", "delay_s"))
    counted = (made_s >= run["warmup_s"]) & ~np.isnan(delay_s)
    queueing_s = summary["senders"]["s1"]["classic"]["queueing_us"]["p99"] * 1e-6
    at_sender_s = np.quantile(delay_s[counted], 0.99) - ONE_WAY_S - queueing_s
    assert at_sender_s < 2 * PERIOD_S  # 21 and 19 ms measured
    assert summary["bottlenecks"][0]["utilisation"] > 0.85
