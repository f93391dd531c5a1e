"""LFQ's figures to reach, from the table of its runs; a group of the grid is one observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import polars as pl

from swiftqueue.studies.lfq.flows import BYTES_PER_MBIT, reward
from swiftqueue.studies.lfq.table import STATIC

Values = dict[int, float]  # by group
TABLE_TARGETS: Final = ((0.01, 0.97, 0.6), (10.0, 0.90, 0.3))  # alpha, throughput and queue over FqCoDel's
_OFFLINE: Final = {
    ("new_reno", "bandwidth"): 0.95,
    ("new_reno", "delay"): 0.95,
    ("bic", "bandwidth"): 0.75,
    ("bic", "delay"): 0.60,
}
_ONLINE: Final = dict.fromkeys([("new_reno", "bandwidth"), ("new_reno", "delay")], 0.85) | dict.fromkeys(
    [("bic", "bandwidth"), ("bic", "delay")], 0.70
)
# By how it was learned: TCP, axis. Counterfactual labels are held to what the offline ones are.
LEAST_CORRELATION: Final = {"counterfactual": _OFFLINE, "offline": _OFFLINE, "online": _ONLINE}
LEAST_OF_BEST: Final = 0.9  # share of the best static limit's reward, per environment


def alpha_of(rule: str) -> float:
    """Return the alpha that an LFQ learned with, from its name."""
    return float(rule.split()[-1])


def by_group(rows: pl.DataFrame, of: Callable[[pl.DataFrame], float]) -> Values:
    """Return one value for each group."""
    found: Values = {}
    for (group,), part in rows.group_by("group", maintain_order=True):
        found[int(group)] = of(part)
    return dict(sorted(found.items()))


def mean_of(rows: pl.DataFrame, rule: str, column: str) -> Values:
    """Return a rule's mean of a column in each group of the grid."""
    return by_group(rows.filter(pl.col("rule") == rule), lambda part: float(part[column].to_numpy().mean()))


def correlation(rows: pl.DataFrame, rule: str, tcp: str, axis: str) -> Values:
    """Return Pearson's r of the limit and the axis' quantity; 0 where the limit is always the same."""
    chosen = rows.filter(pl.col("rule") == rule, pl.col("tcp") == tcp, pl.col("axis") == axis)
    by = "mbps" if axis == "bandwidth" else "rtt_ms"

    def of(part: pl.DataFrame) -> float:
        limits, values = part["limit_mean"].to_numpy(), part[by].to_numpy()
        return float(np.corrcoef(limits, values)[0, 1]) if limits.std() > 0 and values.std() > 0 else 0.0

    return by_group(chosen, of)


def part_of_best(rows: pl.DataFrame, rule: str) -> Values:
    """Return an LFQ's reward over the best static limit's in each environment, the mean of each group."""
    alpha, place = alpha_of(rule), ["tcp", "mbps", "rtt_ms", "seconds", "group"]
    worth = [
        reward(m * BYTES_PER_MBIT, q, alpha) for m, q in rows.select("goodput_mbps", "queue_mean").rows()
    ]
    valued = rows.with_columns(pl.Series("reward", worth, dtype=pl.Float64))
    static = (
        valued.filter(pl.col("rule").str.starts_with(STATIC)).group_by(place).agg(best=pl.col("reward").max())
    )
    both = valued.filter(pl.col("rule") == rule).join(static, on=place)
    return by_group(both, lambda part: float((part["reward"] / part["best"]).to_numpy().mean()))


def beside(rows: pl.DataFrame, rule: str, base: str) -> pl.DataFrame:
    """Return the rows of two rules in the environments that both were run in."""
    place = ["axis", "group", "tcp", "mbps", "rtt_ms", "seconds", "initial_window"]
    ours, theirs = (rows.filter(pl.col("rule") == name) for name in (rule, base))
    return pl.concat([ours.join(theirs, on=place, how="semi"), theirs.join(ours, on=place, how="semi")])


def rules_of(table: pl.DataFrame) -> list[str]:
    """Return LFQ's rules in a table."""
    return sorted(rule for rule in table["rule"].unique() if rule.startswith("LFQ "))


def ratios(ours: Mapping[int, float], base: Mapping[int, float]) -> list[float]:
    """Return the ratios of two rules' means, group by group."""
    return [ours[group] / base[group] for group in sorted(set(ours) & set(base)) if base[group] > 0]
