"""Stage `extract`: the traces that params.yaml names become packet tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import typer
from pydantic import BaseModel, Field

from feature_store.atomic import new_folder
from feature_store.packets.extract import Job, Summary, extract_trace, summary_line
from feature_store.packets.extract_many import extract_traces
from models.section import Section, read
from pipelines.stage import Given, StageError, run_stage

Name = Annotated[str, Field(min_length=1)]
Word = Annotated[str | None, typer.Option()]


class Trace(BaseModel):
    """A capture that becomes a packet table."""

    model_config = Section.model_config
    file: Name
    sender: str | None
    latency: Literal["acks", "timestamps"]
    protocol: Literal["short", "small", "paper", "teach"] | None = None


class ExtractParams(Section):
    """Which captures become packet tables."""

    section: ClassVar = "extract"
    traces: Annotated[dict[str, Trace], Field(min_length=1)]
    """By name: `file`; `sender` (null: the heaviest); `latency`: acks or timestamps; perhaps a `protocol`."""


def extract(params: ExtractParams, output: Path) -> list[Summary]:
    """Write every trace's packet table and `summary.json` under `output`; return the summaries.

    Raises:
        StageError: a trace cannot be extracted; the line names each.

    """
    traces = params.traces.items()
    outcomes = extract_traces([Job(Path(t.file), name, t.sender, t.latency) for name, t in traces], output)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, str)]:
        raise StageError("; ".join(failures))
    return [outcome for outcome in outcomes if not isinstance(outcome, str)]


def main(
    params: Given,
    output: Given,
    trace: Word = None,
    file: Word = None,
    sender: Word = None,
    latency: Word = None,
    protocol: Word = None,
) -> None:
    """Extract every trace of section `extract`, or the one that the options describe; print a line each."""
    if trace is None:
        with new_folder(output) as partial:
            summaries = extract(read(params, ExtractParams), partial)
    else:  # DVC spells null so
        given: Any = {"file": file, "sender": None if sender == "None" else sender, "latency": latency}
        named = ExtractParams(traces={trace: given | {"protocol": protocol}}).traces[trace]
        job = Job(Path(named.file), trace, named.sender, named.latency)
        summaries = [extract_trace(job, output)]
    for summary in summaries:
        print(summary_line(summary))


if __name__ == "__main__":
    run_stage("extract", main)
