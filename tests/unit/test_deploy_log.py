"""The deploy log beside a full disk, and what stops a deployment before it begins: a lock, a damaged hold."""

from __future__ import annotations

import fcntl
import resource
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from swiftqueue.common.lock import held
from swiftqueue.models.registry.registry import REPLACED_TAG
from swiftqueue.serving.deploy import deployment, hold
from swiftqueue.serving.deploy import log as deploy_log


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    return tmp_path


def test_a_full_disk_costs_its_entry_alone() -> None:
    assert list(deploy_log.newest_first()) == []
    deploy_log.append("deploy", 1, "served")
    size = deploy_log.log_file().stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))  # ten bytes are left
    try:
        with pytest.raises(OSError, match=r"No space left.*deploy\.log\.jsonl"):
            deploy_log.append("deploy", 2, "served")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert deploy_log.log_file().stat().st_size == size + 10
    deploy_log.append("deploy", 3, "served")
    deploy_log.append("deploy", 4, "failed")
    assert [entry["version"] for entry in deploy_log.newest_first()] == [4, 3, 1]


def test_the_last_entry_counts_whatever_the_clock_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deploy_log.last_served() is None
    for version, now_s in ((1, 900.0), (2, 2000.0), (1, 1000.0)):
        monkeypatch.setattr(deploy_log.time, "time", lambda now_s=now_s: now_s)
        deploy_log.append("deploy", version, "served")
    deploy_log.append("deploy", 3, "failed")
    assert (deploy_log.last_served() or {})["version"] == 1
    # entries of before registrations were noted: now, at 1000 s, since each was last deployed
    assert [deploy_log.age_s(version) for version in (1, 2, 3)] == [0.0, -1000.0, None]


def test_a_version_is_as_old_as_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_log.time, "time", lambda: 1000.0)
    deploy_log.append("deploy", 1, "served", registered=900.0)
    deploy_log.append("deploy", 2, "served", registered=980.0)
    deploy_log.append("deploy", 3, "failed", registered=990.0)
    deploy_log.append("rollback", 1, "served", registered=900.0)
    assert [deploy_log.age_s(version) for version in (1, 2, 3)] == [100.0, 20.0, None]


def test_a_deployment_that_does_not_end_is_named(state: Path) -> None:
    lock = state / "deploy.lock"
    program = (
        "import sys, pathlib; from swiftqueue.common.lock import held\n"
        "with held(pathlib.Path(sys.argv[1]), '', 9): print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with (
            pytest.raises(OSError, match=rf"{lock}: another deployment \(pid {holder.pid}\) has held"),
            held(lock, "another deployment", 0.3),
        ):
            pass
        holder.stdin.close()  # type: ignore[union-attr]
        with held(lock, "another deployment", 60):
            pass
    assert holder.returncode == 0


def test_the_lock_is_waited_for_and_given_back(state: Path) -> None:
    lock = state / "deploy.lock"
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.3, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        with held(lock, "another deployment", 60), pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_hold_is_a_file_that_outlives_the_program(state: Path) -> None:
    assert hold.held() is None
    hold.hold(7)
    kept = hold.held()
    assert kept is not None
    assert str(kept).startswith("version 7 is held")
    hold.hold_file().write_text("")  # as a power cut may leave it
    with pytest.raises(ValueError, match=r"hold\.json: damaged, so nothing is deployed until"):
        hold.held()
    assert hold.release()
    assert hold.held() is None


def test_a_damaged_hold_stops_a_rollback_before_it_begins(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found afterwards, it would make an error of a rollback that is done."""

    class Registry:
        def tags(self, version: int) -> dict[str, str]:
            return {REPLACED_TAG: "1"}

        def refusal(self, version: int) -> str:
            return ""

    done = []
    here = SimpleNamespace(
        registry=Registry(),
        champion_to=lambda do: 2,
        put_in_service=lambda *given: done.append(given),
    )
    monkeypatch.setattr(deployment, "_deployment", lambda kind: nullcontext(here))
    (state / "hold.json").write_text("{")
    with pytest.raises(ValueError, match=r"hold\.json: damaged, so nothing is deployed until"):
        deployment.rollback_champion()
    assert not done
