"""Measure one question of the default network on one thread, beside PyTorch, ONNX Runtime and OpenVINO.

The network is the event stream of two layers. A sender's next question shares most of its events with its
last one, and the engine computes the new ones only (`a sender's next question`); what it has not seen before
it computes whole (`events not seen before`), as the references always do. All run the same random weights on
the same windows, full of real events, in the same process, in turn. The engine is timed inside C++, the
references around their Python call; that call costs them a few µs, which is what a Python server pays.

Shapes: B windows, W window rows, F features of a row, D model width, H horizon.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from swiftqueue.benchmarks.inference_references import (
    Call,
    Windows,
    event_stream,
    make_windows,
    onnx_runtime,
    openvino_call,
    save,
    windows_of_a_sender,
)
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.served_models import build
from swiftqueue.feature_store.packets.schema import HORIZON

if TYPE_CHECKING:
    from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
    from swiftqueue.serving.engine import Engine, Isa

CALLS: Final = 400  # calls per round and contestant
PEAK_SECONDS: Final = 0.02
FEATURE_BATCH: Final = 256
SWAPS: Final = 20
SLOWER: Final[dict[str, tuple[Isa, ...]]] = {
    "avx512": ("avx2", "portable"),
    "avx2": ("portable",),
    "portable": (),
}
PARITY: Final = 1e-4  # largest difference from PyTorch that a reference may have
NEXT: Final = "a sender's next question"
UNSEEN: Final = "events not seen before"

Times = npt.NDArray[np.float64]


def measure(rounds: int) -> list[Row]:
    """Return the medians over `rounds` of each round's median (p50) and 99th percentile of one-window times.

    Raises:
        ValueError: a contestant's answers differ from PyTorch's.
        ImportError: the engine is not built.
        OSError: the program that measures the core's peak cannot be built.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from swiftqueue.serving.engine import Engine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            path = save(Path(folder) / "event-stream")
            model = event_stream()
            engine = Engine(path)
            contestants = _contestants(engine, model, path)
            peak_flops, peak = _peak_flops(engine.isa), list[float]()
            samples: dict[str, list[Times]] = {name: [] for name in contestants}
            for _ in range(rounds):
                for name, times_us in contestants.items():
                    samples[name].append(times_us())
                peak.append(peak_flops(PEAK_SECONDS))
            rows = _latency_rows(engine.isa, samples, rounds)
            rows.append(_peak_row(engine.isa, model.sizes, samples, statistics.median(peak), rounds))
            return rows + _feature_rows(engine, model, rounds) + _swap_rows(engine, path, rounds)
    finally:
        torch.set_num_threads(threads)


def _contestants(engine: Engine, model: EventPredictor, path: Path) -> dict[str, Callable[[], Times]]:
    """Return the times of one round by name; every contestant's answers are checked first."""
    from swiftqueue.models.networks import artifact
    from swiftqueue.serving.engine import Engine

    unseen_BWF, next_BWF = make_windows(), windows_of_a_sender(CALLS)
    file = artifact.export_onnx(path)
    references: dict[str, Call] = {"PyTorch": functools.partial(_call_module, model)}
    references["ONNX Runtime"] = onnx_runtime(file)
    if importlib.util.find_spec("openvino") is not None:
        references["OpenVINO"] = openvino_call(file)
    else:
        print("OpenVINO is not installed, so ONNX Runtime is the reference", file=sys.stderr)
    expected_BH = _call_module(model, unseen_BWF)
    timed: dict[str, Callable[[], Times]] = {}
    for library, call in references.items():
        for x_WF, expected_H in zip(unseen_BWF, expected_BH, strict=True):
            if not np.allclose(call(x_WF[None]), expected_H[None], rtol=PARITY):
                raise ValueError(f"bench inference: {library} answers otherwise")
        timed[library] = functools.partial(_call_us, call, unseen_BWF)
    for isa in (engine.isa, *SLOWER[engine.isa]):
        ours = Engine(path, isa)  # type: ignore[arg-type]
        if not np.allclose(ours.forward(unseen_BWF), expected_BH, rtol=PARITY):
            raise ValueError(f"bench inference: the engine answers otherwise, {isa}")
        timed[f"{UNSEEN}, {isa}"] = functools.partial(ours.time_us, unseen_BWF, CALLS)
        timed[f"{NEXT}, {isa}"] = functools.partial(ours.time_us, next_BWF, CALLS)
    return timed


def _call_module(model: EventPredictor, x_BWF: Windows) -> Windows:
    import torch

    return np.asarray(model(torch.from_numpy(x_BWF)).numpy())


def _call_us(call: Call, x_BWF: Windows) -> Times:
    us = np.empty(CALLS)
    for i in range(CALLS):
        x_1WF = x_BWF[i % len(x_BWF)][None]
        start_ns = time.perf_counter_ns()
        call(x_1WF)
        us[i] = (time.perf_counter_ns() - start_ns) / 1000
    return us


def _row(name: str, ours: float, reference: float, reference_name: str, unit: str, rounds: int) -> Row:
    """Return a row for a figure that is better when smaller."""
    return Row(name, ours, reference, reference_name, reference / ours, unit, rounds)


def _latency_rows(isa: str, samples: dict[str, list[Times]], rounds: int) -> list[Row]:
    def figure(name: str, percentile: float) -> float:
        return statistics.median(float(np.percentile(us, percentile)) for us in samples[name])

    def row(ours: str, reference: str, percentile: int) -> Row:
        of = figure(ours, percentile), figure(reference, percentile)
        return _row(f"{ours}, p{percentile}", *of, reference, "us", rounds)

    libraries = [name for name in ("PyTorch", "ONNX Runtime", "OpenVINO") if name in samples]
    rows = [
        row(f"{what}, {isa}", library, percentile)
        for what in (NEXT, UNSEEN)
        for library in libraries
        for percentile in (50, 99)
    ]
    rows += [row("ONNX Runtime", "PyTorch", percentile) for percentile in (50, 99)]
    return rows + [row(f"{what}, {other}", "PyTorch", 50) for what in (NEXT, UNSEEN) for other in SLOWER[isa]]


def _operations(sizes: EventArchitecture, features: int) -> float:
    """Return the floating-point operations of the matrix products that a whole window needs."""
    d, inner, band = sizes.width, sizes.feed_forward, sizes.band
    attending = d * d + 2 * band * d + d * d + 2 * d * inner  # query, scores and mean, output, inner layers
    total = float((sizes.reach + HORIZON) * features * d)
    # A layer computes a band for itself and for each layer after it.
    for after in reversed(range(sizes.layers)):
        total += (after + 1) * band * 2 * d * d + (after * band + HORIZON) * attending
    return 2.0 * (total + HORIZON * (d * d + d))


def _peak_flops(isa: str) -> Callable[[float], float]:
    """Yield a function that measures the most FLOP/s that a core reaches in some seconds of multiply-adds."""
    target = f"peak_flops_{isa}.so"
    function = ctypes.CDLL(str(build(target, room="engine") / target)).peak_flops
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    return function


def _peak_row(
    isa: str, sizes: EventArchitecture, samples: dict[str, list[Times]], peak_flops: float, rounds: int
) -> Row:
    us = statistics.median(float(np.median(s)) for s in samples[f"{UNSEEN}, {isa}"])
    achieved = _operations(sizes, make_windows(1).shape[2]) / us * 1e6
    return Row(
        f"share of the core's peak, {UNSEEN}",
        achieved / 1e9,
        peak_flops / 1e9,
        f"{isa} multiply-adds in registers",
        achieved / peak_flops,
        "GFLOP/s",
        rounds,
    )


def _feature_rows(engine: Engine, model: EventPredictor, rounds: int) -> list[Row]:
    """Return the encoder features of a batch of windows, as the fine-tuner caches them."""
    import torch

    x_BWF = make_windows(FEATURE_BATCH)
    tensor_BWF = torch.from_numpy(x_BWF)
    times_us: list[list[float]] = [[], []]
    encoders: tuple[Callable[[], object], ...] = (
        lambda: engine.features(x_BWF),
        lambda: model.encode(tensor_BWF),
    )
    for _ in range(rounds):
        for kept, encode in zip(times_us, encoders, strict=True):
            start_ns = time.perf_counter_ns()
            encode()
            kept.append((time.perf_counter_ns() - start_ns) / 1000 / FEATURE_BATCH)
    ours, reference = (statistics.median(kept) for kept in times_us)
    name = f"PyTorch, batch {FEATURE_BATCH}"
    return [_row("encoder features, per window", ours, reference, name, "us", rounds)]


def _swap_rows(engine: Engine, path: Path, rounds: int) -> list[Row]:
    """Return rows for swapping the head beside loading the whole artifact anew."""
    from swiftqueue.serving.engine import Engine

    swap_us: list[float] = []
    load_us: list[float] = []
    for i in range(rounds * SWAPS):
        for kept, action in (
            (swap_us, functools.partial(engine.swap_head, path, i)),
            (load_us, functools.partial(Engine, path)),
        ):
            start_ns = time.perf_counter_ns()
            action()
            kept.append((time.perf_counter_ns() - start_ns) / 1000)
    return [
        _row(
            "head swap",
            statistics.median(swap_us),
            statistics.median(load_us),
            "engine loaded anew",
            "us",
            rounds,
        )
    ]
