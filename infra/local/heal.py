"""End the remains of a part of the live loop and start it again: `swiftqueue.infra.local.heal PART`.

The keeper runs this as a process for each part, so a start that hangs or takes minutes delays no other part.
The memory that a start needs (PyTorch and MLflow for serving the champion, 700 MB) ends with the process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from typing import Annotated, Final

import typer

from swiftqueue.common import program
from swiftqueue.common.say import say
from swiftqueue.infra.local import live_options, loop, processes, servers, under_way
from swiftqueue.infra.local.parts import PARTS, TRITON

PROGRAM: Final = "heal"
LONGEST_S: Final = 600.0  # longer than any part's own time-out
END_S: Final = 10.0


class Healing:
    """A start of a part that is under way."""

    def __init__(self, part: str, *, idle: bool) -> None:
        """Start a part again. An `idle` part keeps running and only gets its lost work back."""
        self._begin_s = time.monotonic()
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - till its end
        command = [sys.executable, "-m", "swiftqueue.infra.local.heal", part, *(["--idle"] if idle else [])]
        # A keeper that is killed takes the start along.
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", *command], stdout=self._said, stderr=self._said
        )

    def outcome(self) -> str | None:
        """Return why the start failed, in one line; empty if the part is up; None while it is under way."""
        code = self._process.poll()
        if code is None and time.monotonic() - self._begin_s > LONGEST_S:
            self.end()
            return f"its start took over {LONGEST_S:g} s"
        if code is None:
            return None
        self._said.seek(0)
        lines = [line for line in self._said.read().splitlines() if line.strip()]
        self._said.close()
        for line in lines if code == 0 else ():
            if line.startswith(f"{PROGRAM}: "):
                say(line.removeprefix(f"{PROGRAM}: "))
        return "" if code == 0 else (lines or [f"ended with code {code}"])[-1].removeprefix(f"{PROGRAM}: ")

    def end(self) -> None:
        """End the start and everything that it has begun."""
        self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


def main(
    part: str, idle: Annotated[bool, typer.Option(help="the part runs and has lost only its work")] = False
) -> None:
    """Start a part of the live loop again."""
    if part not in PARTS:
        raise ValueError(f"{part!r} is no part of the loop; take one of {', '.join(PARTS)}")
    live = live_options.read()
    if live is None:
        raise ValueError("there is no loop to keep: swiftqueue up --live")
    with under_way.leaving_at_sigterm():
        if not idle:
            processes.stop(part)  # with what it left
            if part == TRITON:
                if servers.start_triton_again():
                    return
                why = f"{processes.log_path(TRITON)} says why"
                print(f"{PROGRAM}: {TRITON} does not serve what it served last ({why})")
        loop.start_part(part, live)


if __name__ == "__main__":
    program.run(PROGRAM, main)
