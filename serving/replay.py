"""`swiftqueue replay`: drives a sender agent with a packet table as if its packets were sent now.

What happened is what is replayed: each packet is logged in the queue it was really sent to, since its ACK
belongs to that queue. The controller's own choice is recorded beside it, not acted on.

Shapes: H horizon (8 packets).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.schema import HORIZON, QUEUES, scan_packets, traces_in
from models.state import state_dir
from serving.client import Decision, SenderAgent
from serving.replay_view import View

PACKETS: Final = Path("data/packets")
FIRST_MODEL_S: Final = 5.0  # how long to look for a served model before the first packet
BEHIND_NS: Final = 5_000_000  # a batch this late against its schedule counts as behind
RECORD_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "packet": pl.Int64,
    "decision_ns": pl.Int64,
    "flow_id": pl.Int32,
    "queue_sent": pl.Enum(QUEUES),  # as in the trace
    "queue_chosen": pl.Enum(QUEUES),
    "outcome": pl.String,  # decided | late | error | no_model
    "predicted_classic_us": pl.Float32,
    "predicted_us": pl.Float32,  # in the queue it was sent to
    "latency_us": pl.Float32,  # what came
    "version": pl.Int64,
    "round_trip_us": pl.Float64,
}


@dataclass(frozen=True)
class Log:
    """A packet table as arrays, and its first ACKs in time order."""

    trace: str
    sent_ns: NDArray[np.int64]
    size_bytes: NDArray[np.int32]
    flow_id: NDArray[np.int32]
    receiver_id: NDArray[np.int32]
    queue: NDArray[np.uint8]
    latency_us: NDArray[np.float32]  # NaN where unknown
    acked_ns: NDArray[np.int64]  # of the packets in `ack_packet`, never falling
    ack_packet: NDArray[np.int64]
    first_batch: int  # the first one that is decided; what was sent before only fills the window

    @property
    def batches(self) -> range:
        """Batches of 8 to decide; an incomplete last one is not decided."""
        return range(self.first_batch, len(self.sent_ns) // HORIZON)


def open_log(trace: str, start: float, seconds: float | None) -> Log:
    """Read a trace by its name in `data/packets`, or a packet-table folder.

    Args:
        trace: name or folder.
        start: seconds into the trace from which on batches are decided.
        seconds: how much of it from there; None is all.

    Raises:
        FileNotFoundError: there is no such trace and no such folder.
        ValueError: the folder holds several traces, or the table less than one batch from `start` on.

    """
    folder, name = _find(trace)
    packets = scan_packets(folder, name).collect()
    clock_ns = packets["sent_ns"].cum_max().to_numpy()  # `sent_ns` may step back with the capture's clock
    if packets.height and seconds is not None:
        kept = int(np.searchsorted(clock_ns, clock_ns[0] + round((start + seconds) * 1e9), side="right"))
        packets, clock_ns = packets[:kept], clock_ns[:kept]
    begin = int(np.searchsorted(clock_ns, clock_ns[0] + round(start * 1e9))) if packets.height else 0
    first_batch = -(-begin // HORIZON)
    if packets.height // HORIZON <= first_batch:
        raise ValueError(
            f"trace {name}: {packets.height - begin} packets from second {start:g} on are less than one "
            f"batch of {HORIZON}"
        )
    acks = (
        packets.select("acked_ns", pl.int_range(pl.len()).alias("packet"), clock=clock_ns)
        .drop_nulls("acked_ns")
        .with_columns(acked_ns=pl.max_horizontal("acked_ns", "clock"))  # never before its own send
        .sort("acked_ns", "packet")
    )
    return Log(
        trace=name,
        sent_ns=packets["sent_ns"].to_numpy(),
        size_bytes=packets["size_bytes"].to_numpy(),
        flow_id=packets["flow_id"].to_numpy(),
        receiver_id=packets["receiver_id"].to_numpy(),
        queue=(packets["queue"].cast(pl.String) == QUEUES[1]).cast(pl.UInt8).to_numpy(),
        latency_us=packets["latency_us"].fill_null(math.nan).to_numpy(),
        acked_ns=acks["acked_ns"].to_numpy(),
        ack_packet=acks["packet"].to_numpy(),
        first_batch=first_batch,
    )


def _find(trace: str) -> tuple[Path, str]:
    """Folder and name of the trace meant."""
    if PACKETS.is_dir() and trace in traces_in(PACKETS):
        return PACKETS, trace
    folder = Path(trace)
    if not folder.is_dir():
        known = ", ".join(traces_in(PACKETS)) if PACKETS.is_dir() else ""
        raise FileNotFoundError(
            f"{trace!r} is neither a packet-table folder nor a trace of {PACKETS} "
            f"(traces there: {known or 'none'})"
        )
    if folder.name.startswith("trace="):
        return folder.parent, folder.name.removeprefix("trace=")
    names = traces_in(folder)
    if len(names) != 1:
        which = (
            "holds no packet table" if not names else f"holds {len(names)} traces: name {folder}/trace=NAME"
        )
        raise ValueError(f"{folder} {which}")
    return folder, names[0]


def decide_all(log: Log, agent: SenderAgent, speed: float) -> Iterator[tuple[int, Decision, float]]:
    """Replay the log; yields each batch's number, its decision, and how late against schedule (ns) it was."""
    ack, now_ns = 0, 0

    def acknowledge_until(ns: int, before: int) -> None:
        # At one instant ACKs come before the next send, but never before their own packet's.
        nonlocal ack, now_ns
        now_ns = max(now_ns, ns)
        while ack < len(log.acked_ns) and log.acked_ns[ack] <= now_ns and log.ack_packet[ack] < before:
            packet = int(log.ack_packet[ack])
            latency_us = float(log.latency_us[packet])
            agent.acked(packet, int(log.acked_ns[ack]), None if math.isnan(latency_us) else latency_us)
            ack += 1

    def send(batch: int) -> None:
        for packet in range(batch * HORIZON, (batch + 1) * HORIZON):
            acknowledge_until(int(log.sent_ns[packet]), packet)
            agent.sent(
                packet,
                int(log.sent_ns[packet]),
                int(log.size_bytes[packet]),
                int(log.flow_id[packet]),
                int(log.receiver_id[packet]),
                int(log.queue[packet]),
            )

    for batch in range(log.first_batch):
        send(batch)
    start_ns, from_ns = time.monotonic_ns(), int(log.sent_ns[log.first_batch * HORIZON])
    for batch in log.batches:
        first = batch * HORIZON
        decision_ns, late_ns = int(log.sent_ns[first]), 0.0
        if speed > 0:
            due_ns = start_ns + (decision_ns - from_ns) / speed
            late_ns = time.monotonic_ns() - due_ns
            if late_ns < 0:
                time.sleep(-late_ns / 1e9)
        acknowledge_until(decision_ns, first)
        part = slice(first, first + HORIZON)
        decision = agent.decide(
            first,
            decision_ns,
            log.size_bytes[part],  # type: ignore[arg-type]  # a NumPy array is a sequence in all but name
            log.flow_id[part],  # type: ignore[arg-type]
            log.receiver_id[part],  # type: ignore[arg-type]
            log.queue[part],  # type: ignore[arg-type]
        )
        send(batch)
        yield batch, decision, late_ns


@dataclass
class Record:
    """Every decision, a row per packet."""

    log: Log
    rows: list[tuple[Any, ...]]
    behind: int = 0

    def add(self, batch: int, decision: Decision, late_ns: float) -> None:
        """Keep one batch's decision."""
        self.behind += late_ns > BEHIND_NS
        first = batch * HORIZON
        for i in range(HORIZON):
            packet = first + i
            predicted = decision.predicted_us
            self.rows.append(
                (
                    packet,
                    int(self.log.sent_ns[first]),
                    int(self.log.flow_id[packet]),
                    QUEUES[self.log.queue[packet]],
                    QUEUES[decision.queues[i]],
                    decision.outcome,
                    None if predicted is None else float(predicted[0, i]),
                    None if predicted is None else float(predicted[1, i]),
                    None if np.isnan(self.log.latency_us[packet]) else float(self.log.latency_us[packet]),
                    decision.version,
                    decision.round_trip_us,
                )
            )

    def frame(self) -> pl.DataFrame:
        """All rows as a table."""
        return pl.DataFrame(self.rows, schema=RECORD_SCHEMA, orient="row")


def summarise(record: Record, agent: SenderAgent, seconds: float, output: Path) -> dict[str, Any]:
    """Return what `--json` prints."""
    frame, counts = record.frame(), agent.counts
    decided = frame.filter(pl.col("outcome") == "decided")
    error_us = (decided["predicted_us"] - decided["latency_us"]).abs().drop_nulls()
    capable = decided.filter(pl.col("queue_sent") == QUEUES[1])
    trips = decided["round_trip_us"][::HORIZON]
    return {
        "trace": record.log.trace,
        "batches": counts.batches,
        "decided": counts.decided,
        "late": counts.late,
        "failed": counts.failed,
        "failed_by_reason": {"error": counts.error, "no_model": counts.no_model},
        "stale_answers": counts.stale,
        "behind_schedule": record.behind,
        "mae_us": _rounded(error_us.mean()),
        "moved_share": _rounded((capable["queue_chosen"] == QUEUES[0]).mean(), 4),
        "round_trip_us": {"p50": _rounded(trips.quantile(0.5)), "p99": _rounded(trips.quantile(0.99))},
        "versions": {
            str(version): count // HORIZON
            for version, count in decided.group_by("version").len().sort("version").iter_rows()
        },
        "seconds": round(seconds, 3),
        "output": str(output),
    }


def _rounded(value: Any, digits: int = 1) -> float | None:
    return None if value is None else round(float(value), digits)


def replay_trace(
    trace: str,
    *,
    speed: float,
    deadline_us: int,
    start: float = 0.0,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Replay a trace against Triton and show predicted, came and chosen; 0 when batches were decided.

    Raises:
        ValueError: a parameter out of range, or no batch in the table.
        FileNotFoundError: no such trace.

    """
    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(f"--speed {speed}: must be 0 (as fast as possible) or above")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"--seconds {seconds}: must be above 0")
    if not (math.isfinite(start) and start >= 0):
        raise ValueError(f"--start {start}: must be 0 or above")
    log = open_log(trace, start, seconds)
    with SenderAgent(deadline_us=deadline_us) as agent:
        record = Record(log, [])
        with View(log.trace, len(log.batches), speed, quiet=as_json) as view:
            if not agent.wait_for_model(FIRST_MODEL_S):
                view.say(f"no served model ({agent.problem}): batches keep their default marking")
            begin = time.monotonic()
            for batch, decision, late_ns in decide_all(log, agent, speed):
                record.add(batch, decision, late_ns)
                view.update(record.rows, agent.counts)
        output = state_dir() / "replay" / f"{log.trace}.parquet"
        summary = summarise(record, agent, time.monotonic() - begin, output)
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.partial")
        record.frame().write_parquet(partial)
        partial.replace(output)
    if as_json:
        print(json.dumps(summary))
    else:
        view.print_summary(summary, agent.problem)
    return 0 if summary["decided"] else 1
