"""Stage `extract`: makes a packet table of a trace that params.yaml names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from pydantic import BaseModel, Field

from swiftqueue.common.section import Section
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace, summary_line
from swiftqueue.pipelines.stage import Given, run_stage

Name = Annotated[str, Field(min_length=1)]
Text = Annotated[str, typer.Option()]
Word = Annotated[str | None, typer.Option()]


class TraceSource(BaseModel):
    """A capture that becomes a packet table."""

    model_config = Section.model_config
    file: Name
    sender: str | None
    latency: Literal["acks", "selective", "timestamps"]
    protocol: Literal["short", "small", "paper", "teach"] | None = None


class ExtractParams(Section):
    """The captures that become packet tables."""

    section: ClassVar = "extract"
    traces: Annotated[dict[str, TraceSource], Field(min_length=1)]
    """Captures by name, with `file`, `sender` (null: heaviest), `latency` (its source) and `protocol`."""


def main(
    output: Given, trace: Text, file: Text, latency: Text, sender: Word = None, protocol: Word = None
) -> None:
    """Extract the trace that the options describe, as a trace of section `extract`; print a line."""
    null = None if sender == "None" else sender  # DVC writes null as None
    given: Any = {"file": file, "sender": null, "latency": latency}
    named = ExtractParams(traces={trace: given | {"protocol": protocol}}).traces[trace]
    job = ExtractJob(Path(named.file), trace, named.sender, named.latency)
    print(summary_line(extract_trace(job, output)))


if __name__ == "__main__":
    run_stage("extract", main)
