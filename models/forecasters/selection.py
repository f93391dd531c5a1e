"""Choose the loop's forecaster among several by walking forward within the training slices (`auto`).

Step k trains on the first part of each training slice and forecasts all that follows in it. No candidate sees
a validation or test slice, nor an ACK that came after the training slice. The candidates' forecasts of all
steps are scored together, and `best_of` has the rule.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np

from swiftqueue.common.json_file import read_object
from swiftqueue.models.forecasters.comparison import HeldOutPackets
from swiftqueue.models.forecasters.forecaster import AutoParams, Say, Variant, is_served
from swiftqueue.models.forecasters.traces import Trace, lessons, tested
from swiftqueue.models.forecasters.walk import PRETRAINED, DecisionForecasts, forecasts, learning_from
from swiftqueue.models.scoring.metrics import late_from, late_margin, score_predictions
from swiftqueue.models.training.protocol import LEAST_DECISIONS, Round, Slice, TraceSlices

FIRST_SHARE: Final = 0.4  # share of a training slice that the first step trains on
AP_MARGIN: Final = 0.02  # difference in average precision that counts, as in the gate
MAE_MARGIN: Final = 0.05  # difference in error that counts, as a share of the least
NO_ERROR_MS: Final = 1e-3  # an error below it is none: latencies are kept in µs
CHOICE_FILE: Final = "choice.json"  # lies beside the forecaster that was chosen
# Late packets come in episodes. With fewer of them one episode would decide, as in the gate.
LEAST_LATE: Final = 50
LEAST_LATE_SECONDS: Final = 5
# Margins that leave no doubt. A candidate that is so far behind trains no more, and one that no program
# serves is chosen only where it is so far ahead.
CLEAR: Final = 5.0


@dataclass(frozen=True)
class Score:
    """A candidate's scores over the steps that it was trained for."""

    average_precision: float | None
    mae_ms: float
    late: int  # number of late packets
    late_seconds: int  # number of seconds that they come from

    @property
    def precise(self) -> bool:
        """Return whether there are late packets enough for average precision to decide."""
        return self.late >= LEAST_LATE and self.late_seconds >= LEAST_LATE_SECONDS

    def __str__(self) -> str:
        precision = "no late packet" if self.average_precision is None else f"AP {self.average_precision:.3f}"
        return f"{precision}, MAE {self.mae_ms:.2f} ms"


@dataclass(frozen=True)
class Choice:
    """The chosen forecaster, with the reason and the scores of all candidates."""

    variant: Variant
    line: str  # name and reason, in one line
    scores: Mapping[str, Score]  # by candidate; one whose training failed has none
    steps: Mapping[str, int]  # number of steps that each was trained for
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the choice as plain JSON, without times, so that a repeated choice is the same file."""
        candidates = {
            name: {
                "average_precision": score.average_precision and round(score.average_precision, 4),
                "mae_ms": round(score.mae_ms, 4),
                "steps": self.steps[name],
            }
            for name, score in self.scores.items()
        }
        return {
            "chosen": self.variant.name,
            "kind": self.variant.kind_name,
            "why": self.line,
            "late": self.scores[self.variant.name].late,
            "late_seconds": self.scores[self.variant.name].late_seconds,
            "candidates": candidates,
        }


def chosen_in(folder: Path) -> dict[str, Any]:
    """Return the choice behind a pre-trained forecaster, as `Choice.as_json`; empty if there was none."""
    path = folder / CHOICE_FILE
    return read_object(path) if path.is_file() else {}


def choose(traces: Sequence[Trace], among: Sequence[Variant], params: AutoParams, say: Say) -> Choice:
    """Return the candidate that forecasts best within the training slices.

    A step costs a whole training of each candidate that is left, for a network learns as long on a part of
    the data as on all. A candidate that falls far behind is trained for no further step.

    Args:
        traces: traces whose training slices are walked; those without a test slice teach as a whole.
        among: the candidates, the most welcome first.
        params: number of steps, and of candidates that train at once.
        say: called with a line about each step.

    Raises:
        ValueError: no candidate could be trained; the line says why.
    """
    started = time.monotonic()
    steps = [step for step in walk_forward(traces, params.steps) if _usable(step)]
    if not steps:
        raise ValueError(
            "architecture.name is auto, and the training slices are too short to choose on: name a forecaster"
        )
    asked = [HeldOutPackets.of(tested_in(step)) for step in steps]
    said: dict[str, list[DecisionForecasts]] = {variant.name: [] for variant in among}
    scores: dict[str, Score] = {}
    left, failed = list(among), ""
    unserved = {variant.name for variant in among if not is_served(variant.kind)}
    with _workers(params.workers, len(among)) as each:
        for k, step in enumerate(steps):
            share = _taught(step) / _taught(traces)
            found = each(_forecast, [(_as_long(variant, share), step) for variant in left])
            for variant, result in zip(left, found, strict=True):
                if isinstance(result, str):
                    failed = f"{variant.name}: {result}"
                    scores.pop(variant.name, None)
                    say(f"auto: step {k + 1}, {failed}; left out")
                    continue
                said[variant.name].append(result)
                scores[variant.name] = _score(said[variant.name], asked)
            left = [variant for variant in left if variant.name in scores]
            if not left:
                raise ValueError(f"none of the forecasters in auto.candidates could be trained; {failed}")
            shown = "; ".join(f"{variant.name} {scores[variant.name]}" for variant in left)
            say(f"auto: step {k + 1} of {len(steps)}: {shown}")
            if k + 1 < len(steps):
                far = _behind({variant.name: scores[variant.name] for variant in left}, unserved)
                left = [variant for variant in left if far[variant.name] <= min(far.values()) + CLEAR]
    name, why = best_of({variant.name: scores[variant.name] for variant in left}, unserved)
    counts = {name: len(said[name]) for name in scores}
    others = "; ".join(
        f"{other} {score}" + (f" (left out after step {counts[other]})" if counts[other] < len(steps) else "")
        for other, score in scores.items()
        if other != name
    )
    line = f"chose {name}: {scores[name]}, {why}" + (f"; against {others}" if others else "")
    line += f"; {len(steps)} steps within the training slices"
    variant = next(variant for variant in left if variant.name == name)
    return Choice(variant, line, scores, counts, time.monotonic() - started)


def best_of(scores: Mapping[str, Score], unserved: Set[str] = frozenset()) -> tuple[str, str]:
    """Return the first of the candidates that are within a margin of the least behind, and the reason."""
    far = _behind(scores, unserved)
    equals = [name for name in scores if far[name] <= min(far.values()) + 1]
    name = equals[0]
    best = "the highest AP and the least MAE"
    if few := [score for score in scores.values() if not score.precise]:
        best = f"the least MAE ({few[0].late} late packets in {few[0].late_seconds} s are too few for AP)"
    if far[name] == 0:
        return name, best
    if len(equals) > 1:
        return name, f"as close to {best} as {' and '.join(equals[1:])}"
    return name, f"the closest to {best}"


def _behind(scores: Mapping[str, Score], unserved: Set[str]) -> dict[str, float]:
    """Return how many margins each candidate is behind the best, in the score where it is furthest behind.

    The scores are the average precision of late packets, with its margin AP_MARGIN, and the mean absolute
    error, with MAE_MARGIN. With fewer than LEAST_LATE late packets, or in fewer than LEAST_LATE_SECONDS
    seconds, the error alone counts. A candidate that no program serves is CLEAR margins further behind.
    """
    least = min(score.mae_ms for score in scores.values())
    best = max(score.average_precision or 0.0 for score in scores.values())
    precise = all(score.precise for score in scores.values())
    return {
        name: max(
            (score.mae_ms - least) / (MAE_MARGIN * max(least, NO_ERROR_MS)),
            (best - (score.average_precision or 0.0)) / AP_MARGIN if precise else 0.0,
        )
        + (CLEAR if name in unserved else 0.0)
        for name, score in scores.items()
    }


def _taught(traces: Sequence[Trace]) -> int:
    """Return the number of decisions that are learned from."""
    return sum(len(trace.slices.pretrain) for trace in traces)


def _as_long(variant: Variant, share: float) -> Variant:
    """Return a variant that takes as many steps of training on a share of the data as it does on all.

    Otherwise the early steps of the walk would judge networks that have hardly begun to learn.
    """
    epochs = getattr(variant.params, "epochs", None)
    if epochs is None:
        return variant
    return replace(variant, params=variant.params.model_copy(update={"epochs": round(epochs / share)}))


def walk_forward(traces: Sequence[Trace], steps: int) -> list[list[Trace]]:
    """Return the traces of each step: a part of each training slice to learn from, and the rest to predict.

    The packets are those of the training slice as known at its end, so nothing later can be seen.
    """
    return [[_step(trace, k, steps) for trace in traces] for k in range(steps)]


def _step(trace: Trace, k: int, steps: int) -> Trace:
    part = trace.slices.pretrain
    known = replace(trace, packets=trace.to_learn(part).packets)
    if not trace.slices.rounds:  # it only teaches
        return known
    cut = part.lo + round(len(part) * (FIRST_SHARE + (1 - FIRST_SHARE) * k / steps))
    rounds = (Round(Slice(cut, cut), Slice(cut, part.hi)),)
    slices = TraceSlices(trace.slices.protocol, trace.slices.duration_s, Slice(part.lo, cut), rounds)
    return replace(known, slices=slices)


def _usable(step: Sequence[Trace]) -> bool:
    """Return whether a step has latencies to learn from and to score."""
    taught = any(np.isfinite(part.latencies_us()).any() for part in lessons(step)) if _begun(step) else False
    return taught and any(
        np.isfinite(trace.to_predict(each.test).latencies_us()).any()
        for trace in tested_in(step)
        for each in trace.slices.rounds
    )


def _begun(step: Sequence[Trace]) -> bool:
    """Return whether each trace has decisions to train on and one to validate."""
    return all(len(trace.slices.pretrain) >= LEAST_DECISIONS for trace in step)


def tested_in(step: Sequence[Trace]) -> list[Trace]:
    """Return a step's traces that are forecast."""
    return tested({trace.name: trace for trace in step})


def _forecast(variant: Variant, step: Sequence[Trace]) -> DecisionForecasts | str:
    """Return a candidate's forecasts of a step, as trained; the line of the failure if it cannot be."""
    import torch

    torch.set_num_threads(1)  # small networks lose by more threads
    parts = lessons(step)
    try:
        with learning_from(part.trace for part in parts):
            heads = {-1: variant.fit(parts, int(getattr(variant.params, "seed", 0)))}
    except ValueError as error:
        return str(error)
    told = [forecasts(heads, trace, 0.0, forms=(PRETRAINED,))[PRETRAINED] for trace in tested_in(step)]
    return DecisionForecasts.joined(told)


def _score(said: Sequence[DecisionForecasts], asked: Sequence[HeldOutPackets]) -> Score:
    """Score a candidate's forecasts of the first steps together."""
    steps = list(zip(said, asked[: len(said)], strict=True))
    lateness = [
        one.spread.above(late_from(held_out.last_flow_BH, held_out.change))
        for one, held_out in steps
        if one.spread is not None
    ]
    came_BH = np.concatenate([held_out.came_BH for _, held_out in steps])
    last_BH = np.concatenate([held_out.last_flow_BH for _, held_out in steps])
    scores = score_predictions(
        np.concatenate([one.us_BH for one, _ in steps]),
        *(came_BH, last_BH),
        change=asked[0].change,
        lateness_BH=np.concatenate(lateness) if lateness else None,
    )
    most = asked[0]  # a later step forecasts a part of the same packets
    late_BH = late_margin(most.came_BH, most.last_flow_BH, most.change) >= 1
    second_B = most.time_ns_B // 10**9
    late, mae_ms = scores["late"], scores["error"]["mae_ms"]
    return Score(
        late["average_precision"],
        float("inf") if mae_ms is None else mae_ms,
        int(late_BH.sum()),
        len(np.unique(second_B[late_BH.any(1)])),
    )


@contextmanager
def _workers(count: int, most: int) -> Iterator[Any]:
    """Yield a function that calls another one for each of some arguments, in `count` processes."""
    if min(count, most) == 1:
        yield lambda do, arguments: [do(*each) for each in arguments]
        return
    with ProcessPoolExecutor(min(count, most), get_context("spawn")) as pool:
        yield lambda do, arguments: [one.result() for one in [pool.submit(do, *each) for each in arguments]]
