"""`swiftqueue lab verdict`: a scenario's figures to reach beside what was measured.

A figure is one value for each seed, so its interval is Student's over seeds. Limits and rules are those of
Confucius' evaluation (docs/LABORATORY.md).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

import polars as pl

from laboratory.lfq import judged as lfq
from laboratory.lfq import table as lfq_table
from laboratory.report import confucius
from laboratory.report.verdict import NOT_HELD, Verdict, judged
from laboratory.report.who_picks import CHEATS, WHO, who_picks, who_picks_cheats
from laboratory.runs import experience
from laboratory.scenarios.files import LFQ_TABLE


def of_scenario(name: str, output: Path) -> list[Verdict]:
    """All verdicts on a scenario's runs in an output folder.

    Raises:
        ValueError: there is nothing to be judged in this scenario, or no result of it.
    """
    if name in LFQ:
        return LFQ[name](lfq_table.read(output))
    if name not in JUDGES:
        known = ", ".join([*JUDGES, *LFQ])
        raise ValueError(f"{name}: no figure is to be reached in it, but in {known}")
    file, judge = JUDGES[name]
    table = experience.load(output, file).filter(pl.col("scenario") == name)
    if table.is_empty():
        raise ValueError(f"{output} has no results of {name}: `swiftqueue lab run {name}` makes them")
    return with_classes(
        judge(table), experience.load(output, experience.CLASSES).filter(pl.col("scenario") == name)
    )


def with_classes(found: Sequence[Verdict], classes: pl.DataFrame) -> list[Verdict]:
    """The verdicts, that on the right class by a table of the flows' classes where it has rows."""
    if classes.is_empty():
        return [*found]
    measured = judged(confucius.IN_RIGHT_CLASS, list(confucius.right_class(classes).values()), at_least=0.9)
    return [measured if one.figure == confucius.IN_RIGHT_CLASS else one for one in found]


def print_verdicts(found: Sequence[Verdict], *, as_json: bool) -> int:
    """Print them, a line or a JSON object each; 1 where one is not held, else 0."""
    if as_json:
        print(json.dumps([asdict(verdict) for verdict in found], indent=1))
    else:
        for v in found:
            wanted = f"at least {v.at_least:g}" if v.at_most is None else f"at most {v.at_most:g}"
            print(f"{v.figure}: {wanted}; {_measured(v)}: {v.verdict}")
    return int(any(v.verdict == NOT_HELD for v in found))


def _measured(v: Verdict) -> str:
    if v.measured is None:
        return v.reason or "not measured"
    interval = "" if v.low is None or v.high is None else f" ({v.low:.3g} to {v.high:.3g})"
    seeds = f", {v.seeds} seeds" if v.seeds else ""
    return f"measured {v.measured:.3g}{interval}{seeds}" + (f", {v.reason}" if v.reason else "")


Judge = Callable[[pl.DataFrame], list[Verdict]]
# The table that a scenario is judged by, and the judge.
JUDGES: Final[dict[str, tuple[str, Judge]]] = {
    "confucius-web": (experience.FILE, confucius.web),
    "confucius-flows": (experience.FILE, confucius.flows),
    "confucius-sizes": (experience.FILE, confucius.sizes),
    "confucius-calls": (experience.FILE, confucius.calls),
    "confucius-elsewhere": (experience.FILE, confucius.elsewhere),
    "confucius-wifi": (experience.FILE, confucius.links),
    "confucius-cellular": (experience.FILE, confucius.links),
    "confucius-page": (experience.FILE, confucius.page),
    "confucius-cuts": (experience.FILE, confucius.cuts),
    WHO: (experience.FILE, who_picks),
    CHEATS: (experience.FILE, who_picks_cheats),
    "confucius-mix": (experience.FLOWS, confucius.mix),
    "confucius-mix-fast": (experience.FLOWS, confucius.mix),
    "confucius-fair": (experience.FLOWS, confucius.fair),
    confucius.OCCUPANCY: (experience.FLOWS, confucius.occupancy),
    "confucius-probing": (experience.CLASSES, confucius.probing),
}


def _lfq_400(table: pl.DataFrame) -> list[Verdict]:
    """The table of 400: throughput and mean queue over FqCoDel's, by groups of the grid."""
    rows = _of_lfq(table, LFQ_TABLE)
    found = []
    for alpha, least, most in lfq.TABLE_TARGETS:
        rule = f"LFQ counterfactual {alpha:g}"
        for column, what in (("goodput_mbps", "throughput"), ("queue_mean", "mean queue")):
            both = lfq.beside(rows, rule, lfq_table.FQ_CODEL)
            base = lfq.mean_of(both, lfq_table.FQ_CODEL, column)
            values = lfq.ratios(lfq.mean_of(both, rule, column), base)
            figure = f"{rule}: {what} over FqCoDel"
            wants_more = what == "throughput"
            found.append(
                judged(figure, values, at_least=least) if wants_more else judged(figure, values, most)
            )
    return found


def _lfq(table: pl.DataFrame) -> list[Verdict]:
    """What each network has learned: correlations, Reno's limit beside BIC's, the reward."""
    rows, best = _of_lfq(table, LFQ_TABLE), _of_lfq(table, lfq_table.BEST)

    def correlations(rule: str, learned: str, reason: str | None = None) -> list[Verdict]:
        return [
            judged(
                f"{rule}: r of the limit with {axis}, {tcp}",
                list(lfq.correlation(rows, rule, tcp, axis).values()),
                at_least=least,
                reason=reason,
            )
            for (tcp, axis), least in lfq.LEAST_CORRELATION[learned].items()
        ]

    found = []
    rules = {rule: rule.split()[1] for rule in lfq.rules_of(rows)}
    for rule, learned in rules.items():
        found += correlations(rule, learned)
        limits = [
            lfq.mean_of(rows.filter(pl.col("tcp") == tcp), rule, "limit_mean") for tcp in ("new_reno", "bic")
        ]
        found.append(judged(f"{rule}: New Reno's limit over BIC's", lfq.ratios(*limits), at_least=1.0))
        values = list(lfq.part_of_best(best, rule).values())
        wanted = lfq.LEAST_OF_BEST
        found.append(judged(f"{rule}: reward over the best static limit's", values, at_least=wanted))
    for learned in sorted(set(lfq.LEAST_CORRELATION) - set(rules.values())):
        found += correlations(f"LFQ {learned}", learned, "no runs with such a network")
    return found


def _of_lfq(table: pl.DataFrame, study: str) -> pl.DataFrame:
    rows = table.filter(pl.col("study") == study, pl.col("initial_window") == 1)
    if rows.is_empty():
        raise ValueError(f"there are no results of {study}: `swiftqueue lab run {LFQ_TABLE}` makes them")
    return rows


LFQ: Final[dict[str, Callable[[pl.DataFrame], list[Verdict]]]] = {"lfq-400": _lfq_400, "lfq": _lfq}
