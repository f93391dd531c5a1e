"""Training examples: windows with the labels known when training starts, and who trains on which.

Shapes: B windows of a trace, N examples, W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.sharp import PAPERS, Change, sharp_changes
from models.training.protocol import Slice
from models.training.windows import Floats, Ints, TraceWindows, WindowSet

VALIDATION_SHARE = 0.1  # the last tenth, in time, of the pre-training slice chooses the checkpoint


@dataclass(frozen=True)
class Examples:
    """Windows (on disk, or any array) with their labels; N examples in all, trace after trace."""

    parts: tuple[tuple[Floats, Slice], ...]  # (x_BWF, its slice) of each trace
    y_us_NH: Floats  # NaN: not known when training starts
    sharp_NH: NDArray[np.bool_]  # the latency is a sharp change from its predecessor

    def __len__(self) -> int:
        return len(self.y_us_NH)

    def gather(self, indices_N: Ints) -> Floats:
        """Read the raw windows (N, W, F) of some examples."""
        _, tokens, features = self.parts[0][0].shape
        x_NWF = np.empty((len(indices_N), tokens, features), dtype=np.float32)
        start = 0
        for x_BWF, part in self.parts:
            here_N = (indices_N >= start) & (indices_N < start + len(part))
            x_NWF[here_N] = x_BWF[indices_N[here_N] - start + part.lo]
            start += len(part)
        return x_NWF


@dataclass(frozen=True)
class Chosen:
    """Windows (N, W, F) of some examples, read as they are sliced."""

    examples: Examples
    indices_N: Ints

    def __len__(self) -> int:
        return len(self.indices_N)

    def __getitem__(self, part: slice) -> Floats:
        return self.examples.gather(self.indices_N[part])


def examples_from_arrays(x_NWF: Floats, y_us_NH: Floats, change: Change = PAPERS) -> Examples:
    """Examples of windows in memory, in send order; NaN labels are unknown."""
    return Examples(((x_NWF, Slice(0, len(x_NWF))),), y_us_NH, sharp_changes(y_us_NH, change))


def examples_of(parts: Sequence[tuple[TraceWindows, Slice, int]]) -> Examples:
    """Examples of some slices, each with the labels known at its own time in nanoseconds.

    Raises:
        ValueError: a slice holds no window, or no label is known.
    """
    y_parts, sharp_parts = [], []
    for trace, part, now_ns in parts:
        if len(part) == 0:
            raise ValueError(f"trace {trace.name}: a training slice holds no window; use a longer protocol")
        # One window earlier, so that the first packet has its predecessor's latency too.
        from_earlier = Slice(max(part.lo - 1, 0), part.hi)
        y_us_NH = trace.labels_known_at(from_earlier, now_ns)
        skip = part.lo - from_earlier.lo
        y_parts.append(y_us_NH[skip:])
        sharp_parts.append(sharp_changes(y_us_NH, trace.change)[skip:])
    y_us_NH = np.concatenate(y_parts)
    if not np.isfinite(y_us_NH).any():
        names = ", ".join(trace.name for trace, _, _ in parts)
        raise ValueError(f"trace {names}: no latency is known in the training slice")
    return Examples(
        parts=tuple((trace.x_BWF, part) for trace, part, _ in parts),
        y_us_NH=y_us_NH,
        sharp_NH=np.concatenate(sharp_parts),
    )


def pretraining_split(windows: WindowSet) -> tuple[Examples, Examples]:
    """Training and validation examples of every trace's pre-training slice.

    No label is used that the sender did not know when its part ended: a latency counts for training only
    if acknowledged before the validation part starts, and for validation only if acknowledged before the
    pre-training slice ends.
    """
    train, validation = [], []
    for trace in windows.traces.values():
        lo, hi = trace.pretrain.lo, trace.pretrain.hi
        middle = hi - max(1, round((hi - lo) * VALIDATION_SHARE))
        train.append((trace, Slice(lo, middle), trace.time_ns(middle)))
        validation.append((trace, Slice(middle, hi), trace.time_ns(hi)))
    return examples_of(train), examples_of(validation)


def finetuning_examples(trace: TraceWindows, round_index: int) -> Examples | None:
    """Examples of one fine-tuning round: only labels acknowledged before the round's test part starts.

    None if the slice holds no window or no known latency: there is nothing to learn from it.
    """
    part = trace.rounds[round_index].finetune
    now_ns = trace.time_ns(part.hi)
    if not np.isfinite(trace.labels_known_at(part, now_ns)).any():
        return None
    return examples_of([(trace, part, now_ns)])


def owned(indices_N: Ints, rank: int, workers: int) -> Ints:
    """Pick the indices that worker `rank` of `workers` owns: every example has exactly one owner."""
    return np.asarray(indices_N[indices_N % workers == rank])


def epoch_batches(examples: int, batch_size: int, seed: int, epoch: int) -> Iterator[Ints]:
    """Shuffled batches of one epoch, the same in every worker; a worker trains on what it owns of each.

    Depends on seed and epoch only, so a resumed run sees what the killed one would have seen.
    """
    order = np.random.default_rng([seed, epoch]).permutation(examples)
    for start in range(0, examples, batch_size):
        yield order[start : start + batch_size]
