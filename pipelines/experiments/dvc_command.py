"""Runs DVC from this environment, whatever is on the PATH, with its usage reporting off."""

from __future__ import annotations

import configparser
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from swiftqueue.common import usage_reporting
from swiftqueue.common.redaction import redacted
from swiftqueue.common.state import users_umask


def dvc_environment() -> dict[str, str]:
    """Return the environment in which `dvc`, and `python` in a stage's command, are this environment's."""
    usage_reporting.switch_off()
    own = str(Path(sys.executable).parent)
    return os.environ | {"PATH": os.pathsep.join([own, os.environ.get("PATH", os.defpath)])}


def run_dvc(arguments: list[str], folder: Path, variables: Mapping[str, str] | None = None) -> int:
    """Run DVC in `folder` on this terminal, with additional environment variables; return its exit code."""
    with _started(arguments, folder, variables or {}) as dvc:
        code = dvc.wait()
    if code == 0 and arguments[0] == "repro":
        print(where_pushed(folder))
    return code


def reproduce_side_by_side(stages: Sequence[str], folder: Path) -> int:
    """Run stages that need nothing of each other, two at a time; return the exit code of the half shown.

    The other half writes nothing here. Where it fails, the whole pipeline fails there again and says why.
    """
    if len(stages) < 2:  # without a stage, DVC would run all
        return 0
    command = ["--wait-for-lock", "repro"]
    with (
        _started([*command, *stages[1::2]], folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        _started([*command, *stages[::2]], folder) as shown,
    ):
        return shown.wait()


def _started(
    arguments: Sequence[str], folder: Path, variables: Mapping[str, str] = MappingProxyType({}), **files: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "dvc", *arguments]
    environment = {**dvc_environment(), **variables}
    umask = users_umask()  # a stage's outputs in `data` are no private state
    return subprocess.Popen(command, cwd=folder, env=environment, umask=umask, **files)  # type: ignore[call-overload,no-any-return]


def where_pushed(folder: Path) -> str:
    """Return a line that says where `dvc push` sends the outputs of a run."""
    config = configparser.ConfigParser(interpolation=None)
    config.read([folder / ".dvc" / "config", folder / ".dvc" / "config.local"])
    name = config.get("core", "remote", fallback=None)
    url = config.get(f"'remote \"{name}\"'", "url", fallback=None)
    if url is None:
        return "No DVC remote is set: nothing is pushed, all of it is here. docs/TRACES.md: how to set one"
    return f"`dvc push` sends it to the remote {name}, {redacted(url)}; `dvc pull` fetches it from there."


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
