"""The log that the ingest's processes share: lines are whole, the size is bounded."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

from swiftqueue.serving.ingest import log

WRITER = """
import logging, sys
from pathlib import Path
from swiftqueue.serving.ingest import log
log.LOG_BYTES = 10_000
log.keep_log(sys.argv[1], "part")
for number in range(400):
    logging.getLogger(log.SERVE).error("process %s says %d", sys.argv[2], number)
logging.getLogger(log.SERVE).info("what is no error is not told")
"""


def test_lines_of_several_processes_are_whole_and_bounded(tmp_path: Path) -> None:
    path = tmp_path / "ingest" / log.LOG_NAME
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, str(n)]) for n in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    older = path.with_name(f"{log.LOG_NAME}.1")
    assert set(path.parent.iterdir()) <= {path, older}
    assert older.stat().st_size < 11_000
    lines = older.read_text().splitlines() + (path.read_text().splitlines() if path.exists() else [])
    told = r"ERROR process \d says \d+|INFO ingest: part begins"
    for line in lines:
        assert re.fullmatch(rf"[\d-]+ [\d:,]+ pid \d+ ({told})", line), line


def test_a_part_says_once_that_it_begins(tmp_path: Path) -> None:
    path = tmp_path / log.LOG_NAME
    subprocess.run([sys.executable, "-c", WRITER.replace("400", "1"), path, "0"], check=True)
    assert [line.split(" ", 4)[4] for line in path.read_text().splitlines()] == [
        "INFO ingest: part begins",
        "ERROR process 0 says 0",
    ]


def test_a_full_disk_costs_lines_and_no_batch(capsys: pytest.CaptureFixture[str]) -> None:
    handler = log.SharedLog(Path("/dev/full"))
    handler.handle(logging.LogRecord("x", logging.ERROR, "here", 1, "a line", None, None))
    assert "No space left" in capsys.readouterr().err
