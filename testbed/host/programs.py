"""The test bed's programs (built from `testbed/` by make), and how they are run."""

from __future__ import annotations

import functools
import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final

from common.native import build_room

PROJECT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = PROJECT / "build" / "testbed"
ROUTER: Final = BUILD / "swiftqueue-router"
MARKER: Final = BUILD / "swiftqueue-mark"
MARK_OBJECT: Final = BUILD / "mark.bpf.o"
HOLDER: Final = BUILD / "swiftqueue-control"
DCTCP_OBJECT: Final = BUILD / "dctcp.bpf.o"
OF_SCENARIOS: Final = (ROUTER, MARKER, MARK_OBJECT, HOLDER, DCTCP_OBJECT)
DCTCP: Final = "sq_dctcp"
CONTROLS: Final = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


def build_hash(*files: Path) -> str:
    """Return a hash of the programs of a run: a run of other programs is not resumed."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def why_not_built(*files: Path) -> str | None:
    """Build the test bed if it is missing; return a line if one of these files still is, else None."""
    if not ROUTER.is_file() or not all(file.is_file() for file in files):
        _build_once()
    for file in files:
        if not file.is_file():
            return f"{file.name} is not built; `make -C testbed` builds it or says what is missing"
    return None


@functools.cache
def _build_once() -> None:
    """Build what this machine can build; make says once what the rest needs."""
    build_room(PROJECT / "testbed")


def wait_for_name(control: str, seconds: float = 60.0) -> None:
    """Wait while another bed of this machine, or its last flows, has a congestion control of this name.

    If the name is still taken afterwards, the kernel says so.
    """
    until = time.monotonic() + seconds
    while control in CONTROLS.read_text().split() and time.monotonic() < until:
        time.sleep(0.1)


def run_marker(*arguments: object) -> dict[str, Any]:
    """Run the marker's loader; return the object that it prints.

    Raises:
        RuntimeError: the loader is not built, or it failed; the message is its own line.

    """
    if reason := why_not_built(MARKER, MARK_OBJECT):
        raise RuntimeError(reason)
    ran = subprocess.run([str(MARKER), *map(str, arguments)], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr.strip() or f"{MARKER.name} ended with {ran.returncode}: {ran.stdout}")
    said: dict[str, Any] = json.loads(ran.stdout)
    return said
