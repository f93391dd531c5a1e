"""The parts of the live loop on this machine: their names, and which of them ought to run."""

from __future__ import annotations

import shutil
import signal
import sys
from typing import Final

from swiftqueue.common.settings import settings
from swiftqueue.serving.ingest import server as ingest
from swiftqueue.serving.triton import endpoint

TRITON: Final = "triton"
MLFLOW: Final = "mlflow"
PROMETHEUS: Final = "prometheus"
PAGE: Final = "page"
OPTIONAL: Final = (PROMETHEUS, PAGE)  # the loop runs without them
KEEPER: Final = "keeper"  # restarts lost parts; it is stopped first
# Everything that may run on this machine, in the order of its start; the names are those of `var/NAME/`.
PARTS: Final = (MLFLOW, TRITON, "ray", "ingest", "forwarder", "agent", "scheduler", PROMETHEUS, PAGE, KEEPER)


def wanted() -> list[str]:
    """Return the names of the parts of a whole loop, in the order of their start."""
    elsewhere = {
        "mlflow": settings().mlflow_tracking_uri,
        "triton": endpoint.elsewhere(),
        "ray": settings().ray_address,
        "ingest": ingest.elsewhere(),
        PROMETHEUS: shutil.which("prometheus") is None,
    }
    return [name for name in PARTS if not elsewhere.get(name)]


def end_when_told() -> None:
    """Make SIGTERM and SIGINT end this part's process by an exception, with exit code 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
