"""The packet table of a simulated run, from the simulator's own log of S1 instead of its capture.

The log has each packet's first ACK as the run's `acks` counts it: what the run's controls learn from. A round
within a run reads it as far as it goes. `extract` finds the same in a capture (docs/PACKETS.md), but for
`lost`: the simulator says which packets were dropped. No input of a window uses it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA, queue_column
from swiftqueue.feature_store.packets.truth import TRUTH
from swiftqueue.laboratory.runs.execution import TRACE_METADATA

ECT1, ECT0, NOT_ECT = 1, 2, 0  # RFC 3168 section 5
LONGEST_PAUSE_S = 10  # longest pause of a flow that is a sender of its own


def packets_of(run: Path, trace: str) -> pl.DataFrame:
    """Return the packet table of the run in that folder (`truth.npy` and `trace.json`), named `trace`.

    Raises:
        FileNotFoundError: the run has no log.
    """
    rows = np.load(run / TRUTH)
    described = json.loads((run / TRACE_METADATA).read_text())
    addresses = {flow["number"]: flow["address"] for flow in described["flows"]}
    not_ect = {flow["number"] for flow in described["flows"] if flow["ecn"] == "not_ect"}
    moved_ecn = ECT0 if described["run"]["moved_ecn"] == "ect0" else NOT_ECT
    own_ecn = np.where(np.isin(rows["flow"], list(not_ect)), NOT_ECT, ECT0)
    classic_ecn = np.where(rows["default_queue"] == 1, moved_ecn, own_ecn)
    acked_ns = rows["acked_ns"]
    latency_us = ((acked_ns - rows["sent_ns"]) / 1e3).astype(np.float32)
    table = pl.DataFrame(
        {
            "trace": pl.Series([trace]).new_from_index(0, len(rows)),
            "packet": rows["packet"],
            "sent_ns": rows["sent_ns"],
            "flow_id": _by_first_appearance(rows["flow"].tolist()),
            "receiver_id": _by_first_appearance([addresses[flow] for flow in rows["flow"].tolist()]),
            "size_bytes": rows["size_bytes"],
            "ecn": np.where(rows["queue"] == 1, ECT1, classic_ecn),
            "acked_ns": acked_ns,
            "latency_us": latency_us,
            "retransmitted": rows["retransmitted"] == 1,
            "lost": rows["dropped"] == 1,
        }
    ).with_columns(queue_column(pl.col("ecn") == ECT1))
    unknown = (acked_ns < 0) | (rows["ambiguous"] == 1)
    return table.with_columns(
        acked_ns=pl.when(pl.col("acked_ns") >= 0).then("acked_ns"),
        latency_us=pl.when(~pl.Series(unknown)).then("latency_us"),
    ).select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())


def write_packets(run: Path, trace: str, folder: Path, *, flows_apart: bool = False) -> None:
    """Write a run's packet table into a folder of packet tables, as `scan_packets` reads it.

    With `flows_apart` each L4S flow is a sender of its own, `TRACE-flow0` and so on, and no other is written.
    """
    table = packets_of(run, trace)
    tables = _by_flow(table) if flows_apart else [table]
    for one in tables:
        part = folder / f"trace={one['trace'][0]}" / "minute=0"
        part.mkdir(parents=True)
        one.write_parquet(part / "part-0.parquet", compression="zstd")


def _by_flow(table: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the packets of each flow that sent any as L4S, with a trace and numbers of their own.

    A flow that was silent for long would leave a slice of the protocol `small` empty, and is left out.
    """
    ends_s = [table["sent_ns"][0] / 1e9, table["sent_ns"][-1] / 1e9]
    flows = []
    for _, flow in table.group_by("flow_id", maintain_order=True):
        pauses_s = np.diff(flow["sent_ns"] / 1e9, prepend=ends_s[0], append=ends_s[1])
        if (flow["ecn"] == ECT1).any() and pauses_s.max() <= LONGEST_PAUSE_S:
            flows.append(flow)
    return [
        flow.with_columns(
            trace=pl.format("{}-flow{}", "trace", pl.lit(number)),
            packet=pl.int_range(pl.len(), dtype=pl.Int64),
            flow_id=pl.lit(0, pl.Int32),
            receiver_id=pl.lit(0, pl.Int32),
        )
        for number, flow in enumerate(flows)
    ]


def _by_first_appearance(values: list[object]) -> npt.NDArray[np.int32]:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in values], np.int32)
