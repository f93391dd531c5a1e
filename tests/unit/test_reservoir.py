"""The reservoir of earlier stretches: what stays, how much, and what survives."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.pipelines.live.encoding import Decisions
from swiftqueue.pipelines.live.reservoir import (
    EMPTY,
    FILE,
    MOST_DECISIONS,
    STRETCH_NS,
    Reservoir,
    ReservoirFile,
    ReservoirStretch,
    least_alike,
    memory_decisions,
    stretches,
)

LAST_US = 20_000.0
PER_S = 40


def second(number: int, factor: float, sender: str = "a", per_s: int = PER_S) -> list[ReservoirStretch]:
    """A second whose latencies are `factor` times the last visible one, but for noise."""
    rng = np.random.default_rng(number)
    y_BH = (LAST_US * factor * np.exp(rng.normal(0, 0.02, (per_s, HORIZON)))).astype(np.float32)
    decisions = Decisions(
        rng.normal(size=(per_s, HORIZON, 4)).astype(np.float32),
        np.zeros((per_s, HORIZON), np.float32),
        np.full((per_s, HORIZON, 3), number, np.float32),
    )
    decision_ns_B = number * STRETCH_NS + np.arange(per_s) * (STRETCH_NS // per_s)
    return stretches(sender, decision_ns_B, decisions, y_BH, np.full(y_BH.shape, LAST_US))


def filled(seconds: int, most_decisions: int, late: tuple[int, ...] = ()) -> Reservoir:
    found = EMPTY
    for number in range(seconds):
        one = second(number, 3.0 if number in late else 1.0)
        found = found.with_minute("e", one, most_decisions)
    return found


def test_what_is_rare_and_late_stays_and_the_rest_is_bounded() -> None:
    found = filled(600, 8 * PER_S, late=(17, 203))
    kept = [one.from_ns // STRETCH_NS for one in found.kept]
    assert {17, 203} <= set(kept)
    assert sum(map(len, found.kept)) == 8 * PER_S
    assert kept == sorted(kept)


def test_the_least_alike_are_found_without_all_pairs_in_memory() -> None:
    """As all pairs in one array say; beyond some thousand stretches that would be gigabytes."""
    rng = np.random.default_rng(3)
    (same,) = second(1, 1.0, per_s=2)
    found = [replace(same, from_ns=n, like_K=rng.integers(0, 4, 3).astype(float)) for n in range(60)]

    def literally(most_decisions: int) -> list[ReservoirStretch]:
        left = list(found)
        while sum(map(len, left)) > most_decisions:
            pairs = itertools.combinations(range(len(left)), 2)
            apart = {pair: np.abs(left[pair[0]].like_K - left[pair[1]].like_K).mean() for pair in pairs}
            del left[min(apart, key=apart.__getitem__)[0] if apart else 0]
        return left

    for most in (119, 60, 10, 2, 0):
        assert least_alike(found, most) == literally(most)

    many = [replace(same, from_ns=n, like_K=rng.normal(size=13)) for n in range(1000)]
    tracemalloc.start()
    least_alike(many, 2 * 990)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6  # all pairs are 104 MB, twice


def test_of_two_alike_the_older_goes() -> None:
    same = second(5, 1.0)[0]
    older = ReservoirStretch("a", 0, same.decisions, same.y_BH, same.like_K)
    other = second(6, 2.0)[0]
    assert EMPTY.with_minute("e", [older, other, same], 2 * PER_S).kept == (other, same)


def test_a_second_is_kept_once_and_thinned() -> None:
    many = 3 * MOST_DECISIONS + 1
    found = EMPTY.with_minute("e", second(3, 1.0), 1000).with_minute("e", second(3, 2.0, per_s=many), 1000)
    assert len(found.kept) == 1
    assert len(found.kept[0]) == -(-many // 4)


def test_what_a_minute_holds_teaches_once_and_another_encoders_not_at_all() -> None:
    found = filled(10, 1000).with_minute("e", second(5, 1.5, sender="b"), 1000)
    past = found.beside("e", "a", 4 * STRETCH_NS, 8 * STRETCH_NS)
    assert past is not None
    assert set(np.unique(past.decisions.candidates_BHF)) == {
        0,
        1,
        2,
        3,
        5,
        8,
        9,
    }  # the 5 is the other sender's
    assert sum(map(len, past.labels)) == len(past.decisions.read_BRD) == 7 * PER_S
    assert found.beside("other", "a", 0, 1) is None
    assert EMPTY.beside("e", "a", 0, 1) is None
    assert [one.from_ns for one in found.with_minute("other", second(30, 1.0), 1000).kept] == [
        30 * STRETCH_NS
    ]


def test_a_second_of_which_nothing_is_known_is_not_kept() -> None:
    (one,) = second(1, 1.0)
    unknown_BH = np.full_like(one.y_BH, np.nan)
    decision_ns_B = STRETCH_NS + np.arange(PER_S)
    assert stretches("a", decision_ns_B, one.decisions, unknown_BH, np.full(unknown_BH.shape, LAST_US)) == []


def test_it_survives_a_restart_and_damage_costs_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = filled(20, 6 * PER_S, late=(4,))
    file = ReservoirFile(tmp_path / FILE)
    assert file.load() == EMPTY
    file.save(found)
    again = ReservoirFile(tmp_path / FILE).load()
    assert again.encoder == "e"
    for one, two in zip(again.kept, found.kept, strict=True):
        assert (one.sender, one.from_ns) == (two.sender, two.from_ns)
        for name in ("y_BH", "like_K"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        np.testing.assert_array_equal(one.decisions.read_BRD, two.decisions.read_BRD)
        np.testing.assert_array_equal(one.decisions.candidates_BHF, two.decisions.candidates_BHF)
    whole = (tmp_path / FILE).read_bytes()
    at = whole.index(b"PK\x01\x02") + 8
    encrypted = whole[:at] + b"\1" + whole[at + 1 :]  # as one flipped bit says
    for damaged in (b"", whole[: len(whole) // 2], b"x" + whole[1:], encrypted):
        (tmp_path / FILE).write_bytes(damaged)
        assert file.load() == EMPTY
        assert not (tmp_path / FILE).exists()
        assert "the reservoir cannot be read, is put aside" in capsys.readouterr().out
        aside = (tmp_path / FILE).with_suffix(".unreadable")
        assert aside.read_bytes() == damaged
        aside.unlink()
    file.save(found)
    file.save(EMPTY)
    assert not list(tmp_path.iterdir())


def test_a_parameter_file_of_before_it_has_none(tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    params.write_text("finetune: {}\n")
    assert memory_decisions(params) == 0
    params.write_text("live: {memory_decisions: 64}\n")
    assert memory_decisions(params) == 64
    params.write_text("live: {memory_decisions: -1}\n")
    with pytest.raises(ValueError, match=r"live\.memory_decisions is -1"):
        memory_decisions(params)
