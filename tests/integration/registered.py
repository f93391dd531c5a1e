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
) -> int:
    """Register an artifact with what the gate is to have said of it; return its version, old or new."""
    from models.lineage import content_hash
    from models.registry import Registry

    registry, content = Registry("swiftqueue"), content_hash(folder)
    version = registry.find(content)
    if version is None:
        tags = {"content_sha256": content, "gate": gate, "gate_reason": "set by a test"}
        version = registry.add(folder, tags=tags, params=dict(params or {}), metrics=dict(metrics or {}))
    return version
