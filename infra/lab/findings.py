"""What the results say, in words: rules on intervals over seeds, sentence by sentence.

Every comparison is paired by seed with default L4S marking. A change of P99 counts where its 95 % interval
leaves out zero, a cost where its mean is beyond the limit; a single seed settles nothing, and the sentence
says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import polars as pl

from infra.lab.comparison import (
    Comparison,
    Place,
    by_seed,
    change_of,
    compare,
    other_shares,
    percent,
    places,
    same_share,
    share,
    times,
)
from infra.lab.intervals import Estimate, estimate
from infra.lab.limits import FEW, JUDGED, MANY_FLOWS, MOST_CPU, MOST_CPU_S, MOST_RTT_CHANGE, NO_HARM, ROOM
from infra.lab.measures import CPU, QUEUEING_P99
from infra.lab.scenario import CONTROLS

SWEPT: Final = {  # kind: without and with costs beyond their limits
    "helps": ("lowers P99 queueing", "lowers P99 queueing, but costs too much,"),
    "harms": ("raises it", "raises it, and costs too much,"),
    "nothing": ("no settled gain or harm", "no settled gain or harm, but costs too much,"),
}
SHOWN: Final = 5e-4  # shares below are 0.0 % in a sentence


class Sentence(NamedTuple):
    """One line; `kind` is `helps`, `harms`, `nothing`, `mixed` or `note`."""

    kind: str
    text: str


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
        yield Sentence(oracle.judged, f"{place.words()}: {said} No model was run.")
        return
    yield Sentence(model.judged, f"{place.words()}: {_gain(model)} {_why(runs, model, oracle)}")


def _split(runs: pl.DataFrame, place: Place) -> Sentence:
    """Where nothing chose: what a constant share in the other queue does."""
    random = compare(runs, place, "random")
    if random is None:
        return Sentence("note", f"{place.words()}: nothing can be said, neither model nor oracle was run.")
    costs = f" It costs too much: {random.broken_words()}." if random.broken() else ""
    said = f"{share(random.moved)} moved by chance change P99 by {percent(random.queueing)}."
    return Sentence(random.judged, f"{place.words()}: {said}{costs}")


def _gain(model: Comparison) -> str:
    change, n = percent(model.queueing), model.queueing.n
    seeds = "1 seed, which settles nothing" if n == 1 else f"95 %, {n} seeds"
    moved = f"moving {share(model.moved)} of S1's L4S packets"
    if model.moved == 0 and model.queueing.mean == 0:
        return "the model moved no packet, so nothing changed."
    broken = model.broken_words()
    if model.kind == "nothing":
        said = f"selection by the model changes P99 queueing by {change} ({seeds}), {moved}: "
        within = model.queueing.mean <= NO_HARM
        said += "no gain is settled." if broken and within else _harmless(model.queueing)
        return said + (f" It costs too much: {broken}." if broken else "")
    verb = "lowers" if model.kind == "helps" else "raises"
    said = f"selection by the model {verb} P99 queueing: {change} ({seeds}), {moved}."
    if model.kind == "helps":
        return said + (f" It costs too much: {broken}." if broken else " Its costs stay within the limits.")
    return said + (f" It costs beside: {broken}." if broken else "")


def _harmless(change: Estimate) -> str:
    """Say whether it is settled that there is no harm: where the target of `rfc9332` is held."""
    if change.high is not None and change.high <= NO_HARM:
        return "no harm."
    if change.mean < 0:
        return "not settled, though its mean is lower."
    where = "above" if change.mean > NO_HARM else "within"
    return f"not settled, its mean {where} the {share(NO_HARM, 0)} that count as no harm."


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
                said.append(f"It moves {share(model.moved)}, the oracle {share(oracle.moved)}.")
    said += _against_random(runs, model)
    if model.unforeseen > 0:
        said.append(
            f"{share(model.unforeseen)} of S1's packets are L4S ones without a decision of their own."
        )
    if model.rtt and model.rtt.mean > MOST_RTT_CHANGE:
        said.append(_longer(model))
    return " ".join(said)


def _room(oracle: Comparison) -> str:
    change = percent(oracle.queueing)
    if oracle.kind == "helps" and oracle.queueing.mean < -ROOM:
        return f"There is room: the oracle changes P99 by {change}, moving {share(oracle.moved)}."
    if oracle.queueing.low is None:
        return f"The oracle changes P99 by {change}, moving {share(oracle.moved)} (1 seed)."
    if oracle.kind == "harms":
        return f"There is no room: even the oracle makes P99 worse, {change}, moving {share(oracle.moved)}."
    room = "no room to speak of" if oracle.queueing.low > -ROOM else "no room that is settled"
    return f"There is {room}: the oracle changes P99 by {change}, moving {share(oracle.moved)}."


def _alone(oracle: Comparison) -> str:
    return f" Its costs are too high: {oracle.broken_words()}." if oracle.broken() else ""


def _bound(runs: pl.DataFrame, oracle: Comparison) -> str:
    """Say it where moving by chance gained more: it sees the queues, not what its own packets do to them."""
    random = compare(runs, oracle.place, "random")
    if random is None or random.moved < SHOWN or random.queueing.mean >= oracle.queueing.mean:
        return ""
    change = percent(random.queueing)
    return f" It is no upper bound: {share(random.moved)} moved by chance change P99 by {change}."


def _against_random(runs: pl.DataFrame, model: Comparison) -> list[str]:
    """Say whether choosing matters, or moving any packets would have done as much."""
    if model.moved == 0:
        return []
    by_chance = change_of(same_share(runs), model.place, "model", QUEUEING_P99, base="random")
    if by_chance is None:
        whose = other_shares(runs, model.place)
        said = f"Random marking moved {whose} share, so it says nothing of the choice."
        return [said] if whose else []
    some = "" if by_chance.n == model.queueing.n else f" with {by_chance.n} of the seeds"
    if by_chance.n == 1:
        shown = "1 seed, which settles nothing"
    elif by_chance.below(0):
        shown = "so the choice matters"
    else:
        shown = "so choosing did worse than chance" if by_chance.above(0) else "so no choice is shown"
    return [f"Against random marking of the same share{some}: {percent(by_chance)}, {shown}."]


def _longer(model: Comparison) -> str:
    """Say that round trips are longer; of a gain taken back, only where both were measured."""
    counted = {"reordering": model.reordered, "retransmission": model.retransmitted}
    rose = [name for name, (before, after) in counted.items() if after > before]
    reordered, again = (f"{share(a, 2)} → {share(b, 2)}" for a, b in counted.values())
    if model.kind == "helps" and rose:
        said = f"What the queue gains, {rose[0]} takes back"
    else:
        said = "RTT P99 rises" if rose else "RTT P99 rises, though no more is reordered or sent again"
    return f"{said}: reordered packets {reordered}, retransmitted {again}."


def sweep_summary(runs: pl.DataFrame) -> list[Sentence]:
    """One line per sweep, profile and control: at which points it helps, harms or changes nothing."""
    said = []
    for here in _lines(runs.filter(pl.col("point") != "")):
        chosen = [c for c in ("model", "oracle") if any(compare(runs, p, c) for p in here)]
        for control in chosen or ["random"]:
            compared = [c for p in here if (c := compare(runs, p, control)) is not None]
            if compared:
                said.append(_swept(here[0].scenario, here[0].profile, control, compared))
    return said


def _swept(scenario: str, profile: str, control: str, compared: Sequence[Comparison]) -> Sentence:
    parts = []
    for kind, words in SWEPT.items():
        for dear, verb in enumerate(words):
            at = [_at_point(c) for c in compared if c.kind == kind and bool(c.broken()) == dear]
            if at:
                parts.append(f"{verb} at {', '.join(at)}")
    judged = {c.judged for c in compared}
    overall = judged.pop() if len(judged) == 1 else "mixed"
    return Sentence(overall, f"{scenario}, {profile}, {control}: {'; '.join(parts)}.")


def _at_point(compared: Comparison) -> str:
    costs = [f"{cost.name} {_rounded(cost.change)}" for cost in compared.broken()]
    return f"{compared.place.point} ({'; '.join([_rounded(compared.queueing), *costs])})"


def _rounded(change: Estimate) -> str:
    return f"{change.mean * 100:+.0f} %"


def cpu_times(runs: pl.DataFrame) -> list[Sentence]:
    """What the model costs where it was run, and what a run of many flows takes."""
    said = []
    for here in _lines(runs):
        where = Place(here[0].scenario, "", here[0].profile).words()
        changes = {place.point: change_of(runs, place, "model", CPU) for place in here}
        parts = [times(c) + (f" at {point}" if point else "") for point, c in changes.items() if c]
        if parts:
            wanted = f"; at most {MOST_CPU:g} times is wanted" if here[0].scenario == JUDGED else ""
            said.append(f"{where}: CPU time with the model against default: {', '.join(parts)}{wanted}.")
        if here[0].scenario == MANY_FLOWS:
            said.append(f"{where}: {_cpu_s(runs, here[0])}; at most {MOST_CPU_S:g} s is wanted.")
    return [Sentence("note", text) for text in said]


def _cpu_s(runs: pl.DataFrame, place: Place) -> str:
    means = {c: estimate(list(by_seed(runs, place, c, CPU).values())) for c in CONTROLS}
    return f"CPU time of a run: {', '.join(f'{c} {e.mean:,.0f} s' for c, e in means.items() if e)}"


def _lines(runs: pl.DataFrame) -> list[list[Place]]:
    """The places of each scenario and profile."""
    return [list(here) for _, here in groupby(places(runs), key=lambda p: (p.scenario, p.profile))]
