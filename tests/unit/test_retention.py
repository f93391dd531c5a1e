"""Which versions, minutes and lines stay, so that a loop without end fills no disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from swiftqueue.infra.local import processes, tidy
from swiftqueue.infra.local.tidy import Housekeeping
from swiftqueue.models.registry.decision import REFERENCE_TAG
from swiftqueue.models.registry.registry import CHALLENGER, CHAMPION
from swiftqueue.models.registry.retention import spare


def chain(count: int, **origin: str) -> dict[int, dict[str, str]]:
    """Versions that each replaced the one before, with the same encoder."""
    return {
        n: {"replaced_version": str(n - 1), "parent_version": str(n - 1), **origin}
        for n in range(1, count + 1)
    }


def test_the_last_versions_the_champions_ancestors_and_those_with_an_alias_stay() -> None:
    versions = chain(100, **{"dvc.pretrain": "a"})
    assert spare(versions, {CHAMPION: 100}, 10) == list(range(2, 90))  # the first brought the encoder
    # A champion of before stays with as many generations, however many challengers came since.
    assert spare(versions, {CHAMPION: 50, CHALLENGER: 99, "mine": 7}, 10) == [
        n for n in range(2, 91) if n != 7 and not 40 <= n <= 50
    ]


def test_the_version_with_which_a_retrained_encoder_came_stays() -> None:
    versions = chain(30, **{"dvc.pretrain": "a"}) | {
        n: {**chain(60)[n], "retrain.from_ns": "5"} for n in range(31, 61)
    }
    gone = spare(versions, {CHAMPION: 60}, 5)
    assert 31 not in gone
    assert {1, 30, 32, 54} <= set(gone)


def test_the_version_that_the_gate_measures_by_stays() -> None:
    """Wherever its tags say that it came from."""
    versions = chain(40, **{"dvc.pretrain": "a"})
    versions[40] = {**versions[40], REFERENCE_TAG: "7"}
    assert 7 not in spare(versions, {CHAMPION: 40}, 5)
    assert 8 in spare(versions, {CHAMPION: 40}, 5)


def test_a_circle_or_a_gap_in_the_lineage_ends_it() -> None:
    versions = {
        1: {"replaced_version": "2"},
        2: {"replaced_version": "1"},
        3: {},
        4: {"replaced_version": "none"},
    }
    assert spare(versions, {CHAMPION: 2}, 2) == []
    assert spare({}, {}, 2) == []
    assert spare(versions, {CHAMPION: 9}, 2) == [1, 2]


def test_the_log_of_a_running_part_turns_over_and_its_program_writes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setattr(tidy, "LOG_BYTES", 100)
    program = "import sys\nfor line in sys.stdin: print(line.strip(), flush=True)"
    log = processes.log_path("talker")
    log.parent.mkdir()
    with (
        log.open("ab") as out,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=out, text=True
        ) as talker,
    ):
        assert talker.stdin is not None
        for line in ("a" * 99, "b"):
            talker.stdin.write(f"{line}\n")
        talker.stdin.flush()
        while log.stat().st_size < 102:
            time.sleep(0.01)
        Housekeeping().look()
        assert log.read_text() == ""
        talker.stdin.write("c\n")
    assert log.read_text() == "c\n"
    assert log.with_name("server.log.1").read_text() == "a" * 99 + "\nb\n"
    Housekeeping().look()  # short now
    assert log.read_text() == "c\n"


def test_the_scratch_folder_looks_used_to_who_cleans_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setattr(tidy, "scratch", lambda: tmp_path / "scratch")
    old = tmp_path / "scratch/ray/session"
    old.mkdir(parents=True)
    (old / "socket").touch()
    for path in (tmp_path / "scratch").rglob("*"):
        os.utime(path, (1e9, 1e9))
    one = Housekeeping()
    one.look()
    assert old.stat().st_mtime == 1e9  # it is not time yet
    monkeypatch.setattr(tidy, "TOUCH_S", 0.0)
    one.look()
    assert min(path.stat().st_mtime for path in (tmp_path / "scratch").rglob("*")) > time.time() - 3600


@pytest.mark.slow
def test_ray_serve_writes_no_line_for_each_request() -> None:
    from swiftqueue.serving.ingest.app import application
    from swiftqueue.serving.ingest.bounds import Limits

    ingest = application(Path("store"), Path("log"), keep={}, limits=Limits(senders=1, bytes_s=1.0))
    assert ingest._bound_deployment.logging_config["enable_access_log"] is False
