"""When a process began, by a count that no clock moves."""

from __future__ import annotations

from pathlib import Path


def state_and_start(pid: int) -> tuple[str, int]:
    """State of a process (`Z`: a zombie), and when it began, in ticks since boot.

    Not psutil's `create_time`: that is a time of the wall clock, reckoned from where the clock stands when it
    is asked. After the clock was set each process would have another.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"there is no process {pid}") from error
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[19])  # fields 3, state, and 22, starttime: proc_pid_stat(5)
