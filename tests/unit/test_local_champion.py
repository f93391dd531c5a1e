"""The champion's folder of `swiftqueue agent --local`: what it holds is what the registry says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from swiftqueue.models.registry.decision import FILES_TAG
from swiftqueue.models.registry.saving import sha256
from swiftqueue.models.registry.store import RegistryError
from swiftqueue.serving.agent.command import LocalChampion


class OneVersion:
    """A registry with one champion, whose weights are some text."""

    def __init__(self, folder: Path, weights: str | None) -> None:
        self.model, self.weights, self.fetched = "m", weights, 0
        self._file = folder / "registered"

    def alias(self, name: str) -> int | None:
        return None if self.weights is None else 1

    def refusal(self, version: int) -> str:
        return ""

    def tags(self, version: int) -> dict[str, str]:
        self._file.write_text(self.weights or "")
        return {FILES_TAG: json.dumps({"model.safetensors": sha256(self._file)})}

    def fetch(self, version: int, folder: Path) -> Path:
        self.fetched += 1
        (folder / "model.safetensors").write_text(self.weights or "")
        return folder


def local(registry: Any, tmp_path: Path, **kind: str) -> LocalChampion:
    return LocalChampion(registry, tmp_path / "agent", **kind)


def test_a_registry_made_anew_with_the_same_number_is_noticed(tmp_path: Path) -> None:
    registry = OneVersion(tmp_path, "old")
    champion = local(registry, tmp_path)
    weights = champion.link / "model.safetensors"
    for _ in range(2):
        assert champion.refresh() == 1
    assert (weights.read_text(), registry.fetched) == ("old", 1)
    registry.weights = "new"  # under a running agent
    assert champion.refresh() == 1
    assert (weights.read_text(), registry.fetched) == ("new", 2)
    registry.weights = "newer"  # while none ran
    assert local(registry, tmp_path).refresh() == 1
    assert (weights.read_text(), registry.fetched) == ("newer", 3)
    assert local(registry, tmp_path).refresh() == 1  # it is here already
    assert registry.fetched == 3
    assert sorted(path.name for path in champion.link.parent.iterdir()) == ["1", "champion", "lock"]


def test_a_champion_of_another_model_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    registry = OneVersion(tmp_path, None)
    says = "the registry has no champion of limits; `swiftqueue deploy --model limit` makes one"
    with pytest.raises(RegistryError, match=says):
        local(registry, tmp_path, kind="limit").refresh()
    with pytest.raises(RegistryError, match="no champion; `swiftqueue run`"):
        local(registry, tmp_path).refresh()
    registry.weights = "forged"
    monkeypatch.setattr(registry, "refusal", lambda version: "why")
    with pytest.raises(RegistryError, match="the alias champion points to version 1 and is not followed"):
        local(registry, tmp_path, kind="limit").refresh()
