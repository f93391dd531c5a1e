"""Make boosted trees on a query's derived inputs a forecaster.

Shapes: B decisions, H horizon (8 packets), N packets, P inputs of a query.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field

from swiftqueue.common.section import Count, Section
from swiftqueue.feature_store.events.event_stream import AS_SENT, event_schema_hash
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, check_made_for
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from swiftqueue.models.forecasters.search import LogRange, Space
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.networks.parameters import LeftOut
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.trees.boosting import BoostedTrees, Growth

FILE: Final = "trees.ubj"
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


class BoostedForecaster(Forecaster):
    """The base of forecasters with boosted trees; a subclass fits and asks them."""

    search = SEARCH

    def __init__(self, trees: BoostedTrees, params: Any) -> None:
        """Take fitted trees."""
        self.trees, self.params = trees, params

    @staticmethod
    @abstractmethod
    def schema_hash() -> str:
        """Return the hash of the definition of the inputs."""

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees."""
        self.trees.save(folder / FILE)
        known = {"schema_hash": self.schema_hash(), "seed": self.trees.seed}
        return {**known, "params": self.params.model_dump()}

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the trees."""
        check_made_for(described, cls.schema_hash())
        params: Any = cls.Params(**described["params"])
        trees = BoostedTrees.load(folder / FILE, params.rounds, int(described["seed"]), params.growth)
        return cls(trees, params)


class Trees(BoostedForecaster):
    """Trees of log-latency on the derived inputs of each query."""

    Params = TreesParams
    schema_hash = staticmethod(event_schema_hash)

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: TreesParams, seed: int, say: Say) -> Self:
        """Fit on whole slices: nothing is chosen on held-out time."""
        x_NP = np.concatenate([_rows(part, params) for part in parts])
        y_N = np.concatenate([part.latencies_us().ravel() for part in parts]).astype(np.float64)
        trees = BoostedTrees.fit(x_NP, y_N, rounds=params.rounds, seed=seed, growth=params.growth)
        return cls(trees, params)

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Floats:
        """Return the rows (N, P) of the packets decided."""
        return _rows(part, self.params, queue)

    def answer(self, encoded: Floats) -> Floats:
        """Return latencies in µs (B, H)."""
        return self.trees.predict(encoded).reshape(-1, HORIZON).astype(np.float32)

    def tuned_on(
        self,
        encoded: Floats,
        came_BH: Floats,
        change: Change,
        how: FinetuneParams,
        starts: Sequence[int] = (),
    ) -> Self:
        """Add trees."""
        y_N = came_BH.ravel().astype(np.float64)
        return type(self)(self.trees.continued(encoded, y_N), self.params)


FORECASTERS: Final = {"trees": Trees}


def _rows(part: TracePart, params: TreesParams, queue: int = AS_SENT) -> Floats:
    x_BHP = Inputs.without(QUERY_INPUTS, params.left_out).of(replayed(part, queue).x_DHF)
    return x_BHP.reshape(-1, x_BHP.shape[-1])
