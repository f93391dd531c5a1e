"""LFQ's figures to reach beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.verdict import Verdict, judged
from swiftqueue.studies.lfq.judged import (
    LEAST_CORRELATION,
    LEAST_OF_BEST,
    TABLE_TARGETS,
    beside,
    correlation,
    mean_of,
    part_of_best,
    ratios,
    rules_of,
)
from swiftqueue.studies.lfq.table import BEST, FQ_CODEL, TABLE, read


def _lfq_400(table: pl.DataFrame) -> list[Verdict]:
    """Judge the table of 400: throughput and mean queue over FqCoDel's, by groups of the grid."""
    rows = _of(table, TABLE)
    found = []
    for alpha, least, most in TABLE_TARGETS:
        rule = f"LFQ counterfactual {alpha:g}"
        for column, what in (("goodput_mbps", "throughput"), ("queue_mean", "mean queue")):
            both = beside(rows, rule, FQ_CODEL)
            base = mean_of(both, FQ_CODEL, column)
            values = ratios(mean_of(both, rule, column), base)
            figure = f"{rule}: {what} over FqCoDel"
            wants_more = what == "throughput"
            found.append(
                judged(figure, values, at_least=least) if wants_more else judged(figure, values, most)
            )
    return found


def _lfq(table: pl.DataFrame) -> list[Verdict]:
    """Judge what each network has learned: correlations, Reno's limit beside BIC's, the reward."""
    rows, best = _of(table, TABLE), _of(table, BEST)

    def correlations(rule: str, learned: str, reason: str | None = None) -> list[Verdict]:
        return [
            judged(
                f"{rule}: r of the limit with {axis}, {tcp}",
                list(correlation(rows, rule, tcp, axis).values()),
                at_least=least,
                reason=reason,
            )
            for (tcp, axis), least in LEAST_CORRELATION[learned].items()
        ]

    found = []
    rules = {rule: rule.split()[1] for rule in rules_of(rows)}
    for rule, learned in rules.items():
        found += correlations(rule, learned)
        limits = [
            mean_of(rows.filter(pl.col("tcp") == tcp), rule, "limit_mean") for tcp in ("new_reno", "bic")
        ]
        found.append(judged(f"{rule}: New Reno's limit over BIC's", ratios(*limits), at_least=1.0))
        values = list(part_of_best(best, rule).values())
        wanted = LEAST_OF_BEST
        found.append(judged(f"{rule}: reward over the best static limit's", values, at_least=wanted))
    for learned in sorted(set(LEAST_CORRELATION) - set(rules.values())):
        found += correlations(f"LFQ {learned}", learned, "no runs with such a network")
    return found


def _of(table: pl.DataFrame, study: str) -> pl.DataFrame:
    rows = table.filter(pl.col("study") == study, pl.col("initial_window") == 1)
    if rows.is_empty():
        raise ValueError(f"there are no results of {study}: `swiftqueue lfq table` makes them")
    return rows


LFQ: Final[Mapping[str, Callable[[pl.DataFrame], list[Verdict]]]] = {"lfq-400": _lfq_400, "lfq": _lfq}


def of_study(name: str, output: Path) -> list[Verdict]:
    """Return the verdicts on the table of 400, or on what the networks learned.

    Raises:
        ValueError: there is no such study, or no result of it.
    """
    if name not in LFQ:
        raise ValueError(f"{name}: no figure is to be reached in it, but in {', '.join(LFQ)}")
    return LFQ[name](read(output))
