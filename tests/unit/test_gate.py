"""The gate's rule, on figures set by hand."""

from __future__ import annotations

import pytest

from models.registry.gate import NO_CHAMPION, Figures, judge

NOT_HERE = "champion 3 cannot run here"


def figures(average_precision: float | None, log_mae: float | None) -> Figures:
    return Figures(average_precision, log_mae, mae_ms=1.0, n=100, n_late=10)


CHAMPION = figures(0.5, 0.2)


@pytest.mark.parametrize(
    ("average_precision", "log_mae", "passed", "reason"),
    [
        (0.5, 0.2, True, "late packets 0.500 against 0.500, log-error 0.200 against 0.200"),
        (0.481, 0.2039, True, "not worse than the champion"),  # within both tolerances
        (0.479, 0.1, False, "worse than the champion: average precision of late packets 0.479 against 0.500"),
        (0.9, 0.2041, False, "worse than the champion: log-error 0.204 against 0.200"),
        (None, 0.2, True, "late packets none against 0.500"),  # no packet was late
        (0.9, None, False, "no packet of the held-out slice has a known latency"),
    ],
)
def test_a_challenger_is_not_worse_than_the_champion(
    average_precision: float | None, log_mae: float | None, passed: bool, reason: str
) -> None:
    verdict = judge(figures(average_precision, log_mae), CHAMPION, {}, "")
    assert verdict.passed == passed
    assert reason in verdict.reason


@pytest.mark.parametrize(
    ("naive", "loses"),
    [
        (CHAMPION, False),  # as good, with no tolerance
        (figures(0.501, 0.9), True),
        (figures(0.1, 0.199), True),
    ],
)
def test_without_a_champions_figures_the_naive_baselines_judge(naive: Figures, loses: bool) -> None:
    beside = {"last_flow": naive, "last_queue": figures(0.1, 0.9)}
    verdict = judge(CHAMPION, None, beside, NOT_HERE)
    assert verdict.loses_to == (("last_flow",) if loses else ())
    assert verdict.passed == (not loses)
    assert verdict.reason == NOT_HERE + (", and it loses to last_flow" if loses else "")
    first = judge(CHAMPION, None, beside, NO_CHAMPION)  # anything is better than no version
    assert (first.passed, first.reason, first.loses_to) == (True, NO_CHAMPION, verdict.loses_to)
    served = judge(CHAMPION, CHAMPION, beside, "")  # the champion alone counts where it has figures
    assert (served.passed, served.loses_to) == (True, verdict.loses_to)
