"""The drift study: joined traces, rounds that are shared until a re-train starts, judges and tables."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from toy_world import bottleneck_table
from typer.testing import CliRunner

from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import TracePart, decision_times
from swiftqueue.models.networks.query_network import QueryHead
from swiftqueue.models.training.protocol import Slice
from swiftqueue.studies.drift import judging, study, tables, weights
from swiftqueue.studies.drift.study import NEW_STATE
from swiftqueue.studies.drift.traces import SEAM_NS, JoinedTrace, between, states
from swiftqueue.studies.drift.walk import (
    FRESH,
    MEMORY,
    NEVER,
    POLICIES,
    TUNED,
    Lengths,
    LoopState,
    Trained,
    Walk,
    walked,
)

S = 1_000_000_000


@pytest.fixture(scope="module")
def old() -> pl.DataFrame:
    return bottleneck_table("old", seconds=6)


@pytest.fixture(scope="module")
def new() -> pl.DataFrame:
    return bottleneck_table("new", seconds=6, seed=2, swing_ms=80)


@pytest.fixture(scope="module")
def joined(old: pl.DataFrame, new: pl.DataFrame) -> JoinedTrace:
    return JoinedTrace.of([old, new], same_receivers=True)


@pytest.fixture(scope="module")
def setup(project: Path) -> study.Setup:
    found = study.Setup.of(project / "params.yaml", Lengths(train_s=3, every_s=1, judge_s=0.2))
    small = found.variant.params.model_copy(update={"epochs": 1})
    return replace(found, variant=replace(found.variant, params=small))


@pytest.fixture(scope="module")
def base(joined: JoinedTrace, setup: study.Setup) -> Trained:
    return Trained.on([between(joined.known_at(3 * S), 0, 3 * S).to_learn()], setup.variant, 1)


def test_states_are_joined_as_one_log_of_one_sender(old: pl.DataFrame, new: pl.DataFrame) -> None:
    for same in (True, False):
        trace = JoinedTrace.of([old, new], same_receivers=same)
        after = trace.packets[old.height :]
        assert trace.packets["packet"].to_list() == list(range(old.height + new.height))
        assert (trace.packets["sent_ns"].diff().drop_nulls() >= 0).all()
        assert trace.begins_ns == (0, int(trace.packets["sent_ns"][old.height - 1]) + SEAM_NS)
        assert after["latency_us"].equals(new["latency_us"])
        assert not set(after["flow_id"]) & set(trace.packets[: old.height]["flow_id"])
        assert bool(set(after["receiver_id"]) & set(old["receiver_id"])) == same
    with pytest.raises(ValueError, match="a state has no packet"):
        JoinedTrace.of([old, new[:0]], same_receivers=True)


def test_nothing_acknowledged_later_is_known(joined: JoinedTrace) -> None:
    known = joined.known_at(4 * S)
    assert 0 < known.height < joined.packets.height
    assert known["sent_ns"].max() < 4 * S
    assert known["acked_ns"].max() <= 4 * S
    hidden = joined.packets.head(known.height)["latency_us"].null_count()
    assert known["latency_us"].null_count() > hidden  # some were under way


def test_a_part_has_the_rows_of_the_whole_log(old: pl.DataFrame) -> None:
    """Cut after more than the lead-in, with the sender's state before the cut."""
    packets = JoinedTrace.of([old, old, old], same_receivers=True).packets
    part = between(packets, 13 * S, 15 * S)
    lo, hi = np.searchsorted(decision_times(packets), [13 * S, 15 * S])
    whole = TracePart("drift", packets, Slice(int(lo), int(hi)))
    assert part.packets.height < packets.height
    assert len(part) == len(whole) > 0
    np.testing.assert_array_equal(replayed(part).x_DHF, replayed(whole).x_DHF)
    np.testing.assert_array_equal(part.latencies_us(), whole.latencies_us())


def test_rounds_are_shared_until_a_retrain_starts(
    joined: JoinedTrace, setup: study.Setup, base: Trained
) -> None:
    """After the change the inputs have drifted; the policies with a lesson then leave the memory's state."""
    walk = Walk(joined, setup.lengths, setup.variant, setup.how, 1)
    begin = joined.begins_ns[1]
    state = LoopState(base.files, base.files, base)
    start = {policy.name: state for policy in POLICIES}
    times = [begin - 2 * S, begin - S, begin + S, begin + 2 * S]
    found = list(walked(walk, start, POLICIES, times, -1))
    assert [number for number, _, _ in found] == [-1, 0, 1]
    first, last = found[0], found[-1]
    assert first[1][TUNED].reservoir.kept == ()
    assert first[1][MEMORY].reservoir.kept != ()
    drifted = [records[FRESH]["psi"] > 1.5 for _, _, records in found]
    assert drifted[1]
    began = drifted.index(True)
    assert found[began][1][FRESH].candidate is not None
    assert found[began][1][MEMORY].candidate is None
    assert found[began + 1][2][FRESH]["retrained"]
    assert not found[began + 1][2][MEMORY]["retrained"]
    assert last[1][FRESH].retrained_in == began - 1  # one in an hour of the loop
    assert len(last[1][MEMORY].slices) == 3


def test_the_former_head_answers_until_the_round_has_ended(
    joined: JoinedTrace, setup: study.Setup, base: Trained
) -> None:
    walk = Walk(joined, Lengths(every_s=2), setup.variant, setup.how, 1)
    part = between(joined.packets, 3 * S, 4 * S)
    version, _ = walk.version(base.files)
    head = version.tuned(part.to_learn(), setup.how)
    other = Trained.on([part.to_learn()], replace(setup.variant), 2)
    assert head.tuning is not None
    state = LoopState(other.files, base.files, base)
    window = 4 * S, 6 * S
    before, after = (walk.answers(files, *window) for files in (base.files, other.files))
    served = walk.served_in(state, *window)
    assert served is not None
    assert before is not None
    assert after is not None
    changed = int(np.flatnonzero((served == after).all(-1))[0])
    inside = between(joined.packets, *window)
    times = inside.packets["sent_ns"].to_numpy()[inside.first_packets]
    np.testing.assert_array_equal(served[:changed], before[:changed])
    np.testing.assert_array_equal(served[changed:], after[changed:])
    assert times[changed - 1] < 4 * S + 0.074 * S <= times[changed]  # 11.1 of 300 s, of 2 s
    assert walk.answers(base.files, 100 * S, 101 * S) is None


@pytest.mark.parametrize("name", weights.SETS)
def test_a_small_set_of_weights_is_merged_into_the_head(
    joined: JoinedTrace, setup: study.Setup, base: Trained, name: str
) -> None:
    walk = Walk(joined, setup.lengths, setup.variant, setup.how, 1)
    version, _ = walk.version(base.files)
    lesson = between(joined.packets, 7 * S, 10 * S)
    encoded = version.encode(lesson)
    tuned = weights.tuned(version, name, encoded, lesson.latencies_us(), setup.how)
    assert tuned.tuning is not None
    assert tuned.tuning.loss[-1] < tuned.tuning.loss[0]
    assert isinstance(tuned.model.head, QueryHead)
    assert tuned.same_but_head(version)
    before, after = version.model.head.state_dict(), tuned.model.head.state_dict()
    assert before.keys() == after.keys()
    moved = {key for key in before if not torch.equal(before[key], after[key])}
    allowed = {"scale and offset": "2.", "last layer": "2.", "LayerNorm gains": "0.", "low rank": "0."}[name]
    assert moved
    assert all(key.startswith(allowed) for key in moved)
    if name == "low rank":
        step = after["0.weight"] - before["0.weight"]
        assert torch.linalg.matrix_rank(step, rtol=1e-4) <= weights.RANK
    again = copy.deepcopy(version.model)
    assert torch.equal(again.head.state_dict()["2.bias"], before["2.bias"])  # the untuned one stays as it was


@pytest.mark.parametrize(
    ("ratio_by_round", "first"),
    [
        ([1.0, 1.05, 1.1], 0),
        ([2.0, 1.05, 1.1], 1),
        ([1.0, 2.0, 2.0], None),  # one near window is no repair
        ([2.0, 1.0, 1.3, 1.0], 1),
        ([2.0, 1.5], None),
    ],
)
def test_a_change_is_repaired_where_the_error_stays_near(
    ratio_by_round: list[float], first: int | None
) -> None:
    assert judging.repaired_after(ratio_by_round) == first


def row(course: str, seed: int, number: int, model: str, error: float | None, **more: Any) -> dict[str, Any]:
    empty = {"state": None, "outcome": None, "psi": None, "retrained": None, "seconds": None}
    empty |= {"log_error_at_once": error}
    return {
        "course": course,
        "seed": seed,
        "round": number,
        "model": model,
        "log_error": error,
        **empty,
        **more,
    }


@pytest.fixture(scope="module")
def rows() -> pl.DataFrame:
    found = []
    for seed in (1, 2, 3):
        for model, error in ((NEVER, 0.2), (TUNED, 0.19 + seed / 1000), (MEMORY, 0.18)):
            found.append(row("before", seed, -1, model, error, outcome=None if model == NEVER else "kept"))
        for number in (0, 1, 2):
            found.append(row("rate", seed, number, NEW_STATE, 0.1))
            found.append(row("rate", seed, number, NEVER, 0.3))
            repaired = 0.3 if number == 0 or seed == 3 else 0.105
            found.append(
                row(
                    "rate",
                    seed,
                    number,
                    TUNED,
                    repaired,
                    outcome="pushed" if number else None,
                    retrained=False,
                )
            )
        for name, error in ((weights.HEAD, 0.1), *((each, 0.2) for each in weights.SETS)):
            found += [row("rate", seed, k, f"weights: {name}", error, seconds=0.25) for k in (1, 2)]
    return pl.DataFrame(found, infer_schema_length=None)


def test_the_tables_say_which_change_is_repaired_and_what_the_gate_kept(rows: pl.DataFrame) -> None:
    never, ungated, tuned, *every = tables.repairs(rows)[2:]
    assert every[0].endswith("| – | 0 of 3 walks |")
    assert every[2].endswith("| 2 of 3 walks |")
    assert (
        "| never tuned | 3 | 3.00 (3.00 to 3.00) | 3.00 (3.00 to 3.00) | – | never, never, never |" in never
    )
    assert tuned.endswith("| 5, 5, never |")
    # its first round is after 5 minutes
    assert ungated.endswith("| – | 1.00 (1.00 to 1.00) | -66.7 (-66.7 to -66.7) | 5, 5, 5 |")
    gate = tables.gate(rows)[2:]
    assert "| before it | tuned | 3 | 3 (100 %) | 0 | 0 |" in gate
    assert "| after a change | tuned | 6 | 0 (0 %) | 0 | 0 |" in gate
    assert tables.stationary(rows)[-1] == "| tuned, with memory | 3 | -10.0 (-10.0 to -10.0) |"
    whole, *small = tables.sets(rows)[2:]
    assert whole == "| head | 3 | – | 0.25 |"
    assert small[0] == "| scale and offset | 3 | +100.0 (+100.0 to +100.0) | 0.25 |"
    (axes, *_) = tables.picture(rows).axes
    assert axes.lines[0].get_xdata().tolist() == [2.5, 7.5, 12.5]  # minutes of the loop


def test_a_round_trip_and_every_other_change_has_its_words() -> None:
    assert states() == list(tables.WORDS)


@pytest.mark.parametrize(
    ("text", "said"), [("1,x", "'x' is no seed"), ("0", "'0' is no seed"), ("1,1", "names a seed twice")]
)
def test_seeds_that_make_no_sense_are_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        study.seeds_in(text)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    from swiftqueue.cli.app import app

    nothing = tmp_path / "no.pcap"
    result = CliRunner().invoke(app, ["drift", "run", str(nothing), "--output", str(tmp_path)])
    assert f"{nothing}: no such file" in str(result.exception)
    with pytest.raises(FileNotFoundError, match="has no rows: run `swiftqueue drift run"):
        study.rows_of(tmp_path)
    assert list(tmp_path.iterdir()) == []
