"""`swiftqueue replay`: drives the sender agent with a packet table as if its packets were sent now.

The replay repeats what happened: each packet is logged in the queue it was really sent to, since its ACK
belongs to that queue. The controller's own choice is recorded beside it, not acted on. The C++ agent makes
the decisions; where it is not built, the Python client does.

Shapes: H horizon (8 packets).
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_file
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.feature_store.packets.schema import HORIZON, QUEUES
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.io.packet_log import PacketLog, open_log
from swiftqueue.serving.agent.predictors.reference_client import AgentDecision, DecisionCounts, SenderAgent
from swiftqueue.serving.agent.replay_view import SHOWN_BATCHES, View
from swiftqueue.serving.triton.endpoint import grpc_addresses

FIRST_MODEL_S: Final = 5.0  # seconds to look for a served model before the first packet
BEHIND_NS: Final = 5_000_000  # lateness against its schedule from which on a batch counts as behind
RECORD_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "packet": pl.Int64,
    "decision_ns": pl.Int64,
    "flow_id": pl.Int32,
    "queue_sent": pl.Enum(QUEUES),  # queue in the trace
    "queue_chosen": pl.Enum(QUEUES),
    "outcome": pl.String,  # decided | late | error | no_model
    "predicted_classic_us": pl.Float32,
    "predicted_us": pl.Float32,  # prediction for the queue it was sent to
    "latency_us": pl.Float32,  # latency that came
    "version": pl.Int64,
    "round_trip_us": pl.Float64,
}


def decide_all(
    log: PacketLog, agent: SenderAgent, speed: float
) -> Iterator[tuple[int, AgentDecision, float]]:
    """Replay the log; yield each batch's number, its decision, and its lateness against the schedule (ns)."""
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


def as_frame(batch: int, decision_ns: int, decision: AgentDecision) -> NDArray[Any]:
    """Return a decision of the Python client as the agent would record it."""
    frame = frames.blank(frames.DECISION)
    frame["first_packet"], frame["now_ns"] = batch * HORIZON, decision_ns
    frame["outcome"] = frames.OUTCOMES.index(decision.outcome)
    frame["queues"] = decision.queues
    frame["version"] = -1 if decision.version is None else decision.version
    frame["round_trip_us"] = math.nan if decision.round_trip_us is None else decision.round_trip_us
    predicted_us = np.full((2, HORIZON), np.nan) if decision.predicted_us is None else decision.predicted_us
    frame["classic_us"], frame["default_us"] = predicted_us
    return frame


def record_table(log: PacketLog, decisions: NDArray[Any]) -> pl.DataFrame:
    """Return decisions (DECISION frames) beside what happened, a row per packet."""
    packets = (decisions["first_packet"][:, None] + np.arange(HORIZON)).ravel()

    def each(column: str) -> NDArray[Any]:
        return np.repeat(decisions[column], HORIZON)

    def known(values: NDArray[Any]) -> pl.Series:
        return pl.Series(values).fill_nan(None)

    queues = np.array(QUEUES)
    return pl.DataFrame(
        {
            "packet": packets,
            "decision_ns": each("now_ns"),
            "flow_id": log.flow_id[packets],
            "queue_sent": queues[log.queue[packets]],
            "queue_chosen": queues[decisions["queues"].ravel()],
            "outcome": np.array(frames.OUTCOMES)[each("outcome")],
            "predicted_classic_us": known(decisions["classic_us"].ravel()),
            "predicted_us": known(decisions["default_us"].ravel()),
            "latency_us": known(log.latency_us[packets]),
            "version": pl.Series(each("version")).replace(-1, None),
            "round_trip_us": known(each("round_trip_us").astype(np.float64)),
        },
        schema=RECORD_SCHEMA,
    )


def summarise(
    trace: str, table: pl.DataFrame, counts: DecisionCounts, behind: int, seconds: float, output: Path
) -> dict[str, Any]:
    """Return the summary that `--json` prints."""
    decided = table.filter(pl.col("outcome") == "decided")
    error_us = (decided["predicted_us"] - decided["latency_us"]).abs().drop_nulls()
    capable = decided.filter(pl.col("queue_sent") == QUEUES[1])
    trips = decided["round_trip_us"].gather_every(HORIZON)
    return {
        "trace": trace,
        "batches": counts.batches,
        "decided": counts.decided,
        "late": counts.late,
        "failed": counts.failed,
        "failed_by_reason": {"error": counts.error, "no_model": counts.no_model},
        "stale_answers": counts.stale,
        "behind_schedule": behind,
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


class ReplayRun:
    """A replay under way: its decisions, counts and view, whichever agent makes them."""

    def __init__(self, log: PacketLog, deadline_us: int, speed: float, view: View) -> None:
        self.log, self.deadline_us, self.speed, self.view = log, deadline_us, speed, view
        self.decisions = np.zeros(0, frames.DECISION)
        self.counts = DecisionCounts()
        self.behind = 0
        self.problem = ""
        self.seconds = 0.0

    def no_model(self) -> None:
        """Print that there is no model to ask."""
        self.view.say(f"no served model ({self.problem}): batches keep their default marking")

    def show(self, decisions: NDArray[Any]) -> None:
        """Show the progress of the replay, if the view is due."""
        if self.view.due():
            self.view.update(record_table(self.log, decisions[-SHOWN_BATCHES:]), self.counts)

    def by_agent(self, answers: Sequence[str], folder: Path) -> None:
        """Let the C++ agent decide; `answers` are its options that say where predictions come from."""
        # Another replay of the same trace may be under way.
        file, record = (
            folder / f".{self.log.trace}.{os.getpid()}.{kind}" for kind in ("frames", "decisions")
        )
        try:
            with file.open("wb") as out:
                out.writelines(frames.replay_frames(self.log))
            options = {"--replay": file, "--record": record, "--speed": self.speed}
            options |= {"--deadline-us": self.deadline_us, "--wait-model-s": FIRST_MODEL_S}
            arguments = [str(part) for option in options.items() for part in option]
            with agent_process.running_agent([*arguments, *answers]) as said:
                for line in said:
                    self._hear(line, record)
            self.decisions = frames.read_decisions(record)
        finally:
            file.unlink(missing_ok=True)
            record.unlink(missing_ok=True)

    def _hear(self, line: dict[str, Any], record: Path) -> None:
        self.problem = line.get("problem", self.problem)
        if line["event"] == "ready":
            if not line["reach"]:
                self.no_model()
            return
        by_outcome = {outcome: line[outcome] for outcome in frames.OUTCOMES}
        self.counts = DecisionCounts(batches=line["batches"], stale=line["stale_answers"], **by_outcome)
        self.behind = line["behind_schedule"]
        if line["event"] == "summary":
            self.seconds = line["seconds"]
        elif line["batches"]:
            self.show(frames.read_decisions(record, SHOWN_BATCHES))

    def by_client(self, address: str) -> None:
        """Let the Python client decide."""
        with SenderAgent(deadline_us=self.deadline_us, address=address) as agent:
            self.counts = agent.counts
            if not agent.wait_for_model(FIRST_MODEL_S):
                self.problem = agent.problem
                self.no_model()
            begin = time.monotonic()
            decisions = np.zeros(len(self.log.batches), frames.DECISION)
            for i, (batch, decision, late_ns) in enumerate(decide_all(self.log, agent, self.speed)):
                decisions[i] = as_frame(batch, int(self.log.sent_ns[batch * HORIZON]), decision)[0]
                self.behind += late_ns > BEHIND_NS
                self.show(decisions[: i + 1])
            self.seconds = time.monotonic() - begin
            self.decisions, self.problem = decisions, agent.problem


def replay_trace(
    trace: str,
    *,
    speed: float,
    deadline_us: int,
    start: float = 0.0,
    seconds: float | None,
    as_json: bool,
    servers: Sequence[str] = (),
    local: Path | None = None,
) -> int:
    """Replay a trace and show predictions, latencies and choices; return 0 when batches were decided.

    Predictions come from `servers` in order of preference (default: the local stack's Triton), or from the
    engine on the artifact `local`.

    Raises:
        ValueError: a parameter is out of range, or the table has no batch.
        FileNotFoundError: there is no such trace.
        RuntimeError: the agent ended with an error.

    """
    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(f"--speed {speed}: must be 0 (as fast as possible) or above")
    if deadline_us <= 0:
        raise ValueError(f"--deadline-us {deadline_us}: must be above 0")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"--seconds {seconds}: must be above 0")
    if not (math.isfinite(start) and start >= 0):
        raise ValueError(f"--start {start}: must be 0 or above")
    if servers and local is not None:
        raise ValueError("--server and --local exclude each other")
    log = open_log(trace, start, seconds)
    output = private_dir(state_dir() / "replay") / f"{log.trace}.parquet"
    addresses = servers or grpc_addresses()
    with View(log.trace, len(log.batches), speed, quiet=as_json) as view:
        replay = ReplayRun(log, deadline_us, speed, view)
        if reason := agent_process.why_not_built():
            if local is not None:
                raise RuntimeError(f"--local needs the C++ agent: {reason}")
            only = f"; it asks {addresses[0]} alone" if len(addresses) > 1 else ""
            view.say(f"the Python client decides{only}: {reason}")
            replay.by_client(addresses[0])
        else:
            answers = [f"--local={local}"] if local else agent_process.server_options(addresses)
            replay.by_agent(answers, output.parent)
    table = record_table(log, replay.decisions)
    summary = summarise(log.trace, table, replay.counts, replay.behind, replay.seconds, output)
    with new_file(output) as partial:
        table.write_parquet(partial)
    if as_json:
        print(json.dumps(summary))
    else:
        view.print_summary(summary, replay.problem)
    return 0 if summary["decided"] else 1
