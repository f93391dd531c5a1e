"""Runs DVC from this environment, whatever is on the PATH, with its usage reporting off."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from common import usage_reporting
from common.state import users_umask


def dvc_environment() -> dict[str, str]:
    """Return the environment in which `dvc`, and `python` in a stage's command, are this environment's."""
    usage_reporting.switch_off()
    own = str(Path(sys.executable).parent)
    return os.environ | {"PATH": os.pathsep.join([own, os.environ.get("PATH", os.defpath)])}


def run_dvc(arguments: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> int:
    """Run DVC in `folder` on this terminal, with additional environment variables; return its exit code."""
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = {**dvc_environment(), **(variables or {})}
    umask = users_umask()  # a stage's outputs in `data` are no private state
    return subprocess.run(command, cwd=folder, env=environment, umask=umask, check=False).returncode


def call_dvc(arguments: list[str], folder: Path) -> None:
    """Run DVC in `folder` silently.

    Raises:
        ValueError: DVC failed; the message is its own error line.

    """
    command = [sys.executable, "-m", "dvc", arguments[0], "--quiet", *arguments[1:]]
    result = subprocess.run(
        command, cwd=folder, env=dvc_environment(), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        lines = [line.removeprefix("ERROR: ") for line in result.stderr.strip().splitlines()]
        raise ValueError(f"dvc {arguments[0]}: {lines[0] if lines else f'ended with {result.returncode}'}")
