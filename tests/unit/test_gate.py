"""The gate's rules on a made-up sender, and how it holds in the long run."""

from __future__ import annotations

import re
from dataclasses import replace

import gate_world as world
import numpy as np
import pytest

from swiftqueue.models.registry.bars import NO_CHAMPION, Verdict
from swiftqueue.models.registry.gate import (
    LATE,
    LOG,
    Figures,
    HeldOutDecisions,
    ScoreTable,
    judge,
    score,
    score_naive,
)

NOT_HERE = "champion 3 cannot be judged here"


@pytest.fixture(scope="module")
def sender() -> world.SliceMaker:
    return world.SliceMaker(3)


@pytest.fixture(scope="module")
def judging(sender: world.SliceMaker) -> world.SenderSlice:
    return world.joined([sender.slice() for _ in range(7)])


def scored(judging: world.SenderSlice, head_KD: np.ndarray) -> ScoreTable:
    return score(judging.predictions(head_KD), judging.held_out)


def figures(average_precision: float | None, log_mae: float | None) -> ScoreTable:
    """Of a slice too short for an interval."""
    none_R = np.zeros(0)
    return ScoreTable(Figures(average_precision, log_mae, 1.0, 1000, 100, 4, 5), none_R, none_R)


CHAMPION = figures(0.5, 0.2)


@pytest.mark.parametrize(
    ("average_precision", "log_mae", "passed", "reason"),
    [
        (0.5, 0.2, True, "late packets 0.500 against 0.500, log-error 0.200 against 0.200"),
        (0.481, 0.2039, True, "not worse than the champion"),  # within both margins
        (0.479, 0.1, False, "worse than the champion: average precision of late packets 0.479 against 0.500"),
        (0.9, 0.2041, False, "worse than the champion: log-error 0.204 against 0.200"),
        (0.9, None, False, "no judging packet has a known latency"),
    ],
)
def test_where_seconds_are_too_few_for_an_interval_the_figures_are_compared(
    average_precision: float | None, log_mae: float | None, passed: bool, reason: str
) -> None:
    verdict = judge(figures(average_precision, log_mae), CHAMPION, {}, "")
    assert verdict.passed == passed
    assert reason in verdict.reason
    assert log_mae is None or "4 s judge, too few for an interval" in verdict.reason


def test_a_head_that_may_be_worse_by_more_than_the_margin_does_not_pass(sender: world.SliceMaker) -> None:
    """Half a minute in which it happens to be as good say little of a head that is quite another."""
    few_s = world.joined([sender.slice(), sender.slice(), sender.slice()])
    champion_KD = sender.moved(sender.best_KD, world.START)
    champion = scored(few_s, champion_KD)
    better = judge(scored(few_s, sender.best_KD), champion, {}, "")
    assert better.passed, better.reason
    # One bound is absolute, the other a share: each says which.
    assert re.search(rf"{LATE} [\d.]+ against [\d.]+ \(better by 0\.\d\d\d or more\)", better.reason)
    assert re.search(rf"{LOG} [\d.]+ against [\d.]+ \(better by \d+\.\d % or more\)", better.reason)
    verdicts = []
    for _ in range(200):
        challenger = scored(few_s, sender.moved(sender.best_KD, world.START))
        gain = (challenger.figures.average_precision or 0) - (champion.figures.average_precision or 0)
        fine = (challenger.figures.log_mae or 0) < (champion.figures.log_mae or 0)
        if fine and -0.02 < gain < 0:  # the figures alone would let it through
            verdicts.append(judge(challenger, champion, {}, ""))
    refused = [one for one in verdicts if one.reason.startswith(f"worse than the champion: {LATE} ")]
    assert refused
    assert len(refused) > len(verdicts) / 2


def test_the_reference_bars_what_loses_little_by_little(
    sender: world.SliceMaker, judging: world.SenderSlice
) -> None:
    """Each is as good as the champion; all together are worse than where it began."""
    reference_KD = sender.moved(sender.best_KD, 0.3)
    champion_KD = sender.turned(reference_KD, sender.quality(reference_KD) - 0.08)
    challenger_KD = sender.turned(reference_KD, sender.quality(reference_KD) - 0.081)
    champion, challenger, reference = (
        scored(judging, head_KD) for head_KD in (champion_KD, challenger_KD, reference_KD)
    )
    assert judge(challenger, champion, {}, "").passed
    verdict = judge(challenger, champion, {}, "", reference)
    assert not verdict.passed
    assert verdict.reason.startswith(f"worse than the reference: {LATE} ")
    # The way back is open, although it does not reach the bar yet.
    halfway = scored(judging, sender.turned(reference_KD, sender.quality(reference_KD) - 0.03))
    assert judge(halfway, reference, {}, "").passed is False
    assert judge(halfway, champion, {}, "", reference).passed


def test_nothing_passes_below_a_naive_baseline(judging: world.SenderSlice) -> None:
    naive = {"last_flow": score_naive(judging.held_out, world.LAST_US)["last_flow"]}
    blind = scored(judging, np.zeros((2, world.INPUTS)))  # what last_flow says
    assert blind.figures.log_mae == pytest.approx(naive["last_flow"].figures.log_mae)
    blinder = score(judging.predictions(np.zeros((2, world.INPUTS))) * 1.05, judging.held_out)
    verdict = judge(blinder, blinder, naive, "")
    assert not verdict.passed
    assert verdict.reason.startswith(f"below last_flow: {LOG} ")
    assert verdict.loses_to == ("last_flow",)
    assert judge(blind, blinder, naive, "").passed  # it is better than what is served, and on a level


def test_a_single_late_packet_decides_nothing(judging: world.SenderSlice) -> None:
    """The log-error is left to judge, and the line says so."""
    late = np.flatnonzero(judging.held_out.y_BH > 1.5 * world.LAST_US)
    y_BH = judging.held_out.y_BH.copy()
    y_BH.ravel()[late[1:]] = np.nan
    one_late = HeldOutDecisions(
        judging.held_out.candidates_BHF, y_BH, judging.held_out.decision_ns_B, judging.held_out.features
    )
    truth_BH = np.where(np.isfinite(y_BH), y_BH, world.LAST_US)
    missed_BH = truth_BH.copy()
    missed_BH.ravel()[late[0]] = world.LAST_US / 2  # it alone is predicted wrongly, as the lowest of all
    champion, challenger = (score(one, one_late) for one in (truth_BH * 1.01, missed_BH * 1.001))
    assert challenger.figures.n_late == 1
    assert (champion.figures.average_precision or 0) - (challenger.figures.average_precision or 0) > 0.9
    verdict = judge(challenger, champion, {}, "")
    assert verdict.passed, verdict.reason
    assert "1 late packets in 1 s, too few for average precision" in verdict.reason
    assert LATE not in verdict.reason


@pytest.mark.parametrize(
    ("naive", "loses"),
    [
        (CHAMPION, False),  # as good, with no margin
        (figures(0.51, 0.9), True),
        (figures(0.1, 0.198), True),
    ],
)
def test_without_a_champions_figures_the_naive_baselines_judge(naive: ScoreTable, loses: bool) -> None:
    beside = {"last_flow": naive, "last_queue": figures(0.1, 0.9)}
    verdict = judge(CHAMPION, None, beside, NOT_HERE)
    assert verdict.loses_to == (("last_flow",) if loses else ())
    assert verdict.passed == (not loses)
    assert verdict.reason.startswith(NOT_HERE + (", and below last_flow" if loses else ";"))
    first = judge(CHAMPION, None, beside, NO_CHAMPION)  # anything is better than no version
    assert first == Verdict(True, NO_CHAMPION, verdict.loses_to)


def test_without_a_champions_figures_the_reference_judges() -> None:
    reference = figures(0.6, 0.2)
    verdict = judge(CHAMPION, None, {}, NOT_HERE, reference)
    assert verdict.reason.startswith(f"{NOT_HERE}, and worse than the reference: {LATE} 0.500 against 0.600")
    assert not verdict.passed


def test_what_is_no_number_is_refused(judging: world.SenderSlice) -> None:
    us_BH = judging.predictions(np.zeros((2, world.INPUTS)))
    us_BH[0, 0] = np.nan
    with pytest.raises(ValueError, match=r"1 of \d+ predictions are not finite numbers"):
        score(us_BH, judging.held_out)


def test_an_interval_is_of_the_same_draws_for_all(
    sender: world.SliceMaker, judging: world.SenderSlice
) -> None:
    head_KD = sender.moved(sender.best_KD, world.START)
    one, two = scored(judging, head_KD), scored(replace(judging), head_KD)
    np.testing.assert_array_equal(one.average_precision_R, two.average_precision_R)
    spread = np.std(one.average_precision_R)
    paired = np.std(scored(judging, head_KD * 1.001).average_precision_R - one.average_precision_R)
    assert paired < spread / 100


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("challenge", [world.poison, world.noise])
def test_quality_does_not_sink_below_the_reference(challenge: world.NextHead) -> None:
    """By more than margin and noise, in forty rounds; the gate before lets it."""
    qualities = world.run(world.passes, 40, 1, challenge)
    assert min(qualities) > qualities[0] - 0.03
    if challenge is world.poison:
        before = world.run(world.passed_before, 40, 1, challenge)
        assert min(before) < before[0] - 0.05
