"""Packet tables whose state changes in the middle: simulated states, or captures, one after another."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.feature_store.events.beginning import NOTHING
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.packets.truth import TRUTH
from swiftqueue.laboratory.learning.packet_table import packets_of
from swiftqueue.laboratory.runs.execution import TRACE_METADATA
from swiftqueue.laboratory.runs.resolve import Cell, resolve
from swiftqueue.laboratory.scenarios.files import load, path_of
from swiftqueue.models.forecasters.traces import TracePart, decision_times
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.minute import LEAD_IN_NS
from swiftqueue.pipelines.simulators import Runs, build_simulator

SCENARIO: Final = "drift"
BEFORE: Final = "before"  # state of the network before a change
NAME: Final = "drift"  # name of each joined trace
EXPLORED: Final = {"share": 0.05, "burst_packets": 8}  # as in the default traces
SEAM_NS: Final = 10_000_000  # from the last packet of a state to the first of the next


def states() -> list[str]:
    """Return the names of the states after a change."""
    axis = load(path_of(SCENARIO)).axis
    return [point for point in axis.points if point != BEFORE] if axis else []


def simulated(state: str, seed: int, seconds: float, folder: Path) -> pl.DataFrame:
    """Return the packet table of a simulated state; `folder` keeps it for the next call.

    Raises:
        StageError: the simulator cannot be built, or the run failed.
    """
    kept = folder / f"{state}-{seed}-{seconds:g}.parquet"
    if not kept.is_file():
        scenario = load(path_of(SCENARIO)).model_copy(update={"seconds": seconds})
        cell = Cell(SCENARIO, state, None, scenario.profiles[0], "default", seed)
        run = resolve(scenario, cell, {"kind": "default"}, ["truth"], {**EXPLORED, "seed": seed})
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as temporary:
            asked, made = Path(temporary, "run.json"), Path(temporary, "run")
            asked.write_text(json.dumps(run))
            Runs(build_simulator()).run([f"--run={asked}", f"--out={made}"], cell.words())
            with new_file(kept) as partial:
                _by_address(made).write_parquet(partial)
    return pl.read_parquet(kept)


def _by_address(run: Path) -> pl.DataFrame:
    """Return a run's packet table, its receivers numbered by address so that all states agree on them."""
    described = json.loads((run / TRACE_METADATA).read_text())
    addresses = {flow["number"]: flow["address"] for flow in described["flows"]}
    order = sorted(set(addresses.values()))
    receivers = [order.index(addresses[flow]) for flow in np.load(run / TRUTH)["flow"].tolist()]
    return packets_of(run, NAME).with_columns(pl.Series("receiver_id", receivers, pl.Int32))


@dataclass(frozen=True)
class JoinedTrace:
    """States of one sender, one after another: the packets, and the time at which each state begins."""

    packets: pl.DataFrame
    begins_ns: tuple[int, ...]

    @classmethod
    def of(cls, tables: Sequence[pl.DataFrame], *, same_receivers: bool) -> JoinedTrace:
        """Join packet tables; the flows of each are new, and so are its receivers unless they are the same.

        Raises:
            ValueError: a table has no packet.
        """
        joined: list[pl.DataFrame] = []
        begins: list[int] = []
        at_ns, packets, flows, receivers = 0, 0, 0, 0
        for table in tables:
            if table.is_empty():
                raise ValueError("a state has no packet, so nothing can be learned or judged in it")
            moved_ns = at_ns - int(table["sent_ns"][0])
            begins.append(at_ns)
            joined.append(
                table.with_columns(
                    pl.lit(NAME).alias("trace"),
                    pl.col("packet") - int(table["packet"][0]) + packets,
                    pl.col("sent_ns", "acked_ns") + moved_ns,
                    (pl.col("flow_id") + flows).cast(table.schema["flow_id"]),
                    (pl.col("receiver_id") + receivers).cast(table.schema["receiver_id"]),
                )
            )
            packets += table.height
            flows += int(table["flow_id"].max()) + 1  # type: ignore[arg-type]
            receivers += 0 if same_receivers else int(table["receiver_id"].max()) + 1  # type: ignore[arg-type]
            at_ns = int(joined[-1]["sent_ns"][-1]) + SEAM_NS
        return cls(pl.concat(joined), tuple(begins))

    @property
    def ends_ns(self) -> tuple[int, ...]:
        """Return the time of each state's last packet."""
        return (*(begin - SEAM_NS for begin in self.begins_ns[1:]), int(self.packets["sent_ns"][-1]))

    def known_at(self, at_ns: int) -> pl.DataFrame:
        """Return the packets sent before a time, with the latencies that were acknowledged by then."""
        sent = self.packets.head(int(self.packets["sent_ns"].search_sorted(at_ns)))
        known = pl.col("acked_ns") <= at_ns
        return sent.with_columns(
            acked_ns=pl.when(known).then("acked_ns"), latency_us=pl.when(known).then("latency_us")
        )


def between(packets: pl.DataFrame, from_ns: int, to_ns: int) -> TracePart:
    """Return the decisions in [from_ns, to_ns), with a lead-in and the sender's state before it."""
    times = decision_times(packets)
    first, last = np.searchsorted(times, [from_ns, to_ns])
    begin = min(int(np.searchsorted(times, from_ns - LEAD_IN_NS)), max(0, len(times) - 1))
    cut = begin * HORIZON
    rest = packets[cut : min(packets.height, int(last) * HORIZON)]
    counted = rest.with_columns(pl.col("packet") - cut)
    decisions = Slice(int(first) - begin, int(last) - begin)
    return TracePart(NAME, counted, decisions, beginning=NOTHING.moved(packets, cut))
