"""Fine-tune the head on one minute of 100 Mbit/s, with encoder outputs computed once or in every epoch.

Beside it a live round's encoding of packets as `pipelines/live` does it, on all cores: by the engine, and by
PyTorch, which takes its place where the engine does not compute a network.

Ours is what stage `finetune` does for a round: the forecaster encodes the minute's log once, then its head is
trained. The reference is what one writes first: the same network, frozen, on the rows of each decision of
every batch of every epoch, with the same weights, loss, optimizer and threads.

Shapes: B decisions, W rows, F inputs of a row, H horizon (8 packets), P packets.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from swiftqueue.benchmarks.rows import Row, interleaved_medians
from swiftqueue.feature_store.packets.schema import HORIZON

if TYPE_CHECKING:
    import polars as pl

    from swiftqueue.models.event_stream.network import EventPredictor
    from swiftqueue.models.forecasters.forecaster import Forecaster
    from swiftqueue.models.forecasters.traces import TracePart
    from swiftqueue.models.training.head import FinetuneParams

PACKETS: Final = 500_000  # 100 Mbit/s · 60 s / (8 bit/byte · 1500 bytes/packet)
DECISIONS: Final = PACKETS // HORIZON
EPOCHS: Final = 10
BATCH: Final = 512
REFERENCE_BATCHES: Final = 8  # batches measured of an epoch's 123; equal batches cost the same
ENCODED: Final = 100_000  # packets that a round encodes here; time grows with their number
SPACING_NS: Final = 120_000  # gap between packets of 1500 bytes at 100 Mbit/s
FLOWS: Final = 8
RECEIVERS: Final = 3


def measure(rounds: int) -> list[Row]:
    """Return the seconds of 10 epochs and of a round's encoding beside their references, in turn."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        return [_row(rounds), _encoding_row(rounds)]
    finally:
        torch.set_num_threads(threads)


def _row(rounds: int) -> Row:
    from swiftqueue.benchmarks.inference_references import event_stream
    from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
    from swiftqueue.models.forecasters.traces import TracePart
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.models.training.protocol import Slice

    forecaster = EventStreamForecaster(event_stream())
    part = TracePart("minute", _packets(PACKETS), Slice(0, DECISIONS))
    params = FinetuneParams(
        seed=1, workers=1, epochs=EPOCHS, batch_size=BATCH, learning_rate=1e-3, sharp_weight=10
    )

    def ours_s() -> float:
        started = time.perf_counter()
        forecaster.tuned(part, params)
        return time.perf_counter() - started

    def reference_s() -> float:
        seconds = _reference_s(forecaster.model, part, params)
        return seconds * EPOCHS * DECISIONS / (REFERENCE_BATCHES * BATCH)

    ours, reference = interleaved_medians(rounds, ours_s, reference_s)
    return Row(
        name=f"fine-tune the head: {EPOCHS} epochs, {PACKETS:,} packets = {DECISIONS:,} decisions, the one "
        "encoder pass included",
        ours=ours,
        reference=reference,
        reference_name=f"the same epochs through the frozen network, uncached, {REFERENCE_BATCHES} of "
        f"{EPOCHS}·{DECISIONS / BATCH:.0f} batches measured, scaled linearly",
        ratio=reference / ours,
        unit="s",
        rounds=rounds,
    )


def _encoding_row(rounds: int) -> Row:
    from swiftqueue.benchmarks.inference_references import save
    from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
    from swiftqueue.models.forecasters.traces import TracePart
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.training.protocol import Slice
    from swiftqueue.pipelines.live.encoding import load

    packets = _packets(ENCODED)
    with tempfile.TemporaryDirectory() as root:
        folder = save(Path(root) / "event-stream")
        part = TracePart("encoded", packets, Slice(0, ENCODED // HORIZON))
        by_engine, by_pytorch = load(artifact.read_files(folder)), EventStreamForecaster.read(folder, {})

        def encoding_s(found: Forecaster) -> float:
            started = time.perf_counter()
            found.encode(part)
            return time.perf_counter() - started

        ours, reference = interleaved_medians(
            rounds, lambda: encoding_s(by_engine), lambda: encoding_s(by_pytorch)
        )
    return Row(
        name=f"a live round encodes {ENCODED:,} packets: the engine",
        ours=ours,
        reference=reference,
        reference_name="PyTorch, the same packets and cores",
        ratio=reference / ours,
        unit="s",
        rounds=rounds,
    )


def _packets(count: int) -> pl.DataFrame:
    """Return a made-up packet table (P rows) at 100 Mbit/s: several flows and receivers, about 20 ms."""
    import polars as pl

    rng = np.random.default_rng(1)
    packet_P = np.arange(count)
    sent_ns_P = packet_P * SPACING_NS
    latency_us_P = rng.lognormal(np.log(20_000), 0.3, count).astype(np.float32)
    flow_P = rng.integers(FLOWS, size=count)
    return pl.DataFrame(
        {
            "packet": packet_P,
            "sent_ns": sent_ns_P,
            "flow_id": flow_P,
            "receiver_id": flow_P % RECEIVERS,
            "size_bytes": np.full(count, 1500),
            "queue": np.where(flow_P % 2 > 0, "l4s", "classic"),
            "acked_ns": sent_ns_P + (latency_us_P * 1e3).astype(np.int64),
            "latency_us": latency_us_P,
        }
    )


def _reference_s(model: EventPredictor, part: TracePart, params: FinetuneParams) -> float:
    """Return the seconds of `REFERENCE_BATCHES` batches of head training through the frozen network."""
    import torch

    from swiftqueue.models.sharp import sharp_changes
    from swiftqueue.models.training.head import ADAM_BETAS, ADAM_EPSILON
    from swiftqueue.models.training.loss import example_weights, weighted_squared_error
    from swiftqueue.pipelines.live.encoding import event_windows

    tuned = copy.deepcopy(model)
    optimizer = torch.optim.Adam(
        tuned.head.parameters(), lr=params.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    few = part.packets.head(REFERENCE_BATCHES * BATCH * HORIZON)
    y_BH = part.latencies_us()[: REFERENCE_BATCHES * BATCH]
    target_BH = torch.from_numpy(model.target.apply(y_BH))
    weight_BH = torch.from_numpy(example_weights(y_BH, sharp_changes(y_BH), params.sharp_weight))
    seconds = 0.0
    made_BWF = np.concatenate(list(event_windows(few, model.rows)))  # making them is not counted
    for first in range(0, len(made_BWF), BATCH):
        x_BWF = made_BWF[first : first + BATCH]
        here = slice(first, first + len(x_BWF))
        started = time.perf_counter()
        rows = torch.from_numpy(x_BWF)
        with torch.no_grad():
            read_BHD, anchor_BH = tuned.encode(rows), tuned.anchor(rows)
        optimizer.zero_grad()
        loss = weighted_squared_error(tuned.head(read_BHD) + anchor_BH, target_BH[here], weight_BH[here])
        (loss / len(x_BWF)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds += time.perf_counter() - started
    return seconds
