"""The virtual queue as a forecaster: a rule that follows each queue by the sender's own packets.

A packet waits as the newest acknowledged packet of its queue did, longer by the sender's own bytes since and
shorter by the time since, and no shorter than the oldest packet that may still be in the queue has waited so
far. `feature_store/events/virtual_queue.h` has the rule; here its rates are fitted.

Shapes: B decisions, H horizon (8 packets), N packets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np

from swiftqueue.common.section import Section
from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.events.virtual_queue import (
    Rule,
    VirtualQueueRows,
    replay_virtual_queue,
    virtual_queue_hash,
)
from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, check_made_for
from swiftqueue.models.forecasters.queries import column, replayed
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.scoring.metrics import late_margin, precision_recall
from swiftqueue.models.sharp import Change

Rules = tuple[Rule, Rule]
Rates = Literal["fitted", "online"]
FACTORS: Final = (
    0.0,
    0.25,
    0.5,
    0.7,
    0.85,
    1.0,
    1.2,
    1.4,
    1.7,
    2.0,
    2.8,
)  # factors of the rates estimated online
OVERDUE: Final = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0)
SWEEPS: Final = 3  # over both queues, at most
AS_GOOD: Final = 0.02  # difference in average precision below which the error decides
MOST_FITTED: Final = 6_000  # decisions, evenly spaced; more would not change the rates


class VirtualQueueParams(Section):
    """Parameters of the virtual queue."""

    section: ClassVar = "virtual-queue"
    rates: Rates
    """Source of the rates at which a queue fills and drains, which are `fitted` on the training slices, or
    `online`, estimated from the sender's own packets as their ACKs come."""


class VirtualQueue(Forecaster):
    """A rule for each queue; where no latency is known at all, the training slices' median."""

    Params = VirtualQueueParams
    seeded = False

    def __init__(self, params: VirtualQueueParams, rules: Rules, median_us: float) -> None:
        """Take the rules, and the latency in µs to use where nothing is visible."""
        self.params, self.rules, self.median_us = params, rules, median_us

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: VirtualQueueParams, seed: int, say: Say) -> Self:
        """Take the rules that rank the training slices' late packets best; of those as good, the exactest."""
        came_BH = np.concatenate([part.latencies_us() for part in parts])
        if not np.isfinite(came_BH).any():
            raise ValueError("no latency is known in the training slices")
        rules = (Rule.online(), Rule.online())
        if params.rates == "fitted":
            rules = _fitted(Lesson.of(parts))
            for name, rule in zip(QUEUES, rules, strict=True):
                rates = f"{rule.us_per_byte:.3g} µs a byte, drained {rule.drained:.0%} of the time"
                say(f"virtual queue, {name}: {rates}, {rule.overdue:.0%} of the oldest packet's waiting")
        return cls(params, rules, float(np.nanmedian(came_BH)))

    def encode(self, part: TracePart, queue: int = AS_SENT) -> VirtualQueueRows:
        """Return the rows of the packets decided."""
        return _rows(part, queue)

    def answer(self, encoded: VirtualQueueRows) -> Floats:
        """Return latencies in µs (B, H)."""
        us_BH = encoded.forecast_us(self.rules)
        return np.where(np.isnan(us_BH), self.median_us, us_BH).astype(np.float32)

    def multiply_adds(self) -> int:
        """Return the products of 8 packets in both queues: four each."""
        return 4 * HORIZON * len(QUEUES)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the rules."""
        return {
            "schema_hash": virtual_queue_hash(),
            "params": self.params.model_dump(),
            "rules": {name: _as_json(rule) for name, rule in zip(QUEUES, self.rules, strict=True)},
            "median_us": self.median_us,
        }

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the rules."""
        check_made_for(described, virtual_queue_hash())
        classic, l4s = (_from_json(described["rules"][name]) for name in QUEUES)
        return cls(VirtualQueueParams(**described["params"]), (classic, l4s), float(described["median_us"]))


def _rows(part: TracePart, queue: int = AS_SENT) -> VirtualQueueRows:
    return replay_virtual_queue(
        part.packets,
        part.first_packets,
        visibility=part.visibility,
        queue=queue,
        told=part.told,
        beginning=part.beginning,
    )


@dataclass(frozen=True)
class Lesson:
    """Decisions of the training slices whose latencies came."""

    rows: VirtualQueueRows
    came_BH: Floats
    last_flow_BH: Floats  # last visible latency of each packet's flow: from it a packet is late
    change: Change

    @classmethod
    def of(cls, parts: Sequence[TracePart]) -> Lesson:
        """Return evenly spaced decisions of some parts."""
        every = math.ceil(sum(map(len, parts)) / MOST_FITTED)
        some = [replace(part, every=part.every * every) for part in parts]
        rows = [_rows(part) for part in some]
        return cls(
            VirtualQueueRows(*(np.concatenate(each) for each in zip(*rows, strict=True))),
            np.concatenate([part.latencies_us() for part in some]),
            np.concatenate([column(replayed(part).x_DHF, "last_latency_flow_us") for part in some]),
            parts[0].change,
        )

    def score(self, rules: Rules) -> RuleScore:
        """Return the score of rules."""
        us_BH = self.rows.forecast_us(rules)
        known = np.isfinite(self.came_BH) & np.isfinite(us_BH)
        if not known.any():
            return RuleScore(0.0, 0.0)
        us_N, came_N = us_BH[known], self.came_BH[known].astype(np.float64)
        last_N = self.last_flow_BH[known]
        error = float(((us_N - came_N) ** 2).mean())
        margin_N = late_margin(came_N, last_N, self.change)
        scored = np.isfinite(margin_N)
        late_N = margin_N[scored] >= 1
        curve = precision_recall(late_N, late_margin(us_N, last_N, self.change)[scored])
        return RuleScore(curve.average_precision() or 0.0, error)


class RuleScore(NamedTuple):
    """Average precision of late packets, 0 where none is late, and the mean squared error."""

    precision: float
    error: float


def _fitted(lesson: Lesson) -> Rules:
    """Return rules by steps, each a queue's rates or its share of the oldest packet's waiting."""
    usual = [_usual(lesson.rows, queue) for queue in range(len(QUEUES))]
    known: dict[Rules, RuleScore] = {}

    def better(rules: Rules) -> tuple[float, float]:
        if rules not in known:
            known[rules] = lesson.score(rules)
        return known[rules].precision, -known[rules].error

    best = (usual[0], usual[1])
    for _ in range(SWEEPS):
        before = best
        for queue in range(len(QUEUES)):
            best = max((_with(best, queue, rule) for rule in _rates(best[queue], usual[queue])), key=better)
            shares = (best[queue]._replace(overdue=share) for share in OVERDUE)
            best = max((_with(best, queue, rule) for rule in shares), key=better)
        if best == before:
            break
    as_good = [rules for rules, score in known.items() if score.precision >= better(best)[0] - AS_GOOD]
    return min(as_good, key=lambda rules: known[rules].error)


def _usual(rows: VirtualQueueRows, queue: int) -> Rule:
    """Return the rule of a queue by the median of the rates that were estimated online."""
    here, online = rows.queue_DH == queue, Rule.online()
    if not here.any():
        return Rule(0.0, 0.0, online.overdue)
    us_per_byte, drained = (float(np.median(rows.column(name)[here])) for name in ("us_per_byte", "drained"))
    return Rule(us_per_byte, drained, online.overdue)


def _rates(now: Rule, usual: Rule) -> Iterator[Rule]:
    """Yield a rule with multiples of the usual rates."""
    for fills, drains in itertools.product(FACTORS, FACTORS):
        yield Rule(usual.us_per_byte * fills, min(1.0, usual.drained * drains), now.overdue)


def _with(rules: Rules, queue: int, rule: Rule) -> Rules:
    return (rule, rules[1]) if queue == 0 else (rules[0], rule)


def _as_json(rule: Rule) -> list[float | None]:
    return [None if math.isnan(rate) else rate for rate in rule]


def _from_json(rates: Sequence[float | None]) -> Rule:
    return Rule(*(math.nan if rate is None else float(rate) for rate in rates))


FORECASTERS: Final = {"virtual-queue": VirtualQueue}
