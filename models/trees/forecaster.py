"""Make boosted trees on a query's derived inputs a forecaster.

Shapes: B decisions, H horizon (8 packets), N packets, P inputs of a query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field

from swiftqueue.common.section import Count, Section
from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.forecaster import Forecaster, Say
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from swiftqueue.models.forecasters.search import LogRange, Space
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.networks.parameters import LeftOut
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.head import FinetuneParams, TuningReport
from swiftqueue.models.trees.boosting import BoostedTrees, Growth

if TYPE_CHECKING:
    from swiftqueue.models.trees.network import QueryTrees

FILE: Final = "trees.ubj"
AT_ONCE: Final = 1024  # decisions that meet the trees at once: 8 packets a decision, 100 trees
# Trees would memorise the time and the flow of an episode by a flow's age and the codes of flow and receiver;
# networks do see them.
BY_HEART: Final = (
    "flow_age_us",
    *(f"flow_code_{bit}" for bit in range(4)),
    *(f"receiver_code_{bit}" for bit in range(2)),
)
SEARCH: Final[Space] = {
    "rounds": (50, 100, 200, 400),
    "depth": (2, 3, 4, 6),
    "learning_rate": LogRange(0.03, 0.3),
    "leaf_share": LogRange(1e-3, 0.05),
}


class BoostingParams(Section):
    """Boosted trees: their number and their growth."""

    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of the rows that each tree sees. `swiftqueue forecasts` and `tune` count their own."""
    rounds: Count
    """Number of trees; a tenth as many are added in each fine-tuning round."""
    depth: Annotated[int, Field(ge=1, le=16)] = Growth.depth
    """Largest number of levels in a tree."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Growth.learning_rate
    """Number by which each tree's output is multiplied."""
    leaf_share: Annotated[float, Field(ge=0, le=0.5)] = Growth.leaf_share
    """Least share of the rows (0 to 0.5) in a leaf."""

    @property
    def growth(self) -> Growth:
        """Return the parameters of growing the trees."""
        return Growth(self.depth, self.learning_rate, self.leaf_share)


class TreesParams(BoostingParams):
    """Parameters of boosted trees on a query's inputs."""

    section: ClassVar = "trees"
    left_out: LeftOut = Field(default=list(BY_HEART))
    """Names of inputs that the trees do not see (docs/EVENTS.md)."""


class Trees(NetworkForecaster):
    """Trees of log-latency on the derived inputs of each query.

    XGBoost grows them and, as long as its own file is there, adds trees in a tuning. Its trees are a network
    (network.py), which answers, and which is registered and served. A served one has no head to tune.
    """

    Params: ClassVar[type[Any]] = TreesParams
    search = SEARCH
    model: QueryTrees

    def __init__(
        self,
        model: QueryTrees,
        protocol: Mapping[str, Any] | None = None,
        grown: BoostedTrees | None = None,
        params: TreesParams | None = None,
    ) -> None:
        """Take the network, and the trees that it was made of with their parameters."""
        super().__init__(model, protocol)
        self.grown, self.params = grown, params

    @classmethod
    def of(cls, grown: BoostedTrees, params: TreesParams, protocol: Mapping[str, Any] | None = None) -> Self:
        """Return the forecaster of fitted trees."""
        from swiftqueue.models.trees.network import network_of

        inputs = Inputs.without(QUERY_INPUTS, params.left_out)
        return cls(network_of(grown.described(), inputs.names, inputs.units), protocol, grown, params)

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: TreesParams, seed: int, say: Say) -> Self:
        """Fit on whole slices: nothing is chosen on held-out time."""
        inputs = Inputs.without(QUERY_INPUTS, params.left_out)
        x_NP = np.concatenate([_rows(part, inputs).reshape(-1, len(inputs.names)) for part in parts])
        y_N = np.concatenate([part.latencies_us().ravel() for part in parts]).astype(np.float64)
        grown = BoostedTrees.fit(x_NP, y_N, rounds=params.rounds, seed=seed, growth=params.growth)
        return cls.of(grown, params)

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Any:
        """Return the rows (B, H, P) of the packets decided, which are the head's inputs."""
        import torch

        from swiftqueue.models.networks.prediction import HeadInputs

        x = torch.from_numpy(
            _rows(part, Inputs.named([each.name for each in self.model.query_inputs]), queue)
        )
        return HeadInputs(x, self.model.anchor_of(x))

    def answer(self, encoded: Any) -> Floats:
        """Return latencies in µs (B, H), some decisions at a time: each row meets every tree."""
        from swiftqueue.models.networks.prediction import HeadInputs, latencies

        read, anchor = encoded.read_BRD, encoded.anchor_BH
        parts = [slice(first, first + AT_ONCE) for first in range(0, len(read), AT_ONCE)]
        answers = [latencies(self.model, HeadInputs(read[part], anchor[part])) for part in parts]
        return np.concatenate([np.zeros((0, HORIZON), np.float32), *answers])

    def tuned_on(
        self, encoded: Any, came_BH: Floats, change: Change, how: FinetuneParams, starts: Sequence[int] = ()
    ) -> Self:
        """Add trees; a served one has none of XGBoost's to add to, and stays as it is."""
        if self.grown is None or self.params is None:
            return self
        started, came_N = time.monotonic(), came_BH.ravel().astype(np.float64)
        x_NP = encoded.read_BRD.numpy().reshape(len(came_N), -1)
        more = self.grown.continued(x_NP, came_N)
        if more is self.grown:
            return self
        tuned = self.of(more, self.params, self.protocol)
        total = tuned.model.sizes.trees
        words = f"{total - self.model.sizes.trees} trees added ({total})"
        losses = (self.grown.loss(x_NP, came_N), more.loss(x_NP, came_N))
        tuned.tuning = TuningReport(losses, len(came_BH), time.monotonic() - started, words)
        return tuned

    def same_but_head(self, other: Forecaster) -> bool:
        """Return whether the two see the same inputs: the trees are the head."""
        return isinstance(other, Trees) and self._inputs() == other._inputs()

    def _inputs(self) -> list[str]:
        return [each.name for each in self.model.query_inputs]

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the network as an artifact, and XGBoost's own trees beside it."""
        described = super().write(folder)
        if self.grown is None or self.params is None:
            return described
        self.grown.save(folder / FILE)
        return {**described, "seed": self.grown.seed, "params": self.params.model_dump()}

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the artifact and, where they are beside it, XGBoost's trees."""
        from swiftqueue.models.networks import artifact

        found = artifact.load(folder)
        model: Any = found.model
        if "seed" not in described:  # as the registry has it
            return cls(model, found.description.protocol)
        params = TreesParams(**described["params"])
        grown = BoostedTrees.load(folder / FILE, params.rounds, int(described["seed"]), params.growth)
        return cls(model, found.description.protocol, grown, params)


FORECASTERS: Final = {"trees": Trees}


def _rows(part: TracePart, inputs: Inputs, queue: int = AS_SENT) -> Floats:
    """Return the inputs (B, H, P) of the packets decided."""
    return inputs.of(replayed(part, queue).x_DHF)
