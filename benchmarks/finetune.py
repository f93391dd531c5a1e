"""Fine-tuning the head on one minute of 100 Mbit/s: cached encoder outputs against the uncached encoder.

Beside it a live round's encoding of packets as `pipelines/live` does it, on all cores: by the engine, and by
PyTorch, which takes its place where the engine does not compute a network.

Ours is `models.training.finetuning.finetune_head` as the stage runs it, the one pass through the encoder
included, on all cores. The reference is what one writes first: torch's own `TransformerEncoder` on every
batch of every epoch, frozen (eval mode, no gradient), same weights, batches, loss, optimizer and threads.

Shapes: N windows, B batch, W window tokens, F features, H horizon (8 packets), P packets.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.rows import Row, interleaved_medians
from feature_store.packets.schema import HORIZON

if TYPE_CHECKING:
    import polars as pl
    from torch import nn

    from models.networks.transformer import Predictor
    from models.training.examples import Examples
    from models.training.finetuning import FinetuneParams

PACKETS: Final = 500_000  # 100 Mbit/s · 60 s / (8 bit/byte · 1500 bytes/packet)
WINDOWS: Final = PACKETS // HORIZON
TOKENS: Final = 128  # window and inputs of the default traces
FEATURES: Final = 24
EPOCHS: Final = 10
BATCH: Final = 512
DISTINCT: Final = 4096  # made-up windows; the minute repeats them, which changes no time measured
REFERENCE_BATCHES: Final = 8  # measured of an epoch's 123; equal batches cost the same each
ENCODED: Final = 100_000  # packets that a round encodes here; time grows with their number
SPACING_NS: Final = 120_000  # of packets of 1500 bytes at 100 Mbit/s
FLOWS: Final = 8
RECEIVERS: Final = 3


def measure(rounds: int) -> list[Row]:
    """Seconds for 10 epochs and for a round's encoding, beside their references, `rounds` times in turn."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        return [_row(rounds), _encoding_row(rounds)]
    finally:
        torch.set_num_threads(threads)


def _row(rounds: int) -> Row:
    from models.training.finetuning import FinetuneParams, finetune_head

    examples, model = _minute()
    params = FinetuneParams(
        seed=1, workers=1, epochs=EPOCHS, batch_size=BATCH, learning_rate=1e-3, sharp_weight=10
    )

    def ours_s() -> float:
        started = time.perf_counter()
        finetune_head(model, examples, params)
        return time.perf_counter() - started

    def reference_s() -> float:
        return _reference_s(model, examples, params) * EPOCHS * WINDOWS / (REFERENCE_BATCHES * BATCH)

    finetune_head(
        model, examples, params.model_copy(update={"epochs": 1})
    )  # warm: first-use imports, page cache
    ours, reference = interleaved_medians(rounds, ours_s, reference_s)
    return Row(
        name=f"fine-tune the head: {EPOCHS} epochs, {PACKETS:,} packets = {WINDOWS:,} windows of {TOKENS} "
        f"tokens x {FEATURES} features, the one encoder pass included",
        ours=ours,
        reference=reference,
        reference_name=f"the same epochs through torch's TransformerEncoder, uncached (eval, no_grad), "
        f"{REFERENCE_BATCHES} of {EPOCHS}·{WINDOWS / BATCH:.0f} batches measured, scaled linearly",
        ratio=reference / ours,
        unit="s",
        rounds=rounds,
    )


def _encoding_row(rounds: int) -> Row:
    from benchmarks.inference_references import save
    from models.networks import artifact
    from pipelines.live.encoding import ByPyTorch, Encoder, Encoding
    from serving.engine import Engine

    packets = _packets()
    with tempfile.TemporaryDirectory() as root:
        folder = save(Path(root) / "event-stream")
        found = artifact.load(folder)

        def encoding_s(encoder: Encoder) -> float:
            started = time.perf_counter()
            with Encoding(packets, encoder, found.description.tokens, 0) as encoding:
                encoding.take(ENCODED // HORIZON)
            return time.perf_counter() - started

        ours, reference = interleaved_medians(
            rounds, lambda: encoding_s(Engine(folder)), lambda: encoding_s(ByPyTorch(found))
        )
    return Row(
        name=f"a live round encodes {ENCODED:,} packets: the engine, windows made",
        ours=ours,
        reference=reference,
        reference_name="PyTorch, the same packets and cores",
        ratio=reference / ours,
        unit="s",
        rounds=rounds,
    )


def _packets() -> pl.DataFrame:
    """A made-up packet table (P rows) at 100 Mbit/s: several flows and receivers, latencies about 20 ms."""
    import polars as pl

    rng = np.random.default_rng(1)
    packet_P = np.arange(ENCODED)
    sent_ns_P = packet_P * SPACING_NS
    latency_us_P = rng.lognormal(np.log(20_000), 0.3, ENCODED).astype(np.float32)
    flow_P = rng.integers(FLOWS, size=ENCODED)
    return pl.DataFrame(
        {
            "packet": packet_P,
            "sent_ns": sent_ns_P,
            "flow_id": flow_P,
            "receiver_id": flow_P % RECEIVERS,
            "size_bytes": np.full(ENCODED, 1500),
            "queue": np.where(flow_P % 2 > 0, "l4s", "classic"),
            "acked_ns": sent_ns_P + (latency_us_P * 1e3).astype(np.int64),
            "latency_us": latency_us_P,
        }
    )


def _minute() -> tuple[Examples, Predictor]:
    """One minute of made-up windows, and a full-size model for them."""
    from models.networks.scaling import ScaledFeature, fit_target
    from models.networks.transformer import Architecture, Predictor
    from models.sharp import sharp_changes
    from models.training.examples import Examples
    from models.training.protocol import Slice

    rng = np.random.default_rng(1)
    x_NWF = rng.lognormal(0, 1, (DISTINCT, TOKENS, FEATURES)).astype(np.float32)
    y_us_NH = rng.lognormal(10, 0.5, (WINDOWS, HORIZON)).astype(np.float32)
    names = ["size_bytes", *(f"input_{i}_us" for i in range(1, FEATURES))]
    whole, rest = divmod(WINDOWS, DISTINCT)
    parts = tuple((x_NWF, Slice(0, count)) for count in [DISTINCT] * whole + [rest])
    inputs = [ScaledFeature(name, "us", "log1p") for name in names]
    model = Predictor(inputs, fit_target(y_us_NH, "log"), Architecture(readout="candidates"))
    return Examples(parts, y_us_NH, sharp_changes(y_us_NH)), model


def _reference_s(model: Predictor, examples: Examples, params: FinetuneParams) -> float:
    """Seconds of `REFERENCE_BATCHES` batches of head fine-tuning through torch's frozen encoder."""
    import torch

    from models.training.examples import epoch_batches
    from models.training.loss import example_weights, weighted_squared_error
    from models.training.pretraining import ADAM_BETAS, ADAM_EPSILON

    encoder, head = torch_encoder(model), copy.deepcopy(model.head)
    optimizer = torch.optim.Adam(
        head.parameters(), lr=params.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    target_NH = torch.from_numpy(model.target.apply(examples.y_us_NH))
    weight_NH = torch.from_numpy(example_weights(examples.y_us_NH, examples.sharp_NH, params.sharp_weight))
    started = time.perf_counter()
    batches = epoch_batches(len(examples), params.batch_size, params.seed, 0)
    for batch_N in itertools.islice(batches, REFERENCE_BATCHES):
        x_BWF = torch.from_numpy(examples.gather(batch_N))
        with torch.no_grad():
            padding_BW = x_BWF[..., model.size_index] == 0
            h_BWD = encoder(model.embedding(model.scale(x_BWF)), src_key_padding_mask=padding_BW)
        optimizer.zero_grad()
        read_BRD = h_BWD[:, -model.sizes.horizon :] if model.sizes.readout == "candidates" else h_BWD[:, -1:]
        loss = weighted_squared_error(head(read_BRD), target_NH[batch_N], weight_NH[batch_N])
        (loss / len(batch_N)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return time.perf_counter() - started


def torch_encoder(model: Predictor) -> nn.TransformerEncoder:
    """Torch's own encoder with the model's weights by name, in eval mode, its fast path left on."""
    from torch import nn

    sizes = model.sizes
    layer = nn.TransformerEncoderLayer(
        sizes.width, sizes.heads, sizes.feed_forward, sizes.dropout, batch_first=True
    )
    encoder = nn.TransformerEncoder(layer, sizes.layers, enable_nested_tensor=False)
    encoder.layers.load_state_dict(model.layers.state_dict())
    return encoder.eval()
