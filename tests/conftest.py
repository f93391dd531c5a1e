"""Fixtures shared by all tests. Real services only: what cannot start is an error, not a mock."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from feature_store import telemetry_off

telemetry_off.switch_off()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models train 2-4 times faster so
os.environ.setdefault("RAY_AUTH_MODE", "token")  # Ray's head listens on every interface
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # of this run; its child processes have it too

# A test's time is no property of what it tests, and a busy machine takes ten times as long.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

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


@pytest.fixture(scope="session")
def make_artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Untrained artifacts with the real features, by seed; `onnx` adds the exported network.

    The engine computes width 64 only, so another one is served by the Python backend.
    """
    import torch

    from feature_store.windows import schema_hash
    from infra.bench.inference_references import typical_features
    from models import artifact
    from models.predictor import Architecture, Predictor
    from models.scaling import Target

    root = tmp_path_factory.mktemp("artifacts")

    def make(seed: int, *, onnx: bool = False, tokens: int = 64, shift: float = 9.0, width: int = 64) -> Path:
        folder = root / f"{seed}-{tokens}-{shift}-{width}"
        if not folder.exists():
            torch.manual_seed(seed)
            sizes = Architecture(width=width, feed_forward=4 * width)
            model = Predictor(typical_features(), Target("log", shift, 0.5), sizes)
            protocol = {"name": "short", "pretrain_s": 5, "finetune_s": 1, "test_s": 2}
            artifact.save(folder, model, artifact.Description(tokens, schema_hash(), "acked", protocol))
        if onnx and not (folder / "model.onnx").exists():
            artifact.export_onnx(folder)
        return folder

    return make
