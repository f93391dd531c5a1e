"""The published runs of LFQ: `studies/lfq/data/lfq.parquet`, what `swiftqueue lfq table` wrote."""

from __future__ import annotations

import numpy as np
import polars as pl

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.noticed import fairness, interval, verdicts_by
from swiftqueue.studies.lfq import judged, table
from swiftqueue.studies.lfq.flows import BYTES_PER_MBIT, reward
from swiftqueue.studies.lfq.verdicts import LFQ

SLIDES = {  # Mbit/s, queue max, mean: means of 400 runs without intervals, in ns-3.30
    "LFQ counterfactual 0.01": (13.4, 23.9, 7.7),
    "LFQ counterfactual 10": (12.5, 12.7, 3.4),
    "LFQ offline 10": (12.5, 12.7, 3.4),
    "LFQ online 10": (12.8, 16.1, 4.5),
    "FqCoDel": (13.7, 155.4, 15.4),
    "fq 100": (11.7, 100.0, 51.1),
    "fq 1000": (11.9, 1000.0, 630.4),
}
MANY = "lfq-flows"
COLUMNS = ("goodput_mbps", "queue_max", "queue_mean")


def of_400(runs: pl.DataFrame) -> list[str]:
    """Return throughput and queue over the grid for every rule, with intervals over its groups."""
    rows = _of(runs, table.TABLE)
    names = [
        "rule",
        "runs",
        "Mbit/s",
        "queue max",
        "queue mean",
        "slides",
        "limit Reno",
        "BIC",
        "out of range, %",
    ]
    lines = lab.head_of(names)
    for rule in sorted(rows["rule"].unique(), key=lambda name: (not name.startswith("LFQ"), name)):
        own = rows.filter(pl.col("rule") == rule)
        cells = [interval(list(judged.mean_of(own, rule, column).values())) for column in COLUMNS]
        slides = " / ".join(f"{value:g}" for value in SLIDES[rule]) if rule in SLIDES else "–"
        learned = rule.startswith("LFQ")
        limits = [own.filter(pl.col("tcp") == tcp)["limit_mean"].to_numpy() for tcp in ("new_reno", "bic")]
        decisions, fallbacks = (int(own[name].sum()) for name in ("decisions", "fallbacks"))
        lines.append(
            lab.row_of(
                [
                    rule,
                    str(own.height),
                    *cells,
                    slides,
                    *(f"{float(np.mean(limit)):.1f}" if learned else "–" for limit in limits),
                    f"{100 * fallbacks / decisions:.1f}" if learned and decisions else "–",
                ]
            )
        )
    return lines


def correlations(runs: pl.DataFrame) -> list[str]:
    """Return the limit's correlation with the axis' quantity, over the grid and over its groups."""
    rows = _of(runs, table.TABLE)
    lines = lab.head_of(["rule", "New Reno, bandwidth", "delay", "BIC, bandwidth", "delay"])
    for rule in judged.rules_of(rows):
        cells = [
            interval(list(judged.correlation(rows, rule, tcp, axis).values()), digits=2)
            for tcp in ("new_reno", "bic")
            for axis in ("bandwidth", "delay")
        ]
        lines.append(lab.row_of([rule, *cells]))
    return lines


def verdicts(runs: pl.DataFrame) -> list[str]:
    """Return every figure to reach, with the measured value."""
    return verdicts_by("command", {f"lfq verdict {name}": judge(runs) for name, judge in LFQ.items()})


def best_of(runs: pl.DataFrame) -> list[str]:
    """Return the best static limit of each drawn environment, beside the networks' choice there."""
    rows = _of(runs, table.BEST)
    names = ["alpha", "TCP", "environments", "best static limit, in BDP", "LFQ's mean limit, in BDP"]
    lines = lab.head_of(names)
    for alpha in sorted({judged.alpha_of(rule) for rule in judged.rules_of(rows)}):
        for tcp in ("new_reno", "bic"):
            own = rows.filter(pl.col("tcp") == tcp)
            worth = [
                reward(m * BYTES_PER_MBIT, q, alpha)
                for m, q in own.select("goodput_mbps", "queue_mean").iter_rows()
            ]
            valued = own.with_columns(
                pl.Series("reward", worth),
                (pl.col("mbps") * pl.col("rtt_ms") * BYTES_PER_MBIT / 1500 / 1e3).alias("bdp"),
            )
            static = valued.filter(pl.col("rule").str.starts_with(table.STATIC)).with_columns(
                pl.col("rule").str.strip_prefix(table.STATIC).cast(pl.Float64).alias("limit")
            )
            best = static.sort("reward", descending=True).unique(["mbps", "rtt_ms"], keep="first")
            ours = valued.filter(pl.col("rule") == f"LFQ counterfactual {alpha:g}")
            medians = [_median(best, "limit"), _median(ours, "limit_mean")]
            lines.append(lab.row_of([f"{alpha:g}", tcp, str(best.height), *medians]))
    return lines


def many(flows: pl.DataFrame) -> list[str]:
    """Return many flows of New Reno at once: means over seeds with 95 % intervals."""
    parts = pl.col("point").str.split(", ").list
    own = flows.filter(pl.col("scenario") == MANY).with_columns(
        rule=parts.get(0), count=parts.get(1).cast(pl.Int64)
    )
    runs = own.group_by("count", "rule", "seed").agg(
        pl.col("goodput_mbps").sum(),
        jain=pl.col("goodput_mbps").map_batches(
            lambda each: fairness(each.to_list()), returns_scalar=True, return_dtype=pl.Float64
        ),
        rtt_ms=pl.col("rtt_mean_s").mean() * 1e3,
        p99_ms=pl.col("rtt_p99_s").max() * 1e3,
    )
    lines = lab.head_of(
        ["flows", "rule", "seeds", "Mbit/s", "Jain's index", "round trip, ms", "worst flow's P99, ms"]
    )
    for (count, rule), seeds in runs.sort("count", "rule", "seed").group_by(
        "count", "rule", maintain_order=True
    ):
        cells = [
            interval(seeds[column].to_list(), digits=digits)
            for column, digits in (("goodput_mbps", 1), ("jain", 3), ("rtt_ms", 0), ("p99_ms", 0))
        ]
        lines.append(lab.row_of([str(count), str(rule), str(seeds.height), *cells]))
    return lines


def beyond(runs: pl.DataFrame) -> list[str]:
    """Return each run on paths and with TCPs that nothing was learned from."""
    rows = _of(runs, table.BEYOND).sort("mbps", "tcp", "rule", descending=[True, False, False])
    lines = lab.head_of(["path", "TCP", "rule", "Mbit/s", "queue mean", "limit", "out of range, %"])
    for row in rows.iter_rows(named=True):
        learned = row["decisions"] is not None
        lines.append(
            lab.row_of(
                [
                    f"{row['mbps']:g} Mbit/s, {row['rtt_ms']:g} ms",
                    row["tcp"],
                    row["rule"],
                    f"{row['goodput_mbps']:.1f}",
                    f"{row['queue_mean']:.1f}",
                    f"{row['limit_mean']:.1f}" if learned else "–",
                    f"{100 * row['fallbacks'] / row['decisions']:.0f}" if row["decisions"] else "–",
                ]
            )
        )
    return lines


def _of(runs: pl.DataFrame, study: str) -> pl.DataFrame:
    """Return a study's runs with the initial window of its figures to reach."""
    return runs.filter(pl.col("study") == study, pl.col("initial_window") == 1)


def _median(rows: pl.DataFrame, column: str) -> str:
    return f"{float(np.median((rows[column] / rows['bdp']).to_numpy())):.2f}" if rows.height else "–"
