"""Tables and the picture of who-picks: each rule beside nobody's, and what a cheat gets of each."""

from __future__ import annotations

from typing import Final

import polars as pl
from matplotlib.figure import Figure

from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.noticed import (
    CALL,
    SHOWN,
    ShownColumns,
    interval,
    runs_table,
    verdict_table,
)
from swiftqueue.models.scoring.intervals import estimate
from swiftqueue.models.scoring.plot_style import INK, grid
from swiftqueue.studies.who_picks.judges import (
    CHEATS,
    COPA,
    TOLD,
    WHO,
    cheat_shares,
    who_picks,
    who_picks_cheats,
    who_rule,
)

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


def who(runs: pl.DataFrame) -> list[str]:
    """Return who picks, for a call of Prague: the viewer's and the reader's figures."""
    return _who(runs, other=False, shown=(*SHOWN[:1], *SHOWN[2:], CALL))


def who_waits(runs: pl.DataFrame) -> list[str]:
    """Return the same runs by the waits of the call's packets."""
    return _who(runs, other=False, shown=WAITS)


def who_shares(runs: pl.DataFrame) -> list[str]:
    """Return the same runs by shares and costs."""
    return _who(runs, other=False, shown=SHARES)


def who_else(runs: pl.DataFrame) -> list[str]:
    """Return the same with a call of Copa or of Google congestion control."""
    return _who(runs, other=True, shown=(*SHOWN[:1], *SHOWN[2:], CALL))


def who_verdicts(runs: pl.DataFrame) -> list[str]:
    """Return every rule beside nobody, every sender beside one that does not choose."""
    return verdict_table(who_picks(runs.filter(pl.col("scenario") == WHO)))


def cheats(runs: pl.DataFrame) -> list[str]:
    """Return a cheat's share of the link under each rule, in per cent; the last column is its best."""
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
    """Return every rule's worst case beside a half."""
    return verdict_table(who_picks_cheats(runs.filter(pl.col("scenario") == CHEATS)))


def picture(runs: pl.DataFrame) -> Figure:
    """Draw who picks, for a call of Prague: P99 of a frame across, mean load of a page upwards."""
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
    """Return the rows with Prague everywhere, with each one's rule and Jain's index of its goodputs."""
    return _ruled(runs).filter(~pl.col("point").str.ends_with(OTHER_CALL))


def _ruled(runs: pl.DataFrame) -> pl.DataFrame:
    own = runs.filter(pl.col("scenario").is_in([WHO, COPA]), ~TOLD)
    call, web = pl.col("call_mbps"), pl.col("web_mbps")
    return own.with_columns(
        pl.Series(
            "rule", [who_rule(*key) for key in own.select("point", "profile", "control").rows()], pl.String
        ),
        jain=(call + web) ** 2 / (2 * (call**2 + web**2)),  # Jain's index of two
    )


def _who(runs: pl.DataFrame, *, other: bool, shown: ShownColumns) -> list[str]:
    own = _ruled(runs).filter(pl.col("point").str.ends_with(OTHER_CALL) == other)
    return runs_table(own, ["rule"], ["who picks"], shown)
