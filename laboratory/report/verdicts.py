"""`swiftqueue lab verdict`: a scenario's figures to reach beside what was measured.

A figure is one value for each seed, so its interval is Student's over seeds. Limits and rules are those of
Confucius' evaluation (docs/LABORATORY.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from laboratory.lfq import judged as lfq
from laboratory.lfq import table as lfq_table
from laboratory.report.judging import FEWEST_SEEDS
from laboratory.runs import experience
from models.scoring.intervals import Estimate, estimate

HELD: Final = "held"
NOT_HELD: Final = "not held"
NOT_SETTLED: Final = "not settled"
CONFUCIUS: Final = "Confucius"
UNLABELLED: Final = ("FIFO", "FQ+FIFO", "FqCoDel", "CoDel", "RED", "SJF", "HHF")
Values = dict[int, float]  # by seed
Measure = Callable[[str], Values]  # of a rule's column


@dataclass(frozen=True)
class Verdict:
    """A figure to reach; `measured` is None, with the reason, where nothing was measured."""

    figure: str
    at_most: float | None
    measured: float | None
    low: float | None
    high: float | None
    seeds: int
    verdict: str
    reason: str | None = None
    at_least: float | None = None  # where `at_most` is None


def of_scenario(name: str, output: Path) -> list[Verdict]:
    """All verdicts on a scenario's runs in an output folder.

    Raises:
        ValueError: there is nothing to be judged in this scenario, or no result of it.
    """
    if name in LFQ:
        return LFQ[name](lfq_table.read(output))
    if name not in JUDGED:
        known = ", ".join([*JUDGED, *LFQ])
        raise ValueError(f"{name}: no figure is to be reached in it, but in {known}")
    table = experience.load(output).filter(pl.col("scenario") == name)
    if table.is_empty():
        raise ValueError(f"{output} has no results of {name}: `swiftqueue lab run {name}` makes them")
    return JUDGED[name](table)


def print_verdicts(name: str, output: Path, *, as_json: bool) -> int:
    """Print them, a line or a JSON object each; 1 where one is not held, else 0."""
    found = of_scenario(name, output)
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
    return f"measured {v.measured:.3g}{interval}, {v.seeds} seeds" + (f", {v.reason}" if v.reason else "")


def judged(
    figure: str,
    values: Sequence[float],
    at_most: float | None = None,
    reason: str | None = None,
    *,
    at_least: float | None = None,
) -> Verdict:
    """Held: the whole interval is within the limit. Not held: all of it is beyond. Else not settled."""
    if at_most is None:
        if at_least is None:
            raise ValueError(f"{figure}: there is no limit")
        turned = judged(figure, [-value for value in values], -at_least, reason)
        mean, low, high = (None if x is None else -x for x in (turned.measured, turned.high, turned.low))
        return replace(turned, at_most=None, at_least=at_least, measured=mean, low=low, high=high)
    found: Estimate | None = estimate([value for value in values if math.isfinite(value)])
    if found is None:
        return Verdict(figure, at_most, None, None, None, 0, NOT_SETTLED, reason or "not run")
    if found.n < FEWEST_SEEDS:
        verdict, reason = NOT_SETTLED, f"fewer than {FEWEST_SEEDS} seeds"
    elif found.high is not None and found.high <= at_most:
        verdict = HELD
    else:
        verdict = NOT_HELD if found.above(at_most) else NOT_SETTLED
    return Verdict(figure, at_most, found.mean, found.low, found.high, found.n, verdict, reason)


def _confucius_web(table: pl.DataFrame) -> list[Verdict]:
    verdicts = []
    for call in ("Copa", "GCC"):

        def of(rule: str, column: str, call: str = call) -> Values:
            rows = table.filter(pl.col("point") == f"{rule}, {call}").select("seed", column).drop_nulls()
            return dict(rows.iter_rows())

        stall = of(CONFUCIUS, "stall_per_page_s")
        others = {rule: of(rule, "stall_per_page_s") for rule in UNLABELLED}
        run = {rule: values for rule, values in others.items() if values}
        # The best over all seeds, so that no seed's luck chooses what it is compared with.
        best = min(run, key=lambda rule: sum(run[rule].values()) / len(run[rule]), default="")
        missing = [rule for rule in UNLABELLED if rule not in run]
        note = f"without {', '.join(missing)}" if missing else None
        verdicts += [
            _ratio(
                f"{call}: stall over the best unlabelled ({best or 'none'})",
                stall,
                run.get(best, {}),
                0.5,
                note,
            ),
            _ratio(f"{call}: stall over FqCoDel", stall, others["FqCoDel"], 0.4),
            _ratio(
                f"{call}: page load time over FQ+FIFO",
                of(CONFUCIUS, "load_mean_s"),
                of("FQ+FIFO", "load_mean_s"),
                1.10,
            ),
            judged(
                f"{call}: share of pages that stall",
                list(of(CONFUCIUS, "stalling_pages_share").values()),
                0.2,
            ),
        ]
    return verdicts


def _ratio(figure: str, ours: Values, base: Values, at_most: float, note: str | None = None) -> Verdict:
    seeds = sorted(set(ours) & set(base))
    values = [ours[seed] / base[seed] for seed in seeds if base[seed] > 0]
    if seeds and not values:
        note = "nothing to be less than: it is 0 there"
    return judged(figure, values, at_most, note)


JUDGED: Final[dict[str, Callable[[pl.DataFrame], list[Verdict]]]] = {"confucius-web": _confucius_web}


def _lfq_400(table: pl.DataFrame) -> list[Verdict]:
    """The table of 400: throughput and mean queue over FqCoDel's, by groups of the grid."""
    rows = _of_lfq(table, lfq_table.NAME)
    found = []
    for alpha, least, most in lfq.TABLE_TARGETS:
        rule = f"LFQ counterfactual {alpha:g}"
        for column, what in (("goodput_mbps", "throughput"), ("queue_mean", "mean queue")):
            base = lfq.mean_of(rows, lfq_table.FQ_CODEL, column)
            values = lfq.ratios(lfq.mean_of(rows, rule, column), base)
            figure = f"{rule}: {what} over FqCoDel"
            wants_more = what == "throughput"
            found.append(
                judged(figure, values, at_least=least) if wants_more else judged(figure, values, most)
            )
    return found


def _lfq(table: pl.DataFrame) -> list[Verdict]:
    """What each network has learned: correlations, Reno's limit beside BIC's, the reward."""
    rows, best = _of_lfq(table, lfq_table.NAME), _of_lfq(table, lfq_table.BEST)
    found = []
    for rule in lfq.rules_of(rows):
        for (of_rule, tcp, axis), least in lfq.LEAST_CORRELATION.items():
            if of_rule == rule.split()[1]:
                values = list(lfq.correlation(rows, rule, tcp, axis).values())
                found.append(judged(f"{rule}: r of the limit with {axis}, {tcp}", values, at_least=least))
        limits = [
            lfq.mean_of(rows.filter(pl.col("tcp") == tcp), rule, "limit_mean") for tcp in ("new_reno", "bic")
        ]
        found.append(judged(f"{rule}: New Reno's limit over BIC's", lfq.ratios(*limits), at_least=1.0))
        values = list(lfq.part_of_best(best, rule).values())
        wanted = lfq.LEAST_OF_BEST
        found.append(judged(f"{rule}: reward over the best static limit's", values, at_least=wanted))
    return found


def _of_lfq(table: pl.DataFrame, study: str) -> pl.DataFrame:
    rows = table.filter(pl.col("study") == study, pl.col("initial_window") == 1)
    if rows.is_empty():
        raise ValueError(f"there are no results of {study}: `swiftqueue lab run {lfq_table.NAME}` makes them")
    return rows


LFQ: Final[dict[str, Callable[[pl.DataFrame], list[Verdict]]]] = {"lfq-400": _lfq_400, "lfq": _lfq}
