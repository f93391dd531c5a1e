"""What outlives a full disk: the rounds log, and who writes it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from models.json_lines import append
from pipelines.live.rounds_log import RoundRecord, read


def test_a_line_cut_short_costs_itself_alone(tmp_path: Path) -> None:
    log = tmp_path / "rounds.jsonl"
    assert read(log) == []
    append(log, asdict(RoundRecord(1, 0.0)))
    with log.open("a") as file:
        file.write('{"number": 2, "trigg')  # where the disk was full
    append(log, asdict(RoundRecord(3, 0.0)))
    append(log, asdict(RoundRecord(4, 0.0)))
    assert [line["number"] for line in read(log)] == [1, 3, 4]


def test_a_full_disk_costs_lines_and_no_program() -> None:
    with pytest.raises(OSError, match="No space left"):
        append(Path("/dev/full"), asdict(RoundRecord(1, 0.0)))
    program = "import sys; from models.say import say; say('a round'); sys.stderr.write('it goes on')"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr.startswith("it goes on")
