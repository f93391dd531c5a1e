"""Make boosted trees on the whole window a forecaster, as in the paper.

Shapes: B decisions, W window tokens, F inputs of a token, H horizon (8 packets), N packets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
from pydantic import Field, model_validator

from swiftqueue.common.section import Count
from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, check_made_for
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.trees.boosting import BoostedTrees
from swiftqueue.models.trees.forecaster import FILE, SEARCH, BoostingParams
from swiftqueue.models.window.windows import Windows, input_names, schema_hash, windows_of

ASKED_AT_ONCE: Final = 2048  # decisions whose rows are held together: a row is a whole window


class WindowTreesParams(BoostingParams):
    """Inputs of the trees, and the parameters of boosting them."""

    section: ClassVar = "window-trees"
    tokens: Annotated[int, Field(ge=16, le=4096, multiple_of=8)]
    """Number of tokens in a window: packets already sent, and the eight candidates."""
    inputs: list[str]
    """Inputs of a token, by name (models/window/windows.py); an empty list means all."""
    decisions: Count
    """Largest number of decisions learned from a slice, evenly spaced: a row is a whole window."""

    @model_validator(mode="after")
    def _inputs_are_there(self) -> Self:
        input_names(self.inputs)
        return self


class WindowTrees(Forecaster):
    """Trees of log-latency on the whole window (SwiftQueue, arXiv 2410.06112, section 6: XGB)."""

    Params = WindowTreesParams
    search = SEARCH

    def __init__(self, trees: BoostedTrees, params: WindowTreesParams) -> None:
        """Take fitted trees."""
        self.trees, self.params = trees, params

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: WindowTreesParams, seed: int, say: Say) -> Self:
        """Fit on the slices: nothing is chosen on held-out time."""
        lessons = [(_windows(part, params), part.latencies_us()) for part in parts]
        rows, came = zip(*(_lesson(*each, params) for each in lessons), strict=True)
        trees = BoostedTrees.fit(
            np.concatenate(rows), np.concatenate(came), rounds=params.rounds, seed=seed, growth=params.growth
        )
        return cls(trees, params)

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Windows:
        """Return the windows of the packets decided, which are made as they are read."""
        return _windows(part, self.params, queue)

    def answer(self, encoded: Windows) -> Floats:
        """Return latencies in µs (B, H)."""
        some = (encoded[first : first + ASKED_AT_ONCE] for first in range(0, len(encoded), ASKED_AT_ONCE))
        us = [self.trees.predict(_rows(each)) for each in some]
        return np.concatenate([*us, np.zeros(0)]).reshape(-1, HORIZON).astype(np.float32)

    def tuned_on(
        self,
        encoded: Windows,
        came_BH: Floats,
        change: Change,
        how: FinetuneParams,
        starts: Sequence[int] = (),
    ) -> Self:
        """Add trees."""
        return type(self)(self.trees.continued(*_lesson(encoded, came_BH, self.params)), self.params)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the trees."""
        self.trees.save(folder / FILE)
        known = {"schema_hash": schema_hash(), "seed": self.trees.seed}
        return {**known, "params": self.params.model_dump()}

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the trees."""
        check_made_for(described, schema_hash())
        params = WindowTreesParams(**described["params"])
        trees = BoostedTrees.load(folder / FILE, params.rounds, int(described["seed"]), params.growth)
        return cls(trees, params)


def _windows(part: TracePart, params: WindowTreesParams, queue: int = AS_SENT) -> Windows:
    return windows_of(part, params.tokens, input_names(params.inputs), queue)


def _lesson(
    windows: Windows, came_BH: Floats, params: WindowTreesParams
) -> tuple[Floats, np.ndarray[Any, np.dtype[np.float64]]]:
    """Return rows (N, W * F + 1) and latencies (N,) of some decisions."""
    count = len(windows)
    chosen = np.unique(np.linspace(0, count - 1, min(count, params.decisions)).astype(np.int64))
    return _rows(windows[chosen]), came_BH[chosen].ravel().astype(np.float64)


def _rows(x_BWF: Floats) -> Floats:
    """Return a row for each candidate: the whole window, and its place in the batch."""
    whole_NF = np.repeat(x_BWF.reshape(len(x_BWF), -1), HORIZON, axis=0)
    place_N = np.tile(np.arange(HORIZON, dtype=np.float32), len(x_BWF))
    return np.concatenate([whole_NF, place_N[:, None]], axis=1)
