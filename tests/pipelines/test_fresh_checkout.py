"""Stages in a checkout that nobody set up: built libraries, the right Python, and each trace by itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from swiftqueue.models.registry.lineage import UNKNOWN, git_commit

pytestmark = pytest.mark.slow

ROOMS = (
    *("common", "feature_store", "models", "pipelines", "swiftqueue", "tests/data/captures"),
    *(".dvc", ".gitignore", ".dvcignore"),
)


@pytest.fixture
def checkout(project: Path, tmp_path: Path) -> Path:
    """A repository of the tracked files alone, with one tiny trace: no environment, no library built."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *ROOMS], cwd=project, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.rstrip("\0").split("\0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project / name, tmp_path / name, follow_symlinks=False)
    stages = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"extract": stages["extract"]}}))
    name_traces(tmp_path, "ethernet_us_le")
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "all"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def name_traces(checkout: Path, *names: str) -> None:
    files = {name: f"tests/data/captures/{name}.pcap" for name in names}
    traces = {name: {"file": file, "sender": None, "latency": "acks"} for name, file in files.items()}
    (checkout / "params.yaml").write_text(yaml.safe_dump({"extract": {"traces": traces}}))


def dvc(checkout: Path, *arguments: str) -> str:
    """Run DVC from a shell that knows nothing of our environment."""
    bare = {"PATH": "/usr/lib/ccache:/usr/bin:/bin", "HOME": str(checkout), "CCACHE_NOHASHDIR": "1"}
    bare |= {"CCACHE_DIR": os.environ.get("CCACHE_DIR", str(Path.home() / ".cache" / "ccache"))}
    ran = subprocess.run(
        [sys.executable, "-m", "dvc", *arguments],
        cwd=checkout,
        env=bare | {"DVC_NO_ANALYTICS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


@pytest.mark.long
def test_an_experiment_runs_in_a_folder_of_its_own(checkout: Path) -> None:
    assert "building libpcapdecode.so" in dvc(checkout, "exp", "run", "--temp", "--name", "apart", "extract")
    kept = ["git", "for-each-ref", "--format=%(refname:lstrip=-1)", "refs/exps"]
    assert "apart" in subprocess.run(kept, cwd=checkout, capture_output=True, text=True, check=True).stdout
    assert not (checkout / "feature_store" / "_build").exists(), "it ran elsewhere"
    assert not (checkout / "data").exists()


@pytest.mark.long
def test_a_new_trace_is_extracted_alone(checkout: Path) -> None:
    def ran() -> list[str]:
        lines = dvc(checkout, "repro", "extract").splitlines()
        return [line.partition("'")[2].rstrip("':") for line in lines if line.startswith("Running stage")]

    assert ran() == ["extract@ethernet_us_le"]
    name_traces(checkout, "ethernet_us_le", "vlan")
    assert ran() == ["extract@vlan"]
    assert ran() == []
    tables = sorted(path.name for path in (checkout / "data/packets").glob("trace=*"))
    assert tables == ["trace=ethernet_us_le", "trace=vlan"]


def test_asking_the_registry_again_changes_no_tracked_file(project: Path, tmp_path: Path) -> None:
    stage = yaml.safe_load((project / "dvc.yaml").read_text())["stages"]["register"]
    output = stage["cmd"].split("--output ")[1].split()[0]
    # As the stage does: the registry's answer is another each time.
    stage |= {"cmd": f"cat /proc/sys/kernel/random/uuid | tee -a asked > {output}", "deps": ["source.py"]}
    stage["params"] = []
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"register": stage}}))
    (tmp_path / "source.py").write_text("pass\n")
    (tmp_path / output).parent.mkdir(parents=True)
    for name in (
        ".gitignore",
        ".dvcignore",
        f"{Path(output).parent}/.gitignore",
        ".dvc/config",
        ".dvc/.gitignore",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(project / name, tmp_path / name, follow_symlinks=False)
    git(tmp_path, "init", "--quiet")
    dvc(tmp_path, "repro")
    git(tmp_path, "add", "dvc.yaml", "dvc.lock", "source.py", ".gitignore", ".dvcignore", ".dvc", "data")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "all")
    before = (tmp_path / output).read_text()

    dvc(tmp_path, "repro")
    assert (tmp_path / output).read_text() != before, "the registry was not asked again"
    assert git(tmp_path, "status", "--porcelain", "--untracked-files=no") == ""
    assert git_commit(tmp_path) == git(tmp_path, "rev-parse", "HEAD").strip()


def test_what_the_stages_write_makes_no_version_dirty_and_a_source_does(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    for name in ("dvc.lock", "data/evaluation/metrics.json", "model.py", "room/dvc.lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "add", "--all")
    git(tmp_path, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "-m", "all")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    for name in ("dvc.lock", "data/evaluation/metrics.json"):
        (tmp_path / name).write_text("2\n")
    assert git_commit(tmp_path) == git_commit(tmp_path / "room") == commit
    (tmp_path / "model.py").write_text("2\n")
    assert git_commit(tmp_path) == git_commit(tmp_path / "room") == f"{commit}+dirty"


def test_of_a_git_that_does_not_end_no_commit_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk: no round ends for it."""

    def slow(*command: object, **given: object) -> None:
        raise subprocess.TimeoutExpired("git", 30)

    monkeypatch.setattr(subprocess, "run", slow)
    assert git_commit(tmp_path) == UNKNOWN


def git(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout
