"""The local Ray lets nobody in who does not have its token."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DRIVER = """
import os, subprocess, sys
from models.ray_job import ray_cluster

with ray_cluster(1):
    import ray

    join = f"import ray; ray.init(address={ray.get_runtime_context().gcs_address!r}, log_to_driver=False)"
    for token in (os.environ["RAY_AUTH_TOKEN_PATH"], sys.argv[1]):
        other = {**os.environ, "RAY_AUTH_TOKEN_PATH": token}
        done = subprocess.run([sys.executable, "-c", join], env=other, capture_output=True, timeout=120)
        print("joined" if done.returncode == 0 else "refused", flush=True)
"""


def test_a_stranger_is_refused(project: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment["SWIFTQUEUE_STATE"] = str(tmp_path / "var")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(wrong)],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.stdout.split() == ["joined", "refused"], done.stderr
    token = tmp_path / "var" / "ray" / "token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
