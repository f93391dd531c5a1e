"""Measure the default network on one thread, beside PyTorch, ONNX Runtime and OpenVINO.

The network is the event stream of two layers. A sender's batch takes 16 new events into its session and asks
about 8 packets in both queues: the engine computes 16 events and 16 queries (`a batch through a session`).
Without a session it computes the whole window of the events (`a window without a session`), as the references
always do: one window, or the two of a batch. All run the same random weights in the same process, in turn.
The engine is timed inside C++, the references around their Python call; that call costs them a few µs, which
is what a Python server pays.

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

from swiftqueue.benchmarks.inference_accuracy import accuracy_rows
from swiftqueue.benchmarks.inference_references import (
    Call,
    Windows,
    event_stream,
    make_rows,
    make_windows,
    onnx_runtime,
    openvino_call,
    save,
)
from swiftqueue.benchmarks.rows import Row
from swiftqueue.benchmarks.served_models import build
from swiftqueue.feature_store.packets.schema import HORIZON

if TYPE_CHECKING:
    from swiftqueue.models.event_stream.network import EventArchitecture, EventPredictor
    from swiftqueue.serving.engine import Engine, Isa

CALLS: Final = 400  # calls per round and contestant
EVENTS: Final = 2 * HORIZON  # new events before each batch: as many SENDs as ACKs
PEAK_SECONDS: Final = 0.02
FEATURE_BATCH: Final = 256
SWAPS: Final = 20
SLOWER: Final[dict[str, tuple[Isa, ...]]] = {
    "avx512": ("avx2", "portable"),
    "avx2": ("portable",),
    "portable": (),
}
PARITY: Final = 1e-4  # largest difference from PyTorch that a reference may have
ROUNDED_PARITY: Final = 1e-2  # the same of the engine with products of bfloat16
ROUNDED: Final = "bf16"
BATCH: Final = "a batch through a session"
ROUNDED_BATCH: Final = f"{BATCH}, {ROUNDED}"
WINDOW: Final = "a window without a session"
QUEUES: Final = 2  # a batch's packets are asked about in either
LIBRARIES: Final = ("PyTorch", "ONNX Runtime", "OpenVINO")

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
            rows += _peak_rows(engine.isa, model, samples, statistics.median(peak), rounds)
            rows += _feature_rows(engine, model, rounds) + _swap_rows(engine, path, rounds)
            return rows + (accuracy_rows() if ROUNDED_BATCH in samples else [])
    finally:
        torch.set_num_threads(threads)


def multiplies_bfloat16(artifact: Path) -> bool:
    """Return whether the engine has products of bfloat16 on this processor."""
    from swiftqueue.serving.engine import Engine

    return Engine(artifact, ROUNDED).isa != Engine(artifact).isa


def _contestants(engine: Engine, model: EventPredictor, path: Path) -> dict[str, Callable[[], Times]]:
    """Return the times of one round by name; every contestant's answers are checked first."""
    from swiftqueue.models.networks import artifact
    from swiftqueue.serving.engine import Engine

    x_BWF = make_windows()
    events_NF, queries_QF = make_rows(EVENTS * CALLS), x_BWF[:QUEUES, -HORIZON:].reshape(QUEUES * HORIZON, -1)
    file = artifact.export_onnx(path)
    plain: dict[str, Call] = {
        "PyTorch": functools.partial(_call_module, model),
        "ONNX Runtime": onnx_runtime(file),
    }
    references = {name: {1: call, QUEUES: call} for name, call in plain.items()}
    if importlib.util.find_spec("openvino") is not None:
        references["OpenVINO"] = {windows: openvino_call(file, windows) for windows in (1, QUEUES)}
    else:
        print("OpenVINO is not installed, so ONNX Runtime is the reference", file=sys.stderr)
    expected_BH = _call_module(model, x_BWF)
    timed: dict[str, Callable[[], Times]] = {}
    for library, calls in references.items():
        for windows, call in calls.items():
            if not np.allclose(call(x_BWF[:windows]), expected_BH[:windows], rtol=PARITY):
                raise ValueError(f"bench inference: {library} answers otherwise")
            name = _of_a_batch(library) if windows > 1 else library
            timed[name] = functools.partial(_call_us, call, x_BWF, windows)
    for isa in (engine.isa, *SLOWER[engine.isa], *([ROUNDED] if multiplies_bfloat16(path) else [])):
        ours, parity = Engine(path, isa), ROUNDED_PARITY if isa == ROUNDED else PARITY  # type: ignore[arg-type]
        session = ours.open_session()
        ours.take(session, 0, x_BWF[0, :-HORIZON])
        answers_Q = ours.answer(session, x_BWF[0, -HORIZON:])[0][:, 0]
        if not all(
            np.allclose(y, expected_BH[0], rtol=parity) for y in (answers_Q, ours.forward(x_BWF[0])[0])
        ):
            raise ValueError(f"bench inference: the engine answers otherwise, {isa}")
        timed[f"{BATCH}, {isa}"] = functools.partial(
            ours.time_session_us, events_NF, EVENTS, queries_QF, CALLS
        )
        timed[f"{WINDOW}, {isa}"] = functools.partial(ours.time_us, x_BWF, CALLS)
    return timed


def _of_a_batch(library: str) -> str:
    """Return the name of a reference that is asked for both windows of a batch at once."""
    return f"{library}, both queues"


def _call_module(model: EventPredictor, x_BWF: Windows) -> Windows:
    import torch

    return np.asarray(model(torch.from_numpy(x_BWF)).numpy())


def _call_us(call: Call, x_BWF: Windows, windows: int) -> Times:
    us = np.empty(CALLS)
    for i in range(CALLS):
        first = i * windows % len(x_BWF)
        asked_BWF = x_BWF[first : first + windows]
        start_ns = time.perf_counter_ns()
        call(asked_BWF)
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

    libraries = [name for name in LIBRARIES if name in samples]
    rows = [
        row(f"{what}, {isa}", reference(library), percentile)
        for what, reference in ((BATCH, _of_a_batch), (WINDOW, str))
        for library in libraries
        for percentile in (50, 99)
    ]
    rows += [row("ONNX Runtime", "PyTorch", percentile) for percentile in (50, 99)]
    if ROUNDED_BATCH in samples:
        rows += [row(ROUNDED_BATCH, f"{BATCH}, {isa}", percentile) for percentile in (50, 99)]
    return rows + [
        row(f"{what}, {other}", reference("PyTorch"), 50)
        for what, reference in ((BATCH, _of_a_batch), (WINDOW, str))
        for other in SLOWER[isa]
    ]


def _window_operations(sizes: EventArchitecture, inputs: tuple[int, int]) -> float:
    """Return the floating-point operations of the matrix products that a whole window needs.

    `inputs` are those of an event and of a query. A query sees a band and the sink.
    """
    d, events = sizes.width, 0.0
    # A layer computes a band for itself and for each layer after it.
    for after in reversed(range(sizes.layers)):
        events += (after + 1) * sizes.band * 2 * d * d + after * sizes.band * _attending(sizes)
    queries = inputs[1] * d + sizes.layers * _attending(sizes) + d * d + d
    return 2.0 * (sizes.reach * inputs[0] * d + events + HORIZON * queries)


def _batch_operations(sizes: EventArchitecture, inputs: tuple[int, int]) -> float:
    """Return the operations that a batch needs: its new events and its packets in both queues."""
    d = sizes.width
    events = inputs[0] * d + sizes.layers * 2 * d * d + (sizes.layers - 1) * _attending(sizes)
    queries = inputs[1] * d + sizes.layers * _attending(sizes) + d * d + d
    return 2.0 * (EVENTS * events + QUEUES * HORIZON * queries)


def _attending(sizes: EventArchitecture) -> float:
    """Return a row's multiply-adds in a layer, without its key and value."""
    d = sizes.width  # query, scores and mean over a band and the sink, output, inner layers
    return d * d + 2 * (sizes.band + 1) * d + d * d + 2 * d * sizes.feed_forward


def _peak_flops(isa: str) -> Callable[[float], float]:
    """Yield a function that measures the most FLOP/s that a core reaches in some seconds of multiply-adds."""
    target = f"peak_flops_{isa}.so"
    function = ctypes.CDLL(str(build(target, room="engine") / target)).peak_flops
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    return function


def _peak_rows(
    isa: str, model: EventPredictor, samples: dict[str, list[Times]], peak_flops: float, rounds: int
) -> list[Row]:
    inputs = len(model.event_columns), len(model.query_columns)
    rows = []
    for what, operations in ((BATCH, _batch_operations), (WINDOW, _window_operations)):
        us = statistics.median(float(np.median(s)) for s in samples[f"{what}, {isa}"])
        achieved = operations(model.sizes, inputs) / us * 1e6
        rows.append(
            Row(
                f"share of the core's peak, {what}",
                achieved / 1e9,
                peak_flops / 1e9,
                f"{isa} multiply-adds in registers",
                achieved / peak_flops,
                "GFLOP/s",
                rounds,
            )
        )
    return rows


def _feature_rows(engine: Engine, model: EventPredictor, rounds: int) -> list[Row]:
    """Return the encoder's outputs for decisions in a log, as the fine-tuner caches them."""
    from swiftqueue.models.event_stream.log import EventLog, encode_log
    from swiftqueue.models.event_stream.network import ACK

    x_BWF = make_windows(FEATURE_BATCH)
    x_EF = x_BWF[:, -HORIZON - EVENTS : -HORIZON].reshape(-1, x_BWF.shape[-1])
    x_DHF = x_BWF[:, -HORIZON:]
    cut_D = np.arange(1, FEATURE_BATCH + 1) * EVENTS
    columns = model.event_columns, model.query_columns
    log = EventLog(x_EF[:, columns[0]], x_EF[:, ACK] > 0, cut_D, x_DHF[..., columns[1]])
    times_us: list[list[float]] = [[], []]
    encoders: tuple[Callable[[], object], ...] = (
        lambda: engine.features(x_EF, cut_D, x_DHF),
        lambda: encode_log(model, log),
    )
    for _ in range(rounds):
        for kept, encode in zip(times_us, encoders, strict=True):
            start_ns = time.perf_counter_ns()
            encode()
            kept.append((time.perf_counter_ns() - start_ns) / 1000 / FEATURE_BATCH)
    ours, reference = (statistics.median(kept) for kept in times_us)
    name = f"PyTorch, {FEATURE_BATCH} decisions"
    return [_row("encoder features, per decision of a log", ours, reference, name, "us", rounds)]


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
