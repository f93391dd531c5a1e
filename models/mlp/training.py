"""Train the linear layers on decisions in random order, with each packet at each place of a batch.

Shapes: N decisions of all phases, B decisions of a part, H horizon (8 packets), P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np
import torch

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.mlp.network import MlpArchitecture, QueryMlp
from swiftqueue.models.mlp.parameters import MlpParams
from swiftqueue.models.networks.prediction import HeadInputs
from swiftqueue.models.networks.scaling import fit_features, fit_target
from swiftqueue.models.sharp import sharp_changes
from swiftqueue.models.training.epochs import ALONE, WorkerShare
from swiftqueue.models.training.loss import example_weights
from swiftqueue.models.training.query_training import Batch, Course, QueryTrainer, held_out_error

PHASES: Final = HORIZON  # decisions begin at each packet, so every SEND has each place of a batch


class MlpCourse(Course):
    """An untrained network and a worker's trainer, with its share of the batches."""

    Network: ClassVar[type[QueryMlp]] = QueryMlp
    model: QueryMlp

    def __init__(
        self, parts: Sequence[TracePart], params: MlpParams, seed: int, share: WorkerShare = ALONE
    ) -> None:
        """Make an untrained network; the last tenth of each part is held out."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        torch.manual_seed(seed)
        inputs = Inputs.without(QUERY_INPUTS, params.left_out)
        asked, came, sharp = [], [], []
        for part in learnt:
            for phase in range(PHASES):
                asked.append(queries(part, inputs, phase=phase))
                came_BH = part.latencies_us(phase)
                came.append(came_BH)
                sharp.append(sharp_changes(came_BH, part.change))
        x_NHP, came_NH = np.concatenate(asked), np.concatenate(came)
        target = fit_target(came_NH, "log")
        sizes = MlpArchitecture(params.layers, params.width, params.dropout, params.anchor)
        scaled = fit_features(x_NHP, inputs.names, inputs.units)
        self.model = self.Network((), scaled, target, sizes, params.quantiles)
        target_NH = torch.from_numpy(target.apply(came_NH))
        weight_NH = torch.from_numpy(example_weights(came_NH, np.concatenate(sharp), params.sharp_weight))
        steps = -(-len(x_NHP) // params.batch_size)

        def batches(epoch: int) -> Iterator[Batch]:
            random = np.random.default_rng(seed)
            for _ in range(epoch + 1):  # a resumed job draws the orders of earlier epochs again
                order_N = random.permutation(len(x_NHP))
            for first in range(0, len(order_N), params.batch_size):
                chosen = order_N[first : first + params.batch_size]
                own, known = chosen[share.rank :: share.workers], int((weight_NH[chosen] > 0).sum())
                yield Batch((torch.from_numpy(x_NHP[own]),), target_NH[own], weight_NH[own], known)

        shown = [
            (queries(part, inputs), part.latencies_us()) for part in held_out[share.rank :: share.workers]
        ]

        def validate() -> float:
            encoded = ((encode_queries(self.model, x_BHP), came_BH) for x_BHP, came_BH in shown)
            return held_out_error(self.model, encoded, share.workers)

        self.trainer = QueryTrainer(self.model, batches, steps, validate, params, seed, share)


def queries(part: TracePart, inputs: Inputs, queue: int = AS_SENT, phase: int = 0) -> Floats:
    """Return the queries (B, H, P) of a part's decisions, with the inputs that the network sees."""
    return inputs.of(replayed(part, queue, phase=phase).x_DHF)


def encode_queries(model: QueryMlp, x_BHP: Floats) -> HeadInputs:
    """Return the head's inputs for raw queries, and the anchor."""
    model.eval()
    x = torch.from_numpy(x_BHP)
    with torch.no_grad():
        return HeadInputs(model.encode_queries(x), model.anchor_of(x))
