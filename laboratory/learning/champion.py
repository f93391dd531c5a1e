"""The registry's champion, fetched into the laboratory's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from common.atomic import new_folder
from pipelines.simulators import PROJECT
from serving.triton.repository import LATENCY

MODELS: Final = "models"  # subfolder of the laboratory's folder


def champion_folder(output: Path, kind: str = LATENCY) -> Path:
    """Fetch the champion of a kind of model into `output/models/NAME-champion-CONTENT`.

    Another registry may give the same number to another model.

    Raises:
        FileNotFoundError: there is no registry, or no champion in it.
        RegistryError: the registry does not answer.
    """
    from common.section import read
    from models.registry.decision import CONTENT_TAG
    from models.registry.registry import Registry
    from models.registry.store import registry_exists
    from serving.deploy.champion import find_champion
    from serving.deploy.served_models import served_model

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
