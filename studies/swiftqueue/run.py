"""`swiftqueue paper forecasts`: traces and rows that are missing, then all rows in one file; resumable.

Each row is a file whose name is the hash of what it was computed from: trace, slices, forecaster and code. So
a stopped command goes on, exhibits share rows, and what changed is computed again.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.atomic import write_file
from swiftqueue.common.import_closure import code_hash
from swiftqueue.common.json_file import read_object
from swiftqueue.common.local_ray import ray_cluster
from swiftqueue.common.say import say
from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import Cell, control_of, identity, resolve
from swiftqueue.laboratory.scenarios.files import load
from swiftqueue.laboratory.scenarios.schema import Environment, Scenario
from swiftqueue.models.forecasters.forecaster import variants
from swiftqueue.studies.swiftqueue.answers import Rows, answers
from swiftqueue.studies.swiftqueue.asked import RowRequest
from swiftqueue.studies.swiftqueue.exhibits import EXHIBITS, Form, chosen
from swiftqueue.studies.swiftqueue.rows import Work, compute
from swiftqueue.studies.swiftqueue.verdicts import verdict

ENVIRONMENTS: Final = Path(__file__).parent / "environments.yaml"
# The paper's premise; under RFC 9332 there is no sharp change to predict (docs/results/rfc9332.md).
PROFILE: Final = "uncoupled"
ROWS: Final = "rows"


def run_paper(names: Sequence[str], output: Path, form: Form, sections: Path) -> int:
    """Compute the rows of some exhibits; return 1 if one failed.

    Raises:
        ValueError: an exhibit or section is unknown, or there is no simulator; nothing was computed.
    """
    exhibits = chosen(names)
    wanted = list(dict.fromkeys(asked for each in exhibits for asked in each.rows(form)))
    wanted.sort(key=lambda asked: asked.seed)  # stopped early it has whole seeds
    variants(sections, sorted({asked.method for asked in wanted}))
    with execution.sole_user(output):
        program, build = programs.build()
        jobs = traces(form, sorted({(asked.trace, asked.seed) for asked in wanted}), build)
        of = {asked: jobs[asked.trace, asked.seed] for asked in wanted}
        files = {asked: _file(output, key_of(asked, form, of[asked].identity, sections)) for asked in wanted}
        missing = [asked for asked in wanted if not files[asked].is_file()]
        say(f"paper, {form.name} form: {len(wanted)} rows, {len(wanted) - len(missing)} of them kept")
        failed = 0
        if missing:
            with ray_cluster(workers=1):
                needed = {of[asked].identity: of[asked] for asked in missing}
                problems = execution.run_missing(program, output.resolve(), list(needed.values()), "traces")
                for problem in problems.values():
                    say(f"a trace could not be simulated: {problem}")
                works = {
                    asked: Work(
                        asked,
                        execution.folder_of(output.resolve(), of[asked].identity),
                        form.protocol(asked.trace),
                        sections.resolve(),
                    )
                    for asked in missing
                    if of[asked].identity not in problems
                }
                failed = len(problems) + _compute(works, files)
        rows = gathered(output, form, build, sections)
    summary = {"form": form.name, "seeds": form.seeds, "lengths": lengths(form), "rows": rows}
    path = output / f"{form.name}.json"
    write_file(path, json.dumps(summary, allow_nan=False) + "\n")
    found = Rows(rows)
    for each in exhibits:
        say(f"{each.title}: {verdict(answers(each, found, form))}. {each.claim}.")
    say(f"{path}: `swiftqueue paper publish {path}` publishes it")
    return 1 if failed else 0


def traces(form: Form, wanted: Sequence[tuple[str, int]], build: str) -> dict[tuple[str, int], execution.Job]:
    """Return the simulation of each trace and seed."""
    scenario = load(ENVIRONMENTS)
    return {(trace, seed): _job(scenario, form, trace, seed, build) for trace, seed in wanted}


def _job(scenario: Scenario, form: Form, trace: str, seed: int, build: str) -> execution.Job:
    lasting = lasting_for(scenario, form.seconds(trace))
    control = control_of(scenario.environment, "default", model=None, share=0.0)
    cell = Cell(ENVIRONMENTS.stem, trace, None, PROFILE, "default", seed)
    run = resolve(lasting, cell, control, ["truth"])
    return execution.Job(identity(run, build), run)


def lasting_for(scenario: Scenario, seconds: float) -> Scenario:
    """Give it that length, and as many pages as fit into it."""
    changed = scenario.environment.model_dump()
    for sender in changed["senders"].values():
        for group in sender["groups"].values():
            if group["traffic"]["kind"] == "pages":
                group["traffic"]["pages"] = max(1, int(seconds / group["traffic"]["every_s"]))
    update = {"seconds": seconds, "environment": Environment.model_validate(changed)}
    return scenario.model_copy(update=update)


def key_of(asked: RowRequest, form: Form, trace: str, sections: Path) -> str:
    """Return a hash of everything that a row is computed from."""
    (variant,) = variants(sections, [asked.method])
    content = [
        asdict(asked),
        trace,
        asdict(form.protocol(asked.trace)),
        *(variant.kind_name, variant.params.model_dump()),
        _code_of(variant.kind.__module__),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:24]


@functools.cache  # hundreds of rows have ten kinds of forecasters
def _code_of(module: str) -> str:
    return code_hash(module, compute.__module__)


def lengths(form: Form) -> dict[str, Any]:
    """Return the seconds of the traces and their slices."""
    return {
        what: {"trace_s": seconds, **asdict(protocol)}
        for what, seconds, protocol in (
            ("kinds", form.kinds_s, form.kinds),
            ("swept", form.swept_s, form.swept),
        )
    }


def gathered(output: Path, form: Form, build: str, sections: Path) -> list[dict[str, Any]]:
    """Return all rows of a form that are there, whichever command computed them."""
    wanted = list(dict.fromkeys(asked for each in EXHIBITS for asked in each.rows(form)))
    known = {variant.name for variant in variants(sections)}
    jobs = traces(form, sorted({(asked.trace, asked.seed) for asked in wanted}), build)
    paths = (
        _file(output, key_of(asked, form, jobs[asked.trace, asked.seed].identity, sections))
        for asked in wanted
        if asked.method in known
    )
    return [read_object(path) for path in paths if path.is_file()]


def _file(output: Path, key: str) -> Path:
    return output / ROWS / f"{key}.json"


def _compute(works: Mapping[RowRequest, Work], files: Mapping[RowRequest, Path]) -> int:
    """Compute rows on Ray, one core each; return how many failed."""
    import ray

    task = ray.remote(num_cpus=1, max_retries=1)(compute)
    running = {task.remote(work): asked for asked, work in works.items()}
    failed = 0
    total = len(running)
    while running:
        (reference,), _ = ray.wait(list(running))
        asked = running.pop(reference)
        try:
            found = ray.get(reference)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            say(f"{asked.words()}: {str(cause).splitlines()[0]}")
            failed += 1
            continue
        write_file(files[asked], json.dumps(found, allow_nan=False) + "\n")
        say(f"{total - len(running)} of {total}: {asked.words()}: {_shown(found)}")
    return failed


def _shown(row: Mapping[str, Any]) -> str:
    tuned = row["tuned"]
    f1 = "none" if tuned["f1_truth_change"] is None else f"{tuned['f1_truth_change']:.3f}"
    return f"F1 {f1}, fit {row['fit_cpu_s']:.0f} s"
