"""The figures to reach of the scenarios after Confucius' evaluation (docs/LABORATORY.md)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.noticed import fairness
from swiftqueue.laboratory.report.verdict import Judges, Values, Verdict, at, judge_scenario, judged, ratio
from swiftqueue.laboratory.runs import experience

CONFUCIUS: Final = "Confucius"
FAIR: Final = "FQ+FIFO"  # load times are compared with this rule's
FQ_CODEL: Final = "FqCoDel"
MOST_LONGER_S: Final = 0.361  # log2(e) / lambda: the paper's bound of a page's time beyond fair queuing's
CONFUCIUS_RTT_S: Final = 0.04  # round trip of the path, in all of its evaluation
MOST_FLOWS_WITHOUT_STALL: Final = 60  # flows of a page
UNLABELLED: Final = ("FIFO", FAIR, FQ_CODEL, "CoDel", "RED", "SJF", "HHF")
LABELLED: Final = ("CBQ 1:1", "CBQ 1:5", "priority")
FRAME_S: Final = 0.02  # between two frames: the least stall there is
IN_RIGHT_CLASS: Final = "share of seconds in the right class"
LITTLE: Final = ("GCC", "Copa", "Vegas")  # controls that take little of the buffer, in the paper's figure 8
MUCH: Final = ("Cubic", "Illinois", "YeAH")
OCCUPYING: Final = (*LITTLE, "BBR", *MUCH)
LITTLE_OCCUPANCY: Final = 0.2
MUCH_OCCUPANCY: Final = 0.8
RIGHT_CLASS: Final = {"gcc": 1, "copa": 1, "bbr": 2, "cubic": 3}


def web(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 10: how long a call stalls beside 60 pages, and how long those take."""
    verdicts = []
    for call in ("Copa", "GCC"):

        def of(rule: str, column: str, call: str = call) -> Values:
            rows = table.filter(pl.col("point") == f"{rule}, {call}").select("seed", column).drop_nulls()
            return dict(rows.iter_rows())

        verdicts += [
            *_stalls(table, call),
            ratio(
                f"{call}: page load time over {FAIR}",
                of(CONFUCIUS, "load_mean_s"),
                of(FAIR, "load_mean_s"),
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
    """Judge a call's stall beside a page under Confucius, over the best unlabelled rule and over FqCoDel."""
    stall = at(table, f"{CONFUCIUS}, {call}", "stall_per_page_s")
    others = {rule: at(table, f"{rule}, {call}", "stall_per_page_s") for rule in UNLABELLED}
    run = {rule: values for rule, values in others.items() if values}
    # The best over all seeds, so that no seed's luck chooses what it is compared with.
    best = min(run, key=lambda rule: sum(run[rule].values()) / len(run[rule]), default="")
    missing = [rule for rule in UNLABELLED if rule not in run]
    note = f"without {', '.join(missing)}" if missing else None
    figure = f"{call}: stall over the best unlabelled ({best or 'none'})"
    return [
        ratio(figure, stall, run.get(best, {}), 0.5, note),
        ratio(f"{call}: stall over {FQ_CODEL}", stall, others[FQ_CODEL], 0.4),
    ]


def _last_parts(table: pl.DataFrame) -> list[str]:
    """Return the last part of the points' names, which varies beside rule and call, in numeric order."""
    ends = {point.split(", ")[-1] for point in table["point"]}
    return sorted(ends, key=lambda end: (float(end) if end.isdigit() else 0.0, end))


def longer_than_fair(table: pl.DataFrame, end: str) -> list[float]:
    """Return how many seconds longer a page takes to load than under FQ+FIFO, for each seed."""
    ours, base = (at(table, f"{rule}, GCC, {end}", "load_mean_s") for rule in (CONFUCIUS, FAIR))
    return [ours[seed] - base[seed] for seed in sorted(set(ours) & set(base))]


def _longer_than_fair(table: pl.DataFrame, end: str) -> Verdict:
    values = longer_than_fair(table, end)
    return judged(f"{end}: page load time less {FAIR}'s, s", values, MOST_LONGER_S)


def flows(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 14: stalls beside pages of many flows, and these pages' delay behind FQ+FIFO."""
    found = []
    for flows in _last_parts(table):
        stall = list(at(table, f"{CONFUCIUS}, GCC, {flows}", "stall_per_page_s").values())
        most = 0.0 if int(flows) <= MOST_FLOWS_WITHOUT_STALL else 0.1
        found += [judged(f"{flows} flows: stall, s", stall, most), _longer_than_fair(table, flows)]
    return found


def sizes(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 15: how much longer large flows take than under fair queuing."""
    return [_longer_than_fair(table, size) for size in _last_parts(table)]


def calls(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 29: stalls of several calls over those under fair queuing."""
    found = []
    for calls in _last_parts(table):
        ours, base = (at(table, f"{rule}, GCC, {calls}", "stall_s") for rule in (CONFUCIUS, FAIR))
        found.append(ratio(f"{calls} calls: stall over {FAIR}", ours, base, 0.5))
    return found


def elsewhere(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 27: a rule at a router that is no bottleneck changes nothing beside FIFO."""
    found = []
    for where in ("before", "behind"):
        for column, what in (
            ("frame_p99_s", "frame P99"),
            ("load_mean_s", "load"),
            ("call_mbps", "call's rate"),
        ):
            ours, base = (at(table, f"{rule}, {where}", column) for rule in (CONFUCIUS, "FIFO"))
            values = [abs(ours[seed] / base[seed] - 1) for seed in sorted(set(ours) & set(base))]
            found.append(judged(f"bottleneck {where}: {what} apart from FIFO's, part of it", values, 0.02))
    return found


def links(table: pl.DataFrame) -> list[Verdict]:
    """Judge whether no rule both stalls less and loads sooner: the larger difference is not below 0."""
    found = []
    for link in _last_parts(table):
        for rule in UNLABELLED:
            theirs, ours = (
                [at(table, f"{one}, GCC, {link}", column) for column in ("stall_per_page_s", "load_mean_s")]
                for one in (rule, CONFUCIUS)
            )
            seeds = sorted(set.intersection(*(set(values) for values in (*theirs, *ours))))
            worse = [max(t[seed] - o[seed] for t, o in zip(theirs, ours, strict=True)) for seed in seeds]
            if seeds:
                found.append(
                    judged(f"{link}: what {rule} has worse, of stall and load, s", worse, at_least=0.0)
                )
    return found


def page(table: pl.DataFrame) -> list[Verdict]:
    """Judge the paper's figure 2: beside one heavy page a call stalls wherever no label says which it is."""

    def stalls(rule: str) -> list[float]:
        return list(at(table, f"{rule}, GCC", "stall_s").values())

    found = [
        judged(f"{rule}: stall, s", values, at_least=FRAME_S)
        for rule in UNLABELLED
        if (values := stalls(rule))
    ]
    found += [judged(f"{rule}: stall, s", values, 0.0) for rule in LABELLED if (values := stalls(rule))]
    return [*found, *_stalls(table, "GCC")]


def cuts(table: pl.DataFrame) -> list[Verdict]:
    """Judge the paper's figure 7: a sixteenth of the rate stalls a call of GCC for more than 10 s."""
    stalls = list(at(table, "FIFO, GCC, 16", "stall_s").values())
    return [judged("GCC, a sixteenth of the rate: stall, s", stalls, at_least=10.0)]


def probing(classes: pl.DataFrame) -> list[Verdict]:
    """Judge the paper's figure 26: a flow of BBR keeps its class, whatever its round trip."""
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


def fairness_of(table: pl.DataFrame, point: str) -> Values:
    """Return Jain's index of a point's runs over their flows, by seed."""
    own = table.filter(pl.col("point") == point).group_by("seed").agg("goodput_mbps").sort("seed")
    return {seed: fairness(goodputs) for seed, goodputs in own.iter_rows()}


def mix(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 13: shares, round trips and classes of four congestion controls."""
    point = f"{CONFUCIUS}, GCC"
    found = [judged("Jain's index", list(fairness_of(table, point).values()), at_least=0.95)]
    for call in ("copa", "gcc"):
        # GCC has no ACKs; the way back is empty, so only the wait comes on top of the path's round trip.
        measured = pl.coalesce("rtt_p99_s", pl.col("queueing_p99_s") + CONFUCIUS_RTT_S)
        rtt = at(table.filter(pl.col("tcp") == call).with_columns(rtt=measured), point, "rtt")
        found.append(judged(f"{call}: round trip P99, s", list(rtt.values()), 0.07))
    why = "these runs do not tell which class a flow is in"
    return [*found, judged(IN_RIGHT_CLASS, [], reason=why, at_least=0.9)]


def right_class(classes: pl.DataFrame) -> Values:
    """Return the share of looks at which a flow is in its TCP's class, the mean over flows, by seed.

    The paper's figure 13b: Copa and GCC short, BBR middle, Cubic long. Not known or new is not right.
    """
    shares: dict[int, list[float]] = {}
    for seed, tcp, warmup_s, every_s, seen in classes.select(
        "seed", "tcp", "warmup_s", "every_s", "classes"
    ).rows():
        counted = [one for i, one in enumerate(seen) if (i + 1) * every_s >= warmup_s]
        shares.setdefault(seed, []).append(counted.count(RIGHT_CLASS[tcp]) / len(counted))
    return {seed: sum(values) / len(values) for seed, values in sorted(shares.items())}


def fair(table: pl.DataFrame) -> list[Verdict]:
    """Judge figure 25: how evenly long flows share the link."""
    return [
        judged(
            f"{flows} flows: Jain's index",
            list(fairness_of(table, f"{CONFUCIUS}, GCC, {flows}").values()),
            at_least=0.9,
        )
        for flows in _last_parts(table)
    ]


def occupancies(table: pl.DataFrame, control: str) -> Values:
    """Return the part of the buffer that a congestion control takes, the mean of all links, by seed."""
    own = table.filter(pl.col("point").str.starts_with(f"FIFO, {control}, "))
    return dict(own.group_by("seed").agg(pl.col("occupancy").mean()).sort("seed").iter_rows())


def occupancy(table: pl.DataFrame) -> list[Verdict]:
    """Judge the paper's figure 8: three take under 20 % of the buffer, three over 80 %, BBR is between."""
    found = []
    for control in OCCUPYING:
        figure, values = f"{control}: part of the buffer", list(occupancies(table, control).values())
        if control not in LITTLE:
            most = MUCH_OCCUPANCY if control in MUCH else LITTLE_OCCUPANCY
            found.append(judged(figure, values, at_least=most))
        if control not in MUCH:
            found.append(judged(figure, values, LITTLE_OCCUPANCY if control in LITTLE else MUCH_OCCUPANCY))
    return found


OCCUPANCY: Final = "confucius-occupancy"


JUDGES: Final[Judges] = {
    "confucius-web": (experience.FILE, web),
    "confucius-flows": (experience.FILE, flows),
    "confucius-sizes": (experience.FILE, sizes),
    "confucius-calls": (experience.FILE, calls),
    "confucius-elsewhere": (experience.FILE, elsewhere),
    "confucius-wifi": (experience.FILE, links),
    "confucius-cellular": (experience.FILE, links),
    "confucius-page": (experience.FILE, page),
    "confucius-cuts": (experience.FILE, cuts),
    "confucius-mix": (experience.FLOWS, mix),
    "confucius-mix-fast": (experience.FLOWS, mix),
    "confucius-fair": (experience.FLOWS, fair),
    OCCUPANCY: (experience.FLOWS, occupancy),
    "confucius-probing": (experience.CLASSES, probing),
}


def of_scenario(name: str, output: Path) -> list[Verdict]:
    """Return all verdicts on a scenario's runs in an output folder.

    Raises:
        ValueError: there is nothing to be judged in this scenario, or no result of it.
    """
    found = judge_scenario(name, JUDGES, output)
    return with_classes(found, experience.load(output, experience.CLASSES).filter(pl.col("scenario") == name))


def with_classes(found: Sequence[Verdict], classes: pl.DataFrame) -> list[Verdict]:
    """Return the verdicts, that on the right class by a table of the flows' classes where it has rows."""
    if classes.is_empty():
        return [*found]
    measured = judged(IN_RIGHT_CLASS, list(right_class(classes).values()), at_least=0.9)
    return [measured if one.figure == IN_RIGHT_CLASS else one for one in found]
