"""The local Ray: its token is the user's alone, and nothing of a job listens beyond this machine.

That a stranger without the token is refused is in test_ingest.py.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from swiftqueue.common import local_ray
from swiftqueue.models.training.ray_job import run_job


def test_the_token_is_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")  # restored afterwards
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    local_ray.use_token()
    token = tmp_path / "ray" / "token"
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert os.environ["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    before = token.read_text()
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    local_ray.use_token()
    assert token.read_text() == before
    assert len(before) == 64
    assert [path.name for path in token.parent.iterdir()] == ["token"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_listens_on_loopback_alone(ray_cluster: None, tmp_path: Path, workers: int) -> None:
    """While it trains: also the store by which PyTorch's workers find each other.

    Its files lie in a folder of ours: who made Ray's `/tmp/ray` first kept every other user's from starting.
    """
    from ray._private.worker import global_worker

    session = Path(global_worker.node.get_session_dir_path())
    assert session.parent.name == f"ray-{os.getpid()}"
    assert stat.S_IMODE(session.parents[1].stat().st_mode) == 0o700

    def loop(config: dict[str, Any]) -> None:
        import ipaddress

        import psutil
        import ray.train
        import torch.distributed

        group = torch.distributed.is_initialized()
        if group:
            summed = torch.ones(1)
            torch.distributed.all_reduce(summed)
            assert summed.item() == config["workers"]
        if ray.train.get_context().get_world_rank() == 0:
            driver = psutil.Process(config["driver"])
            ports = {True: [], False: []}
            for process in (driver, *driver.children(recursive=True)):
                for one in process.net_connections("tcp"):
                    if one.status == psutil.CONN_LISTEN:
                        address = ipaddress.ip_address(one.laddr.ip)
                        address = getattr(address, "ipv4_mapped", None) or address
                        ports[address.is_loopback].append(f"{process.name()}: {one.laddr}")
            told = {"group": group, "here": ports[True], "beyond": ports[False]}
            Path(config["told"]).write_text(json.dumps(told))
        if group:
            torch.distributed.barrier()

    config = {"workers": workers, "driver": os.getpid(), "told": str(tmp_path / "told")}
    run_job(loop, config, workers=workers, storage=tmp_path / "job", say=lambda record: None)
    told = json.loads((tmp_path / "told").read_text())
    assert told["group"] == (workers > 1)
    assert any("RayTrainWorker" in line for line in told["here"])
    assert any("gcs_server" in line for line in told["here"])
    assert told["beyond"] == []
