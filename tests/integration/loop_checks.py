"""What a whole live loop shows to a real Prometheus, and what it must not leave among temporary files."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from pathlib import Path

from infra.monitoring.dashboard import ROWS
from infra.monitoring.picture import series_of
from infra.monitoring.query import ask

SCRAPED = {"triton", "agent", "ingest", "scheduler", "keeper"}
FILLED = ("Telemetry", "Rounds")  # rows of the dashboard
FILLED_S = 90.0  # targets are read every 10 s, and a rate needs two scrapes
# What our parts and the libraries they use make there: other programs' files are none of the loop's business.
TEMPORARY = ("python_env_*", "swiftqueue-*", "ray*", "pymp-*", "tmp*")


def check_prometheus(server: str) -> None:
    """Every part of the loop is scraped, and each panel about telemetry and rounds shows something.

    After a round; waits until it is so.
    """
    deadline = time.monotonic() + FILLED_S
    while missing := _not_scraped(server) + _empty_panels(server):
        assert time.monotonic() < deadline, missing
        time.sleep(1)


def _not_scraped(server: str) -> list[str]:
    up = {
        one["metric"]["job"] for one in ask(server, "query", query="up")["result"] if one["value"][1] == "1"
    }
    return sorted(SCRAPED - up)


def _empty_panels(server: str) -> list[str]:
    end = time.time()
    return [
        panel.title
        for row in FILLED
        for panel in ROWS[row]
        if not any(series_of(server, query, end - 30, end) for query in panel.queries)
    ]


def temporary_names() -> set[str]:
    """What lies in the folder of temporary files and may be of a loop."""
    folder = Path(tempfile.gettempdir())
    return {path.name for pattern in TEMPORARY for path in folder.glob(pattern)}


def left_behind(before: set[str]) -> set[str]:
    """What is new there and no process that runs has open, works in or was started with."""
    used = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            used.append((process / "cmdline").read_text(errors="replace"))
            for link in (process / "cwd", *(process / "fd").iterdir()):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    used.append(os.readlink(link))
    words = "\n".join(used)
    return {name for name in temporary_names() - before if name not in words}
