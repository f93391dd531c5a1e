"""What `make setup` does about Debian's packages: nothing if they are there, a line if it may not install."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NOBODY = 65534


def run(project: Path, *packages: str, may_install: bool = True) -> subprocess.CompletedProcess[str]:
    command = [str(project / "infra/setup/debian.sh"), "the test", "it goes on without", *packages]
    if not may_install and os.geteuid() == 0:
        command = ["setpriv", f"--reuid={NOBODY}", "--clear-groups", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def debian() -> None:
    if not shutil.which("dpkg-query") or not shutil.which("apt-get"):
        pytest.skip("no dpkg and apt-get here")


def test_what_is_installed_is_left_alone(project: Path) -> None:
    ran = run(project, "dpkg", "apt")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_without_the_right_to_install_it_says_the_line_and_ends_well(project: Path) -> None:
    asks = ["sudo", "-n", "true"]
    if os.geteuid() and shutil.which("sudo") and not subprocess.run(asks, capture_output=True).returncode:
        pytest.skip("sudo asks for no password here, so it would install")
    ran = run(project, "dpkg", "no-such-package", may_install=False)
    assert ran.returncode == 0
    assert "sudo apt-get install -y --no-install-recommends no-such-package;" in ran.stdout
    assert ran.stdout.endswith("; it goes on without\n")
    assert len(ran.stdout.splitlines()) == 1
