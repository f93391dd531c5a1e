"""The study's C++ programs, which make builds when they are first asked for."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import Final

from common.native import build_room
from testbed.host.checks import BTF, capability

STUDY: Final = Path(__file__).resolve().parent
AGENT: Final = STUDY / "_build" / "swiftqueue-rate-agent"
SAMPLER: Final = STUDY / "_build" / "swiftqueue-rate"
SAMPLER_OBJECT: Final = STUDY / "_build" / "rate.bpf.o"
OPERATIONS: Final = b"bpf_struct_ops_tcp_congestion_ops"


def why_no_agent() -> str | None:
    """Return one line if the agent is not here and cannot be built, None if it is here."""
    return _why_not_built("agent", AGENT)


def why_no_loader() -> str | None:
    """Return one line if the congestion control cannot be built here, None if it is here."""
    return _why_not_built("kernel", SAMPLER, SAMPLER_OBJECT)


@functools.cache
def why_no_sampler() -> str | None:
    """Return one line if this kernel does not take BBR's sampler, None if it does."""
    if reason := capability("btf").why_not or why_no_loader():
        return reason
    if OPERATIONS not in BTF.read_bytes():
        return f"struct_ops: the kernel's BTF has no {OPERATIONS.decode()}"
    tried = subprocess.run(
        [str(SAMPLER), "check", str(SAMPLER_OBJECT)], capture_output=True, text=True, check=False
    )
    said = (tried.stderr.strip() or tried.stdout.strip()).splitlines() or [f"exit code {tried.returncode}"]
    return None if tried.returncode == 0 else f"struct_ops: {said[-1]}"


def _why_not_built(target: str, *files: Path) -> str | None:
    if not all(file.is_file() for file in files):
        build_room(STUDY, target)
    missing = [file for file in files if not file.is_file()]
    if missing:
        made_by = f"`make -C studies/rate {target}`"
        return f"{missing[0].name} is not built; {made_by} builds it or says what is missing"
    return None
