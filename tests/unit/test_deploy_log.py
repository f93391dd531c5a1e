"""The deploy log beside a full disk, and the lock of deployments beside one that does not end."""

from __future__ import annotations

import fcntl
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from serving import deploy, deploy_log


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    return tmp_path


def test_a_full_disk_costs_its_entry_alone() -> None:
    assert deploy_log.entries() == []
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
    assert [entry["version"] for entry in deploy_log.entries()] == [1, 3, 4]


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


def test_a_deployment_that_does_not_end_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = state / "deploy.lock"
    program = (
        "import sys, pathlib; from serving.deploy import _locked\n"
        "with _locked(pathlib.Path(sys.argv[1])): print(1, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, lock]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        monkeypatch.setattr(deploy, "LOCK_WAIT_S", 0.3)
        with (
            pytest.raises(OSError, match=rf"{lock}: another deployment \(pid {holder.pid}\) has held"),
            deploy._locked(lock),
        ):
            pass
        monkeypatch.setattr(deploy, "LOCK_WAIT_S", 60.0)
        holder.stdin.close()  # type: ignore[union-attr]
        with deploy._locked(lock):
            pass
    assert holder.returncode == 0


def test_the_lock_is_waited_for_and_given_back(state: Path) -> None:
    lock = state / "deploy.lock"
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        threading.Timer(0.3, fcntl.flock, (other, fcntl.LOCK_UN)).start()
        with deploy._locked(lock):
            assert not deploy._try_lock(other.fileno())
        assert deploy._try_lock(other.fileno())
