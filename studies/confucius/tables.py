"""Published runs after Confucius' evaluation: `experience.parquet`, `flows.parquet` and `classes.parquet`."""

from __future__ import annotations

import math
from typing import Final

import polars as pl

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.noticed import CALL, SHOWN, interval, runs_table, verdict_table, verdicts_by
from swiftqueue.laboratory.runs import experience
from swiftqueue.studies.confucius.judges import (
    CONFUCIUS,
    JUDGES,
    MOST_LONGER_S,
    OCCUPANCY,
    OCCUPYING,
    fairness_of,
    longer_than_fair,
    with_classes,
)
from swiftqueue.studies.confucius.judges import web as judge_web

WEB: Final = "confucius-web"  # judged in a table of its own
FLOWS: Final = "confucius-flows"
DOUBLING_S: Final = 0.25  # 1 / lambda


def verdicts(runs: pl.DataFrame, flows: pl.DataFrame, classes: pl.DataFrame) -> list[str]:
    """Return every figure to reach of the scenarios that were run."""
    found = {}
    tables = {experience.FILE: runs, experience.FLOWS: flows, experience.CLASSES: classes}
    for name, (file, judge) in JUDGES.items():
        own = tables[file].filter(pl.col("scenario") == name)
        if name != WEB and not own.is_empty():
            found[name] = with_classes(judge(own), classes.filter(pl.col("scenario") == name))
    return verdicts_by("scenario", found)


def pages(runs: pl.DataFrame) -> list[str]:
    """Return stalls, loads and the call's rate at every point, means over seeds."""
    judged = [name for name, (file, _) in JUDGES.items() if file == experience.FILE and name != WEB]
    own = runs.filter(pl.col("scenario").is_in(judged))
    short = own.with_columns(pl.col("scenario").str.strip_prefix("confucius-"))  # for narrow windows
    return runs_table(short, ["scenario", "point"], ["scenario", "point"], (*SHOWN[:-1], CALL))


def shares(flows: pl.DataFrame) -> list[str]:
    """Return how the flows share the link: Jain's index, and each kind's mean rate in Mbit/s."""
    judged = [name for name, (file, _) in JUDGES.items() if file == experience.FLOWS and name != OCCUPANCY]
    flows = flows.filter(pl.col("scenario").is_in(judged))  # a run of `OCCUPANCY` has one flow
    kinds = [tcp for tcp in ("gcc", "copa", "bbr", "cubic") if tcp in flows["tcp"]]
    lines = lab.head_of(["scenario", "point", "seeds", "Jain's index", *kinds])
    for (scenario, point), own in sorted(flows.group_by("scenario", "point"), key=lambda one: _order(one[0])):
        rates = [
            own.filter(pl.col("tcp") == tcp)
            .group_by("seed")
            .agg(pl.col("goodput_mbps").mean())["goodput_mbps"]
            for tcp in kinds
        ]
        lines.append(
            lab.row_of(
                [
                    f"`{scenario}`",
                    str(point),
                    str(own["seed"].n_unique()),
                    interval(list(fairness_of(own, str(point)).values()), 2),
                    *(interval(rate.to_list(), 1) if rate.len() else "–" for rate in rates),
                ]
            )
        )
    return lines


def occupancies(flows: pl.DataFrame) -> list[str]:
    """Return which part of the buffer each congestion control takes on each link (the paper's figure 8)."""
    own = flows.filter(pl.col("scenario") == OCCUPANCY)
    links = sorted({point.split(", ")[-1] for point in own["point"]})
    units = ("part of the buffer", "round trip, ms", "Mbit/s")
    lines = lab.head_of(["congestion control", "link", "seeds", *units])
    for control in OCCUPYING:
        for link in links:
            runs = own.filter(pl.col("point") == f"FIFO, {control}, {link}").sort("seed")
            trip_ms = [1e3 * trip_s for trip_s in runs["rtt_mean_s"].drop_nulls()]
            cells = [
                interval(runs["occupancy"].to_list(), 3),
                interval(trip_ms, 0) if trip_ms else lab.NONE,
                interval(runs["goodput_mbps"].to_list(), 1),
            ]
            lines.append(lab.row_of([control, link, str(runs["seed"].n_unique()), *cells]))
    return lines


def bounds(runs: pl.DataFrame) -> list[str]:
    """Return how much later a page's flows end than under fair queuing: in theory, and measured."""
    own = runs.filter(pl.col("scenario") == FLOWS)
    lines = lab.head_of(["flows of a page", "paper's bound, ms", "corrected, ms", "measured, ms"])
    points = own.filter(pl.col("point").str.starts_with(CONFUCIUS))["point"].unique()
    for flows in sorted(int(point.split(", ")[-1]) for point in points):
        values = [1e3 * value for value in longer_than_fair(own, str(flows))]
        cells = [f"{1e3 * MOST_LONGER_S:.0f}", f"{1e3 * later_s(flows):.0f}", interval(values, 0)]
        lines.append(lab.row_of([str(flows), *cells]))
    return lines


def web(runs: pl.DataFrame) -> list[str]:
    """Return every rule and call of confucius-web, means over seeds."""
    return runs_table(runs.filter(pl.col("scenario") == WEB), ["point"], ["rule, call"], (*SHOWN, CALL))


def web_verdicts(runs: pl.DataFrame) -> list[str]:
    """Return every figure to reach with the calls that were run."""
    own = runs.filter(pl.col("scenario") == WEB)
    points = own["point"].str
    found = [one for one in judge_web(own) if one.seeds or points.ends_with(one.figure.split(":")[0]).any()]
    return verdict_table(found)


def later_s(flows: int) -> float:
    """Return how many seconds later `flows` long flows end beside one old flow than under fair queuing.

    The integral of what equation 1's weights give the old flow beyond its fair share, over what the new flows
    have together (own derivation: the paper bounds it by log2(e) / lambda for any number).
    """
    whole = flows + 1
    return DOUBLING_S * whole / flows * (1 + math.log2(flows / whole) - math.log2(flows) / whole)


def _order(key: tuple[object, ...]) -> tuple[str, str, int]:
    scenario, point = map(str, key)
    rule, _, end = point.partition(", ")
    number = end.split(", ")[-1].split()[0]  # "160 ms" too
    return scenario, rule, int(number) if number.isdigit() else 0
