"""Linear layers on a query's inputs: what the sender's state says, without the events behind it.

Shapes: N decisions, B decisions of a part, H horizon (8 packets), P inputs of a query.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
import torch
from pydantic import Field

from feature_store.events.event_stream import AS_SENT, event_schema_hash
from feature_store.packets.schema import HORIZON
from models.forecasters.forecaster import Floats, Forecaster, Part, Say
from models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from models.forecasters.spread import Spread, spread_of
from models.forecasters.torch_files import read_inputs, write_network
from models.networks.files import load_weights
from models.networks.prediction import Encoded, latencies
from models.networks.query_predictor import QueryMlp
from models.networks.scaling import ScaledFeature, Target, fit_features, fit_target
from models.section import Count
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


class QueryMlpParams(QueryTraining):
    """Sizes of the network and how it is trained."""

    section: ClassVar = "query-mlp"
    layers: Annotated[int, Field(ge=1, le=16)]
    """Before the head."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Of each layer."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """In training."""
    anchor: str | None
    """A latency of the query that the network corrects, by the input's name, or null."""
    left_out: list[str]
    """Inputs that it does not see, by name (docs/EVENTS.md)."""
    batch_size: Count
    """Decisions of a step."""


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
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        inputs = Inputs.without(QUERY_INPUTS, params.left_out)
        torch.manual_seed(seed)
        asked, came, sharp = [], [], []
        for part in learnt:
            for phase in range(PHASES):
                asked.append(inputs.of(replayed(part, phase=phase).x_DHF))
                came_BH = part.latencies_us(phase)
                came.append(came_BH)
                sharp.append(sharp_changes(came_BH, part.change))
        x_NHP, came_NH = np.concatenate(asked), np.concatenate(came)
        target = fit_target(came_NH, "log")
        model = _network(fit_features(x_NHP, inputs.names, inputs.units), target, params)
        target_NH = torch.from_numpy(target.apply(came_NH))
        weight_NH = torch.from_numpy(example_weights(came_NH, np.concatenate(sharp), params.sharp_weight))
        random = np.random.default_rng(seed)
        steps = -(-len(x_NHP) // params.batch_size)

        def batches(_: int) -> Iterator[Batch]:
            order_N = random.permutation(len(x_NHP))
            for first in range(0, len(order_N), params.batch_size):
                chosen = order_N[first : first + params.batch_size]
                x_QHP, weight_QH = torch.from_numpy(x_NHP[chosen]), weight_NH[chosen]
                yield Batch((x_QHP,), target_NH[chosen], weight_QH, int((weight_QH > 0).sum()))

        fitted = cls(model, params)
        shown = [(replayed(part).x_DHF, part.latencies_us()) for part in held_out]

        def validate() -> float:
            return held_out_error(model, ((fitted._encoded(x), came_BH) for x, came_BH in shown))

        trainer = QueryTrainer(model, batches, steps, validate, params, seed)
        trainer.run(lambda record: say(epoch_line(record, params.epochs)))
        return fitted

    def tuned(self, part: Part) -> Self:
        """Train the head alone."""
        encoded = self._encoded(replayed(part).x_DHF)
        other = copy.copy(self)
        other.model = head_tuned(self.model, encoded, part.latencies_us(), self.params, part.change)
        return other

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        return latencies(self.model, self._encoded(replayed(part, queue).x_DHF))

    def spread(self, part: Part, queue: int = AS_SENT) -> Spread | None:
        """Quantiles, where it has levels."""
        return spread_of(self.model, self._encoded(replayed(part, queue).x_DHF))

    def multiply_adds(self) -> int:
        """Of a batch: 16 queries."""
        return 2 * HORIZON * sum(weight.numel() for weight in self.model.parameters() if weight.dim() == 2)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights."""
        inputs = {"query": self.model.query_inputs}
        return write_network(folder, self.model, self.model.target, inputs, event_schema_hash())

    @classmethod
    def read(cls, folder: Path, params: QueryMlpParams, described: Mapping[str, Any]) -> Self:
        """Read the weights."""
        inputs, target = read_inputs(described, event_schema_hash())
        model = _network(inputs["query"], target, params)
        load_weights(folder, model)
        return cls(model, params)

    def _encoded(self, x_BHF: Floats) -> Encoded:
        inputs = Inputs.without(QUERY_INPUTS, self.params.left_out)
        x_BHP = torch.from_numpy(inputs.of(x_BHF))
        self.model.eval()
        with torch.no_grad():
            return Encoded(self.model.encode(x_BHP), self.model.anchor(x_BHP))


FORECASTERS: Final = {"query-mlp": QueryMlpForecaster}


def _network(inputs: Sequence[ScaledFeature], target: Target, params: QueryMlpParams) -> QueryMlp:
    return QueryMlp(
        inputs,
        target,
        width=params.width,
        layers=params.layers,
        dropout=params.dropout,
        anchor=params.anchor,
        quantiles=params.quantiles,
    )
