"""The event stream: a Transformer over the sender's SENDs and ACKs, each computed once (docs/EVENTS.md).

Training: segments of a trace's events, with what their decisions see before them, several to a step. Every
SEND of the training slices is a target once an epoch: decisions lie 8 packets apart, and each epoch begins
them at another packet.

Shapes: E events, B decisions of a part, Q decisions of a step, G segments, N events of one, H horizon
(8 packets), F inputs of an event, P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save_file

from feature_store.events.event_stream import AS_SENT, event_schema_hash
from feature_store.packets.schema import HORIZON
from models.architecture import EventStreamFit, Level
from models.forecasters.forecaster import Floats, Forecaster, Part, Say
from models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS, Inputs, replayed
from models.forecasters.spread import Spread, spread_of
from models.forecasters.torch_files import read_inputs, write_network
from models.networks.event_prediction import Log, encode_log, segment
from models.networks.event_transformer import EventArchitecture, EventPredictor
from models.networks.event_window import EventWindowPredictor, served
from models.networks.files import load_weights
from models.networks.prediction import latencies
from models.networks.scaling import ScaledFeature, fit_features, fit_target
from models.sharp import sharp_changes
from models.training.calibration import Doubles, calibrated, missed, newest
from models.training.loss import example_weights
from models.training.query_training import (
    SEARCH,
    Batch,
    QueryTrainer,
    QueryTraining,
    epoch_line,
    head_tuned,
    held_out_error,
)

PAST_FILE: Final = "past.safetensors"
SPLIT_SHARE: Final = 0.2  # of a slice: calibrates instead of tuning the head


class EventStreamParams(EventStreamFit, QueryTraining):
    """Sizes of the event stream's network, how it is trained, and how its head is tuned."""


@dataclass(frozen=True)
class _Taught:
    """A trace's events, and the decisions that teach in one epoch."""

    log: Log
    target_BH: torch.Tensor
    weight_BH: torch.Tensor


def _read_past(path: Path, levels: int) -> list[Doubles]:
    try:
        kept = parse_tensors(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated or not a safetensors file ({error})") from error
    past = [kept[str(n)].numpy() for n in range(len(kept))]
    if not all(each.shape == (len(each), levels) and np.isfinite(each).all() for each in past):
        raise ValueError(f"{path}: not what {levels} levels missed")
    return past


def sizes_of(params: EventStreamFit) -> EventArchitecture:
    """Form and sizes of the network."""
    return EventArchitecture(
        params.layers,
        params.band,
        params.width,
        params.heads,
        params.feed_forward,
        params.dropout,
        params.anchor,
    )


class EventStream(Forecaster):
    """The network over events."""

    Params = EventStreamParams
    search = SEARCH

    def __init__(
        self, model: EventPredictor, params: EventStreamParams, past: Sequence[Doubles] = ()
    ) -> None:
        """Take a trained network, and what its levels missed on slices it had not learned from."""
        self.plain, self.params, self.past = model.eval(), params, newest(past)
        self.model = calibrated(model, self.past)

    @classmethod
    def fit(cls, parts: Sequence[Part], params: EventStreamParams, seed: int, say: Say) -> Self:
        """Train on the earlier part of each slice; the last tenth chooses the epoch."""
        course = Course(parts, params, seed)
        course.trainer.run(lambda record: say(epoch_line(record, params.epochs)))
        return cls(course.model, params, course.past())

    def tuned(self, part: Part) -> Self:
        """Train the head alone on states of the frozen network, computed once."""
        learnt, held_out = part, None
        if self.params.calibration == "split":
            learnt, held_out = part.held_out(SPLIT_SHARE)
        encoded, came_BH = encode_log(self.plain, self._log(learnt)), learnt.latencies_us()
        model = head_tuned(self.plain, encoded, came_BH, self.params, part.change)
        past: tuple[Doubles, ...] = ()
        if held_out is not None:
            past = (missed(model, encode_log(model, self._log(held_out)), held_out.latencies_us()),)
        elif self.params.calibration:
            past = (*self.past, missed(self.plain, encoded, came_BH))
        return type(self)(model, self.params, past)

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        return latencies(self.model, encode_log(self.model, self._log(part, queue)))

    def spread(self, part: Part, queue: int = AS_SENT) -> Spread | None:
        """Quantiles, where it has levels."""
        return spread_of(self.model, encode_log(self.model, self._log(part, queue)))

    def multiply_adds(self) -> int:
        """Of a batch: 16 events, of whose last layer only keys and values are needed, and 16 queries."""
        sizes, d = self.model.sizes, self.model.sizes.width
        seen = 2 * d * (sizes.band + 1)  # the band and the sink: scores, then their sum
        after = 2 * d * d + 2 * d * sizes.feed_forward + seen  # query, output, two linear layers
        event = d * len(self.model.event_inputs) + sizes.layers * 2 * d * d + (sizes.layers - 1) * after
        levels = self.model.head.levels
        query = d * len(self.model.query_inputs) + sizes.layers * after + d * d + d * levels
        return 2 * HORIZON * (event + query)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights, without their shifts, and what those are fitted on."""
        inputs = {"event": self.model.event_inputs, "query": self.model.query_inputs}
        if self.params.calibration:
            past = {str(n): torch.from_numpy(each) for n, each in enumerate(self.past)}
            save_file(past, folder / PAST_FILE)
        return write_network(folder, self.plain, self.model.target, inputs, event_schema_hash())

    @classmethod
    def read(cls, folder: Path, params: EventStreamParams, described: Mapping[str, Any]) -> Self:
        """Read the weights."""
        inputs, target = read_inputs(described, event_schema_hash())
        model = EventPredictor(inputs["event"], inputs["query"], target, sizes_of(params), params.quantiles)
        load_weights(folder, model)
        levels = len(params.quantiles)
        return cls(model, params, _read_past(folder / PAST_FILE, levels) if params.calibration else ())

    def _log(self, part: Part, queue: int = AS_SENT) -> Log:
        return _log(part, self.params, queue)


FORECASTERS: Final = {"event-stream": EventStream}


class Course:
    """A network, what it learns from and what chooses its epoch; of several workers one's share."""

    def __init__(
        self, parts: Sequence[Part], params: EventStreamFit, seed: int, rank: int = 0, workers: int = 1
    ) -> None:
        """Make an untrained network; the last tenth of each part is held out."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        torch.manual_seed(seed)
        self.model, self.params = _untrained(learnt, params), params
        self.held_out = [(_log(part, params), part.latencies_us()) for part in held_out]
        lesson = _Lesson(learnt, self.model, params, seed, rank, workers)

        def validate() -> float:
            own = self.held_out[rank::workers]
            shown = ((encode_log(self.model, log), came_BH) for log, came_BH in own)
            return held_out_error(self.model, shown, workers)

        self.trainer = QueryTrainer(
            self.model, lesson.batches, lesson.steps, validate, params, seed, rank, workers
        )

    def past(self) -> tuple[Doubles, ...]:
        """What the trained network's levels missed in what was held out, where that calibrates them."""
        if not self.params.calibration:
            return ()
        shown = ((encode_log(self.model, log), came_BH) for log, came_BH in self.held_out)
        return (np.concatenate([missed(self.model, encoded, came_BH) for encoded, came_BH in shown]),)

    def served(self, level: Level) -> EventWindowPredictor:
        """What is served of the trained network: calibrated; of each packet one latency, or all levels."""
        return served(calibrated(self.model.eval(), self.past()), level)


def _log(part: Part, params: EventStreamFit, queue: int = AS_SENT, phase: int = 0) -> Log:
    found = replayed(part, queue, phase=phase)
    events, queries = (Inputs.without(rows, params.left_out) for rows in (EVENT_INPUTS, QUERY_INPUTS))
    return Log(events.of(found.x_EF), found.ack_E, found.cut_D, queries.of(found.x_DHF))


def _untrained(learnt: Sequence[Part], params: EventStreamFit) -> EventPredictor:
    """A network of random weights whose scaling is fitted to what it will learn from."""
    logs = [_log(part, params) for part in learnt]

    def fitted(inputs: Inputs, rows: Sequence[Floats]) -> tuple[ScaledFeature, ...]:
        x_1NF = np.concatenate([x.reshape(1, -1, len(inputs.names)) for x in rows], axis=1)
        return fit_features(x_1NF, inputs.names, inputs.units)

    events = fitted(Inputs.without(EVENT_INPUTS, params.left_out), [log.x_EF for log in logs])
    queries = fitted(Inputs.without(QUERY_INPUTS, params.left_out), [log.x_BHP for log in logs])
    target = fit_target(np.concatenate([part.latencies_us() for part in learnt]), "log")
    return EventPredictor(events, queries, target, sizes_of(params), params.quantiles)


class _Lesson:
    """The batches of each epoch; of several workers each has every so many segments of a step."""

    def __init__(
        self,
        learnt: Sequence[Part],
        model: EventPredictor,
        params: EventStreamFit,
        seed: int,
        rank: int = 0,
        workers: int = 1,
    ) -> None:
        self.learnt, self.target, self.params, self.seed = learnt, model.target, params, seed
        self.rank, self.workers = rank, workers
        sharp = [sharp_changes(_packet_latencies(part), part.change) for part in learnt]
        self.weights = [
            example_weights(_packet_latencies(part), sharp_N1, params.sharp_weight)[:, 0]
            for part, sharp_N1 in zip(learnt, sharp, strict=True)
        ]
        self.codes = tuple(
            np.array([number for number, each in enumerate(inputs) if each.unit == "sign"], dtype=np.int64)
            for inputs in (model.event_inputs, model.query_inputs)
        )
        events = sum(len(_log(part, params).ack_E) for part in learnt)
        self.steps = max(1, round(events / params.segment_events / params.segments))
        random = np.random.default_rng(seed)
        self.phases = np.concatenate(
            [random.permutation(HORIZON) for _ in range(-(-params.epochs // HORIZON))]
        )

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Segments in random order, each beginning at another event than in other epochs."""
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
            own = slice(self.rank, None, self.workers)
            yield self._batch(segments[own], torch.from_numpy(signs[own]), known)

    def _taught(self, number: int, phase: int) -> _Taught:
        part = self.learnt[number]
        log = _log(part, self.params, phase=phase)
        first_B = part.first_packets[: len(log.cut_B)] + phase
        packets_BH = first_B[:, None] + np.arange(HORIZON)
        target_N = self.target.apply(_packet_latencies(part)[:, 0])
        target_BH, weight_BH = target_N[packets_BH], self.weights[number][packets_BH]
        return _Taught(log, torch.from_numpy(target_BH), torch.from_numpy(weight_BH))

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
        """Other signs for the codes of flows and receivers: what a flow was called says nothing of others."""
        event_codes, query_codes = self.codes
        if len(signs_C):
            x_QHP = x_QHP.clone()
            x_NF[:, event_codes] *= signs_C
            x_QHP[..., query_codes] *= signs_C
        return x_NF, x_QHP


class _Segment:
    """Events of a trace from `begin` on, so many, and the decisions among them."""

    def __init__(self, taught: _Taught, begin: int, events: int) -> None:
        self.taught, self.begin = taught, begin
        self.decided = slice(*np.searchsorted(taught.log.cut_B, [max(begin, 1), begin + events]))
        self.weight_QH = taught.weight_BH[self.decided]


def _packet_latencies(part: Part) -> NDArray[np.float32]:
    """Latencies (N, 1) of the packets up to the part's last, µs; NaN: unknown, or before the part."""
    latency_N = part.packets["latency_us"].cast(float).fill_null(float("nan")).to_numpy().astype(np.float32)
    latency_N[: part.decisions.lo * HORIZON] = np.nan
    return latency_N[:, None]
