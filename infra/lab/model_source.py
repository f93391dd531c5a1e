"""The models that are judged: a folder, a folder with one for each profile, or the registry's champion."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from infra.lab.runs import Model
from infra.lab.scenario import PROFILES

CHAMPION: Final = "champion"
MODELS: Final = "models"


def models_by_profile(artifact: str, output: Path) -> dict[str, Model]:
    """Find the model of each queue profile.

    Args:
        artifact: folder of an artifact, for all profiles; a folder that holds `PROFILE/` (as `lab train`
            writes it); or `champion`, which the registry hands out into `output`.
        output: the laboratory's folder.

    Raises:
        FileNotFoundError: there is no artifact in that folder.
        ValueError: it was made for other windows than this code computes, or is malformed.
    """
    if artifact == CHAMPION:
        model = _model(_champion(output))
        return dict.fromkeys(PROFILES, model)
    folder = Path(artifact)
    if not folder.is_dir():
        raise FileNotFoundError(f"--artifact {artifact}: no such folder; a folder or `{CHAMPION}` is needed")
    if (folder / "model.json").is_file():
        return dict.fromkeys(PROFILES, _model(folder))
    found = {p: _model(folder / p) for p in PROFILES if (folder / p).is_dir()}
    if not found:
        raise FileNotFoundError(
            f"--artifact {artifact}: no model.json there, nor in {' or '.join(PROFILES)} below"
        )
    return found


def _model(folder: Path) -> Model:
    from feature_store.windows import schema_hash
    from models.artifact import load
    from models.lineage import content_hash

    load(folder, schema_hash())
    return Model(folder.resolve(), content_hash(folder))


def _champion(output: Path) -> Path:
    """Fetch the champion into `output/models/champion-VERSION`."""
    import yaml

    from infra.lab.execution import PROJECT
    from models.registry import CHAMPION as ALIAS
    from models.registry import Registry, registry_exists

    if not registry_exists():
        raise FileNotFoundError("--artifact champion: there is no registry yet; `make run` makes one")
    name = yaml.safe_load((PROJECT / "params.yaml").read_text())["register"]["model_name"]
    registry = Registry(name)
    version = registry.alias(ALIAS)
    if version is None:
        raise FileNotFoundError("--artifact champion: no version is champion; `swiftqueue deploy` makes one")
    target = output / MODELS / f"champion-{version}"
    if not target.is_dir():
        partial = target.with_name(f".{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        registry.fetch(version, partial)
        partial.rename(target)
    return target
