"""One window to 8 latencies on one thread: the engine beside PyTorch, OpenVINO and ONNX Runtime.

`full graph` computes every token of every layer, `last token` what the paper's readout needs, `every
candidate` is the readout that is served. The BiLSTM has it too, and as many parameters. All run random
weights on the same windows, full of real tokens, in the same process, in turn. The engine is timed inside
C++, the references around their Python call; that call costs them a few µs, which is what a Python server
pays.

Shapes: B windows, W window tokens, F features, D model width, H horizon.
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

from benchmarks.inference_references import (
    TOKENS,
    Call,
    Windows,
    export,
    full_graph,
    make_model,
    make_windows,
    onnx_runtime,
    openvino_call,
)
from benchmarks.rows import Row
from benchmarks.served_models import build

if TYPE_CHECKING:
    import torch

    from models.networks.transformer import Predictor
    from serving.engine import Engine, Isa

CALLS: Final = 400  # per round and contestant
PEAK_SECONDS: Final = 0.02
FEATURE_BATCH: Final = 256
SWAPS: Final = 20
SLOWER: Final[dict[str, tuple[Isa, ...]]] = {
    "avx512": ("avx2", "portable"),
    "avx2": ("portable",),
    "portable": (),
}
ANCHOR: Final = "last_latency_flow_us"  # as in params.yaml
BILSTM: Final = "ONNX Runtime BiLSTM"
PARITY: Final = 1e-4  # a contestant that computes something else is no reference


def measure(rounds: int) -> list[Row]:
    """Medians over `rounds` of each round's median (p50) and 99th percentile of one-window times.

    Raises:
        ValueError: a contestant's answers differ from the predictor's.
        ImportError: the engine is not built.
        OSError: what measures the core's peak cannot be built.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from serving.engine import Engine

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            model, x_BWF = make_model(), make_windows()
            path = _save(model, Path(folder) / "last")
            engine = Engine(path)
            contestants = _contestants(engine, model, x_BWF, path)
            for isa in SLOWER[engine.isa]:
                contestants[f"engine {isa}"] = functools.partial(_engine_us, Engine(path, isa), x_BWF, False)
            peak_flops, peak = _peak_flops(engine.isa), list[float]()
            samples: dict[str, list[npt.NDArray[np.float64]]] = {name: [] for name in contestants}
            for _ in range(rounds):
                for name, times_us in contestants.items():
                    samples[name].append(times_us())
                peak.append(peak_flops(PEAK_SECONDS))
            rows = _latency_rows(engine.isa, samples, rounds)
            rows += _peak_rows(engine, samples, statistics.median(peak), rounds)
            return rows + _feature_rows(engine, model, rounds) + _swap_rows(engine, path, rounds)
    finally:
        torch.set_num_threads(threads)


def _save(model: Predictor, folder: Path) -> Path:
    from feature_store.events.windows import schema_hash
    from models.networks import artifact

    artifact.save(folder, model, artifact.Description(TOKENS, schema_hash(), "acked"))
    return folder


def _contestants(
    engine: Engine, model: Predictor, x_BWF: Windows, path: Path
) -> dict[str, Callable[[], npt.NDArray[np.float64]]]:
    """Times of one round by name; every contestant's answers are checked first."""
    import torch

    from models.networks import artifact
    from serving.engine import Engine

    served = make_model("candidates", ANCHOR)
    served_path = _save(served, path.with_name("served"))
    served_engine = Engine(served_path)
    full = full_graph(model)
    graphs: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Path]] = {
        "full graph": (full, export(full, path / "full.onnx")),
        "last token": (model, artifact.export_onnx(path)),
        "every candidate": (served, artifact.export_onnx(served_path)),
    }
    openvino = importlib.util.find_spec("openvino") is not None
    if not openvino:
        print("OpenVINO is not installed, so ONNX Runtime is the reference", file=sys.stderr)
    timed: dict[str, Callable[[], npt.NDArray[np.float64]]] = {}
    for graph, (module, file) in graphs.items():
        calls: dict[str, Call] = {"PyTorch": functools.partial(_call_module, module)}
        calls["ONNX Runtime"] = onnx_runtime(file)
        if openvino:
            calls["OpenVINO"] = openvino_call(file)
        expected_BH = module(torch.from_numpy(x_BWF)).numpy()
        for library, call in calls.items():
            for x_WF, expected_H in zip(x_BWF, expected_BH, strict=True):
                if not np.allclose(call(x_WF[None]), expected_H[None], rtol=PARITY):
                    raise ValueError(f"bench inference: {library} answers otherwise on the {graph}")
            timed[f"{library} {graph}"] = functools.partial(_call_us, call, x_BWF)
        ours, every_token = served_engine if graph == "every candidate" else engine, graph == "full graph"
        if not np.allclose(ours.forward(x_BWF, full_graph=every_token), expected_BH, rtol=PARITY):
            raise ValueError(f"bench inference: the engine answers otherwise on the {graph}")
        timed[f"engine {graph}"] = functools.partial(_engine_us, ours, x_BWF, every_token)
    bilstm = artifact.export_onnx(
        _save(make_model("candidates", ANCHOR, bilstm=True), path.with_name("bilstm"))
    )
    timed[BILSTM] = functools.partial(_call_us, onnx_runtime(bilstm), x_BWF)
    timed["engine 16 tokens"] = functools.partial(_engine_us, engine, x_BWF[:, -16:], False)
    return timed


def _call_module(module: Callable[[torch.Tensor], torch.Tensor], x_BWF: Windows) -> object:
    import torch

    return module(torch.from_numpy(x_BWF)).numpy()


def _call_us(call: Call, x_BWF: Windows) -> npt.NDArray[np.float64]:
    us = np.empty(CALLS)
    for i in range(CALLS):
        x_1WF = x_BWF[i % len(x_BWF)][None]
        start_ns = time.perf_counter_ns()
        call(x_1WF)
        us[i] = (time.perf_counter_ns() - start_ns) / 1000
    return us


def _engine_us(engine: Engine, x_BWF: Windows, every_token: bool) -> npt.NDArray[np.float64]:
    return engine.time_us(x_BWF, CALLS, full_graph=every_token)


def _row(name: str, ours: float, reference: float, reference_name: str, unit: str, rounds: int) -> Row:
    """A row of a figure of which less is better."""
    return Row(name, ours, reference, reference_name, reference / ours, unit, rounds)


def _latency_rows(isa: str, samples: dict[str, list[npt.NDArray[np.float64]]], rounds: int) -> list[Row]:
    def figure(name: str, percentile: float) -> float:
        return statistics.median(float(np.percentile(us, percentile)) for us in samples[name])

    graphs = ("full graph", "last token", "every candidate")
    pairs = [(graph, "PyTorch full graph") for graph in (*graphs, "16 tokens")]
    for library in ("OpenVINO", "ONNX Runtime", "PyTorch"):
        pairs += [(g, f"{library} {g}") for g in graphs if f"{library} {g}" in samples]
    pairs = list(dict.fromkeys(pairs))
    rows = [
        _row(
            f"{ours}, {isa}, p{percentile}",
            figure(f"engine {ours}", percentile),
            figure(reference, percentile),
            reference,
            "us",
            rounds,
        )
        for ours, reference in pairs
        for percentile in (50, 99)
    ]
    served = "ONNX Runtime every candidate"
    rows += [
        _row(f"{served}, p{p}", figure(served, p), figure(BILSTM, p), BILSTM, "us", rounds) for p in (50, 99)
    ]
    reference = "PyTorch full graph"
    return rows + [
        _row(
            f"last token, {other}, p50",
            figure(f"engine {other}", 50),
            figure(reference, 50),
            reference,
            "us",
            rounds,
        )
        for other in SLOWER[isa]
    ]


def _operations(features: int, last_only: bool) -> float:
    """Floating-point operations of the matrix products that a window of W tokens needs."""
    w, d, ff, heads, horizon = TOKENS, 64, 256, 4, 8
    layer = w * (3 * d * d + 2 * w * d + d * d + 2 * d * ff)
    # Query; keys and values folded onto the query's side; scores and mean of all tokens; the rest of one.
    last = d * d + d * d + 2 * heads * w * d + d * d + d * d + 2 * d * ff
    return 2.0 * (w * features * d + layer + (last if last_only else layer) + d * d + d * horizon)


def _peak_flops(isa: str) -> Callable[[float], float]:
    """What measures the most multiply-adds in registers that a core does, in FLOP/s, for some seconds."""
    target = f"peak_flops_{isa}.so"
    function = ctypes.CDLL(str(build(target, room="engine") / target)).peak_flops
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    return function


def _peak_rows(
    engine: Engine, samples: dict[str, list[npt.NDArray[np.float64]]], peak_flops: float, rounds: int
) -> list[Row]:
    rows = []
    for graph in ("last token", "full graph"):
        us = statistics.median(float(np.median(s)) for s in samples[f"engine {graph}"])
        achieved = _operations(engine.shape[1], graph == "last token") / us * 1e6
        rows.append(
            Row(
                f"share of the core's peak, {graph}",
                achieved / 1e9,
                peak_flops / 1e9,
                f"{engine.isa} multiply-adds in registers",
                achieved / peak_flops,
                "GFLOP/s",
                rounds,
            )
        )
    return rows


def _feature_rows(engine: Engine, model: Predictor, rounds: int) -> list[Row]:
    """Encoder features of a batch of windows, as the fine-tuner caches them."""
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
    name = f"PyTorch last token, batch {FEATURE_BATCH}"
    return [_row("encoder features, per window", ours, reference, name, "us", rounds)]


def _swap_rows(engine: Engine, path: Path, rounds: int) -> list[Row]:
    """Swapping the head beside loading the whole artifact anew."""
    from serving.engine import Engine

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
