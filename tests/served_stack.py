"""Fixtures of servers: one real Triton and one registry for all tests, since starting each costs seconds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from registered import add_version

from swiftqueue.infra.local.processes import free_ports

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def serving_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state folder and free ports of its own, by environment, and no tracking URI of the user's."""
    state = tmp_path_factory.mktemp("state")
    grpc, metrics, mlflow = free_ports(3)
    settings = {
        "SWIFTQUEUE_STATE": str(state),
        "SWIFTQUEUE_TRITON_GRPC": str(grpc),
        "SWIFTQUEUE_TRITON_METRICS": str(metrics),
        "SWIFTQUEUE_MLFLOW_PORT": str(mlflow),
        "MLFLOW_TRACKING_URI": "",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    yield state
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    shutil.rmtree(state, ignore_errors=True)


@pytest.fixture(scope="session")
def triton(serving_state: Path) -> Iterator[Path]:
    """A running Triton; it may serve any version, or none."""
    from swiftqueue.infra.local.loop import stop_stack
    from swiftqueue.infra.local.servers import start_stack

    here = Path.cwd()
    os.chdir(PROJECT)
    start_stack()
    yield serving_state
    stop_stack()
    os.chdir(here)


@pytest.fixture(scope="module")
def registry(triton: Path):  # type: ignore[no-untyped-def]
    from swiftqueue.models.registry.registry import Registry

    return Registry("swiftqueue")


@pytest.fixture(scope="module")
def champion(triton: Path, make_artifact: Callable[..., Path]) -> int:
    """A served champion, registered."""
    from swiftqueue.serving.deploy.deployment import deploy_version

    version = add_version(make_artifact(1, onnx=True))
    deploy_version(version)
    return version
