"""Stage `simulate`: make the default traces with the ns-3 program of `simulation/`, one for each seed.

The program is built and started here, never imported: it links ns-3 and is GPL-2.0-only.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from pipelines.stage import StageError, atomic_dir, load_params, stage_main

PROJECT: Final = Path(__file__).resolve().parent.parent  # also where a study's symlinks point
# parameter: (type, smallest, largest); each is the program's option of the same name
RANGES: Final[dict[str, tuple[type, float, float]]] = {
    "duration_s": (float, 1, 86_400),
    "bottleneck_mbps": (float, 1, 1_000),  # the access links have 1 Gbit/s
    "rtt_ms": (float, 1, 1_000),
    "receivers": (int, 1, 100),
    "dctcp_flows": (int, 0, 1_000),
    "cubic_flows": (int, 0, 1_000),
    "cross_flows": (int, 0, 100),  # a node each
    "flow_mbps": (float, 0.01, 1_000),
    "explore_share": (float, 0, 1),
    "l_step_ms": (float, 0, 1_000),
}
LARGEST_SEED: Final = 2**32 - 1


def check_params(params: dict[str, Any]) -> None:
    """Refuse what the program could not simulate.

    Raises:
        StageError: a value has the wrong type or is out of range; the message names it and the range.

    """
    seeds = params["seeds"]
    if not isinstance(seeds, list) or not seeds or not all(_is_number(s, int) for s in seeds):
        raise StageError(f"simulate.seeds is {seeds!r}; give a list of whole numbers, a trace each")
    if bad := [s for s in seeds if not 1 <= s <= LARGEST_SEED]:
        raise StageError(f"simulate.seeds holds {bad[0]}; a seed is between 1 and {LARGEST_SEED}")
    if len(set(seeds)) < len(seeds):
        raise StageError(f"simulate.seeds is {seeds}; a seed stands there twice, which makes the same trace")
    for name, (kind, low, high) in RANGES.items():
        value = params[name]
        if not _is_number(value, kind) or not low <= value <= high:
            what = "a whole number" if kind is int else "a number"
            raise StageError(f"simulate.{name} is {value!r}; give {what} between {low:g} and {high:g}")
    if params["dctcp_flows"] + params["cubic_flows"] == 0:
        raise StageError("simulate.dctcp_flows and simulate.cubic_flows are both 0: nothing to capture")


def _is_number(value: object, kind: type) -> bool:
    kinds = (int,) if kind is int else (int, float)
    return isinstance(value, kinds) and not isinstance(value, bool)


def build_simulator(project: Path = PROJECT, program: str = "dumbbell") -> Path:
    """Build a program of `simulation/` where it is missing or outdated, and return its path.

    Raises:
        StageError: make, a C++ compiler or the ns-3 wheel is missing, or a source does not compile.

    """
    if shutil.which("make") is None:
        raise StageError("make is needed and was not found; on Debian: apt-get install make")
    build = project / "build"
    build.mkdir(exist_ok=True)
    # Two stages (the project's and a study's) may build at the same time.
    with (build / ".simulation.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make = ["make", "--no-print-directory", "-C", str(project / "simulation"), f"-j{_cores()}"]
        made = subprocess.run(
            [*make, f"PYTHON={sys.executable}", program],
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    if made.returncode != 0:
        lines = made.stderr.strip().splitlines() or [f"make ended with {made.returncode}"]
        if len(lines) > 2:  # a compiler's own account
            print(made.stderr, file=sys.stderr)
        raise StageError(f"simulation/ could not be built: {lines[0]}")
    return build / "simulation" / program


def simulate(
    params: dict[str, Any],
    output_dir: Path,
    program: Path,
    report: Callable[[str, float], None] = lambda _name, _seconds: None,
) -> list[Path]:
    """Simulate each seed, as many at a time as there are cores, and return the captures' paths.

    Args:
        params: section `simulate`, checked.
        output_dir: existing folder for `dumbbell-SEED.pcap`.
        program: what `build_simulator` returned.
        report: called with a trace's name and its simulated seconds as they pass.

    Raises:
        StageError: the program ended with an error; the others are stopped.

    """
    options = [f"--{name.replace('_', '-')}={params[name]}" for name in RANGES]
    running: list[subprocess.Popen[str]] = []

    def run(seed: int) -> Path:
        path = output_dir / f"dumbbell-{seed}.pcap"
        command = [str(program), f"--output={path}", f"--seed={seed}", *options]
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            running.append(process)
            assert process.stdout is not None  # noqa: S101 - it is a pipe, asked for above
            for line in process.stdout:
                if line.startswith("progress "):
                    report(path.stem, float(line.split()[1]))
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read().strip().splitlines() or [f"ended with {process.returncode}"]
                raise StageError(f"{program.name}, seed {seed}: {said[0]}")
        report(path.stem, float(params["duration_s"]))
        return path

    with ThreadPoolExecutor(_cores()) as pool:
        futures = [pool.submit(run, seed) for seed in params["seeds"]]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            if failed := [f for f in futures if f.done() and f.exception()]:
                failed[0].result()
        except BaseException:
            for future in futures:
                future.cancel()
            for process in running:
                process.kill()
            raise
    return [future.result() for future in futures]


def _cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def _progress_bars(names: list[str], duration_s: float) -> Iterator[Callable[[str, float], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s simulated"))
    with Progress(*columns, TimeElapsedColumn()) as progress:
        tasks = {name: progress.add_task(name, total=duration_s) for name in names}
        yield lambda name, seconds: progress.update(tasks[name], completed=seconds)


def main() -> None:
    """Read `simulate` of the params file and write the captures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True, help="parameter file")
    parser.add_argument("--output", type=Path, required=True, help="folder for the captures")
    arguments = parser.parse_args()
    with stage_main("simulate"):
        params = load_params(arguments.params, "simulate", {"seeds", *RANGES})
        check_params(params)
        program = build_simulator()
        names = [f"dumbbell-{seed}" for seed in params["seeds"]]
        with atomic_dir(arguments.output) as output, _progress_bars(names, params["duration_s"]) as report:
            simulate(params, output, program, report)


if __name__ == "__main__":
    main()
