"""Tell when a process began, in ticks since boot, which no change of the clock affects."""

from __future__ import annotations

from pathlib import Path


def state_and_start(pid: int) -> tuple[str, int]:
    """Return the state of a process (`Z`: a zombie), and when it began, in ticks since boot.

    psutil's `create_time` is a time of the wall clock, so it changes when the clock is set.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])  # fields 3, state, and 22, starttime: proc_pid_stat(5)
