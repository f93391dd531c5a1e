"""`swiftqueue lab verdict`: a scenario's figures to reach beside what was measured.

A figure is one value for each seed, so its interval is Student's over seeds. Limits and rules are those of
Confucius' evaluation (docs/LABORATORY.md).
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import polars as pl

from laboratory.lfq import judged as lfq
from laboratory.lfq import table as lfq_table
from laboratory.report.judging import FEWEST_SEEDS, SETTLED
from laboratory.runs import experience
from models.scoring.intervals import Estimate, corrected, estimate

HELD: Final = "held"
NOT_HELD: Final = "not held"
NOT_SETTLED: Final = "not settled"
CONFUCIUS: Final = "Confucius"
MOST_LONGER_S: Final = 0.361  # log2(e) / lambda: the paper's bound of a page's time beyond fair queuing's
CONFUCIUS_RTT_S: Final = 0.04  # of the path, in all of its evaluation
MOST_FLOWS_WITHOUT_STALL: Final = 60  # of a page
UNLABELLED: Final = ("FIFO", "FQ+FIFO", "FqCoDel", "CoDel", "RED", "SJF", "HHF")
LABELLED: Final = ("CBQ 1:1", "CBQ 1:5", "priority")
FRAME_S: Final = 0.02  # between two frames: the least stall there is
WHO: Final = "who-picks"
CHEATS: Final = "who-picks-cheats"
NOBODY: Final = "nobody: FIFO"
BY_SENDER: Final = "label or sender: DualPI2"  # what a sender chooses in
BOTH: Final = "both: "
HONEST: Final = "honest"
EQUAL_SHARE: Final = 0.5  # of a call and one other
IN_RIGHT_CLASS: Final = "share of seconds in the right class"
RIGHT_CLASS: Final = {"gcc": 1, "copa": 1, "bbr": 2, "cubic": 3}
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
    kinds = (
        (JUDGED, experience.load),
        (JUDGED_BY_FLOW, experience.load_flows),
        (JUDGED_BY_CLASS, experience.load_classes),
    )
    for judges, read in kinds:
        if name in judges:
            table = read(output).filter(pl.col("scenario") == name)
            break
    else:
        known = ", ".join([*(one for judges, _ in kinds for one in judges), *LFQ])
        raise ValueError(f"{name}: no figure is to be reached in it, but in {known}")
    if table.is_empty():
        raise ValueError(f"{output} has no results of {name}: `swiftqueue lab run {name}` makes them")
    found = judges[name](table)
    return with_classes(found, experience.load_classes(output).filter(pl.col("scenario") == name))


def with_classes(found: Sequence[Verdict], classes: pl.DataFrame) -> list[Verdict]:
    """The verdicts, that on the right class by a table of the flows' classes where it has rows."""
    if classes.is_empty():
        return [*found]
    measured = judged(IN_RIGHT_CLASS, list(right_class(classes).values()), at_least=0.9)
    return [measured if one.figure == IN_RIGHT_CLASS else one for one in found]


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

        verdicts += [
            *_stalls(table, call),
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


def _stalls(table: pl.DataFrame, call: str) -> list[Verdict]:
    """How long a call stalls beside a page under Confucius, over the best rule without labels and FqCoDel."""
    stall = _at(table, f"{CONFUCIUS}, {call}", "stall_per_page_s")
    others = {rule: _at(table, f"{rule}, {call}", "stall_per_page_s") for rule in UNLABELLED}
    run = {rule: values for rule, values in others.items() if values}
    # The best over all seeds, so that no seed's luck chooses what it is compared with.
    best = min(run, key=lambda rule: sum(run[rule].values()) / len(run[rule]), default="")
    missing = [rule for rule in UNLABELLED if rule not in run]
    note = f"without {', '.join(missing)}" if missing else None
    figure = f"{call}: stall over the best unlabelled ({best or 'none'})"
    return [
        _ratio(figure, stall, run.get(best, {}), 0.5, note),
        _ratio(f"{call}: stall over FqCoDel", stall, others["FqCoDel"], 0.4),
    ]


def _ratio(figure: str, ours: Values, base: Values, at_most: float, note: str | None = None) -> Verdict:
    seeds = sorted(set(ours) & set(base))
    values = [ours[seed] / base[seed] for seed in seeds if base[seed] > 0]
    if seeds and not values:
        note = "nothing to be less than: it is 0 there"
    return judged(figure, values, at_most, note)


def _at(table: pl.DataFrame, point: str, column: str) -> Values:
    """A column of a point's runs, by seed."""
    return dict(table.filter(pl.col("point") == point).select("seed", column).drop_nulls().iter_rows())


def _last_parts(table: pl.DataFrame) -> list[str]:
    """What varies beside rule and call, as the points' names end, in the order of its numbers."""
    ends = {point.split(", ")[-1] for point in table["point"]}
    return sorted(ends, key=lambda end: (float(end) if end.isdigit() else 0.0, end))


def longer_than_fair(table: pl.DataFrame, end: str) -> list[float]:
    """How much longer a page takes to load than under FQ+FIFO, s, for each seed."""
    ours, base = (_at(table, f"{rule}, GCC, {end}", "load_mean_s") for rule in (CONFUCIUS, "FQ+FIFO"))
    return [ours[seed] - base[seed] for seed in sorted(set(ours) & set(base))]


def _longer_than_fair(table: pl.DataFrame, end: str) -> Verdict:
    values = longer_than_fair(table, end)
    return judged(f"{end}: page load time less FQ+FIFO's, s", values, MOST_LONGER_S)


def _confucius_flows(table: pl.DataFrame) -> list[Verdict]:
    found = []
    for flows in _last_parts(table):
        stall = list(_at(table, f"{CONFUCIUS}, GCC, {flows}", "stall_per_page_s").values())
        most = 0.0 if int(flows) <= MOST_FLOWS_WITHOUT_STALL else 0.1
        found += [judged(f"{flows} flows: stall, s", stall, most), _longer_than_fair(table, flows)]
    return found


def _confucius_sizes(table: pl.DataFrame) -> list[Verdict]:
    return [_longer_than_fair(table, size) for size in _last_parts(table)]


def _confucius_calls(table: pl.DataFrame) -> list[Verdict]:
    found = []
    for calls in _last_parts(table):
        ours, base = (_at(table, f"{rule}, GCC, {calls}", "stall_s") for rule in (CONFUCIUS, "FQ+FIFO"))
        found.append(_ratio(f"{calls} calls: stall over FQ+FIFO", ours, base, 0.5))
    return found


def _confucius_elsewhere(table: pl.DataFrame) -> list[Verdict]:
    found = []
    for where in ("before", "behind"):
        for column, what in (
            ("frame_p99_s", "frame P99"),
            ("load_mean_s", "load"),
            ("call_mbps", "call's rate"),
        ):
            ours, base = (_at(table, f"{rule}, {where}", column) for rule in (CONFUCIUS, "FIFO"))
            values = [abs(ours[seed] / base[seed] - 1) for seed in sorted(set(ours) & set(base))]
            found.append(judged(f"bottleneck {where}: {what} apart from FIFO's, part of it", values, 0.02))
    return found


def _confucius_links(table: pl.DataFrame) -> list[Verdict]:
    """No rule stalls less and loads sooner: the larger of both differences is not below 0."""
    found = []
    for link in _last_parts(table):
        for rule in UNLABELLED:
            theirs, ours = (
                [_at(table, f"{one}, GCC, {link}", column) for column in ("stall_per_page_s", "load_mean_s")]
                for one in (rule, CONFUCIUS)
            )
            seeds = sorted(set.intersection(*(set(values) for values in (*theirs, *ours))))
            worse = [max(t[seed] - o[seed] for t, o in zip(theirs, ours, strict=True)) for seed in seeds]
            if seeds:
                found.append(
                    judged(f"{link}: what {rule} has worse, of stall and load, s", worse, at_least=0.0)
                )
    return found


def _confucius_page(table: pl.DataFrame) -> list[Verdict]:
    """The paper's figure 2: beside one heavy page a call stalls wherever no label says which it is."""

    def stalls(rule: str) -> list[float]:
        return list(_at(table, f"{rule}, GCC", "stall_s").values())

    found = [
        judged(f"{rule}: stall, s", values, at_least=FRAME_S)
        for rule in UNLABELLED
        if (values := stalls(rule))
    ]
    found += [judged(f"{rule}: stall, s", values, 0.0) for rule in LABELLED if (values := stalls(rule))]
    return [*found, *_stalls(table, "GCC")]


def _confucius_cuts(table: pl.DataFrame) -> list[Verdict]:
    """The paper's figure 7: a sixteenth of the rate stalls a call of GCC for more than 10 s."""
    stalls = list(_at(table, "FIFO, GCC, 16", "stall_s").values())
    return [judged("GCC, a sixteenth of the rate: stall, s", stalls, at_least=10.0)]


def _confucius_probing(classes: pl.DataFrame) -> list[Verdict]:
    """The paper's figure 26: a flow of BBR keeps its class, whatever its round trip."""
    found = []
    for trip in sorted({point.split(", ")[-1] for point in classes["point"]}, key=_number):
        own = classes.filter(pl.col("point") == f"{CONFUCIUS}, BBR, {trip}").sort("seed")
        changes = [_changes(*one) for one in own.select("warmup_s", "every_s", "classes").iter_rows()]
        found.append(judged(f"{trip}: changes of class", changes, 0.0))
    return found


def _number(text: str) -> float:
    return float(text.split()[0])


def _changes(warmup_s: float, every_s: float, seen: Sequence[int]) -> float:
    kept = [one for i, one in enumerate(seen) if (i + 1) * every_s >= warmup_s]
    return float(sum(a != b for a, b in itertools.pairwise(kept)))


def fairness(goodputs: Sequence[float]) -> float:
    """Jain's index: 1 where all have the same, 1/n where one has all."""
    return sum(goodputs) ** 2 / (len(goodputs) * sum(value**2 for value in goodputs))


def fairness_of(table: pl.DataFrame, point: str) -> Values:
    """Jain's index of a point's runs over their flows, by seed."""
    own = table.filter(pl.col("point") == point).group_by("seed").agg("goodput_mbps").sort("seed")
    return {seed: fairness(goodputs) for seed, goodputs in own.iter_rows()}


def _confucius_mix(table: pl.DataFrame) -> list[Verdict]:
    point = f"{CONFUCIUS}, GCC"
    found = [judged("Jain's index", list(fairness_of(table, point).values()), at_least=0.95)]
    for call in ("copa", "gcc"):
        # GCC has no ACKs; the way back is empty, so only the wait comes on top of the path's round trip.
        measured = pl.coalesce("rtt_p99_s", pl.col("queueing_p99_s") + CONFUCIUS_RTT_S)
        rtt = _at(table.filter(pl.col("tcp") == call).with_columns(rtt=measured), point, "rtt")
        found.append(judged(f"{call}: round trip P99, s", list(rtt.values()), 0.07))
    why = "these runs do not tell which class a flow is in"
    return [*found, judged(IN_RIGHT_CLASS, [], reason=why, at_least=0.9)]


def right_class(classes: pl.DataFrame) -> Values:
    """Share of looks behind the warm-up at which a flow is in its TCP's class, the mean of flows, by seed.

    The paper's figure 13b: Copa and GCC short, BBR middle, Cubic long. Not known or new is not right.
    """
    shares: dict[int, list[float]] = {}
    for seed, tcp, warmup_s, every_s, seen in classes.select(
        "seed", "tcp", "warmup_s", "every_s", "classes"
    ).rows():
        counted = [one for i, one in enumerate(seen) if (i + 1) * every_s >= warmup_s]
        shares.setdefault(seed, []).append(counted.count(RIGHT_CLASS[tcp]) / len(counted))
    return {seed: sum(values) / len(values) for seed, values in sorted(shares.items())}


def _confucius_fair(table: pl.DataFrame) -> list[Verdict]:
    return [
        judged(
            f"{flows} flows: Jain's index",
            list(fairness_of(table, f"{CONFUCIUS}, GCC, {flows}").values()),
            at_least=0.9,
        )
        for flows in _last_parts(table)
    ]


def who_rule(point: str, profile: str, control: str) -> str:
    """Who picks in a row of who-picks, on one line: nobody, a rule of the router, a sender, or both."""
    queue = ", uncoupled" if profile != "rfc9332" else ""
    chosen = "" if control == "default" else f", {control.replace('_', ' ')}"
    if point.startswith(BOTH):
        _, _, told = point.partition("; ")
        return f"{BOTH}weights by age{chosen}{f', {told}' if told and chosen else ''}{queue}"
    if point == BY_SENDER:
        return f"sender: {chosen[2:]}{queue}" if chosen else f"label: DualPI2{queue}"
    return point


def _who_picks(table: pl.DataFrame) -> list[Verdict]:
    """Each rule's frames and pages beside nobody's; a sender's beside the same queue's if it does not choose.

    Settled is what is so by an interval of 95 % and after correction (Holm) for all rules and senders.
    """
    own = table.filter(~pl.col("point").str.ends_with(" calls"))
    values: dict[str, dict[str, Values]] = {"frame_p99_s": {}, "load_mean_s": {}}
    bases: dict[str, str] = {}
    for point, profile, control in sorted(set(own.select("point", "profile", "control").rows())):
        rule = who_rule(point, profile, control)
        here = own.filter(
            pl.col("point") == point, pl.col("profile") == profile, pl.col("control") == control
        )
        for column, of in values.items():
            of[rule] = dict(here.select("seed", column).drop_nulls().rows())
        chooses = control != "default"
        bases[rule] = who_rule(point, profile, "default") if chooses else NOBODY
    bases.pop(NOBODY, None)
    found, chances = [], []
    for column, what in (("frame_p99_s", "frame P99"), ("load_mean_s", "page load time")):
        of = values[column]
        for rule, base in bases.items():
            ratio = {s: v / of[base][s] for s, v in of[rule].items() if of.get(base, {}).get(s, 0) > 0}
            found.append(judged(f"{rule}: {what} over {base}", list(ratio.values()), 1.0))
            measured = estimate(list(ratio.values()))
            below = measured is not None and measured.mean < 1
            chances.append(1.0 if measured is None else measured.chance(1.0, below=below))
    # Two-sided, for nobody said beforehand which way it would go.
    after = corrected([min(1.0, 2 * chance) for chance in chances])
    return [
        replace(one, verdict=NOT_SETTLED, reason="not after correction")
        if chance > SETTLED and one.verdict != NOT_SETTLED
        else one
        for one, chance in zip(found, after, strict=True)
    ]


def cheat_shares(table: pl.DataFrame) -> dict[tuple[str, str], Values]:
    """What the cheat's group gets of all goodput, by rule and cheat, by seed."""
    shares: dict[tuple[str, str], Values] = {}
    for point, seed, call, cheat in table.select("point", "seed", "call_mbps", "web_mbps").rows():
        rule, _, kind = point.rpartition(", ")
        shares.setdefault((rule, kind), {})[seed] = cheat / (call + cheat)
    return shares


def _who_picks_cheats(table: pl.DataFrame) -> list[Verdict]:
    """Each rule's worst case: the cheat with the largest mean share, beside an equal share."""
    shares = cheat_shares(table)
    found = []
    for rule in sorted({rule for rule, _ in shares}):
        cheats = {kind: values for (of, kind), values in shares.items() if of == rule and kind != HONEST}
        if not cheats:
            continue
        worst = max(cheats, key=lambda kind: sum(cheats[kind].values()) / len(cheats[kind]))
        found.append(judged(f"{rule}: share of a cheat ({worst})", list(cheats[worst].values()), EQUAL_SHARE))
    return found


Judge = Callable[[pl.DataFrame], list[Verdict]]
JUDGED: Final[dict[str, Judge]] = {
    "confucius-web": _confucius_web,
    "confucius-flows": _confucius_flows,
    "confucius-sizes": _confucius_sizes,
    "confucius-calls": _confucius_calls,
    "confucius-elsewhere": _confucius_elsewhere,
    "confucius-wifi": _confucius_links,
    "confucius-cellular": _confucius_links,
    "confucius-page": _confucius_page,
    "confucius-cuts": _confucius_cuts,
    WHO: _who_picks,
    CHEATS: _who_picks_cheats,
}
JUDGED_BY_FLOW: Final[dict[str, Judge]] = {"confucius-mix": _confucius_mix, "confucius-fair": _confucius_fair}
JUDGED_BY_CLASS: Final[dict[str, Judge]] = {"confucius-probing": _confucius_probing}


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
    learned = {rule.split()[1] for rule in lfq.rules_of(rows)}
    for (of_rule, tcp, axis), least in lfq.LEAST_CORRELATION.items():
        if of_rule not in learned:
            figure = f"LFQ {of_rule}: r of the limit with {axis}, {tcp}"
            found.append(judged(figure, [], at_least=least, reason="no runs with such a network"))
    return found


def _of_lfq(table: pl.DataFrame, study: str) -> pl.DataFrame:
    rows = table.filter(pl.col("study") == study, pl.col("initial_window") == 1)
    if rows.is_empty():
        raise ValueError(f"there are no results of {study}: `swiftqueue lab run {lfq_table.NAME}` makes them")
    return rows


LFQ: Final[dict[str, Callable[[pl.DataFrame], list[Verdict]]]] = {"lfq-400": _lfq_400, "lfq": _lfq}
