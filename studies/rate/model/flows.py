"""Flows as arrays, and how they divide: random flows of the paths to learn from, and whole other paths.

Shapes: N flows, S samples (35), F fields of a sample (28), H horizons (6).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.studies.rate.samples import tables
from swiftqueue.studies.rate.samples.definition import HORIZONS, MOST_SAMPLES, NAMES, PREFIXES, inputs

VALID_SHARE: Final = (
    0.1  # share of the flows of each path that is learned from; the test of seen paths has as many
)
TS: Final = NAMES.index("ts")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Flows:
    """Flows of any paths. What a model may see is x alone; the rest judges it, or is another flow's."""

    x_NSF: NDArray[np.float32]  # zeros where a flow has fewer samples
    samples_N: NDArray[np.int64]
    y_NH: Floats  # bytes/s; NaN: never reached
    at_NH: Floats  # ns; when
    started_N: Floats  # ns
    receiver_N: NDArray[np.int64]
    path_N: NDArray[np.int64]
    held_out_N: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.samples_N)

    def take(self, chosen: NDArray[Any]) -> Flows:
        """Some of them, by a mask or by their places."""
        return Flows(**{name: value[chosen] for name, value in vars(self).items()})

    def known_NH(self, n: int) -> NDArray[np.bool_]:
        """Return which flows have n samples, and a rate at each horizon."""
        known: NDArray[np.bool_] = (self.samples_N >= n)[:, None] & np.isfinite(self.y_NH)
        return known

    def seen_at_N(self, n: int) -> Floats:
        """Time of sample n, in ns: since the SYN left, so about a round trip too early, never too late."""
        elapsed: Floats = self.x_NSF[:, :n, TS].sum(1, dtype=np.float64) * 1e3
        return self.started_N + elapsed


@dataclass(frozen=True)
class Split:
    """The flows to learn from, the flows to choose on, and both tests."""

    train: Flows
    valid: Flows
    seen: Flows
    held_out: Flows


def load(folder: Path) -> Flows:
    """Read all paths of a folder.

    Raises:
        OSError, ValueError: a table is missing, damaged, foreign or empty; the line names it.
    """
    parts: list[Flows] = []
    for place, (name, about) in enumerate(tables.paths_in(folder).items()):
        samples, flows = tables.read_path(folder, name)
        n = len(flows)
        x_NSF = np.zeros((n, MOST_SAMPLES, len(NAMES)), np.float32)
        raw = samples.select(NAMES).to_numpy()
        ends = np.cumsum(np.minimum(flows["samples"].to_numpy(), MOST_SAMPLES))
        for row, (flow, rows) in enumerate(zip(flows["flow"], np.split(raw, ends[:-1]), strict=True)):
            try:
                x_NSF[row, : len(rows)] = inputs(rows)
            except ValueError as error:
                raise ValueError(f"path {name}, flow {flow}, {error}") from None
        columns = {
            kind: flows.select([form.format(k) for k in HORIZONS]).cast(pl.Float64).to_numpy()
            for kind, form in (("y", "rate_{}_bytes_per_s"), ("at", "at_{}_ns"))
        }
        parts.append(
            Flows(
                x_NSF,
                flows["samples"].to_numpy(),
                columns["y"],
                columns["at"],
                flows["started_ns"].cast(pl.Float64).to_numpy(),
                flows["receiver"].to_numpy(),
                np.full(n, place),
                np.full(n, about["kind"] == "held-out"),
            )
        )
    return Flows(*(np.concatenate([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def split(flows: Flows, seed: int) -> Split:
    """Divide: flows of the paths that are learned from at random by `seed`; other paths are held out.

    Raises:
        ValueError: a part has no flow with enough samples for a forecast.
    """
    usable = flows.samples_N >= min(PREFIXES)
    own = np.flatnonzero(~flows.held_out_N & usable)
    order = np.random.default_rng(seed).permutation(own)
    few = max(1, round(VALID_SHARE * len(own)))
    parts = {
        "seen": order[:few],
        "valid": order[few : 2 * few],
        "train": order[2 * few :],
        "held_out": np.flatnonzero(flows.held_out_N & usable),
    }
    for name, chosen in parts.items():
        if not len(chosen):
            raise ValueError(f"no flow of {min(PREFIXES)} samples or more is left for the part `{name}`")
    return Split(**{name: flows.take(chosen) for name, chosen in parts.items()})
