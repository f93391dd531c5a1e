"""The figures to reach of who-picks: each rule beside nobody's, and what a cheat gets of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import polars as pl

from swiftqueue.laboratory.report.judging import SETTLED
from swiftqueue.laboratory.report.verdict import NOT_SETTLED, Judges, Values, Verdict, judged
from swiftqueue.laboratory.runs import experience
from swiftqueue.models.scoring.intervals import corrected, estimate

WHO: Final = "who-picks"
COPA: Final = "who-picks-copa"
CHEATS: Final = "who-picks-cheats"
NOBODY: Final = "nobody: FIFO"
BY_SENDER: Final = "label or sender: DualPI2"  # the queue in which a sender chooses
BOTH: Final = "both: "
HONEST: Final = "honest"
TOLD: Final = pl.col("point").str.contains("; told ")  # rows that commit 90f01641 can make
EQUAL_SHARE: Final = 0.5  # share of a call beside one other


def who_rule(point: str, profile: str, control: str) -> str:
    """Return who picks in a row of who-picks: nobody, a rule of the router, a sender, or both."""
    queue = ", uncoupled" if profile != "rfc9332" else ""
    chosen = "" if control == "default" else f", {control.replace('_', ' ')}"
    if point.startswith(BOTH):
        return f"{BOTH}weights by age{chosen}{queue}"
    if point == BY_SENDER:
        return f"sender: {chosen[2:]}{queue}" if chosen else f"label: DualPI2{queue}"
    return point


def who_picks(table: pl.DataFrame) -> list[Verdict]:
    """Judge each rule's frames and pages beside nobody's, and a choosing sender's beside the same queue's.

    Settled is what is so by an interval of 95 % and after correction (Holm) for all rules and senders.
    """
    own = table.filter(~pl.col("point").str.ends_with(" calls"), ~TOLD)
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
    """Return the cheat's share of all goodput, by rule and cheat, by seed."""
    shares: dict[tuple[str, str], Values] = {}
    own = table.filter(pl.col("control") == "default")
    for point, seed, call, cheat in own.select("point", "seed", "call_mbps", "web_mbps").rows():
        rule, _, kind = point.rpartition(", ")
        shares.setdefault((rule, kind), {})[seed] = cheat / (call + cheat)
    return shares


def who_picks_cheats(table: pl.DataFrame) -> list[Verdict]:
    """Judge each rule's worst case: the cheat with the largest mean share, beside an equal share."""
    shares = cheat_shares(table)
    found = []
    for rule in sorted({rule for rule, _ in shares}):
        cheats = {kind: values for (of, kind), values in shares.items() if of == rule and kind != HONEST}
        if not cheats:
            continue
        worst = max(cheats, key=lambda kind: sum(cheats[kind].values()) / len(cheats[kind]))
        found.append(judged(f"{rule}: share of a cheat ({worst})", list(cheats[worst].values()), EQUAL_SHARE))
    return found


JUDGES: Final[Judges] = {WHO: (experience.FILE, who_picks), CHEATS: (experience.FILE, who_picks_cheats)}
