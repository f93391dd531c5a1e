"""A made-up sender, Poisson packets of a few flows through two FIFO queues, in all forms that tests need.

Packet tables in the layout of `data/packets`; from them, by the project's own stages, windows and their
split; untrained artifacts for these windows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from feature_store.events.definition import WINDOW, Definition
from feature_store.packets.schema import PACKET_SCHEMA
from models.training.protocol import Protocol, divide

START_NS = 1_700_000_000 * 10**9
PROTOCOL = Protocol("short", 5, 1, 2)
PRETRAIN = {  # `pretrain` of params.yaml, but for its epochs
    "layers": 2,
    "width": 64,
    "heads": 4,
    "seed": 1,
    "workers": 1,
    "batch_size": 32,
    "warmup_steps": 40,
    "noam_factor": 0.5,
    "weight_decay": 1e-5,
    "sharp_weight": 10,
    "target": "log",
    "readout": "candidates",
    "anchor": "last_latency_us",
}


def bottleneck_table(
    trace: str,
    seconds: float,
    packets_per_s: int = 1000,
    seed: int = 0,
    flows: int = 4,
    swing_ms: float = 0.0,
    episodes: bool = False,
) -> pl.DataFrame:
    """A sender at 80 % of each queue's rate, 20 ms away; 2 % retransmitted, 1 % never acknowledged.

    Beyond the queues the way takes up to `swing_ms` more, rising and falling slowly, and in `episodes` of
    150 ms, about one a second, 60 ms more.
    """
    rng = np.random.default_rng(seed)
    packets = int(seconds * packets_per_s)
    sent_ns = np.cumsum(rng.exponential(1e9 / packets_per_s, packets)).astype(np.int64)
    flow = rng.integers(0, flows, packets).astype(np.int32)
    l4s = flow % 2 == 0
    left_ns = np.zeros(packets, np.int64)  # when the queue has served the packet
    for queue in (False, True):
        here = np.flatnonzero(l4s == queue)
        service_ns = int(0.8 * 1e9 / (packets_per_s / 2))
        free_ns = 0
        for packet in here:
            free_ns = max(free_ns, int(sent_ns[packet])) + service_ns
            left_ns[packet] = free_ns
    left_ns += (swing_ms * 1e6 * np.sin(sent_ns / 60e6) ** 2).astype(np.int64)
    if episodes:
        for start_ns in np.cumsum(rng.exponential(0.8e9, int(seconds * 3))):
            left_ns[(sent_ns >= start_ns) & (sent_ns < start_ns + 0.15e9)] += 60_000_000
    acked_ns = START_NS + left_ns + 20_000_000
    fate = rng.random(packets)
    lost, retransmitted = fate < 0.01, (fate >= 0.01) & (fate < 0.03)
    return pl.DataFrame(
        {
            "trace": [trace] * packets,
            "packet": np.arange(packets),
            "sent_ns": START_NS + sent_ns,
            "flow_id": flow,
            "receiver_id": flow // 2,
            "size_bytes": rng.choice([60, 1500], packets).astype(np.int32),
            "ecn": np.where(l4s, 1, 2).astype(np.uint8),
            "queue": np.where(l4s, "l4s", "classic"),
            "acked_ns": pl.Series(acked_ns).set(pl.Series(lost), None),
            "latency_us": pl.Series((left_ns + 20_000_000 - sent_ns) / 1000).set(
                pl.Series(lost | retransmitted), None
            ),
            "retransmitted": retransmitted,
            "lost": lost,
        }
    ).cast(dict(PACKET_SCHEMA))


def uneven_table(packets: int, most_gap_ns: int) -> pl.DataFrame:
    """Packets of three flows at an uneven pace, with ACKs 5 to 60 ms later, missing and without a latency."""
    rng = np.random.default_rng(3)
    sent_ns = 10**9 + np.cumsum(rng.integers(0, most_gap_ns, packets))
    latency_us = rng.integers(5_000, 60_000, packets).astype(np.float32)
    flow = rng.integers(0, 3, packets)
    table = pl.DataFrame(
        {
            "trace": "uneven",
            "packet": range(packets),
            "sent_ns": sent_ns,
            "flow_id": flow,
            "receiver_id": flow % 2,
            "size_bytes": rng.integers(40, 1500, packets),
            "ecn": np.where(flow == 0, 0, 1),
            "queue": np.where(flow == 0, "classic", "l4s"),
            "acked_ns": sent_ns + (latency_us * 1000).astype(np.int64),
            "latency_us": latency_us,
            "retransmitted": rng.random(packets) < 0.05,
            "lost": False,
        }
    ).select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())
    gone = pl.Series(rng.random(packets) < 0.02)
    return table.with_columns(
        acked_ns=pl.when(gone).then(None).otherwise("acked_ns"),
        latency_us=pl.when(gone | pl.col("retransmitted")).then(None).otherwise("latency_us"),
    )


def write_table(packets_dir: Path, table: pl.DataFrame) -> None:
    """Write one trace's table by trace and minute."""
    minute = (table["sent_ns"] - table["sent_ns"][0]) // 60_000_000_000
    for (number,), part in table.with_columns(minute=minute).partition_by("minute", as_dict=True).items():
        folder = packets_dir / f"trace={table['trace'][0]}" / f"minute={number}"
        folder.mkdir(parents=True)
        part.drop("minute").write_parquet(folder / "part-0.parquet")


def write_windows(
    folder: Path,
    tables: Iterable[pl.DataFrame],
    *,
    protocol: Protocol = PROTOCOL,
    definition: Definition = WINDOW,
) -> Path:
    """Write `packets`, `windows` and `split.json` under `folder`, by the stages' own functions; return it."""
    from pipelines.windows import WindowsParams, make_windows

    for table in tables:
        write_table(folder / "packets", table)
    params = WindowsParams(visibility=["acked"], tokens=16, tokens_min=16, tokens_max=256)
    make_windows(folder / "packets", folder / "windows", params, definition=definition)
    traces = {
        path.parent.name: divide(np.load(path), protocol, path.parent.name).as_json()
        for path in sorted((folder / "windows").glob("*/decision_ns.npy"))
    }
    (folder / "split.json").write_text(json.dumps({"traces": traces}))
    return folder


def without_latencies(table: pl.DataFrame, from_s: float, to_s: float) -> pl.DataFrame:
    """The table where nobody knows the latencies of what was sent within these seconds."""
    elapsed_ns = pl.col("sent_ns") - pl.col("sent_ns").first()
    within = elapsed_ns.is_between(int(from_s * 1e9), int(to_s * 1e9))
    return table.with_columns(latency_us=pl.when(~within).then("latency_us"))


def write_forecasters(folder: Path, sections: Path, traces: int) -> Path:
    """Write `packets` of 4.2 s a trace, and a `forecasters.yaml` of the rule and the MLP, which is tiny."""
    for number in range(1, traces + 1):
        table = bottleneck_table(f"t{number}", 4.2, seed=number, swing_ms=40, episodes=True)
        write_table(folder / "packets", table)
    every = yaml.safe_load(sections.read_text())
    few = {name: every[name] for name in ("mlp", "last-flow")}
    few["mlp"] |= {"epochs": 1, "width": 8, "head_epochs": 1}
    (folder / "forecasters.yaml").write_text(yaml.safe_dump(few))
    return folder


def write_artifacts(folder: Path) -> None:
    """Write untrained artifacts for them: `pretrained`, and `finetuned/NAME/round-K` with other heads."""
    import torch

    from models.networks import artifact
    from models.networks.scaling import fit_features, fit_target
    from models.networks.transformer import Predictor
    from models.training.windows import load_windows

    torch.manual_seed(1)
    windows = load_windows(folder / "windows", folder / "split.json")
    first = next(iter(windows.traces.values()))
    features = fit_features(first.x_BWF[:200], windows.feature_names, windows.feature_units)
    model = Predictor(features, fit_target(first.y_us_BH[:200], "log"))
    described = artifact.Description(
        windows.tokens, windows.schema_hash, windows.visibility, windows.protocol
    )
    artifact.save(folder / "pretrained", model, described)
    for name, trace in windows.traces.items():
        for k in range(len(trace.rounds)):
            with torch.no_grad():
                model.head[2].bias += 0.01
            artifact.save(folder / "finetuned" / name / f"round-{k}", model, described)
