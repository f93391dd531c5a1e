"""Stage `validate`: stops the pipeline where packet tables or events do not meet their expectations."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, ClassVar

import polars as pl
from pydantic import Field

from swiftqueue.common.atomic import new_folder
from swiftqueue.common.json_file import read_object
from swiftqueue.common.section import Section, read
from swiftqueue.common.settings import settings
from swiftqueue.common.state import experiment_name, private_dir, state_dir
from swiftqueue.feature_store.events.event_stream import replay_events
from swiftqueue.feature_store.packets.schema import HORIZON, scan_packets, traces_in
from swiftqueue.feature_store.quality import expectations as ex
from swiftqueue.feature_store.quality.distribution_shift import slice_shifts
from swiftqueue.models.training.protocol import TraceSlices
from swiftqueue.pipelines.stage import Given, StageError, run_stage


class ValidateParams(Section):
    """Limits beyond which the data is so odd that the pipeline stops."""

    section: ClassVar = "validate"
    max_unknown_latency: Annotated[float, Field(ge=0, le=1)]
    """Highest share of packets without a latency."""
    max_latency_s: Annotated[float, Field(ge=0.001, le=3600)]
    """Highest latency that can be true, in seconds."""
    max_shift_psi: Annotated[float, Field(ge=0.01, le=100)]
    """Highest population stability index of an input, test slices against the training slice."""


def validate(packets_dir: Path, split: Path, params: ValidateParams) -> ex.Validation:
    """Run every check on the tables under `packets_dir`, their events and the queries of their decisions.

    Where columns are missing or of another type, or a packet table is wrong, the checks that build on it are
    not run.

    Raises:
        StageError: the division is of other traces than the packet tables.
    """
    from rich.console import Console
    from rich.progress import Progress

    divided = read_object(split)["traces"] if split.is_file() else {}
    found, traces = traces_in(packets_dir), sorted(divided)
    if not traces or not set(traces) <= set(found):
        raise StageError(
            f"packet tables are of {', '.join(found) or 'no trace'}, and {split} divides "
            f"{', '.join(traces) or 'none'}; run the stage `split` again"
        )
    validation = ex.Validation()
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("expectations", total=2 * len(traces) + 2)
        schemas = {t: scan_packets(packets_dir, t).collect_schema() for t in traces}
        validation.run(ex.schema_check(schemas))
        progress.advance(task)
        if validation.failures:
            return validation
        shifts = []
        for trace in traces:
            packets = scan_packets(packets_dir, trace).collect()
            limits = params.max_unknown_latency, params.max_latency_s
            known = len(validation.failures)
            validation.run(ex.packets_check(trace, packets, *limits))
            progress.advance(task)
            if len(validation.failures) > known:
                continue
            events = replay_events(packets)
            queries = ex.query_frame(trace, packets, events)
            validation.run(ex.inputs_check(trace, events, queries))
            slices = TraceSlices.from_json(divided[trace], packets.height // HORIZON, trace)
            tests = [[r.test.lo, r.test.hi] for r in slices.rounds]
            shifts.append(slice_shifts(trace, queries, [slices.pretrain.lo, slices.pretrain.hi], tests))
            progress.advance(task)
        if shifts:
            validation.run(ex.shift_check(pl.concat(shifts), params.max_shift_psi))
        progress.advance(task)
    return validation


def write(validation: ex.Validation, output: Path) -> None:
    """Write `report.json` and `docs/` into `output`, atomically."""
    run = experiment_name() or settings().study or "the working folder"
    with new_folder(output) as partial:
        validation.write_docs(partial / "docs", run)
        report = {"success": not validation.failures, "checks": validation.report}
        (partial / "report.json").write_text(json.dumps(report, indent=2) + "\n")


def main(params: Given, packets: Given, split: Given, output: Given) -> None:
    """Validate; on failure print each failed expectation in a line, and stop the pipeline."""
    limits = read(params, ValidateParams)
    validation = validate(packets, split, limits)
    failed = state_dir() / "validation"  # a failed run's report; `--output` is for passed ones
    write(validation, failed if validation.failures else output)
    if validation.failures:
        private_dir(failed)
        shown = os.path.relpath(failed) if failed.is_relative_to(Path.cwd()) else failed
        lines = "\n".join(f"  {failure}" for failure in validation.failures)
        if any(failure.check == ex.SHIFT for failure in validation.failures):
            lines += (
                "\n  the traffic changes more between the slices than validate.max_shift_psi "
                f"({limits.max_shift_psi:g}) allows; short captures do: raise it in params.yaml, or for a "
                "study with --set validate.max_shift_psi=VALUE"
            )
        raise StageError(
            f"{len(validation.failures)} expectations failed; see {shown}/docs/index.html\n{lines}"
        )
    expectations = sum(c["expectations"] for c in validation.report.values())
    print(f"{expectations} expectations met; data docs: {output}/docs/index.html")


if __name__ == "__main__":
    run_stage("validate", main)
