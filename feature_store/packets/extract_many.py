"""Extract several traces: one after the other in this process, or as Ray tasks if that is faster."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.atomic import write_file
from swiftqueue.common.local_ray import ray_cluster
from swiftqueue.feature_store.packets.captures import GZIP_MAGIC, print_note, trace_name
from swiftqueue.feature_store.packets.extract import ExtractJob, Summary, extract_trace, summary_line

SUMMARY_FILE: Final = "summary.json"
PARALLEL_FROM_BYTES: Final = 8 << 30  # about 40 s of one core; a local Ray cluster takes 10-20 s to start
GZIP_RATIO: Final = 5  # rough ratio of header-only captures
SHOW_PROGRESS_FROM_BYTES: Final = 256 << 20  # bytes that take about a second to read

Outcome = Summary | str  # a trace's summary, or the line that says why it has none


def run_extract(
    traces: Sequence[Path], output: Path, *, sender: str | None, latency: str, as_json: bool
) -> int:
    """Extract captures for the command line: the tables, then one line or one JSON object per trace.

    A capture that cannot be extracted is named on standard error; the others are still extracted.

    Returns:
        The exit status: 0, or 1 if any trace has no table.

    Raises:
        ValueError: two captures would have the same trace name.
    """
    jobs = [ExtractJob(path, trace_name(path), sender, latency) for path in traces]
    outcomes = extract_traces(jobs, output)
    summaries = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    if as_json:
        print(json.dumps(summaries, indent=1))
    for outcome in outcomes:
        if isinstance(outcome, str):
            print_note(f"swiftqueue: {outcome}")
        elif not as_json:
            print(summary_line(outcome))
    return 0 if len(summaries) == len(jobs) else 1


def extract_traces(jobs: Sequence[ExtractJob], output: Path) -> list[Outcome]:
    """Extract every job's table under `output`, and add their summaries to `output/summary.json`.

    Raises:
        ValueError: two jobs have the same trace name, or one has a name that cannot be a folder's.
        OSError: `output` cannot be written.
    """
    for name, count in Counter(job.trace for job in jobs).items():
        if count > 1:
            raise ValueError(
                f"{count} captures have the trace name {name!r}: rename them or extract them apart"
            )
        if not name or name.startswith(".") or set(name) & set("/*?[]"):
            raise ValueError(f"trace name {name!r} cannot name a folder: rename the capture")
    output.mkdir(parents=True, exist_ok=True)
    sizes = [_unpacked_bytes(job.capture) for job in jobs]
    if why := _why_ray(sizes):
        print_note(f"extracting {len(jobs)} traces as Ray tasks: {why}")
        outcomes = _with_ray(jobs, output)
    else:
        outcomes = list(_in_turn(jobs, sizes, output))
    _write_summary(output, outcomes)
    return outcomes


def _attempt(job: ExtractJob, output: Path, **options: Any) -> Outcome:
    try:
        return extract_trace(job, output, **options)
    except (ValueError, OSError) as error:
        return str(error)


def _unpacked_bytes(capture: Path) -> int:
    """Return the size of a capture, estimated if it is compressed; 0 if it cannot be read."""
    if not capture.is_file():  # reading a pipe would wait
        return 0
    try:
        with capture.open("rb") as file:
            compressed = file.read(2) == GZIP_MAGIC
        return capture.stat().st_size * (GZIP_RATIO if compressed else 1)
    except OSError:
        return 0


def _why_ray(sizes: Sequence[int]) -> str | None:
    if len(sizes) < 2:
        return None
    if os.environ.get("RAY_ADDRESS"):
        return "RAY_ADDRESS is set"
    if sum(sizes) - max(sizes) >= PARALLEL_FROM_BYTES and (os.cpu_count() or 1) > 1:
        return f"{sum(sizes) / 2**30:.0f} GiB in all, more than starting a local cluster costs"
    return None


def _with_ray(jobs: Sequence[ExtractJob], output: Path) -> list[Outcome]:
    """Extract each job in a Ray task. On a cluster, captures and output lie on a shared file system."""
    with ray_cluster(workers=len(jobs)):
        import ray

        task = ray.remote(num_cpus=1, max_retries=0)(_attempt_and_said)
        absolute = [ExtractJob(job.capture.resolve(), job.trace, job.sender, job.latency) for job in jobs]
        done = ray.get([task.remote(job, output.resolve()) for job in absolute])
        for line in (line for _, said in done for line in said.splitlines()):
            print_note(line)
        return [outcome for outcome, _ in done]


def _attempt_and_said(job: ExtractJob, output: Path) -> tuple[Outcome, str]:
    """Run `_attempt` and return its result and its lines, since a task's standard error does not reach us."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        outcome = _attempt(job, output)
    return outcome, said.getvalue()


def _in_turn(jobs: Sequence[ExtractJob], sizes: Sequence[int], output: Path) -> Iterator[Outcome]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    show = console.is_terminal and sum(sizes) >= SHOW_PROGRESS_FROM_BYTES
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not show, transient=True) as bar:
        for job in jobs:
            total = job.capture.stat().st_size if job.capture.is_file() else 0
            shown = bar.add_task(job.trace, total=total)

            def advance(n: int, shown: Any = shown) -> None:
                bar.advance(shown, n)

            yield _attempt(job, output, progress=advance)


def _write_summary(output: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the summaries of this run, and keep those of other traces whose tables still exist."""
    path = output / SUMMARY_FILE
    fresh = {outcome["trace"]: outcome for outcome in outcomes if not isinstance(outcome, str)}
    try:
        known = {old["trace"]: old for old in json.loads(path.read_text())}
    except (OSError, ValueError, KeyError, TypeError):
        known = {}
    kept = {name: old for name, old in known.items() if (output / f"trace={name}").is_dir()}
    write_file(path, json.dumps(list({**kept, **fresh}.values()), indent=1) + "\n")
