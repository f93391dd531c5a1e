"""Walk forward through a trace: tune heads round by round, and predict with the head in service.

A forecaster is trained on the pre-training slices of all traces. Round by round its head is tuned on the
slice before the boundary, and predicts the slice after it once the round has ended; until then the previous
head predicts. The same is done without any tuning, and as if a round took no time.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import AS_SENT, INPUTS
from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES
from swiftqueue.models.forecasters.forecaster import Forecaster
from swiftqueue.models.forecasters.queries import column, replayed
from swiftqueue.models.forecasters.spread import Spread
from swiftqueue.models.forecasters.traces import Trace, TracePart, decision_times
from swiftqueue.models.scoring.baselines import Candidates, send_gap_direction
from swiftqueue.models.scoring.predictions import TracePredictions
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import SlicePiece, answered

TUNED, AT_ONCE, PRETRAINED = FORMS = ("tuned", "at_once", "pretrained")
Floats = NDArray[np.float64]
Heads = Mapping[int, Forecaster]  # head by round; -1: as trained


@dataclass(frozen=True)
class DecisionForecasts:
    """The forecasts for some decisions."""

    us_BH: Floats
    spread: Spread | None = None

    @classmethod
    def joined(cls, parts: Sequence[DecisionForecasts]) -> DecisionForecasts:
        """Return several forecasts as one, one after the other."""
        spreads = [part.spread for part in parts if part.spread is not None]
        us_BH = np.concatenate([part.us_BH for part in parts])
        return cls(us_BH, Spread.joined(spreads) if len(spreads) == len(parts) else None)

    def of(self, rows: NDArray[np.bool_]) -> DecisionForecasts:
        """Return the forecasts of some decisions."""
        spread = self.spread and Spread(self.spread.levels, self.spread.us_BHL[rows])
        return DecisionForecasts(self.us_BH[rows], spread)


def tune_heads(
    base: Forecaster,
    trace: Trace,
    how: FinetuneParams,
    say: Callable[[int, Forecaster, Forecaster], None] = lambda *_: None,
    first: int = 0,
) -> dict[int, Forecaster]:
    """Return the heads of a trace by round, each tuned from the one before; -1 is the head as trained.

    Args:
        base: forecaster as trained, or after the round before `first`.
        trace: trace whose rounds are walked.
        how: parameters of the tuning.
        say: called with each round, the head before it and its own.
        first: number of the first round.

    Raises:
        ValueError: tuning diverged; the line names the trace.
    """
    heads = {first - 1: base}
    for k, each in list(enumerate(trace.slices.rounds))[first:]:
        with learning_from([trace.name]):
            before = heads[k - 1]
            heads[k] = before.tuned(trace.to_learn(each.finetune), how) if len(each.finetune) else before
        say(k, heads[k - 1], heads[k])
    return heads


def pieces_of(trace: Trace, round_s: float) -> list[list[SlicePiece]]:
    """Divide each round's test slice by the head in service; `round_s` is the time of a round on a minute."""
    after_s = trace.slices.protocol.answers_after_s(round_s)
    return answered(trace.slices.rounds, decision_times(trace.packets), after_s)


def forecasts(
    heads: Heads, trace: Trace, round_s: float, queue: int = AS_SENT, forms: Sequence[str] = FORMS
) -> dict[str, DecisionForecasts]:
    """Return the forecasts of a trace's test slices by form; each decision is encoded once for all heads."""
    said: dict[str, list[DecisionForecasts]] = {form: [] for form in forms}
    alike = all(head is heads[-1] for head in heads.values())
    for k, some in enumerate(pieces_of(trace, round_s)):
        for piece in some:
            encoded = heads[-1].encode(trace.to_predict(piece.part), queue)
            answers: dict[int, DecisionForecasts] = {}
            for form in forms:
                head = -1 if alike else {TUNED: piece.head, AT_ONCE: k, PRETRAINED: -1}[form]
                if head not in answers:
                    answers[head] = _forecast(heads[head], encoded)
                said[form].append(answers[head])
    return {form: DecisionForecasts.joined(each) for form, each in said.items()}


def _forecast(head: Forecaster, encoded: object) -> DecisionForecasts:
    if (spread := head.spread(encoded)) is not None:
        return DecisionForecasts(spread.median_us.astype(np.float64), spread)
    return DecisionForecasts(head.answer(encoded).astype(np.float64))


@contextmanager
def learning_from(traces: Iterable[str]) -> Iterator[None]:
    """Prefix a failure's line with the names of the traces that are learned from."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"learning from {', '.join(traces)}: {error}") from error


def predict_trace(
    trace: Trace,
    methods: Mapping[str, tuple[Heads, str]],
    round_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> TracePredictions:
    """Return the predictions of all test slices of a trace by every method.

    Args:
        trace: trace to predict.
        methods: heads of each method, and the form of their forecasts.
        round_s: seconds that a live round on a minute takes.
        progress: called with each forecaster's name.
    """
    tests = [each.test for each in trace.slices.rounds]
    rows = np.concatenate([np.arange(test.lo, test.hi) for test in tests])
    flat = [piece for some in pieces_of(trace, round_s) for piece in some]
    inputs_BHF = np.concatenate([_shown(trace.to_predict(test)) for test in tests])
    us: dict[str, Floats] = {}
    classic: dict[str, NDArray[np.bool_]] = {}
    by_heads: dict[int, list[str]] = {}
    for method, (heads, _) in methods.items():
        by_heads.setdefault(id(heads), []).append(method)
    queues = (AS_SENT, *range(len(QUEUES))) if trace.waits else (AS_SENT,)

    def said_by(work: tuple[list[str], int]) -> dict[str, DecisionForecasts]:
        sharing, queue = work
        forms = tuple(methods[method][1] for method in sharing)
        return forecasts(methods[sharing[0]][0], trace, round_s, queue, forms)

    # Products and trees leave the interpreter to others, so threads keep all cores at work.
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        answers = pool.map(said_by, product(by_heads.values(), queues))
        for sharing in by_heads.values():
            said = [next(answers) for _ in queues]
            for method in sharing:
                form = methods[method][1]
                us[method] = said[0][form].us_BH
                if trace.waits:
                    classic[method] = said[1][form].us_BH < said[2][form].us_BH
            progress(f"{trace.name}: {', '.join(sharing)}")
    return TracePredictions(
        trace=trace.name,
        protocol=trace.slices.protocol,
        round_B=np.repeat(np.arange(len(tests)), [len(test) for test in tests]),
        head_B=np.repeat([piece.head for piece in flat], [len(piece.part) for piece in flat]),
        decision_ns_B=decision_times(trace.packets)[rows],
        y_BH=np.concatenate([trace.to_predict(test).latencies_us() for test in tests]).astype(np.float64),
        flow_BH=np.concatenate([flows_of(trace.to_predict(test)) for test in tests]),
        last_flow_BH=column(inputs_BHF, "last_latency_flow_us"),
        gap_BH=send_gap_direction(Candidates(inputs_BHF, tuple(each.name for each in INPUTS))),
        us_BH={method: us[method] for method in methods},
        change=trace.change,
        waits=None
        if trace.waits is None
        else trace.waits.of((rows[:, None] * HORIZON + np.arange(HORIZON)).ravel()),
        classic_BH=classic,
    )


def _shown(part: TracePart) -> NDArray[np.float32]:
    """Return a part's queries with visibility `acked`, so that lateness does not depend on the forecaster."""
    return replayed(replace(part, told="all", visibility="acked")).x_DHF


def flows_of(part: TracePart) -> NDArray[np.int64]:
    """Return the flow of each packet decided, (B, H)."""
    decided = part.packets[part.decisions.lo * HORIZON : part.decisions.hi * HORIZON]
    return decided["flow_id"].to_numpy().astype(np.int64).reshape(-1, HORIZON)
