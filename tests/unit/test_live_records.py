"""What outlives a full disk: the rounds log, and who writes it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from swiftqueue.common import json_lines
from swiftqueue.common.json_lines import append
from swiftqueue.pipelines.live.rounds_log import RoundRecord, read


def test_a_line_cut_short_costs_itself_alone(tmp_path: Path) -> None:
    log = tmp_path / "rounds.jsonl"
    assert read(log) == []
    append(log, asdict(RoundRecord(1, 0.0)))
    with log.open("a") as file:
        file.write('{"number": 2, "trigg')  # where the disk was full
    append(log, asdict(RoundRecord(3, 0.0)))
    append(log, asdict(RoundRecord(4, 0.0)))
    assert [line["number"] for line in read(log)] == [1, 3, 4]


def test_a_log_has_a_bounded_size_and_is_read_across_the_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "rounds.jsonl"
    append(log, asdict(RoundRecord(0, 0.0)))
    line = log.stat().st_size
    monkeypatch.setattr(json_lines, "LOG_BYTES", 10 * line)
    numbers = range(100, 135)  # of one length
    for number in numbers:
        append(log, asdict(RoundRecord(number, 0.0)))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 22 * line
        assert read(log)[-1]["number"] == number
    kept = [entry["number"] for entry in read(log)]
    assert kept == list(numbers)[-len(kept) :]
    assert len(kept) >= 10, "the half before is read, too"


def test_a_full_disk_costs_lines_and_no_program() -> None:
    with pytest.raises(OSError, match="No space left"):
        append(Path("/dev/full"), asdict(RoundRecord(1, 0.0)))
    program = (
        "import sys; from swiftqueue.common.say import say; say('a round'); sys.stderr.write('it goes on')"
    )
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr.startswith("it goes on")
