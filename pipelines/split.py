"""Stage `split`: divides each trace's decisions by time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl
from pydantic import AfterValidator, Field

from swiftqueue.common.atomic import write_file
from swiftqueue.common.section import Section, read, read_all
from swiftqueue.feature_store.packets.schema import HORIZON, scan_packets, traces_in
from swiftqueue.models.forecasters.traces import decision_times
from swiftqueue.models.training.protocol import OF_A_TRACE, PROTOCOLS, Slice, divide, protocol_named
from swiftqueue.pipelines.stage import Given, StageError, run_stage


def _protocol(name: str) -> str:
    if name not in PROTOCOLS:
        raise ValueError(f"it must be one of {', '.join(PROTOCOLS)}")
    return name


class SplitParams(Section):
    """The slices of a trace."""

    section: ClassVar = "split"
    protocol: Annotated[str, Field(json_schema_extra={"enum": list(PROTOCOLS)}), AfterValidator(_protocol)]
    """Protocol, which sets the slice lengths, of traces that name none: models/training/protocol.py."""


def split(
    params: SplitParams,
    packets: Path,
    own: Mapping[str, str] | None = None,
    wanted: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Divide the traces under `packets`; return the content of data/split.json.

    Args:
        params: the protocol.
        packets: folder of packet tables.
        own: by trace, a protocol of its own; it may name further traces.
        wanted: names of the traces; None means all. DVC leaves the table of a trace that left params.yaml.

    Raises:
        StageError: a trace has no packet table, or no trace tests.
        ValueError: a trace is too short for the protocol; the line names it and one that fits.
    """
    found = traces_in(packets)
    traces = found if wanted is None else sorted(wanted)
    if missing := [trace for trace in traces if trace not in found]:
        raise StageError(f"no packet table of {missing[0]} under {packets}; run the stage `extract` first")
    if not traces:
        raise StageError(f"no packet tables under {packets}; run the stage `extract` first")
    divided = {}
    for name in traces:
        protocol = protocol_named((own or {}).get(name, params.protocol), OF_A_TRACE)
        table = scan_packets(packets, name).select("sent_ns", "acked_ns", "latency_us").collect()
        slices = divide(decision_times(table), protocol, name)
        check_known(table, slices.pretrain, name)
        divided[name] = slices.as_json()
    if not any(trace["rounds"] for trace in divided.values()):
        raise StageError("every trace only teaches (protocol teach), so nothing is tested")
    return {"traces": divided}


def check_known(packets: pl.DataFrame, pretrain: Slice, trace: str) -> None:
    """Raise a ValueError of one line where no latency is known when a trace's training slice ends."""
    end = pretrain.hi * HORIZON
    end_ns = packets["sent_ns"][end] if end < packets.height else packets["acked_ns"].max()
    learnt = packets[pretrain.lo * HORIZON : end].filter(pl.col("acked_ns") <= end_ns)
    if not learnt["latency_us"].count():
        raise ValueError(f"trace {trace}: no latency is known in the time to train on")


def named_traces(sections: Mapping[str, Any]) -> list[str] | None:
    """Return the traces that section `extract` names; None without that section."""
    named = (sections.get("extract") or {}).get("traces")
    return list(named) if isinstance(named, dict) else None


def own_protocols(sections: Mapping[str, Any]) -> dict[str, str]:
    """Return the protocols of the traces in section `extract` that name one."""
    traces = (sections.get("extract") or {}).get("traces") or {}
    return {name: trace["protocol"] for name, trace in traces.items() if trace.get("protocol")}


def main(params: Given, packets: Given, output: Given) -> None:
    """Read decision times, write the division, and print one line a trace."""
    sections = read_all(params)
    divided = split(read(params, SplitParams), packets, own_protocols(sections), named_traces(sections))
    write_file(output, json.dumps(divided, indent=1) + "\n")
    for name, trace in divided["traces"].items():
        count = len(trace["rounds"])
        does = f"{count} rounds of {trace['protocol']['name']}" if count else "teaches as a whole"
        print(f"{name}: {trace['duration_s']:.1f} s, {does}")


if __name__ == "__main__":
    run_stage("split", main)
