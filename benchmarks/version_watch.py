"""Ask a Triton on a fixed schedule, in a process of its own, and say when the answering version changes.

    python -m swiftqueue.benchmarks.version_watch 127.0.0.1:8001

One JSON object a line for each change: the monotonic clock, which all processes of a machine share, and the
version (null: no answer). At SIGTERM it ends with a line that counts its questions and their answers.
"""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Final, Self

import numpy as np

from swiftqueue.serving.triton.endpoint import Triton, TritonError

EVERY_S: Final = 0.02


def watch(address: str) -> None:
    """Ask until SIGTERM."""
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    asked = answered = 0
    seen: int | None = -1
    with Triton(address) as triton:
        tokens, features = triton.config().input[0].dims
        window = np.zeros((1, tokens, features), np.float32)
        due_s = time.monotonic()
        while not ended.wait(max(0.0, due_s - time.monotonic())):
            asked += 1
            try:
                version: int | None = triton.infer(window).version
                answered += 1
            except TritonError:
                version = None
            if version != seen:
                seen = version
                print(json.dumps({"at_s": time.monotonic(), "version": version}), flush=True)
            due_s += EVERY_S
    print(json.dumps({"asked": asked, "answered": answered}), flush=True)


class VersionWatch:
    """A client that runs as a child process."""

    def __init__(self, address: str) -> None:
        command = [sys.executable, "-m", "swiftqueue.benchmarks.version_watch", address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[dict[str, float]] = queue.Queue()
        self.asked = self.answered = 0
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(30)

    def first_answer_s(self, version: int, timeout_s: float) -> float:
        """Return the monotonic time of the first answer by a version.

        Raises:
            RuntimeError: it did not answer within the time.
        """
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left_s)
            except queue.Empty:
                break
            if line["version"] == version:
                return float(line["at_s"])
        raise RuntimeError(f"the asking client saw no answer by version {version} within {timeout_s:g} s")

    def close(self) -> float:
        """End the client; return the share of its questions that were answered."""
        self._process.terminate()
        self._process.wait(30)
        last: dict[str, float] = {}
        while not self._lines.empty():
            last = self._lines.get()
        return last["answered"] / last["asked"]

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.put(json.loads(line))


if __name__ == "__main__":
    watch(sys.argv[1])
