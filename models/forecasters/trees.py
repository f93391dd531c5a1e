"""Boosted trees on a query's derived inputs.

Shapes: B decisions, H horizon (8 packets), N packets, P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field

from feature_store.events.event_stream import AS_SENT, event_schema_hash
from models.architecture import LeftOut
from models.forecasters.forecaster import Floats, Forecaster, Part, Say, check_made_for
from models.forecasters.queries import QUERY_INPUTS, Inputs, replayed
from models.scoring.baselines import BoostedTrees, Growth
from models.search import Between, Space
from models.section import Count, Section

FILE: Final = "trees.ubj"
SEARCH: Final[Space] = {
    "rounds": (50, 100, 200, 400),
    "depth": (2, 3, 4, 6),
    "learning_rate": Between(0.03, 0.3),
    "leaf_share": Between(1e-3, 0.05),
}


class BoostingParams(Section):
    """How many trees there are, and how they grow."""

    rounds: Count
    """Trees; a tenth as many are added in each fine-tuning round."""
    depth: Annotated[int, Field(ge=1, le=16)] = Growth.depth
    """Of a tree, at most."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Growth.learning_rate
    """Share of each tree's answer that counts."""
    leaf_share: Annotated[float, Field(ge=0, le=0.5)] = Growth.leaf_share
    """Of the rows, in a leaf at least."""

    @property
    def growth(self) -> Growth:
        """How they grow."""
        return Growth(self.depth, self.learning_rate, self.leaf_share)


class TreesParams(BoostingParams):
    """What the trees see, and how they are boosted."""

    section: ClassVar = "trees"
    left_out: LeftOut
    """Inputs that they do not see, by name (docs/EVENTS.md)."""


class Trees(Forecaster):
    """Trees of log-latency on the derived inputs of each query."""

    Params = TreesParams
    search = SEARCH

    def __init__(self, trees: BoostedTrees, params: TreesParams) -> None:
        """Take fitted trees."""
        self.trees, self.params = trees, params

    @classmethod
    def fit(cls, parts: Sequence[Part], params: TreesParams, seed: int, say: Say) -> Self:
        """Boost on the whole slices: nothing is chosen on held-out time."""
        x_NP = np.concatenate([_rows(part, params) for part in parts])
        y_N = np.concatenate([part.latencies_us().ravel() for part in parts]).astype(np.float64)
        trees = BoostedTrees.fit(x_NP, y_N, rounds=params.rounds, seed=seed, growth=params.growth)
        return cls(trees, params)

    def tuned(self, part: Part) -> Self:
        """Add trees."""
        y_N = part.latencies_us().ravel().astype(np.float64)
        return type(self)(self.trees.continued(_rows(part, self.params), y_N), self.params)

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        us_N = self.trees.predict(_rows(part, self.params, queue))
        return us_N.reshape(len(part), -1).astype(np.float32)

    def multiply_adds(self) -> int:
        """None: trees compare."""
        return 0

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees."""
        self.trees.save(folder / FILE)
        return {"schema_hash": event_schema_hash(), "seed": self.trees.seed}

    @classmethod
    def read(cls, folder: Path, params: TreesParams, described: Mapping[str, Any]) -> Self:
        """Read the trees."""
        check_made_for(described, event_schema_hash())
        trees = BoostedTrees.load(folder / FILE, params.rounds, int(described["seed"]), params.growth)
        return cls(trees, params)


FORECASTERS: Final = {"trees": Trees}


def _rows(part: Part, params: TreesParams, queue: int = AS_SENT) -> Floats:
    x_BHP = Inputs.without(QUERY_INPUTS, params.left_out).of(replayed(part, queue).x_DHF)
    return x_BHP.reshape(-1, x_BHP.shape[-1])
