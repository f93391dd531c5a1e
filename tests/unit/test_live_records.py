"""What outlives a full disk and a killed worker: the rounds log and the work of the Ray Train job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.live.record import RoundRecord, append, read
from models.warm_job import Mailbox, Outcome, Work


def test_a_line_cut_short_costs_itself_alone(tmp_path: Path) -> None:
    log = tmp_path / "rounds.jsonl"
    assert read(log) == []
    append(RoundRecord(1, 0.0), log)
    with log.open("a") as file:
        file.write('{"number": 2, "trigg')  # where the disk was full
    append(RoundRecord(3, 0.0), log)
    append(RoundRecord(4, 0.0), log)
    assert [line["number"] for line in read(log)] == [1, 3, 4]


def test_a_full_disk_costs_lines_and_no_program() -> None:
    with pytest.raises(OSError, match="No space left"):
        append(RoundRecord(1, 0.0), Path("/dev/full"))
    program = "import sys; from infra.live.log import say; say('a round'); sys.stderr.write('it goes on')"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.stderr.startswith("it goes on")


def test_what_a_dead_worker_had_begun_is_given_again() -> None:
    box, work = Mailbox(1), Work(7, b"a minute")
    assert box.take(0, "first") == (False, None)
    box.put(work)
    assert box.take(0, "first") == (True, work)
    assert box.take(0, "first") == (False, None)
    assert box.take(0, "second") == (True, work)
    box.answer(7, Outcome(b"1", is_error=False))
    assert box.outcome(7) == Outcome(b"1", is_error=False, deaths=1)
    assert box.take(0, "third") == (False, None)


def test_what_was_given_up_is_not_begun_again() -> None:
    box = Mailbox(1)
    box.put(Work(1, b"late"))
    box.take(0, "first")
    box.drop()
    box.put(Work(2, b"next"))
    assert box.take(0, "second") == (True, Work(2, b"next"))
    box.answer(2, Outcome(b"", is_error=True))
    assert box.outcome(2) == Outcome(b"", is_error=True)
