"""Reads `data/windows`, divided by `data/split.json`: which windows a slice holds, which labels it may know.

Shapes: B windows of a trace, W window tokens, F features, H horizon (8 packets), N chosen windows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from models.json_file import read_object
from models.sharp import PAPERS, Change
from models.training.protocol import Round, Slice, Slices, together

VISIBILITY: Final = "acked"  # of what learns and is served
META_FILE: Final = "meta.json"
END_OF_TIME_NS: Final = int(np.iinfo(np.int64).max)

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class TraceWindows:
    """The windows of one trace; `x_BWF` stays on disk (memory-mapped), the rest is small."""

    name: str
    x_BWF: Floats  # raw units
    y_us_BH: Floats  # NaN: never known
    y_acked_ns_BH: Ints  # when each latency became known to the sender
    decision_ns_B: Ints
    slices: Slices
    change: Change = PAPERS  # of latency that the loss weights and the scores count

    @property
    def pretrain(self) -> Slice:
        """What is pre-trained on."""
        return self.slices.pretrain

    @property
    def rounds(self) -> tuple[Round, ...]:
        """What is fine-tuned on and tested, round by round."""
        return self.slices.rounds

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
    """All traces of `data/windows`."""

    schema_hash: str
    tokens: int
    horizon: int
    feature_names: tuple[str, ...]
    feature_units: tuple[str, ...]
    visibility: str
    traces: Mapping[str, TraceWindows]

    @property
    def protocol(self) -> dict[str, Any]:
        """Name and slice lengths of the tested traces' protocol; where they differ, the names alone."""
        return together(trace.slices.protocol for trace in self.traces.values() if trace.rounds)

    def trace(self, name: str) -> TraceWindows:
        """Return one trace.

        Raises:
            ValueError: there is no trace of that name.
        """
        if name not in self.traces:
            raise ValueError(f"no windows of trace {name!r} (there are: {', '.join(self.traces)})")
        return self.traces[name]


def load_windows(folder: Path, split: Path, change: Change = PAPERS) -> WindowSet:
    """Open the windows that stage `windows` wrote, divided as stage `split` says; `change` goes with them.

    Raises:
        FileNotFoundError: a stage has not run, or a file of a trace is missing.
        ValueError: the files, `meta.json` and the split do not fit together.
    """
    meta, divided = _read_json(folder / META_FILE, "windows"), _read_json(split, "split")
    try:
        features = [(str(f["name"]), str(f["unit"])) for f in meta["features"]]
        tokens, horizon = int(meta["tokens"]), int(meta["horizon"])
        shape = (tokens, len(features), horizon)
        if sorted(meta["traces"]) != sorted(divided["traces"]):
            raise ValueError(
                f"{split} divides {', '.join(sorted(divided['traces']))}, and {folder} holds "
                f"{', '.join(sorted(meta['traces']))}; run the stage `split` again"
            )
        traces = {
            str(name): _load_trace(
                folder,
                str(name),
                int(described["windows"]),
                divided["traces"][name],
                shape,
                change,
            )
            for name, described in meta["traces"].items()
        }
        return WindowSet(
            schema_hash=str(meta["schema_hash"]),
            tokens=tokens,
            horizon=horizon,
            feature_names=tuple(name for name, _ in features),
            feature_units=tuple(unit for _, unit in features),
            visibility=VISIBILITY,
            traces=traces,
        )
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(
            f"{folder / META_FILE} or {split}: malformed ({type(error).__name__}: {error}); "
            "run the stages `windows` and `split` again"
        ) from error


def fingerprint(folder: Path, split: Path, *more: object) -> str:
    """Hash of the windows, of their split and of whatever else a result depends on (parameters, code).

    The inputs `x` are left out for speed: packets and schema hash determine them, and labels, when they were
    known, decision times, `meta.json` and the split are hashed in full.
    """
    digest = hashlib.sha256((folder / META_FILE).read_bytes() + split.read_bytes())
    for name in ("y_us.npy", "y_acked_ns.npy", "decision_ns.npy"):
        for path in sorted(folder.glob(f"*/{name}")):
            digest.update(path.parent.name.encode() + path.read_bytes())
    digest.update(json.dumps(more, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _read_json(path: Path, stage: str) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; run the stage `{stage}` first (dvc repro {stage})")
    return read_object(path)


def _load_trace(
    folder: Path,
    name: str,
    count: int,
    divided: Mapping[str, Any],
    shape: tuple[int, int, int],
    change: Change,
) -> TraceWindows:
    tokens, features, horizon = shape
    part = folder / name

    def read(file: str, expected: tuple[int, ...]) -> NDArray[Any]:
        path = part / file
        if not path.is_file():
            raise FileNotFoundError(f"{path}: no such file; run the stage `windows` again")
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except (
            ValueError,
            TypeError,
            OverflowError,
            SyntaxError,
            TokenError,
        ) as error:  # NumPy's own parser's
            raise ValueError(f"{path}: not an array that stage `windows` wrote ({error})") from error
        if array.shape != expected:
            raise ValueError(f"{path}: shape {array.shape}, but {META_FILE} says {expected}")
        return np.asarray(array) if array.ndim < 3 else array

    decision_ns_B = read("decision_ns.npy", (count,))
    if (np.diff(decision_ns_B) < 0).any():
        raise ValueError(f"{part / 'decision_ns.npy'}: decision times step backwards")
    return TraceWindows(
        name=name,
        x_BWF=read(f"x_{VISIBILITY}.npy", (count, tokens, features)),
        y_us_BH=read("y_us.npy", (count, horizon)),
        y_acked_ns_BH=read("y_acked_ns.npy", (count, horizon)),
        decision_ns_B=decision_ns_B,
        slices=Slices.from_json(divided, count, name),
        change=change,
    )
