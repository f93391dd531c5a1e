"""`python -m swiftqueue.infra.local.supervisor WHILE ALIVE COMMAND...`: starts the keeper, again and again.

COMMAND is the keeper's. WHILE is the file of the options of `up --live`: once it is gone, nothing is kept any
more. ALIVE is the keeper's heartbeat: a keeper that is still for STILL_S is ended. Where systemd started the
loop, it does all this itself. A keeper whose supervisor was killed becomes one (keeper.py), so either may be
lost. This module imports no other of ours: it stays small, and little in it could fail.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Final

STILL_S: Final = 90.0  # a look takes milliseconds, or seconds on a machine that swaps
LOOK_S: Final = 0.5
CALM_S: Final = 10.0  # a keeper that ran so long is not one that ends at its start
LONGEST_PAUSE_S: Final = 30.0
END_S: Final = 12.0  # a keeper needs time to end the starts under way


def supervise(wanted: str, alive: str, command: list[str]) -> None:
    """Keep the keeper running until SIGTERM, or until the file `wanted` is gone."""
    child: subprocess.Popen[bytes] | None = None

    def end(number: int, frame: FrameType | None) -> None:
        if child is not None:
            _end(child)
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    starts, pause_s = 0, LOOK_S
    while os.path.exists(wanted):
        begun_s = time.monotonic()
        # Told, not asked of the system: the keeper may come up when this process is gone.
        child = subprocess.Popen([*command, f"--restarts={starts}", f"--supervisor={os.getpid()}"])
        why = _wait(child, alive)
        starts += 1
        if time.monotonic() - begun_s > CALM_S:
            pause_s = LOOK_S
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} the keeper {why}: starting it again", flush=True)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _wait(child: subprocess.Popen[bytes], alive: str) -> str:
    """Wait until the keeper has ended, or end it where it is still; return what happened, in words."""
    seen, since_s = 0, time.monotonic()
    while child.poll() is None:
        time.sleep(LOOK_S)
        try:
            beat = os.stat(alive).st_mtime_ns
        except OSError:
            beat = seen
        if beat != seen:
            seen, since_s = beat, time.monotonic()
        if time.monotonic() - since_s > STILL_S:
            child.kill()
            child.wait()
            return f"gave no sign of life for {STILL_S:g} s"
    code = child.returncode
    return f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(END_S)
    except subprocess.TimeoutExpired:
        child.kill()


if __name__ == "__main__":
    supervise(sys.argv[1], sys.argv[2], sys.argv[3:])
