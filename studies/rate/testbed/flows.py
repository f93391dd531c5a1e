"""Flows of a kernel's BBR with a sample at every ACK: `swiftqueue rate collect` (README.md).

Two hosts of the bed, one FIFO of the router between them. The kernel's BBR runs as `sq_rate`, a congestion
control of struct_ops that calls it and tells what it knows (`rate.bpf.c`). Tables are those of
`rate simulate`.

Shapes: N records, F fields of a sample (28).
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.studies.rate.programs import SAMPLER, SAMPLER_OBJECT, why_no_sampler
from swiftqueue.studies.rate.samples.definition import NAMES
from swiftqueue.studies.rate.samples.tables import KERNEL, tables_of, write_path
from swiftqueue.testbed.host import router_log, tcp_traffic
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed, run_folder
from swiftqueue.testbed.host.lateness import router_error
from swiftqueue.testbed.host.programs import wait_for_name
from swiftqueue.testbed.host.selfcheck import NO_AQM
from swiftqueue.testbed.host.tcp import PORT, running, summary

CONTROL: Final = "sq_rate"
LEAST_BUFFER_BYTES: Final = 15_000
ACKED: Final = NAMES.index("bytes_acked")
# studies/rate/testbed/rate.h
RECORD: Final = np.dtype(
    [
        ("flow", "<u8"), ("number", "<u8"), ("since_ns", "<u8"), ("receiver", "<u4"), ("port", "<u4"),
        ("fields", "<i8", (len(NAMES),)),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class KernelPath:
    """A path of the bed, and the flows through it."""

    rate_mbps: float
    rtt_ms: float
    buffer_bdp: float = 1.0
    load: float = 0.2  # share of the rate that the flows offer
    jitter_ms: float = 0.0
    flows: int = 20
    bytes: int = 3_200_000
    seed: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            least = "0 or more" if name == "jitter_ms" else "above 0"
            if not 0 <= value < math.inf or (value == 0 and name != "jitter_ms"):
                raise ValueError(f"{name} {value:g}: must be {least}, and finite")

    @property
    def name(self) -> str:
        """Return the name of its folder."""
        return f"kernel-{self.rate_mbps:g}mbps-{self.rtt_ms:g}ms-{self.buffer_bdp:g}bdp-{self.seed}"


def why_not() -> str | None:
    """One line if this machine cannot."""
    return capability("router").why_not or why_no_sampler()


def collect(path: KernelPath, output: Path, kind: str = "train") -> dict[str, Any]:
    """Send a path's flows, and write their tables; returns what is said of them in `path.json`.

    Args:
        path: traffic to send, and the path to send it through.
        output: folder of the tables.
        kind: `train` or `held-out`.

    Raises:
        RuntimeError: this machine cannot, a program failed, or no flow is whole; the line says why.
    """
    if reason := why_not():
        raise RuntimeError(reason)
    buffer = max(path.rate_mbps * 1e6 / 8 * path.rtt_ms / 1e3 * path.buffer_bdp, LEAST_BUFFER_BYTES)
    queue = NO_AQM | {"max_bytes": round(buffer)}
    gap_s = path.bytes * 8 / (path.load * path.rate_mbps * 1e6)
    with run_folder() as folder:
        log = Path(folder) / "records"
        with (
            Bed(
                rate_mbps=path.rate_mbps, delay_ms=path.rtt_ms / 2, jitter_ms=path.jitter_ms, seed=path.seed,
                queue=queue, log=(router := Path(folder) / "router"),
            ) as bed,
            running(bed.b(sys.executable, tcp_traffic.__file__, "take", ADDRESS_B, PORT), "the receiver"),
        ):  # fmt: skip
            wait_for_name(CONTROL)
            words = [str(SAMPLER), "collect", str(SAMPLER_OBJECT), str(log)]
            with running(words, "the sampler") as (sampler, _):
                send = [
                    sys.executable,
                    tcp_traffic.__file__,
                    "flows",
                    ADDRESS_B,
                    PORT,
                    path.bytes,
                    path.flows,
                ]
                command = bed.a(*send, gap_s, path.seed, CONTROL)
                sent = summary(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
                sampler.terminate()
                counted = summary(sampler)
        records = np.fromfile(log, RECORD)
        error = router_error(router_log.read(router), (path.rtt_ms / 2 + path.jitter_ms) * 1e6)
    whole = complete(records, path.bytes)
    if not whole:
        raise RuntimeError(f"path {path.name}: no flow has a sample at every ACK")
    about = {
        "format": 1,
        "kind": kind,
        "source": KERNEL,
        "options": asdict(path),
        "flows_sent": sent["flows"],
        "flows_whole": len(whole),
        "acks": counted["acks"],
        "lost": counted["lost"],
        "ns_per_ack": counted["run_ns"] / max(counted["runs"], 1),
        "router": error,
        "bbr_ns_per_ack": counted["bbr_ns"] / max(counted["bbr_runs"], 1),  # BBR's own share of it
    }
    write_path(output, path.name, about, *tables(whole))
    return about


def flows_of(records: NDArray[Any]) -> list[NDArray[Any]]:
    """The records (N,) of each flow that lacks none, in order; flows by when they were established."""
    order = np.lexsort((records["number"], records["flow"]))
    _, begins = np.unique(records["flow"][order], return_index=True)
    each = np.split(records[order], begins[1:]) if len(records) else []
    whole = [own for own in each if np.array_equal(own["number"], np.arange(len(own)))]
    return sorted(whole, key=lambda own: int(own["since_ns"][0]))


def complete(records: NDArray[Any], size: int) -> list[NDArray[Any]]:
    """The flows of `size` bytes each in records (N,), up to their last byte's."""
    return [own for own in flows_of(records) if own["fields"][-1, ACKED] > size]  # with the SYN


def tables(flows: Sequence[NDArray[Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tables of flows' records, in order; flows and receivers are counted anew."""
    receivers: dict[int, int] = {}
    return tables_of(
        (
            receivers.setdefault(int(own["receiver"][0]), len(receivers)),
            int(own["since_ns"][0] - flows[0]["since_ns"][0]),
            own["fields"],
        )
        for own in flows
    )
