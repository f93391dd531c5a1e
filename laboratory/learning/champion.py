"""The registry's champion, fetched into the laboratory's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from swiftqueue.common.atomic import new_folder
from swiftqueue.pipelines.simulators import PROJECT
from swiftqueue.serving.triton.repository import LATENCY

MODELS: Final = "models"  # subfolder of the laboratory's folder


def champion_folder(output: Path, kind: str = LATENCY) -> Path:
    """Fetch the champion of a kind of model into `output/models/NAME-champion-CONTENT`.

    Another registry may give the same number to another model.

    Raises:
        FileNotFoundError: there is no registry, or no champion in it.
        RegistryError: the registry does not answer.
    """
    from swiftqueue.common.section import read
    from swiftqueue.models.registry.decision import CONTENT_TAG
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import registry_exists
    from swiftqueue.serving.deploy.champion import find_champion
    from swiftqueue.serving.deploy.served_models import served_model

    if not registry_exists():
        raise FileNotFoundError("--artifact champion: there is no registry yet; `make run` makes one")
    model = served_model(kind)
    registry = Registry(read(PROJECT / model.params_file, model.section).model_name)
    found = find_champion(registry, kind)
    if (version := found.version) is None:
        why = found.astray or f"no version of {registry.model} is champion; `swiftqueue deploy` makes one"
        raise FileNotFoundError(f"--artifact champion: {why}")
    content = registry.tags(version)[CONTENT_TAG][:16]
    target = output / MODELS / f"{registry.model}-champion-{content}"
    if not target.is_dir():
        with new_folder(target) as partial:
            registry.fetch(version, partial)
    return target
