"""Changes against default L4S marking, paired by seed, and the verdict on each: what the tables rest on."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from swiftqueue.laboratory.report.judging import (
    FEWEST_PACKETS,
    FEWEST_SEEDS,
    LEAST_CLASSIC_SHARE,
    LEAST_CROSS_GOODPUT,
    LEAST_GOODPUT,
    MOST_RTT_CHANGE,
    MOST_UNFINISHED,
    NO_HARM,
    PACKET_BITS,
    SEEDS_SHOWN,
    SETTLED,
)
from swiftqueue.laboratory.report.measures import (
    CLASSIC_SHARE,
    CROSS_GOODPUT,
    CROSS_MESSAGE,
    PERCENT,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    RTT_P99,
    S1_GOODPUT,
    S1_MESSAGE,
    TAILS,
    UNFINISHED,
    Measure,
)
from swiftqueue.laboratory.runs.results import COMPLETE
from swiftqueue.models.scoring.intervals import MOST_SEEDS, Estimate, corrected, estimate, paired_change

NOT_SETTLED: Final = "not settled"
FEW_PACKETS: Final = f"rests on fewer than {FEWEST_PACKETS} packets"
NUMBER: Final = re.compile(r"(\d+(?:\.\d+)?)")
WIDE: Final = 10  # a change of 1,000 % needs no digit after its point


class Place(NamedTuple):
    """Where runs can be compared: same traffic, same queues."""

    scenario: str
    point: str
    profile: str

    def words(self) -> str:
        """Name it in a sentence."""
        return ", ".join(part for part in self if part)


class Limit(NamedTuple):
    """The price that a gain may have: a relative change of a measure, upwards unless `falls`."""

    name: str
    measure: Measure
    most: float
    falls: bool = False

    def coarse(self, packet_us: float, base: Mapping[int, float]) -> Limit:
        """Return the limit where default marking has these values: never finer than a packet's time."""
        if self.falls or not base or (mean := math.fsum(base.values()) / len(base)) <= 0:
            return self
        return self._replace(most=max(self.most, packet_us / mean))

    def is_passed_by(self, change: float) -> bool:
        """Return whether a change is beyond the limit."""
        return change < -self.most if self.falls else change > self.most

    def chance(self, change: Estimate) -> float:
        """Return the chance of such a change if the truth were the limit itself."""
        return change.chance(-self.most if self.falls else self.most, below=self.falls)


LIMITS: Final = (
    Limit("P99", QUEUEING_P99, NO_HARM),
    Limit("P99.9", QUEUEING_P999, NO_HARM),
    Limit("the longest wait", QUEUEING_MAX, NO_HARM),
    Limit("RTT P99", RTT_P99, MOST_RTT_CHANGE),
    Limit("S1's goodput", S1_GOODPUT, 1 - LEAST_GOODPUT, falls=True),
    Limit("S1's messages", S1_MESSAGE, NO_HARM),
    Limit("cross traffic's goodput", CROSS_GOODPUT, 1 - LEAST_CROSS_GOODPUT, falls=True),
    Limit("cross traffic's messages", CROSS_MESSAGE, NO_HARM),
    Limit("the classic flows' share", CLASSIC_SHARE, 1 - LEAST_CLASSIC_SHARE, falls=True),
)


class JudgedChange(NamedTuple):
    """A change, the limit it is held to there, and whether it is settled: beyond the limit; not zero."""

    limit: Limit
    change: Estimate
    beyond: bool
    below_zero: bool
    above_zero: bool

    @property
    def is_within(self) -> bool:
        """Return whether the whole interval is within the limit."""
        ends = (self.change.low, self.change.high)
        return None not in ends and not any(self.limit.is_passed_by(end) for end in ends if end is not None)

    def words(self) -> str:
        """Return the change with its interval, or with its bound where it is settled beyond its limit."""
        bound = self.bound()
        if bound is None:
            return percent(self.change)
        return f"{_points(self.change.mean)} % (by {_points(abs(bound)).lstrip('+')} or more)"

    def bound(self) -> float | None:
        """Return the one-sided 95 % bound of a change settled beyond its limit, not corrected; else None."""
        return self.change.bound(upper=self.limit.falls) if self.beyond else None

    @property
    def judged(self) -> str:
        """Return `harms` or `helps` where settled, `no harm` where all is within the limit, else `open`."""
        if self.beyond:
            return "harms"
        if self.above_zero if self.limit.falls else self.below_zero:
            return "helps"
        return "no harm" if self.is_within and self.change.n >= FEWEST_SEEDS else "open"


@dataclass(frozen=True)
class Comparison:
    """Changes of one control against default marking at one place, each settled or not.

    What is asked at several places of a scenario is corrected for how many they are (Holm), each measure
    for itself; places with fewer than `FEWEST_SEEDS` seeds settle nothing, and are not counted.
    """

    queueing: Estimate  # relative, of P99
    found: Mapping[Measure, JudgedChange]  # one for each measure that could be compared
    packets: float  # packets that P99 rests on, in the run that has the fewest

    @property
    def few_packets(self) -> bool:
        """Return whether P99 rests on fewer than FEWEST_PACKETS."""
        return self.packets < FEWEST_PACKETS

    @property
    def judged(self) -> str:
        """Return `helps`, `harms`, `no harm` or `open`; harm is any change settled beyond its limit."""
        if any(one.beyond for one in self.broken()):
            return "harms"
        if self.few_packets or self.queueing.n < FEWEST_SEEDS:
            return "open"
        p99 = self.found.get(QUEUEING_P99)
        if p99 and p99.below_zero:
            return "helps"
        return "no harm" if all(one.is_within for one in self.found.values()) else "open"

    @property
    def verdict(self) -> str:
        """Return the judgement as it stands in a table, with the changes beyond their limits."""
        costs = self.broken()
        if self.judged == "harms":
            return f"harms: {_listed(one for one in costs if one.beyond)}"
        if self.few_packets:
            said = "not enough packets"
        elif self.judged == "open":
            said = seeds_wanted([one for one in self.found.values() if not one.is_within], self.queueing.n)
        else:
            said = f"helps; {NOT_SETTLED}" if costs and self.judged == "helps" else self.judged
        return f"{said}: {_listed(costs)}" if costs else said

    def broken(self) -> list[JudgedChange]:
        """Return the changes with a mean beyond the limit; a longer P99 or tail only if that is settled."""
        delays = (QUEUEING_P99, QUEUEING_P999, QUEUEING_MAX)
        return [
            one
            for measure, one in self.found.items()
            if one.limit.is_passed_by(one.change.mean) and (one.beyond or measure not in delays)
        ]


def seeds_wanted(open_ones: Sequence[JudgedChange], seeds: int) -> str:
    """Say how many seeds would settle on which side of its limit each change is, were they like these."""
    limits = [-one.limit.most if one.limit.falls else one.limit.most for one in open_ones]
    wanted = [one.change.seeds_to_leave(limit) for one, limit in zip(open_ones, limits, strict=True)]
    most = max([seeds + 1, FEWEST_SEEDS, *wanted])
    might = f"{most} seeds might" if most < MOST_SEEDS else f"over {MOST_SEEDS - 1} seeds might"
    if seeds >= FEWEST_SEEDS:
        return f"{NOT_SETTLED} ({might})"
    return f"{NOT_SETTLED} (1 seed)" if seeds == 1 else f"{NOT_SETTLED} ({seeds} seeds; {might})"


def _listed(costs: Iterable[JudgedChange]) -> str:
    return ", ".join(f"{one.limit.name} {one.words()}" for one in costs)


def by_seed(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> dict[int, float]:
    """Return the value of a measure for each seed that was run there."""
    chosen = _complete(runs, place, control).drop_nulls(measure.column)
    return dict(zip(chosen["seed"], chosen[measure.column], strict=True))


class Mean(NamedTuple):
    """A mean over seeds, and the ends of its interval, in the measure's unit."""

    mean: float
    ends: tuple[float, ...]  # none where there are fewer than FEWEST_SEEDS


def mean_of(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> Mean | None:
    """Return a control's mean; its interval is cut to values that the measure can have. None: not run."""
    found = estimate(list(by_seed(runs, place, control, measure).values()))
    if found is None:
        return None
    low, high = found.low, found.high
    if low is None or high is None or found.n < FEWEST_SEEDS:
        return Mean(found.mean * measure.scale, ())
    most = PERCENT if measure.unit == "%" else math.inf
    return Mean(found.mean * measure.scale, (max(low * measure.scale, 0.0), min(high * measure.scale, most)))


def same_share(runs: pl.DataFrame) -> pl.DataFrame:
    """Leave out random marking of another share than the model moved with the same seed."""
    return runs.filter((pl.col("control") != "random") | pl.col("share_of").eq_missing(pl.lit("model")))


def other_shares(runs: pl.DataFrame, place: Place) -> str:
    """Return whose share random marking moved there, if not the model's; empty where there is none."""
    whose = set(_complete(runs, place, "random")["share_of"].drop_nulls()) - {"model"}
    return " and ".join(f"the {name}'s" for name in sorted(whose))


def places(runs: pl.DataFrame) -> list[Place]:
    """Return all places where something was run, by their axis, or by the numbers in their names."""
    found = runs.filter(pl.col("status") == COMPLETE).select("scenario", "point", "profile", "at").unique()
    rows = sorted(
        found.iter_rows(),
        key=lambda row: (row[0], row[2], row[3] is not None, row[3] or 0.0, by_numbers(row[1])),
    )
    return [Place(*place) for *place, _ in rows]


def by_numbers(name: str) -> tuple[str | float, ...]:
    """Return a key that sorts names by the numbers in them: `2 ms` is before `10 ms`."""
    return tuple(float(part) if i % 2 else part for i, part in enumerate(NUMBER.split(name)))


def change_of(
    runs: pl.DataFrame, place: Place, control: str, measure: Measure, base: str = "default"
) -> Estimate | None:
    """Return the relative change of a measure from one control to another; None where either was not run."""
    return paired_change(by_seed(runs, place, control, measure), by_seed(runs, place, base, measure))


def compare(
    runs: pl.DataFrame, place: Place, control: str, limits: Sequence[Limit] = LIMITS
) -> Comparison | None:
    """Compare a control with default marking; None where either was not run."""
    queueing = change_of(runs, place, control, QUEUEING_P99)
    if queueing is None:
        return None
    judged = {limit.measure: _judged(_Frame(runs), place.scenario, control, limit) for limit in limits}
    found = {measure: at[place] for measure, at in judged.items() if place in at}
    here = runs.filter(pl.col("control").is_in(["default", control]))
    return Comparison(queueing, found, _rests_on(here, place, QUEUEING_P99))


def settled(runs: pl.DataFrame, place: Place, control: str, measure: Measure) -> bool:
    """Return whether a change from default marking is settled: not zero, or beyond its limit."""
    found = compare(runs, place, control)
    one = found.found.get(measure) if found else None
    return bool(one and (one.below_zero or one.above_zero or one.beyond))


class _Frame:
    """A table of runs as a key: it is equal to itself alone, and nobody changes it."""

    def __init__(self, runs: pl.DataFrame) -> None:
        self.runs = runs

    def __hash__(self) -> int:
        return id(self.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frame) and other.runs is self.runs


@functools.lru_cache(maxsize=512)
def _judged(frame: _Frame, scenario: str, control: str, limit: Limit) -> dict[Place, JudgedChange]:
    """Return the change of a measure at every place of a scenario, each judged beside the others."""
    asked = _asked(
        frame.runs.filter(
            pl.col("scenario") == scenario,
            pl.col("control").is_in(["default", control]),
            pl.col("status") == COMPLETE,
        ),
        control,
        limit,
    )
    counted = {place: each for place, each in asked.items() if each[1].n >= FEWEST_SEEDS}

    def settled_at(chance: Callable[[Limit, Estimate], float]) -> set[Place]:
        chances = corrected([chance(*each) for each in counted.values()])
        return {place for place, found in zip(counted, chances, strict=True) if found < SETTLED}

    beyond = settled_at(lambda limit, one: limit.chance(one))
    # two-sided: half the chance on either side
    below_zero = settled_at(lambda _, one: 2 * one.chance(0, below=True))
    above_zero = settled_at(lambda _, one: 2 * one.chance(0, below=False))
    return {
        place: JudgedChange(*each, place in beyond, place in below_zero, place in above_zero)
        for place, each in asked.items()
    }


def _asked(here: pl.DataFrame, control: str, limit: Limit) -> dict[Place, tuple[Limit, Estimate]]:
    """Return the change of a measure at each place of these runs, with its limit there."""
    values: dict[Place, dict[str, dict[int, float]]] = {}
    packet_us: dict[Place, float] = {}
    columns = ("point", "profile", "control", "seed", "scenario", "parameters", limit.measure.column)
    for row in here.select(columns).iter_rows(named=True):
        if (value := row[limit.measure.column]) is None:
            continue
        place = Place(row["scenario"], row["point"], row["profile"])
        values.setdefault(place, {}).setdefault(row["control"], {})[row["seed"]] = value
        if place not in packet_us:
            packet_us[place] = _packet_us(row["parameters"])
    asked = {}
    for place, by_control in values.items():
        base = by_control.get("default", {})
        change = paired_change(by_control.get(control, {}), base)
        if change is not None and not why_not_judged(here, place, limit.measure):
            asked[place] = (limit.coarse(packet_us[place], base), change)
    return asked


def why_not_judged(runs: pl.DataFrame, place: Place, measure: Measure) -> str:
    """Return why nothing can be settled about a measure there, whatever its seeds; empty where it can be."""
    if measure in TAILS and _rests_on(runs, place, measure) < FEWEST_PACKETS:
        return FEW_PACKETS
    unfinished = mean_of(runs, place, "default", UNFINISHED) if measure == S1_MESSAGE else None
    if unfinished and unfinished.mean > MOST_UNFINISHED * UNFINISHED.scale:
        return f"{unfinished.mean:.0f} % of the bytes unfinished"
    return ""


def rests_on(runs: pl.DataFrame, place: Place, measure: Measure) -> int | None:
    """Return the packets that a quantile rests on in the run that has the fewest; None where not known."""
    fewest = _rests_on(runs, place, measure)
    return int(fewest) if math.isfinite(fewest) else None


def _rests_on(runs: pl.DataFrame, place: Place, measure: Measure) -> float:
    done = runs.filter(
        pl.col("status") == COMPLETE,
        pl.col("scenario") == place.scenario,
        pl.col("point") == place.point,
        pl.col("profile") == place.profile,
    )
    packets = done.select(pl.coalesce("queueing_packets", "packets").min()).item()
    return math.inf if packets is None else packets * TAILS[measure]


def _packet_us(parameters: str) -> float:
    """Time of a full-sized packet on the slowest bottleneck; 0 where a run does not say."""
    links = json.loads(parameters).get("bottlenecks", [])
    return max((PACKET_BITS / link["rate_bps"] * 1e6 for link in links), default=0.0)


def against_chance(runs: pl.DataFrame, place: Place) -> Estimate | None:
    """Return the change of P99 from random marking of the same share to the model; None: not run."""
    return change_of(same_share(runs), place, "model", QUEUEING_P99, base="random")


def percent(change: Estimate) -> str:
    """Return a change as `-38.0 % (-45.1…-31.2)`; the interval needs SEEDS_SHOWN seeds."""
    text = f"{_points(change.mean)} %"
    if change.low is None or change.high is None or change.n < SEEDS_SHOWN:
        return text
    return f"{text} ({_points(change.low)}…{_points(change.high)})"


def _points(change: float) -> str:
    """Return a change in %, with a decimal where it says something."""
    return f"{round(change * 100, 1) + 0.0:+.1f}" if change < WIDE else f"{change * 100:+,.0f}"  # never -0.0


def times(change: Estimate) -> str:
    """Return a change as a ratio: `1.38 times (1.31…1.45)`."""
    text = f"{1 + change.mean:.2f} times"
    if change.low is None or change.high is None or change.n < SEEDS_SHOWN:
        return text
    return f"{text} ({1 + change.low:.2f}…{1 + change.high:.2f})"


def share(value: float, digits: int = 1) -> str:
    """Return a share as `12.3 %`."""
    return f"{value * 100:.{digits}f} %"


def _complete(runs: pl.DataFrame, place: Place, control: str) -> pl.DataFrame:
    return runs.filter(
        pl.col("status") == COMPLETE,
        pl.col("scenario") == place.scenario,
        pl.col("point") == place.point,
        pl.col("profile") == place.profile,
        pl.col("control") == control,
    )
