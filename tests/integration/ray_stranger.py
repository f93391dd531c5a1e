"""Knocks at a Ray head of ours, with its token and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def without_token() -> dict[str, str]:
    """The environment without the token that this run of the tests has for Ray."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}


def check_strangers_are_refused(address: str, token: Path) -> None:
    """Whoever has the token is let in, and nobody else."""
    tries = []
    for secret in (token.read_text(), "0" * 64):
        environment = {**without_token(), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secret}
        knock = [sys.executable, "-m", "swiftqueue.infra.local.ray_head", address]
        tries.append(subprocess.run(knock, env=environment, capture_output=True, text=True, check=False))
    ours, stranger = tries
    assert ours.returncode == 0, ours.stderr
    assert stranger.returncode == 1
    assert "InvalidAuthToken" in stranger.stderr
