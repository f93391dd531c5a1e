"""Runs programs of `simulation/`: builds them where they are missing, runs one per core at a time.

They are started, never imported: they link ns-3 and are GPL-2.0-only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, TypeVar

from swiftqueue.pipelines.stage import StageError

PROJECT: Final = Path(__file__).resolve().parent.parent  # also where a study's symlinks point
Of = TypeVar("Of")
Made = TypeVar("Made")


def build_simulator(project: Path = PROJECT, program: str = "lab") -> Path:
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
        make = ["make", "--no-print-directory", "-C", str(project / "simulation"), f"-j{cores()}"]
        made = subprocess.run(
            [*make, f"PYTHON={sys.executable}", program],
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    if made.returncode != 0:
        lines = made.stderr.strip().splitlines() or [f"make ended with {made.returncode}"]
        if len(lines) > 2:  # a compiler's own report
            print(made.stderr, file=sys.stderr)
        raise StageError(f"simulation/ could not be built: {lines[0]}")
    return build / "simulation" / program


class Runs:
    """Runs of one program."""

    def __init__(self, program: Path) -> None:
        """Keep the path that `build_simulator` returned."""
        self._program = program
        self._running: list[subprocess.Popen[str]] = []

    def run(
        self, options: Sequence[str], what: str, hear: Callable[[str], None] = lambda _line: None
    ) -> None:
        """Run the program once, to its end.

        Args:
            options: words of the command line.
            what: name of the run in an error.
            hear: called with each line that the program prints.

        Raises:
            StageError: the program failed; the message has its first line of error.
        """
        with tempfile.TemporaryFile("w+") as errors:
            command = [str(self._program), *options]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            self._running.append(process)
            assert process.stdout is not None  # noqa: S101 - it is a pipe, asked for above
            for line in process.stdout:
                hear(line)
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read().strip().splitlines() or [f"ended with {process.returncode}"]
                raise StageError(f"{self._program.name}, {what}: {said[0]}")

    def each(self, make: Callable[[Of], Made], of: Iterable[Of]) -> list[Made]:
        """Call `make` for each item, as many at a time as there are cores; return the results in order.

        Raises:
            Exception: the first failure; the others' programs are ended.
        """
        with ThreadPoolExecutor(cores()) as pool:
            futures = [pool.submit(make, one) for one in of]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
                if failed := [f for f in futures if f.done() and f.exception()]:
                    failed[0].result()
            except BaseException:
                for future in futures:
                    future.cancel()
                for process in self._running:
                    process.kill()
                raise
        return [future.result() for future in futures]


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))
