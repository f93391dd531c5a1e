"""Stage `split`: each trace's windows divided by time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from feature_store.atomic import write_file
from models.section import Section, read, read_all
from models.training.protocol import OF_A_TRACE, PROTOCOLS, divide, protocol_named
from pipelines.stage import Given, StageError, run_stage


def _protocol(name: str) -> str:
    if name not in PROTOCOLS:
        raise ValueError(f"it must be one of {', '.join(PROTOCOLS)}")
    return name


class SplitParams(Section):
    """How the windows divide by time."""

    section: ClassVar = "split"
    protocol: Annotated[str, Field(json_schema_extra={"enum": list(PROTOCOLS)}), AfterValidator(_protocol)]
    """Lengths of the slices of traces that name none: models/training/protocol.py."""


def split(params: SplitParams, windows: Path, own: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Divide every trace under `windows`; gives the content of data/split.json.

    `own` names the protocol of each trace that has one of its own; it may name others.

    Raises:
        StageError: there are no windows, or no trace that tests.
        ValueError: a trace is too short for the protocol; the line names it and one that fits.
    """
    meta = windows / "meta.json"
    if not meta.is_file():
        raise StageError(f"{meta} is missing; run the stage `windows` first")
    traces = {}
    for name in json.loads(meta.read_text())["traces"]:
        protocol = protocol_named((own or {}).get(name, params.protocol), OF_A_TRACE)
        traces[name] = divide(np.load(windows / name / "decision_ns.npy"), protocol, name).as_json()
    if not any(trace["rounds"] for trace in traces.values()):
        raise StageError("every trace only teaches (protocol teach), so nothing is tested")
    return {"traces": traces}


def own_protocols(sections: Mapping[str, Any]) -> dict[str, str]:
    """Protocols of the traces in section `extract` that name one."""
    traces = (sections.get("extract") or {}).get("traces") or {}
    return {name: trace["protocol"] for name, trace in traces.items() if trace.get("protocol")}


def main(params: Given, windows: Given, output: Given) -> None:
    """Read decision times, write the division, and print one line a trace."""
    divided = split(read(params, SplitParams), windows, own_protocols(read_all(params)))
    write_file(output, json.dumps(divided, indent=1) + "\n")
    for name, trace in divided["traces"].items():
        count = len(trace["rounds"])
        does = f"{count} rounds of {trace['protocol']['name']}" if count else "teaches as a whole"
        print(f"{name}: {trace['duration_s']:.1f} s, {does}")


if __name__ == "__main__":
    run_stage("split", main)
