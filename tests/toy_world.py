"""A made-up sender, Poisson packets of a few flows through two FIFO queues, in all forms that tests need.

Packet tables in the layout of `data/packets`, their division by time, and untrained forecasters for them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import yaml

from swiftqueue.feature_store.events.event_stream import EventInput
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA
from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.event_stream.training import EventStreamCourse
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS
from swiftqueue.models.forecasters.traces import Trace, about, decision_times, lessons, read_traces
from swiftqueue.models.networks.scaling import ScaledFeature, transform_of
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import EvaluationProtocol, divide

START_NS = 1_700_000_000 * 10**9
PROTOCOL = EvaluationProtocol("short", 5, 1, 2)
TINY = {  # an event stream that trains in a second
    "workers": 1,
    "layers": 1,
    "band": 64,
    "width": 16,
    "heads": 2,
    "feed_forward": 32,
    "dropout": 0.1,
    "anchor": "last_latency_us",
    "left_out": [],
    "segments": 2,
    "segment_events": 256,
    "epochs": 1,
    "learning_rate": 2e-3,
    "weight_decay": 0.01,
    "sharp_weight": 10,
}
TUNING = FinetuneParams(seed=1, workers=1, epochs=2, batch_size=512, learning_rate=1e-3, sharp_weight=1)


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


def write_traces(
    folder: Path, tables: Iterable[pl.DataFrame], *, protocol: EvaluationProtocol = PROTOCOL
) -> Path:
    """Write `packets` and `split.json` under `folder`; return it."""
    divided = {}
    for table in tables:
        write_table(folder / "packets", table)
        name = str(table["trace"][0])
        divided[name] = divide(decision_times(table), protocol, name).as_json()
    (folder / "split.json").write_text(json.dumps({"traces": dict(sorted(divided.items()))}))
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
    few["mlp"] |= {"epochs": 1, "width": 8}
    (folder / "forecasters.yaml").write_text(yaml.safe_dump(few))
    return folder


def scaled_inputs() -> tuple[list[ScaledFeature], list[ScaledFeature]]:
    """Return plausible scalings of an event's inputs and of a query's."""
    logs = {"log1p": (5.0, 2.5), "identity": (0.0, 1.0)}

    def scaled(inputs: Iterable[EventInput]) -> list[ScaledFeature]:
        each = [(one.name, one.unit, transform_of(one.unit)) for one in inputs]
        return [ScaledFeature(*one, *logs[one[2]]) for one in each]

    return scaled(EVENT_INPUTS), scaled(QUERY_INPUTS)


def untrained(traces: Iterable[Trace], **sizes: Any) -> EventStreamForecaster:
    """Return an event stream of random weights whose scaling is fitted to some traces."""
    params = EventStreamParams(**TINY | sizes)
    course = EventStreamCourse(lessons(list(traces)), params, 1)
    with torch.no_grad():  # else it forecasts its anchor
        course.model.head[2].weight.normal_(std=0.05)
    return EventStreamForecaster(course.model)


def write_models(folder: Path, **sizes: Any) -> EventStreamForecaster:
    """Write forecasters for the traces in `folder`: `pretrained`, and `finetuned/NAME/round-K`."""
    traces = read_traces(folder / "packets", folder / "split.json", PAPERS)
    base = untrained(traces.values(), **sizes).taught_by(about(traces))
    door.save(folder / "pretrained", base)
    head = copy.deepcopy(base)
    for name, trace in traces.items():
        for k in range(len(trace.slices.rounds)):
            with torch.no_grad():
                head.model.head[2].bias += 0.01
            door.save(folder / "finetuned" / name / f"round-{k}", head)
    return base


def write_artifact(folder: Path, table: pl.DataFrame, **sizes: Any) -> EventStreamForecaster:
    """Write the artifact of an untrained event stream for a table into `folder`; return the forecaster."""
    trace = Trace("t", table, divide(decision_times(table), PROTOCOL, "t"))
    base = untrained([trace], **sizes)
    folder.mkdir(parents=True)
    base.export(folder)
    return base
