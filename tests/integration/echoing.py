"""`swiftqueue udp echo` as a program, for tests of senders."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from swiftqueue.serving.agent.marking.udp_command import BINARY


class Echo:
    """`swiftqueue udp echo`, and what it logged."""

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.log = folder / f"echo-{time.monotonic_ns()}.csv"
        self.process = subprocess.Popen(
            [str(BINARY), "echo", "--host", host, "--port", "0", "--log", str(self.log)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["port"])

    def end(self) -> dict[int, int]:
        """Codepoint that each packet arrived with, by its number."""
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate()
        self.summary = json.loads(out)
        rows = list(csv.DictReader(self.log.open()))
        self.dscps = {int(row["packet"]): int(row["dscp"]) for row in rows}
        return {int(row["packet"]): int(row["codepoint"]) for row in rows}


@contextmanager
def echoing(folder: Path, host: str = "127.0.0.1") -> Iterator[Echo]:
    echo = Echo(folder, host)
    try:
        yield echo
    finally:
        echo.process.kill()
        echo.process.wait()
