"""What the results say, in words: rules on intervals over seeds, sentence by sentence.

Every comparison is paired by seed with default L4S marking. A change counts where its 95 % interval leaves
out zero; a single seed settles nothing, and the sentence says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from infra.lab.intervals import Estimate, paired_change
from infra.lab.measures import (
    CLASSIC_SHARE,
    MOVED,
    QUEUEING_P99,
    REORDERED,
    RETRANSMITTED,
    RTT_P99,
    S1_GOODPUT,
    Measure,
)
from infra.lab.results import COMPLETE

# What a gain may cost, against default L4S marking (docs/LABORATORY.md).
MOST_RTT_CHANGE: Final = 0.05
LEAST_GOODPUT: Final = 0.98
LEAST_CLASSIC_SHARE: Final = 0.90
NO_HARM: Final = 0.02  # P99 queueing may be that much worse where there is nothing to gain
ROOM: Final = 0.02  # an oracle that gains less shows no room worth the risk
FEW: Final = 0.25  # a model that moves less than this part of the oracle's share moves too few


class Sentence(NamedTuple):
    """One line; `kind` is `helps`, `harms`, `nothing` or `note`."""

    kind: str
    text: str


class Place(NamedTuple):
    """Where runs can be compared: same traffic, same queues."""

    scenario: str
    point: str
    profile: str

    def words(self) -> str:
        """Name it in a sentence."""
        return ", ".join(part for part in self if part)


@dataclass(frozen=True)
class Comparison:
    """Changes of one control against default marking at one place."""

    place: Place
    control: str
    queueing: Estimate  # relative, of P99
    rtt: Estimate | None
    goodput: Estimate | None
    classic_share: Estimate | None
    moved: float  # mean share
    retransmitted: tuple[float, float]  # mean share by default, and under the control
    reordered: tuple[float, float]

    @property
    def kind(self) -> str:
        """`helps`, `harms` or `nothing`, by the interval of P99 queueing."""
        if self.queueing.below(0):
            return "helps"
        return "harms" if self.queueing.above(0) else "nothing"

    def broken(self) -> list[str]:
        """Name the costs beyond what a gain may cost, by their means."""
        said = []
        if self.rtt and self.rtt.mean > MOST_RTT_CHANGE:
            said.append(f"RTT P99 {percent(self.rtt)} (at most {share(MOST_RTT_CHANGE, 0)} more)")
        if self.goodput and 1 + self.goodput.mean < LEAST_GOODPUT:
            said.append(
                f"S1's goodput {percent(self.goodput)} (at least {share(LEAST_GOODPUT, 0)} of default)"
            )
        if self.classic_share and 1 + self.classic_share.mean < LEAST_CLASSIC_SHARE:
            said.append(
                f"the classic flows' share {percent(self.classic_share)} "
                f"(at least {share(LEAST_CLASSIC_SHARE, 0)} of default)"
            )
        return said


def by_seed(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> dict[int, float]:
    """Value of a measure for each seed that was run there."""
    chosen = runs.filter(
        pl.col("status") == COMPLETE,
        pl.col("scenario") == place.scenario,
        pl.col("point") == place.point,
        pl.col("profile") == place.profile,
        pl.col("control") == control,
    ).drop_nulls(measure.column)
    return dict(zip(chosen["seed"], chosen[measure.column], strict=True))


def places(runs: pl.DataFrame) -> list[Place]:
    """All places of the results, in the order of their axis."""
    rows = (
        runs.select("scenario", "point", "profile", "at").unique().sort("scenario", "profile", "at", "point")
    )
    return [Place(row["scenario"], row["point"], row["profile"]) for row in rows.iter_rows(named=True)]


def compare(runs: pl.DataFrame, place: Place, control: str) -> Comparison | None:
    """Compare a control with default marking; None where either was not run."""

    def both(measure: Measure) -> tuple[dict[int, float], dict[int, float]]:
        return by_seed(runs, place, control, measure), by_seed(runs, place, "default", measure)

    def means(measure: Measure) -> tuple[float, float]:
        ours, base = both(measure)
        return _mean(base), _mean(ours)

    queueing = paired_change(*both(QUEUEING_P99))
    if queueing is None:
        return None
    return Comparison(
        place=place,
        control=control,
        queueing=queueing,
        rtt=paired_change(*both(RTT_P99)),
        goodput=paired_change(*both(S1_GOODPUT)),
        classic_share=paired_change(*both(CLASSIC_SHARE)),
        moved=means(MOVED)[1],
        retransmitted=means(RETRANSMITTED),
        reordered=means(REORDERED),
    )


def percent(change: Estimate) -> str:
    """`-38 % (-45…-31)`; the interval is left out where there is none."""
    text = f"{change.mean * 100:+.1f} %"
    if change.low is None or change.high is None:
        return text
    return f"{text} ({change.low * 100:+.1f}…{change.high * 100:+.1f})"


def share(value: float, digits: int = 1) -> str:
    """`12.3 %`."""
    return f"{value * 100:.{digits}f} %"


def findings(runs: pl.DataFrame) -> list[Sentence]:
    """Say where selection helps, where it does not, and why, place by place."""
    return [sentence for place in places(runs) for sentence in _of_place(runs, place)]


def _of_place(runs: pl.DataFrame, place: Place) -> Iterator[Sentence]:
    oracle = compare(runs, place, "oracle")
    model = compare(runs, place, "model")
    if model is None and oracle is None:
        yield _split(runs, place)
        return
    if model is None:
        assert oracle is not None  # noqa: S101 - the line above
        said = f"{_room(oracle)}{_alone(oracle)}{_bound(runs, oracle)}"
        yield Sentence(oracle.kind, f"{place.words()}: {said} No model was run.")
        return
    yield Sentence(_judged(model), f"{place.words()}: {_gain(model)} {_why(runs, model, oracle)}")


def _split(runs: pl.DataFrame, place: Place) -> Sentence:
    """Where nothing chose: what a constant share in the other queue does."""
    random = compare(runs, place, "random")
    if random is None:
        return Sentence("note", f"{place.words()}: nothing can be said, neither model nor oracle was run.")
    costs = f" It costs too much: {'; '.join(random.broken())}." if random.broken() else ""
    said = f"{share(random.moved)} moved by chance change P99 by {percent(random.queueing)}."
    return Sentence(_judged(random), f"{place.words()}: {said}{costs}")


def _judged(model: Comparison) -> str:
    return "harms" if model.kind == "helps" and model.broken() else model.kind


def _gain(model: Comparison) -> str:
    change, n = percent(model.queueing), model.queueing.n
    seeds = "1 seed, which settles nothing" if n == 1 else f"95 %, {n} seeds"
    moved = f"moving {share(model.moved)} of S1's L4S packets"
    if model.moved == 0 and model.queueing.mean == 0:
        return "the model moved no packet, so nothing changed."
    if model.kind == "nothing":
        within = model.queueing.mean <= NO_HARM
        harm = "no harm" if within else f"more than the {share(NO_HARM, 0)} that count as no harm"
        return f"selection by the model changes P99 queueing by {change} ({seeds}), {moved}: {harm}."
    verb = "lowers" if model.kind == "helps" else "raises"
    said = f"selection by the model {verb} P99 queueing: {change} ({seeds}), {moved}."
    broken = model.broken()
    if model.kind == "helps":
        said += (
            f" It costs too much: {'; '.join(broken)}." if broken else " Its costs stay within the limits."
        )
    elif broken:
        said += f" It costs beside: {'; '.join(broken)}."
    return said


def _why(runs: pl.DataFrame, model: Comparison, oracle: Comparison | None) -> str:
    said = []
    if oracle is not None:
        said.append(_room(oracle) + _bound(runs, oracle))
        if oracle.kind == "helps" and oracle.queueing.mean < -ROOM:
            part = model.queueing.mean / oracle.queueing.mean
            if part >= 0:
                said.append(f"The model gets {share(part, 0)} of the oracle's gain.")
            if oracle.moved > 0 and model.moved < FEW * oracle.moved:
                said.append(f"It moves too few: the oracle moves {share(oracle.moved)}.")
            elif part < 0.5:
                said.append(
                    f"It moves {share(model.moved)}, often others than the oracle's {share(oracle.moved)}."
                )
    said += _against_random(runs, model)
    if model.rtt and model.rtt.mean > MOST_RTT_CHANGE:
        said.append(_reordering(model))
    return " ".join(said)


def _room(oracle: Comparison) -> str:
    change = percent(oracle.queueing)
    if oracle.kind == "helps" and oracle.queueing.mean < -ROOM:
        return f"There is room: the oracle changes P99 by {change}, moving {share(oracle.moved)}."
    if oracle.queueing.low is None:
        return f"The oracle changes P99 by {change}, moving {share(oracle.moved)} (1 seed)."
    if oracle.kind == "harms":
        return f"There is no room: even the oracle makes P99 worse, {change}, moving {share(oracle.moved)}."
    return f"There is no room to speak of: the oracle changes P99 by {change}, moving {share(oracle.moved)}."


def _alone(oracle: Comparison) -> str:
    broken = oracle.broken() if oracle.kind == "helps" else []
    return f" Even its costs are too high: {'; '.join(broken)}." if broken else ""


def _bound(runs: pl.DataFrame, oracle: Comparison) -> str:
    """Say it where moving by chance gained more: it sees the queues, not what its own packets do to them."""
    random = compare(runs, oracle.place, "random")
    if random is None or random.queueing.mean >= oracle.queueing.mean:
        return ""
    change = percent(random.queueing)
    return f" It is no upper bound: {share(random.moved)} moved by chance change P99 by {change}."


def _against_random(runs: pl.DataFrame, model: Comparison) -> list[str]:
    """Say whether choosing matters, or moving any packets would have done as much."""
    ours = by_seed(runs, model.place, "model", QUEUEING_P99)
    by_chance = paired_change(ours, by_seed(runs, model.place, "random", QUEUEING_P99))
    if by_chance is None or model.moved == 0:
        return []
    if by_chance.below(0):
        return [f"Against random marking of the same share: {percent(by_chance)}, so the choice matters."]
    return [f"Against random marking of the same share: {percent(by_chance)}, so no choice is shown."]


def _reordering(model: Comparison) -> str:
    reordered, again = (f"{share(a, 2)} → {share(b, 2)}" for a, b in (model.reordered, model.retransmitted))
    return (
        f"What the queue gains, reordering takes back: reordered packets {reordered}, retransmitted {again}."
    )


def sweep_summary(runs: pl.DataFrame) -> list[Sentence]:
    """One line per sweep, profile and control: at which points it helps, harms or changes nothing."""
    said = []
    groups = (
        runs.filter(pl.col("point") != "").select("scenario", "profile").unique().sort("scenario", "profile")
    )
    for group in groups.iter_rows(named=True):
        here = [p for p in places(runs) if p.scenario == group["scenario"] and p.profile == group["profile"]]
        chosen = [c for c in ("model", "oracle") if any(compare(runs, p, c) for p in here)]
        for control in chosen or ["random"]:
            compared = [c for p in here if (c := compare(runs, p, control)) is not None]
            if compared:
                said.append(_swept(group["scenario"], group["profile"], control, compared))
    return said


def _swept(scenario: str, profile: str, control: str, compared: Sequence[Comparison]) -> Sentence:
    words = {"helps": "lowers P99 queueing at", "harms": "raises it at", "nothing": "no settled change at"}
    parts = []
    for kind, verb in words.items():
        at = [f"{c.place.point} ({c.queueing.mean * 100:+.0f} %)" for c in compared if c.kind == kind]
        if at:
            parts.append(f"{verb} {', '.join(at)}")
    kinds = {c.kind for c in compared}
    overall = kinds.pop() if len(kinds) == 1 else "note"
    return Sentence(overall, f"{scenario}, {profile}, {control}: {'; '.join(parts)}.")


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else 0.0
