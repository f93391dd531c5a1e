"""Stage `extract`: the traces that params.yaml names become packet tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from feature_store.extract import Job, Summary, summary_line
from feature_store.extract_many import extract_traces
from pipelines.stage import StageError, atomic_dir, load_params, stage_main

KNOWN = {"traces"}
TRACE_KEYS = {"file", "sender", "latency"}


def extract(traces: dict[str, dict[str, Any]], output: Path) -> list[Summary]:
    """Write every trace's packet table and `summary.json` under `output`; return the summaries.

    Raises:
        StageError: a trace is described wrongly or cannot be extracted; the line names each.

    """
    if not isinstance(traces, dict):
        raise StageError(f"extract.traces is {traces!r}; it must map each trace's name to its file")
    if not traces:
        raise StageError("extract.traces is empty: add a capture with `swiftqueue trace add`")
    jobs = []
    for name, trace in traces.items():
        if not isinstance(trace, dict) or set(trace) != TRACE_KEYS:
            raise StageError(
                f"extract.traces.{name} must have exactly the keys {', '.join(sorted(TRACE_KEYS))}"
            )
        jobs.append(Job(Path(trace["file"]), str(name), trace["sender"], str(trace["latency"])))
    outcomes = extract_traces(jobs, output)
    if failures := [outcome for outcome in outcomes if isinstance(outcome, str)]:
        raise StageError("; ".join(failures))
    return [outcome for outcome in outcomes if not isinstance(outcome, str)]


def main() -> None:
    """Read the stage's parameters, extract, and print one line a trace."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with stage_main("extract"):
        traces = load_params(arguments.params, "extract", KNOWN)["traces"]
        with atomic_dir(arguments.output) as partial:
            for summary in extract(traces or {}, partial):
                print(summary_line(summary))


if __name__ == "__main__":
    main()
