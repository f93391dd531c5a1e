"""Versions for tests: registered as the gate would have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def add_version(
    folder: Path,
    *,
    gate: str = "passed",
    params: Mapping[str, str] | None = None,
    metrics: Mapping[str, float] | None = None,
    model: str = "swiftqueue",
) -> int:
    """Register an artifact with what the gate is to have said of it; return its version, old or new."""
    from swiftqueue.models.registry.lineage import content_hash
    from swiftqueue.models.registry.registry import GateDecision, Registry

    registry, content = Registry(model), content_hash(folder)
    version = registry.find(content)
    if version is None:
        judged = GateDecision(gate == "passed", "set by a test", None)
        version = registry.add(
            folder, judged=judged, tags={}, params=dict(params or {}), metrics=dict(metrics or {})
        )
    return version


def served() -> int | None:
    """Return the version that Triton serves."""
    from swiftqueue.serving.triton.endpoint import Triton

    with Triton() as connection:
        return connection.served_version()
