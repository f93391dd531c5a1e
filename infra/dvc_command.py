"""Running DVC: this environment's own, whatever is on the PATH, with its usage reporting off."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from feature_store import telemetry_off


def dvc_environment() -> dict[str, str]:
    """Return the environment in which `dvc`, and `python` in a stage's command, are this environment's."""
    telemetry_off.switch_off()
    own = str(Path(sys.executable).parent)
    return os.environ | {"PATH": os.pathsep.join([own, os.environ.get("PATH", os.defpath)])}


def run_dvc(arguments: list[str], folder: Path) -> int:
    """Run DVC in `folder` on this terminal and return its exit code."""
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, cwd=folder, env=dvc_environment(), check=False).returncode


def call_dvc(arguments: list[str], folder: Path) -> None:
    """Run DVC in `folder` silently.

    Raises:
        ValueError: it failed; the message is DVC's own error line.

    """
    command = [sys.executable, "-m", "dvc", arguments[0], "--quiet", *arguments[1:]]
    result = subprocess.run(
        command, cwd=folder, env=dvc_environment(), capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        lines = [line.removeprefix("ERROR: ") for line in result.stderr.strip().splitlines()]
        raise ValueError(f"dvc {arguments[0]}: {lines[0] if lines else f'ended with {result.returncode}'}")
