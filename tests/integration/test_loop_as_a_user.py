"""The whole live loop of a user who is not root, with a home and a state folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import mutants
import pytest
from conftest import PROJECT
from fault_loop import ENDED_WELL, FIRST, HEAL_S, environment_of
from of_state import processes_of
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.pipelines.live.rounds_log import LOG_FILE, read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not mutants.ALL, reason="minutes: with SWIFTQUEUE_TEST_ALL=1"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


def test_nothing_needs_root(make_artifact: Callable[..., Path]) -> None:
    user = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="swiftqueue-user-"))
    folder.chmod(0o755)
    for name in ("home", "state", "tmp"):
        (folder / name).mkdir(mode=0o700)
        os.chown(folder / name, user.pw_uid, user.pw_gid)
    write_table(folder / "packets", bottleneck_table("live", seconds=20))
    environment = environment_of(folder / "state")
    environment |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    # All that is left of root's rights: to read what lies in root's own folders, as Python may here.
    become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    become += ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
    become += ["--bounding-set=-all,+dac_read_search", "--no-new-privs"]

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        words = [*become, *map(str, command)]
        return subprocess.run(
            words, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False
        )

    def well() -> bool:
        rounds = read(folder / "state" / "live" / LOG_FILE)
        return (
            any(one["outcome"] in ENDED_WELL for one in rounds) and run(swiftqueue, "status").returncode == 0
        )

    swiftqueue = Path(sys.executable).with_name("swiftqueue")
    try:
        made = run(sys.executable, "-c", FIRST, make_artifact(1, onnx=True))
        assert made.returncode == 0, made.stderr
        up = run(
            *(swiftqueue, "up", "--live", "--trace", folder / "packets"),
            *("--every=3", "--learn=4", "--judge=2"),
        )
        assert up.returncode == 0, up.stdout + up.stderr
        assert "root" not in up.stdout + up.stderr
        wait_until(well, "no round ended well, or a part is not", 2 * HEAL_S)
        assert {process.uids() for process in processes_of(folder / "state")} == {(user.pw_uid,) * 3}
        down = run(swiftqueue, "down")
        assert down.returncode == 0, down.stderr
        assert processes_of(folder / "state") == []
    finally:
        for process in processes_of(folder / "state"):
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)
