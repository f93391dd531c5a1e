"""Runs on Ray: each in a task of one core, into a folder that appears only when its result is whole."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.laboratory.scenarios.schema import WEIGHTS
from swiftqueue.pipelines.simulators import PROJECT

if TYPE_CHECKING:
    from swiftqueue.common.storage import Storage

RUNS: Final = "runs"
SUMMARY: Final = "summary.json"
COST: Final = "cost.json"
ROW: Final = "row.json"
CAPTURE: Final = "s1.pcap"
DECISIONS: Final = "decisions.txt"
TRACE_METADATA: Final = "trace.json"
TRUTH_PARQUET: Final = "truth.parquet"
SPEAKS_EVERY_S: Final = 0.5
NS3_REASON: Final = re.compile(r'.*(?:msg|cond)="(.+?)", ')  # ns-3's last words before it aborts
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


@dataclass(frozen=True)
class Job:
    """One run to execute: its hash, `run.json`, and the model's folder where one drives it.

    `record`: the decisions of another run, where they drive it.
    """

    identity: str
    run: Mapping[str, Any]
    artifact: Path | None = None
    record: Path | None = None


@contextlib.contextmanager
def sole_user(output: Path) -> Iterator[None]:
    """Hold an output folder for one command at a time.

    Raises:
        ValueError: another command is running with it.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{output} is in use by another `swiftqueue lab` command") from None
        yield


def folder_of(output: Path, identity: str) -> Path:
    """Return the folder of a run's result; it is there only if the result is whole."""
    return output / RUNS / identity


def is_complete(output: Path, identity: str) -> bool:
    """Return whether a run has its result."""
    return any((folder_of(output, identity) / name).is_file() for name in (SUMMARY, ROW))


def execute(program: Path, output: Path, job: Job) -> str | None:
    """Run one job in this process; return None, or the line that says why it failed."""
    target = folder_of(output, job.identity)
    work = Path(tempfile.mkdtemp(prefix=f".{job.identity}-", dir=target.parent))
    try:
        (work / "run.json").write_text(json.dumps(with_paths(job), indent=1) + "\n")
        with (work / "stdout").open("w") as stdout, (work / "stderr").open("w+") as stderr:
            done = subprocess.run(
                [str(program), f"--run={work / 'run.json'}", f"--out={work / 'result'}"],
                stdout=stdout,
                stderr=stderr,
                check=False,
                env=os.environ | _allocator(),
                preexec_fn=_die_with_parent,
            )
            stderr.seek(0)
            said = stderr.read().strip().splitlines()
        if done.returncode != 0:
            # Not where this run happened to lie: the line is kept in the results.
            return said[-1].replace(f"{work}/", "") if said else f"the program ended with {done.returncode}"
        (work / "result").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None


def execute_apart(program: Path, shared: Storage, job: Job) -> str | None:
    """Execute a job as `execute` does, on a node that shares only the storage."""
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as folder:
        here = Path(folder)
        (here / RUNS).mkdir()
        artifact = shared.at(f"{job.identity}/artifact").get(here / "artifact") if job.artifact else None
        record = shared.at(f"{job.identity}/record").get(here / "record") if job.record else None
        problem = execute(program, here, replace(job, artifact=artifact, record=record))
        if problem is None:
            shared.at(f"{job.identity}/result").put(folder_of(here, job.identity))
    return problem


def check(program: Path, run: Mapping[str, Any]) -> str | None:
    """See whether the program can set up a run's network; return None, or the line that says why not."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(_with_weights(run), file)
        file.flush()
        done = subprocess.run(
            [str(program), f"--run={file.name}", "--check"], capture_output=True, text=True, check=False
        )
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.strip().splitlines() if line]
    if done.returncode > 0 and said:
        return said[-1]
    # ns-3 ends the process where a disc cannot stand alone
    why = next((f": {found[1]}" for line in reversed(said) if (found := NS3_REASON.search(line))), "")
    return f"bottlenecks: ns-3 cannot set up a network with these discs{why}"


def with_paths(job: Job) -> dict[str, Any]:
    """Return the run as the program takes it: with the model's folder and the fine-tuning's command here.

    The hash of what the fine-tuning does and the order of the engine's sums are the run's identity alone.
    """
    run = _with_weights(job.run)
    if job.artifact is not None:
        run["control"]["artifact"] = str(job.artifact)
        run["control"].pop("sums", None)  # a published run may lack it
    if job.record is not None:
        run["control"]["by"]["decisions"] = str(job.record)
    if run["finetune"] is not None:
        del run["finetune"]["content"]
        run["finetune"]["command"] = [SWIFTQUEUE, "lab", "tune"]
    return dict(run)


def _with_weights(run: Mapping[str, Any]) -> Any:
    """Return a copy of a run that names the weight files of discs that learned by their paths here.

    The hash of what is in them is the run's identity alone.
    """
    copied = json.loads(json.dumps(run))
    for link in copied["bottlenecks"]:
        if link.get("disc", {}).pop("content", None) is not None:
            attributes = link["disc"]["attributes"]
            attributes[WEIGHTS] = str(PROJECT / attributes[WEIGHTS])
    return copied


def _allocator() -> dict[str, str]:
    """Return the environment that gives the program the jemalloc of Ray's wheel, where it has one.

    ns-3 allocates several objects a packet: 8 % less CPU than with glibc's. Results do not depend on it.
    """
    found = importlib.util.find_spec("ray")  # to import it takes seconds
    library = Path(found.origin).parent / "core" / "libjemalloc.so" if found and found.origin else None
    return {"LD_PRELOAD": str(library)} if library and library.is_file() else {}


def _die_with_parent() -> None:
    """Let a killed command take its simulations with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_all(
    program: Path, output: Path, jobs: list[Job], done: Callable[[Job, str | None], None], title: str
) -> None:
    """Execute jobs on Ray, as many at a time as it has cores, with progress; `done` hears of each.

    On a cluster every node sees program, output and artifacts under these paths; or, but for the program,
    there is SWIFTQUEUE_STORAGE.

    Raises:
        ConnectionError: RAY_ADDRESS names a cluster that does not answer, or the storage does not.
    """
    if not jobs:
        return
    from swiftqueue.common.local_ray import ray_cluster
    from swiftqueue.common.storage import storage

    (output / RUNS).mkdir(parents=True, exist_ok=True)
    for left in (output / RUNS).glob(".*-*"):  # a killed command left these: `sole_user` holds the folder
        shutil.rmtree(left, ignore_errors=True)
    with ray_cluster(workers=1), _bars(title, jobs, output) as advance:
        import ray

        shared = storage()
        place = shared.at("laboratory") if shared else None
        task = ray.remote(num_cpus=1, max_retries=1)(execute_apart if place else execute)
        running = {}
        for job in jobs:
            if place:
                for name, given in (("artifact", job.artifact), ("record", job.record)):
                    if given:
                        place.at(f"{job.identity}/{name}").put(given)
            running[task.remote(program, place or output, job)] = job
        while running:
            ready, _ = ray.wait(list(running), timeout=SPEAKS_EVERY_S)
            for reference in ready:
                job = running.pop(reference)
                try:
                    problem = ray.get(reference)
                except ray.exceptions.RayError as error:
                    problem = f"its worker died: {str(error).splitlines()[0]}"
                if place:
                    if problem is None:
                        place.at(f"{job.identity}/result").get(folder_of(output, job.identity))
                    place.at(job.identity).remove()
                done(job, problem)
            advance(list(running.values()))


def run_missing(program: Path, output: Path, jobs: list[Job], title: str) -> dict[str, str]:
    """Execute the jobs that have no result yet; return what went wrong, by the jobs' hashes."""
    problems: dict[str, str] = {}

    def done(job: Job, problem: str | None) -> None:
        if problem is not None:
            problems[job.identity] = problem

    run_all(program, output, [job for job in jobs if not is_complete(output, job.identity)], done, title)
    return problems


@contextlib.contextmanager
def _bars(title: str, jobs: list[Job], output: Path) -> Iterator[Callable[[list[Job]], None]]:
    """Show the simulated seconds of all jobs together: done ones, and what running ones have said."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    total_s = sum(job.run["seconds"] for job in jobs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} s simulated, {task.fields[runs]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        bar = bars.add_task(title, total=total_s, runs=f"0 of {len(jobs)} runs")

        def advance(left: list[Job]) -> None:
            going_s = sum(_simulated_s(path) for path in (output / RUNS).glob(".*-*/stdout"))
            finished_s = total_s - sum(job.run["seconds"] for job in left)
            runs = f"{len(jobs) - len(left)} of {len(jobs)} runs"
            bars.update(bar, completed=min(total_s, finished_s + going_s), runs=runs)

        yield advance


def _simulated_s(stdout: Path) -> float:
    """Return the simulated seconds that a running simulation has reached."""
    with contextlib.suppress(OSError), stdout.open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 200))
        for line in reversed(file.read().decode().splitlines()[1:]):
            word, _, seconds = line.partition(" ")
            if word == "progress":
                return float(seconds)
    return 0.0
