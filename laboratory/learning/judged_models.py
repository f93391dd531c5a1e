"""The models that are judged: a folder, a folder with one for each profile, or the registry's champion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from swiftqueue.laboratory.learning.champion import MODELS, champion_folder
from swiftqueue.laboratory.runs.resolve import Model
from swiftqueue.laboratory.scenarios.controls import TREES
from swiftqueue.laboratory.scenarios.files import environment_at
from swiftqueue.laboratory.scenarios.schema import FORMER_PROFILES, PROFILES, Scenario
from swiftqueue.models.registry.registry import CHAMPION

ORIGIN: Final = "origin.json"  # beside a model that `lab train` made: what it was trained on
DEEPEST: Final = 3  # SCENARIO/POINT/PROFILE
UNSAID: Final = "unsaid"  # an origin that does not say from which ACKs


def model_at(models: Mapping[str, Model], point: str, profile: str, scenario: str = "") -> Model | None:
    """Return the model of a point under a profile: the point's own, or else the profile's.

    A scenario's own models go before those of all.
    """
    own = (f"{scenario}/{point}/{profile}", f"{scenario}/{profile}", f"{point}/{profile}", profile)
    return next((models[name] for name in own if name in models), None)


def trees_at(models: Mapping[str, Model], profile: str, scenario: str) -> Model | None:
    """Return the trees beside a scenario's network."""
    return models.get(f"{scenario}/{TREES}/{profile}", models.get(f"{TREES}/{profile}"))


def models_by_profile(artifact: str, output: Path) -> dict[str, Model]:
    """Find the model of each queue profile, and of `POINT/PROFILE` where points have models of their own.

    Args:
        artifact: folder of an artifact, for all profiles; a folder that holds `PROFILE/` or `POINT/PROFILE/`
            (as `lab train` writes it), or such folders by scenario; or `champion`, which the registry hands
            out into `output`.
        output: the laboratory's folder.

    Raises:
        FileNotFoundError: there is no artifact in that folder.
        ValueError: it was made for other windows than this code computes, or is malformed.
    """
    if artifact == CHAMPION:
        model = _model(champion_folder(output))
        return dict.fromkeys(PROFILES, model)
    folder = Path(artifact)
    if not folder.is_dir():
        raise FileNotFoundError(f"--artifact {artifact}: no such folder; a folder or `{CHAMPION}` is needed")
    if (folder / "model.json").is_file():
        return dict.fromkeys(PROFILES, _model(folder))
    names = FORMER_PROFILES | {name: name for name in PROFILES}  # the last one found counts
    found = {
        "/".join([*each.relative_to(folder).parts[:-1], profile]): _model(each)
        for name, profile in names.items()
        for depth in range(DEEPEST)
        for each in sorted(folder.glob("/".join([*["*"] * depth, name])))
        if each.is_dir()
    }
    if not found:
        raise FileNotFoundError(
            f"--artifact {artifact}: no model.json there, nor in {' or '.join(PROFILES)} below"
        )
    return found


def check_acks(models: Mapping[str, Model], scenarios: Mapping[str, Scenario]) -> None:
    """See that the models learned latencies as S1 does here; print a line for one that does not say.

    Raises:
        ValueError: a model was trained on latencies of other ACKs.
    """
    here: dict[str, str] = {}  # acks -> the first scenario that has them
    for name, scenario in scenarios.items():
        if "model" in scenario.controls:
            for point in ("", *(scenario.axis.points if scenario.axis else ())):
                here.setdefault(environment_at(scenario, point, name).controls.acks, name)
    for model in dict.fromkeys(models.values()):
        for acks, name in here.items():
            if model.acks not in (None, UNSAID, acks):
                raise ValueError(
                    f"{model.folder}: trained on latencies of {model.acks} ACKs, and S1 learns from {acks} "
                    f"ones in {name} (controls.acks); train a model on that scenario"
                )
        if model.acks in (None, UNSAID) and "selective" in here:
            why = "it has no" if model.acks is None else "an earlier version wrote its"
            print(
                f"{model.folder}: of which ACKs' latencies it learned is not known ({why} {ORIGIN}); S1 "
                "learns from selective ACKs here"
            )


def _model(folder: Path) -> Model:
    from swiftqueue.models.networks.artifact import architecture_in, load
    from swiftqueue.models.registry.lineage import content_hash
    from swiftqueue.serving.engine import Engine

    load(folder)
    try:
        if architecture_in(folder) != TREES:  # files that the simulation reads itself
            Engine(folder)  # it is in the senders of a simulation
    except ValueError as error:
        raise ValueError(f"{folder}: {str(error).removeprefix(f'{folder}/')}") from None
    return Model(folder.resolve(), content_hash(folder), said_acks(folder / ORIGIN))


def anchor_of(model: Model, output: Path) -> Model | None:
    """Return the model as it was before its training: what it forecasts is its anchor alone.

    It is kept in `output/models/`. None: the model has no anchor, so untrained it would forecast nothing.
    """
    import torch

    from swiftqueue.models.networks.artifact import load, save

    target = output / MODELS / f"anchor-{model.content[:16]}"
    artifact = load(model.folder)
    if artifact.model.sizes.anchor is None:
        return None
    if not target.is_dir():
        with torch.no_grad():
            for parameter in artifact.model.head[2].parameters():
                parameter.zero_()
        save(target, artifact.model, artifact.description.protocol)
    return replace(_model(target), acks=model.acks)


def said_acks(origin: Path) -> str | None:
    """Return from which ACKs' latencies a model learned, as its origin says; None: it has no origin.

    Raises:
        ValueError: the file is damaged.
    """
    if not origin.is_file():
        return None
    try:
        said = json.loads(origin.read_text())
    except (ValueError, RecursionError):
        said = None
    acks = said.get("acks", UNSAID) if isinstance(said, dict) else None
    if acks not in (UNSAID, "cumulative", "selective"):
        raise ValueError(f"{origin}: not what `swiftqueue lab train` writes; train the model again")
    return str(acks)
