"""What a model predicted beside what came, on packets and questions that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swiftqueue.laboratory.explain import CLASSIC, L4S, _print, errors, explain, tail
from swiftqueue.laboratory.learning.train import train
from swiftqueue.laboratory.runs import programs

TRUTH = [
    ("sent_ns", "<i8"),
    ("queueing_us", "<f4"),
    ("latency_us", "<f4"),
    ("flow", "<u2"),
    ("queue", "u1"),
    ("default_queue", "u1"),
]
QUESTIONS = [
    ("first_packet", "<i8"),
    ("windows", "<i4"),
    ("flow", "<i4", (8,)),
    ("x_BWF", "<f4", (2, 1, 8)),
]
RECEIVERS = ["near", "near", "far"]  # of flows 0, 1 and 2; flow 1 is classic
LATENCY_MS = {0: 40.0, 1: 41.0, 2: 70.0}


@pytest.fixture
def truth() -> np.ndarray[Any, Any]:
    """400 packets, one each ms: of flows 0, 1, 2, 2 by turns; every other one of flow 2 was moved."""
    rows = np.zeros(400, TRUTH)
    places = np.arange(len(rows))
    rows["sent_ns"] = places * 1_000_000
    rows["flow"] = np.array([0, 1, 2, 2])[places % 4]
    rows["default_queue"] = np.where(rows["flow"] == 1, CLASSIC, L4S)
    rows["queue"] = np.where(places % 4 == 3, CLASSIC, rows["default_queue"])
    rows["latency_us"] = [1e3 * LATENCY_MS[flow] for flow in rows["flow"].tolist()]
    rows["queueing_us"] = 100 + places % 7
    return rows


def question(first: int, flows: list[int]) -> np.ndarray[Any, Any]:
    """Both windows of a question hold what `forward` is to say of all eight candidates."""
    row = np.zeros(1, QUESTIONS)
    row["first_packet"], row["windows"], row["flow"] = first, 2, flows
    row["x_BWF"][0] = np.array((50.0, 60.0), np.float32)[:, None, None] * 1e3
    return row


def forward(x_BWF: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return x_BWF[:, 0]


def asked(truth: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All of it asked about, in numbers of its own for the flows: 5 is flow 0, 3 flow 1, 0 flow 2."""
    own = {0: 5, 1: 3, 2: 0}
    rows = []
    for first in range(0, len(truth), 8):
        flows = [own[flow] for flow in truth["flow"][first : first + 8].tolist()]
        rows.append(question(first, flows))
    for first in (1, 2):  # each flow is named once by a first candidate
        rows.append(question(first, [own[int(truth["flow"][first])]] * 8))
        rows[-1]["windows"] = 1
    return np.concatenate(rows)


def test_errors_are_of_the_queue_that_was_taken_by_receiver(truth: np.ndarray[Any, Any]) -> None:
    near, far = errors(truth, asked(truth), RECEIVERS, 0, forward)
    assert (near.receiver, far.receiver) == ("near", "far")
    assert (near.asked, far.asked) == (100, 200)  # flow 1's packets could not be moved
    assert (near.moved, far.moved) == (0.0, 0.5)
    assert (near.least_ms, far.least_ms) == (40.0, 70.0)
    assert near.predicted_ms[L4S] == 60
    assert near.came_ms[L4S] == 40
    assert near.error_ms[L4S] == 20
    assert np.isnan([near.predicted_ms[CLASSIC], near.came_ms[CLASSIC], near.error_ms[CLASSIC]]).all()
    assert far.predicted_ms == (50, 60)
    assert far.came_ms == (70, 70)
    assert far.error_ms == (20, 10)
    assert near.l4s_worse_ms == far.l4s_worse_ms == 10


def test_only_foreseen_packets_with_a_latency_count(truth: np.ndarray[Any, Any]) -> None:
    questions = asked(truth)
    truth["latency_us"][:40] = np.nan
    assert [one.asked for one in errors(truth, questions, RECEIVERS, 0, forward)] == [90, 180]
    assert [one.asked for one in errors(truth, questions, RECEIVERS, 80_000_000, forward)] == [80, 160]
    # Eight candidates of flow 2 where four of its packets were among the eight that left.
    some = questions[questions["windows"] == 2][10:30]
    some["flow"][:, 1:] = 0
    both = np.concatenate([some, questions[questions["windows"] == 1]])
    assert [one.asked for one in errors(truth, both, RECEIVERS, 0, forward)] == [20, 80]


def test_a_tail_is_told_by_its_episodes(truth: np.ndarray[Any, Any]) -> None:
    truth["queueing_us"][[80, 82, 84]] = 50_000  # one burst
    truth["queueing_us"][300] = 60_000
    truth["queueing_us"][81] = 90_000  # classic by default
    found, later = tail(truth, 0), tail(truth, 100_000_000)
    assert found is not None
    assert later is not None
    assert found.packets == 4
    assert found.episodes == 2
    assert found.seconds == pytest.approx(0.004)
    assert found.largest == 0.75
    assert found.p99_ms > 1
    assert later.episodes == 1


def test_a_run_in_which_no_packet_came_is_one_line(
    truth: np.ndarray[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    truth["queueing_us"] = truth["latency_us"] = np.nan
    found = list(errors(truth, asked(truth), RECEIVERS, 0, forward))
    assert np.isnan([one.least_ms for one in found]).all()
    _print("small, seed 1", found, tail(truth, 0))
    assert capsys.readouterr().out == "small, seed 1: no L4S packet of S1 that left after the warm-up came\n"


def test_a_sender_without_a_choice_is_refused_before_the_run(tmp_path: Path) -> None:
    (mine := tmp_path / "mine.yaml").write_text(
        "extends: who-picks\naxis: {points: {calls: {set: {senders.s1.groups.call.tcp: copa, "
        "senders.s1.groups.call.ecn: not_ect, senders.s1.groups.call.dupack_threshold: 3}}}}\n"
    )
    with pytest.raises(ValueError, match=r"^mine, calls: the captured sender has no L4S flow to choose for$"):
        explain(
            str(mine),
            artifact="none",
            profile="rfc9332",
            point="calls",
            seed=1,
            seconds=None,
            output=tmp_path,
        )


def test_only_the_data_of_what_is_run_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One point of the scenario replays what is not there."""
    (mine := tmp_path / "mine.yaml").write_text(
        "extends: figure8\naxis: {label: x, points: {plain: {set: {}}, replay: {set: "
        "{senders.s1.groups.l4s.traffic: {kind: replay, packets: no/such}}}}}\n"
    )
    monkeypatch.setattr(programs, "build", lambda: pytest.fail("so far", pytrace=False))
    with pytest.raises(pytest.fail.Exception, match="so far"):
        train(str(mine), protocol="small", overrides=[], output=tmp_path)
    at = {"profile": "uncoupled", "seed": 1, "seconds": None, "output": tmp_path}
    for point, line in (("plain", "none: no such folder"), ("replay", "no/such: no such folder of packet")):
        with pytest.raises((ValueError, OSError), match=line):
            explain(str(mine), artifact="none", point=point, **at)  # type: ignore[arg-type]
