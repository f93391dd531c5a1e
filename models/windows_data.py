"""Reads `data/windows` and cuts it by time: which windows a slice holds, which labels it may know.

Shapes: B windows of a trace, W window tokens, F features, H horizon (8 packets), N chosen windows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

META_FILE: Final = "meta.json"
END_OF_TIME_NS: Final = int(np.iinfo(np.int64).max)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slice:
    """Windows [lo, hi) of a trace, by decision time."""

    lo: int
    hi: int

    def __len__(self) -> int:
        return self.hi - self.lo


@dataclass(frozen=True)
class Round:
    """One walk-forward step: the head is fine-tuned on `finetune`, then tested on `test`."""

    finetune: Slice
    test: Slice


@dataclass(frozen=True)
class TraceWindows:
    """The windows of one trace; `x_BWF` stays on disk (memory-mapped), the rest is small."""

    name: str
    x_BWF: Floats  # raw units
    y_us_BH: Floats  # NaN: never known
    y_acked_ns_BH: Ints  # when each latency became known to the sender
    decision_ns_B: Ints
    pretrain: Slice
    rounds: tuple[Round, ...]

    def time_ns(self, window: int) -> int:
        """Decision time of a window; past the last one, the end of time."""
        return int(self.decision_ns_B[window]) if window < len(self.decision_ns_B) else END_OF_TIME_NS

    def labels_known_at(self, part: Slice, now_ns: int) -> Floats:
        """Latencies of a slice that the sender knew at `now_ns` (ACK seen); the others are NaN."""
        y_us_NH = np.array(self.y_us_BH[part.lo : part.hi])
        y_us_NH[self.y_acked_ns_BH[part.lo : part.hi] > now_ns] = np.nan
        return y_us_NH


@dataclass(frozen=True)
class WindowSet:
    """All traces of `data/windows` under one visibility."""

    schema_hash: str
    tokens: int
    horizon: int
    feature_names: tuple[str, ...]
    feature_units: tuple[str, ...]
    visibility: str
    protocol: Mapping[str, Any]
    traces: Mapping[str, TraceWindows]

    def trace(self, name: str) -> TraceWindows:
        """Return one trace.

        Raises:
            ValueError: there is no trace of that name.
        """
        if name not in self.traces:
            raise ValueError(f"no windows of trace {name!r} (there are: {', '.join(self.traces)})")
        return self.traces[name]


def load_windows(folder: Path, visibility: str = "acked") -> WindowSet:
    """Open the windows that stage `windows` wrote.

    Raises:
        FileNotFoundError: the stage has not run, or a file of a trace is missing.
        ValueError: the files and `meta.json` do not fit together.
    """
    path = folder / META_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; run the stage `windows` first (dvc repro windows)")
    try:
        meta = json.loads(path.read_text())
        features = [(str(f["name"]), str(f["unit"])) for f in meta["features"]]
        tokens, horizon = int(meta["tokens"]), int(meta["horizon"])
        shape = (tokens, len(features), horizon)
        traces = {
            str(name): _load_trace(folder, str(name), described, visibility, shape)
            for name, described in meta["traces"].items()
        }
        return WindowSet(
            schema_hash=str(meta["schema_hash"]),
            tokens=tokens,
            horizon=horizon,
            feature_names=tuple(name for name, _ in features),
            feature_units=tuple(unit for _, unit in features),
            visibility=visibility,
            protocol=dict(meta["protocol"]),
            traces=traces,
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{path}: malformed ({type(error).__name__}: {error}); run the stage `windows` again"
        ) from error


def fingerprint(folder: Path, *more: object) -> str:
    """Hash of the windows and of whatever else a result depends on (parameters, a parent model).

    The inputs `x` are left out for speed: packets, schema hash and split determine them, and labels,
    decision times and `meta.json` are hashed in full.
    """
    digest = hashlib.sha256((folder / META_FILE).read_bytes())
    for name in ("y_us.npy", "decision_ns.npy"):
        for path in sorted(folder.glob(f"*/{name}")):
            digest.update(path.parent.name.encode() + path.read_bytes())
    digest.update(json.dumps(more, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _load_trace(
    folder: Path, name: str, described: Mapping[str, Any], visibility: str, shape: tuple[int, int, int]
) -> TraceWindows:
    tokens, features, horizon = shape
    count = int(described["windows"])
    part = folder / name

    def read(file: str, expected: tuple[int, ...]) -> NDArray[Any]:
        path = part / file
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; run the stage `windows` again")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if array.shape != expected:
            raise ValueError(f"{path}: shape {array.shape}, but {META_FILE} says {expected}")
        return np.asarray(array) if array.ndim < 3 else array

    def cut(bounds: Any) -> Slice:
        lo, hi = (int(bound) for bound in bounds)
        if not 0 <= lo <= hi <= count:
            raise ValueError(f"{folder / META_FILE}: slice [{lo}, {hi}) of trace {name} has {count} windows")
        return Slice(lo, hi)

    decision_ns_B = read("decision_ns.npy", (count,))
    if (np.diff(decision_ns_B) < 0).any():
        raise ValueError(f"{part / 'decision_ns.npy'}: decision times step backwards")
    return TraceWindows(
        name=name,
        x_BWF=read(f"x_{visibility}.npy", (count, tokens, features)),
        y_us_BH=read("y_us.npy", (count, horizon)),
        y_acked_ns_BH=read("y_acked_ns.npy", (count, horizon)),
        decision_ns_B=decision_ns_B,
        pretrain=cut(described["pretrain"]),
        rounds=tuple(Round(cut(r["finetune"]), cut(r["test"])) for r in described["rounds"]),
    )
