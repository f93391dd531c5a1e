"""Published runs that show what users notice: `docs/laboratory/experience.parquet` (`swiftqueue lab run`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import polars as pl
from matplotlib.figure import Figure

from benchmarks.published import Published
from benchmarks.queues import FLOWS, judged
from infra.results.lfq import interval, measured, wanted
from laboratory.report import confucius
from laboratory.report import tables as lab
from laboratory.report.verdict import Verdict
from laboratory.report.who_picks import CHEATS, COPA, WHO, cheat_shares, who_picks, who_picks_cheats, who_rule
from models.scoring.intervals import estimate
from models.scoring.plot_style import INK, grid

WEB: Final = "confucius-web"
# Column of the table, its heading here, its unit's factor, digits; times are in ms
SHOWN: Final = (
    ("stall_per_page_s", "stall", 1e3, 1),
    ("stalling_pages_share", "stalling, %", 100, 1),
    ("frame_p99_s", "frame P99", 1e3, 0),
    ("load_mean_s", "load", 1e3, 0),
    ("load_p95_s", "P95", 1e3, 0),
)
CALL: Final = ("call_mbps", "call, Mbit/s", 1, 1)
WAITS: Final = (
    ("queueing_p99_s", "wait P99", 1e3, 1),
    ("queueing_p999_s", "P99.9", 1e3, 1),
    ("rtt_p99_s", "RTT P99", 1e3, 0),
    ("reordered_share", "reordered, %", 100, 1),
)
SHARES: Final = (
    SHOWN[1],
    ("web_mbps", "pages, Mbit/s", 1, 2),
    ("jain", "JFI", 1, 2),
    ("cpu_s", "CPU, s", 1, 1),
)
FEW: Final = "not enough packets"
OTHER_CALL: Final = " calls"  # ends the name of a point whose call is not Prague's
KINDS: Final = {  # who picks: colour
    "nobody": INK,
    "flow": "#1c7ed6",
    "label": "#f08c00",
    "occupancy and age": "#2f9e44",
    "learned limits": "#9c36b5",
    "sender": "#e64980",
    "both": "#e03131",
}
DRAWN: Final = ("frame_p99_s", "load_mean_s")  # across, upwards
CROWDED: Final = ("sender", "both")  # their points lie on each other, so they have no names
Shown = Sequence[tuple[str, str, float, int]]


def web(runs: pl.DataFrame) -> list[str]:
    """Every rule and call of confucius-web, means over seeds."""
    return runs_table(runs.filter(pl.col("scenario") == WEB), ["point"], ["rule, call"], (*SHOWN, CALL))


def web_verdicts(runs: pl.DataFrame) -> list[str]:
    """Every figure to reach with the calls that were run."""
    own = runs.filter(pl.col("scenario") == WEB)
    lines = lab.head_of(["figure", "wanted", "measured", "verdict"])
    for one in confucius.web(own):
        if one.seeds or own["point"].str.ends_with(one.figure.split(":")[0]).any():
            lines.append(lab.row_of([one.figure, wanted(one), measured(one), one.verdict]))
    return lines


def who(runs: pl.DataFrame) -> list[str]:
    """Who picks, for a call of Prague: what its viewer and the pages' reader notice."""
    return _who(runs, other=False, shown=(*SHOWN[:1], *SHOWN[2:], CALL))


def who_waits(runs: pl.DataFrame) -> list[str]:
    """The same runs: what the call's packets met."""
    return _who(runs, other=False, shown=WAITS)


def who_shares(runs: pl.DataFrame) -> list[str]:
    """The same runs: who got what, and what it cost."""
    return _who(runs, other=False, shown=SHARES)


def who_else(runs: pl.DataFrame) -> list[str]:
    """The same with a call of Copa or of Google congestion control."""
    return _who(runs, other=True, shown=(*SHOWN[:1], *SHOWN[2:], CALL))


def who_verdicts(runs: pl.DataFrame) -> list[str]:
    """Every rule beside nobody, every sender beside one that does not choose."""
    return _verdicts(who_picks(runs.filter(pl.col("scenario") == WHO)))


def cheats(runs: pl.DataFrame) -> list[str]:
    """What a cheat gets of the link under each rule, in per cent; the last column is its best."""
    own = runs.filter(pl.col("scenario") == CHEATS)
    shares = cheat_shares(own)
    kinds = sorted({cheat for _, cheat in shares}, key=lambda cheat: (cheat != "honest", cheat))
    lines = lab.head_of(["rule", "seeds", *kinds, "worst case"])
    for rule in sorted({rule for rule, _ in shares}):
        values = {cheat: list(shares.get((rule, cheat), {}).values()) for cheat in kinds}
        means = {cheat: sum(all_) / len(all_) for cheat, all_ in values.items() if all_ and cheat != "honest"}
        worst = max(means, key=lambda cheat: means[cheat], default=None)
        cells = [interval([100 * value for value in values[cheat]], 0) for cheat in kinds]
        said = "–" if worst is None else f"{worst}, {100 * means[worst]:.0f}"
        lines.append(lab.row_of([rule, str(max(map(len, values.values()))), *cells, said]))
    return lines


def cheats_verdicts(runs: pl.DataFrame) -> list[str]:
    """Every rule's worst case beside a half."""
    return _verdicts(who_picks_cheats(runs.filter(pl.col("scenario") == CHEATS)))


def costs(published: Published) -> list[str]:
    """What a packet costs in each disc, and whether that grows with the flows."""
    lines = lab.head_of(
        ["rule", *(f"{flows:,} flow{'s' * (flows > 1)}" for flows in FLOWS), "growth", "verdict"]
    )
    for one in judged(published.rows):
        cells = [f"{one.ns[flows] * 1e-3:.2f}" for flows in FLOWS]
        lines.append(lab.row_of([one.rule, *cells, f"{one.growth:.2f}", "held" if one.held else "not held"]))
    origin = f"{published.date}, commit {published.commit}, {published.machine}."
    return [*lines, "", f"Medians in µs, {published.rows[0].rounds} rounds; {origin}"]


def picture(runs: pl.DataFrame) -> Figure:
    """Who picks, for a call of Prague: P99 of a frame across, mean load of a page upwards."""
    figure, [[axes]] = grid(1, 1, 8.4, 4.2)
    own = _prague(runs)
    named: set[str] = set()
    for (rule,), rows in sorted(own.group_by("rule"), key=lambda one: str(one[0][0])):
        kind = str(rule).split(":")[0]
        found = [estimate((rows[column].drop_nulls() * 1e3).to_list()) for column in DRAWN]
        if any(one is None for one in found):
            continue
        x, y = (round(one.mean, 3) for one in found if one)
        label = None if kind in named else kind
        named.add(kind)
        axes.plot([x], [y], "o", color=KINDS.get(kind, INK), markersize=5, label=label)
        if kind not in CROWDED:
            axes.annotate(str(rule).split(": ")[-1], (x, y), (5, 4), textcoords="offset points", fontsize=7)
    axes.set(xlabel="P99 of a frame's delay, ms", ylabel="mean load time of a page, ms")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _prague(runs: pl.DataFrame) -> pl.DataFrame:
    """Rows of who-picks with Prague everywhere, with each one's rule and Jain's index of its goodputs."""
    return _ruled(runs).filter(~pl.col("point").str.ends_with(OTHER_CALL))


def _ruled(runs: pl.DataFrame) -> pl.DataFrame:
    own = runs.filter(pl.col("scenario").is_in([WHO, COPA]))
    call, web = pl.col("call_mbps"), pl.col("web_mbps")
    return own.with_columns(
        pl.Series(
            "rule", [who_rule(*key) for key in own.select("point", "profile", "control").rows()], pl.String
        ),
        jain=(call + web) ** 2 / (2 * (call**2 + web**2)),  # Jain's index of two
    )


def _who(runs: pl.DataFrame, *, other: bool, shown: Shown) -> list[str]:
    own = _ruled(runs).filter(pl.col("point").str.ends_with(OTHER_CALL) == other)
    return runs_table(own, ["rule"], ["who picks"], shown)


def _verdicts(found: Sequence[Verdict]) -> list[str]:
    lines = lab.head_of(["figure", "wanted", "measured", "verdict"])
    return [*lines, *(lab.row_of([v.figure, wanted(v), measured(v), v.verdict]) for v in found)]


def runs_table(rows: pl.DataFrame, by: Sequence[str], names: Sequence[str], shown: Shown) -> list[str]:
    """A line for each key of `by`, with means over seeds."""
    lines = lab.head_of([*names, "seeds", *(heading for _, heading, _, _ in shown)])
    for key, own in sorted(rows.group_by(by), key=lambda one: [str(part) for part in one[0]]):
        cells = [
            FEW
            if column == "queueing_p999_s" and own[column].is_null().all()
            else interval([factor * value for value in own[column].drop_nulls()], digits)
            for column, _, factor, digits in shown
        ]
        lines.append(lab.row_of([*map(str, key), str(own.height), *cells]))
    return lines
