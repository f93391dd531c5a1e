"""Train the event stream on segments of a trace's events, each with the earlier events that it needs.

A step has several segments. Every SEND of the training slices is a target once an epoch: decisions lie 8
packets apart, and each epoch begins them at another packet.

Shapes: E events, B decisions of a part, Q decisions of a step, G segments, N events of one, H horizon
(8 packets), F inputs of an event, P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.event_stream.log import EventLog, encode_log, segment
from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS, Inputs, replayed
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.networks.scaling import ScaledFeature, fit_features, fit_target
from swiftqueue.models.sharp import sharp_changes
from swiftqueue.models.training.calibration import Doubles, missed
from swiftqueue.models.training.epochs import ALONE, WorkerShare
from swiftqueue.models.training.loss import example_weights
from swiftqueue.models.training.query_training import Batch, Course, QueryTrainer, held_out_error


@dataclass(frozen=True)
class _EpochTargets:
    """A trace's events, and the decisions that are targets in one epoch."""

    log: EventLog
    target_BH: torch.Tensor
    weight_BH: torch.Tensor


class EventStreamCourse(Course):
    """An untrained network and a worker's trainer, with its share of the segments."""

    model: EventPredictor

    def __init__(
        self, parts: Sequence[TracePart], params: EventStreamParams, seed: int, share: WorkerShare = ALONE
    ) -> None:
        """Make an untrained network; the last tenth of each part is held out."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        torch.manual_seed(seed)
        self.model, self.params = _untrained(learnt, params), params
        self.held_out = [
            (log_of(part, *inputs_seen(params.left_out)), part.latencies_us()) for part in held_out
        ]
        lesson = _Lesson(learnt, self.model, params, seed, share)

        def validate() -> float:
            own = self.held_out[share.rank :: share.workers]
            shown = ((encode_log(self.model, log), came_BH) for log, came_BH in own)
            return held_out_error(self.model, shown, share.workers)

        self.trainer = QueryTrainer(self.model, lesson.batches, lesson.steps, validate, params, seed, share)

    def past(self) -> tuple[Doubles, ...]:
        """Return the errors of the network's levels on the held-out part, if that calibrates them."""
        if not self.params.calibration:
            return ()
        shown = ((encode_log(self.model, log), came_BH) for log, came_BH in self.held_out)
        return (np.concatenate([missed(self.model, encoded, came_BH) for encoded, came_BH in shown]),)


def log_of(
    part: TracePart, events: Inputs, queries: Inputs, queue: int = AS_SENT, phase: int = 0
) -> EventLog:
    """Return the events up to a part's end and its queries, with the inputs that the network sees."""
    found = replayed(part, queue, phase=phase)
    return EventLog(events.of(found.x_EF), found.ack_E, found.cut_D, queries.of(found.x_DHF))


def inputs_seen(left_out: Sequence[str]) -> tuple[Inputs, Inputs]:
    """Return the inputs of events and of queries, without those left out."""
    return Inputs.without(EVENT_INPUTS, left_out), Inputs.without(QUERY_INPUTS, left_out)


def _untrained(learnt: Sequence[TracePart], params: EventStreamParams) -> EventPredictor:
    """Return a network of random weights whose scaling is fitted to its training data."""
    logs = [log_of(part, *inputs_seen(params.left_out)) for part in learnt]

    def fitted(inputs: Inputs, rows: Sequence[Floats]) -> tuple[ScaledFeature, ...]:
        x_1NF = np.concatenate([x.reshape(1, -1, len(inputs.names)) for x in rows], axis=1)
        return fit_features(x_1NF, inputs.names, inputs.units)

    of_events, of_queries = inputs_seen(params.left_out)
    events = fitted(of_events, [log.x_EF for log in logs])
    queries = fitted(of_queries, [log.x_BHP for log in logs])
    target = fit_target(np.concatenate([part.latencies_us() for part in learnt]), "log")
    sizes = EventArchitecture(**{each.name: getattr(params, each.name) for each in fields(EventArchitecture)})
    return EventPredictor(events, queries, target, sizes, params.quantiles)


class _Lesson:
    """The batches of each epoch; with several workers each takes its share of a step's segments."""

    def __init__(
        self,
        learnt: Sequence[TracePart],
        model: EventPredictor,
        params: EventStreamParams,
        seed: int,
        share: WorkerShare = ALONE,
    ) -> None:
        self.learnt, self.target, self.params, self.seed = learnt, model.target, params, seed
        self.share = share
        sharp = [sharp_changes(_packet_latencies(part), part.change) for part in learnt]
        self.weights = [
            example_weights(_packet_latencies(part), sharp_N1, params.sharp_weight)[:, 0]
            for part, sharp_N1 in zip(learnt, sharp, strict=True)
        ]
        self.codes = tuple(
            np.array([number for number, each in enumerate(inputs) if each.unit == "sign"], dtype=np.int64)
            for inputs in (model.event_inputs, model.query_inputs)
        )
        events = sum(len(log_of(part, *inputs_seen(params.left_out)).ack_E) for part in learnt)
        self.steps = max(1, round(events / params.segment_events / params.segments))
        random = np.random.default_rng(seed)
        self.phases = np.concatenate(
            [random.permutation(HORIZON) for _ in range(-(-params.epochs // HORIZON))]
        )

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Yield segments in random order, each beginning at another event than in other epochs."""
        step, random = self.params.segment_events, np.random.default_rng([self.seed, epoch])
        taught = [self._taught(number, int(self.phases[epoch])) for number in range(len(self.learnt))]
        begins = [
            (number, begin)
            for number, one in enumerate(taught)
            for begin in range(int(random.integers(step)) - step, len(one.log.ack_E), step)
        ]
        order = random.permutation(len(begins))
        for first in range(0, len(order), self.params.segments):
            chosen = [begins[place] for place in order[first : first + self.params.segments]]
            signs = random.choice(np.array([-1, 1], np.float32), (len(chosen), len(self.codes[1])))
            segments = [_Segment(taught[number], begin, step) for number, begin in chosen]
            known = sum(int((one.weight_QH > 0).sum()) for one in segments)
            own = slice(self.share.rank, None, self.share.workers)
            yield self._batch(segments[own], torch.from_numpy(signs[own]), known)

    def _taught(self, number: int, phase: int) -> _EpochTargets:
        part = self.learnt[number]
        log = log_of(part, *inputs_seen(self.params.left_out), phase=phase)
        first_B = part.first_packets[: len(log.cut_B)] + phase
        packets_BH = first_B[:, None] + np.arange(HORIZON)
        target_N = self.target.apply(_packet_latencies(part)[:, 0])
        target_BH, weight_BH = target_N[packets_BH], self.weights[number][packets_BH]
        return _EpochTargets(log, torch.from_numpy(target_BH), torch.from_numpy(weight_BH))

    def _batch(self, segments: Sequence[_Segment], signs_GC: torch.Tensor, known: int) -> Batch:
        if not segments:
            nothing = torch.zeros(0, HORIZON)
            return Batch((), nothing, nothing, known)
        reach = self.params.reach
        length = reach + self.params.segment_events
        rows = []
        for place, (one, signs_C) in enumerate(zip(segments, signs_GC, strict=True)):
            start = max(0, one.begin - reach)
            x_NF, ack_N = segment(one.taught.log, start, length)
            x_QHP = torch.from_numpy(one.taught.log.x_BHP[one.decided])
            cut_Q = torch.from_numpy(one.taught.log.cut_B[one.decided] - start + place * length)
            x_NF, x_QHP = self._renamed(x_NF, x_QHP, signs_C)
            rows.append((x_NF, ack_N, cut_Q, x_QHP, one.taught.target_BH[one.decided], one.weight_QH))
        x, ack, cut, asked, target, weight = zip(*rows, strict=True)
        inputs = (torch.stack(x), torch.stack(ack), torch.cat(cut), torch.cat(asked))
        return Batch(inputs, torch.cat(target), torch.cat(weight), known)

    def _renamed(
        self, x_NF: torch.Tensor, x_QHP: torch.Tensor, signs_C: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Flip signs of the codes of flows and receivers, so that no code gets a meaning."""
        event_codes, query_codes = self.codes
        if len(signs_C):
            x_QHP = x_QHP.clone()
            x_NF[:, event_codes] *= signs_C
            x_QHP[..., query_codes] *= signs_C
        return x_NF, x_QHP


class _Segment:
    """Consecutive events of a trace from `begin` on, and the decisions among them."""

    def __init__(self, taught: _EpochTargets, begin: int, events: int) -> None:
        self.taught, self.begin = taught, begin
        self.decided = slice(*np.searchsorted(taught.log.cut_B, [max(begin, 1), begin + events]))
        self.weight_QH = taught.weight_BH[self.decided]


def _packet_latencies(part: TracePart) -> NDArray[np.float32]:
    """Return latencies (N, 1) in µs up to the part's last packet; NaN where unknown, and before the part."""
    latency_N = part.packets["latency_us"].cast(float).fill_null(float("nan")).to_numpy().astype(np.float32)
    latency_N[: part.decisions.lo * HORIZON] = np.nan
    return latency_N[:, None]
