"""Fixtures shared by all tests. Real services only: what cannot start is an error, not a mock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from feature_store import telemetry_off

telemetry_off.switch_off()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models train 2-4 times faster so
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's head listens on every interface
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of this run; its child processes have it too

PROJECT = Path(__file__).resolve().parent.parent
CAPTURES = PROJECT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def project() -> Path:
    """The project's root folder."""
    return PROJECT


@pytest.fixture(scope="session")
def captures() -> Path:
    """Folder of real captures that lies beside a checkout; never part of the project."""
    if not CAPTURES.is_dir():
        pytest.skip(f"the folder of real captures {CAPTURES} is not beside this checkout")
    return CAPTURES


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One local Ray cluster for the whole test session (start-up costs 10-20 s)."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
