"""Linear layers on a query's inputs: what the sender's state says, without the events behind it.

Shapes: N decisions, B decisions of a part, H horizon (8 packets), P inputs of a query.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import numpy as np
import torch

from feature_store.events.event_stream import AS_SENT, event_schema_hash
from feature_store.packets.schema import HORIZON
from models.architecture import Level, MlpFit
from models.forecasters.forecaster import Floats, Forecaster, Part, Say
from models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from models.forecasters.spread import Spread, spread_of
from models.forecasters.torch_files import read_inputs, write_network
from models.networks.event_window import served_mlp
from models.networks.files import load_weights
from models.networks.prediction import Encoded, latencies
from models.networks.query_predictor import MlpArchitecture, QueryMlp
from models.networks.scaling import ScaledFeature, Target, fit_features, fit_target
from models.sharp import sharp_changes
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

PHASES: Final = HORIZON  # decisions begin at each packet: every SEND is seen at each place of a batch


class QueryMlpParams(MlpFit, QueryTraining):
    """Sizes of the network, how it is trained, and how its head is tuned."""

    section: ClassVar = "query-mlp"


class QueryMlpForecaster(Forecaster):
    """The network over queries alone."""

    Params = QueryMlpParams
    search = SEARCH

    def __init__(self, model: QueryMlp, params: QueryMlpParams) -> None:
        """Take a trained network."""
        self.model, self.params = model.eval(), params

    @classmethod
    def fit(cls, parts: Sequence[Part], params: QueryMlpParams, seed: int, say: Say) -> Self:
        """Train on the earlier part of each slice; the last tenth chooses the epoch."""
        course = Course(parts, params, seed)
        course.trainer.run(lambda record: say(epoch_line(record, params.epochs)))
        return cls(course.model, params)

    def tuned(self, part: Part) -> Self:
        """Train the head alone."""
        encoded = self._encoded(part)
        other = copy.copy(self)
        other.model = head_tuned(self.model, encoded, part.latencies_us(), self.params, part.change)
        return other

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        return latencies(self.model, self._encoded(part, queue))

    def spread(self, part: Part, queue: int = AS_SENT) -> Spread | None:
        """Quantiles, where it has levels."""
        return spread_of(self.model, self._encoded(part, queue))

    def multiply_adds(self) -> int:
        """Of a batch: 16 queries."""
        return 2 * HORIZON * sum(weight.numel() for weight in self.model.parameters() if weight.dim() == 2)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights."""
        inputs = {"query": self.model.features}
        return write_network(folder, self.model, self.model.target, inputs, event_schema_hash())

    @classmethod
    def read(cls, folder: Path, params: QueryMlpParams, described: Mapping[str, Any]) -> Self:
        """Read the weights."""
        inputs, target = read_inputs(described, event_schema_hash())
        model = _network(inputs["query"], target, params)
        load_weights(folder, model)
        return cls(model, params)

    def _encoded(self, part: Part, queue: int = AS_SENT) -> Encoded:
        return _encoded(self.model, _queries(part, self.params, queue))


FORECASTERS: Final = {"query-mlp": QueryMlpForecaster}


class Course:
    """A network, what it learns from and what chooses its epoch; of several workers one's share."""

    def __init__(
        self, parts: Sequence[Part], params: MlpFit, seed: int, rank: int = 0, workers: int = 1
    ) -> None:
        """Make an untrained network; the last tenth of each part is held out."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        torch.manual_seed(seed)
        asked, came, sharp = [], [], []
        for part in learnt:
            for phase in range(PHASES):
                asked.append(_queries(part, params, phase=phase))
                came_BH = part.latencies_us(phase)
                came.append(came_BH)
                sharp.append(sharp_changes(came_BH, part.change))
        x_NHP, came_NH = np.concatenate(asked), np.concatenate(came)
        target = fit_target(came_NH, "log")
        inputs = Inputs.without(QUERY_INPUTS, params.left_out)
        self.model = _network(fit_features(x_NHP, inputs.names, inputs.units), target, params)
        target_NH = torch.from_numpy(target.apply(came_NH))
        weight_NH = torch.from_numpy(example_weights(came_NH, np.concatenate(sharp), params.sharp_weight))
        steps = -(-len(x_NHP) // params.batch_size)

        def batches(epoch: int) -> Iterator[Batch]:
            random = np.random.default_rng(seed)
            for _ in range(epoch + 1):  # the orders of earlier epochs are drawn again: a job may be resumed
                order_N = random.permutation(len(x_NHP))
            for first in range(0, len(order_N), params.batch_size):
                chosen = order_N[first : first + params.batch_size]
                own, known = chosen[rank::workers], int((weight_NH[chosen] > 0).sum())
                yield Batch((torch.from_numpy(x_NHP[own]),), target_NH[own], weight_NH[own], known)

        shown = [(_queries(part, params), part.latencies_us()) for part in held_out[rank::workers]]

        def validate() -> float:
            encoded = ((_encoded(self.model, x_BHP), came_BH) for x_BHP, came_BH in shown)
            return held_out_error(self.model, encoded, workers)

        self.trainer = QueryTrainer(self.model, batches, steps, validate, params, seed, rank, workers)

    def served(self, level: Level) -> QueryMlp:
        """What is served of the trained network: one latency for each packet."""
        return served_mlp(self.model.eval(), level)


def _queries(part: Part, params: MlpFit, queue: int = AS_SENT, phase: int = 0) -> Floats:
    inputs = Inputs.without(QUERY_INPUTS, params.left_out)
    return inputs.of(replayed(part, queue, phase=phase).x_DHF)


def _encoded(model: QueryMlp, x_BHP: Floats) -> Encoded:
    model.eval()
    x = torch.from_numpy(x_BHP)
    with torch.no_grad():
        return Encoded(model.encode(x), model.anchor(x))


def _network(inputs: Sequence[ScaledFeature], target: Target, params: MlpFit) -> QueryMlp:
    sizes = MlpArchitecture(params.layers, params.width, params.dropout, params.anchor)
    return QueryMlp(inputs, target, sizes, params.quantiles)
