"""The models that can be deployed: the section, the check of an artifact, and how the first version is made.

The project's own model is described here, a study's in the study (common/studies.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from swiftqueue.common import studies
from swiftqueue.common.section import read
from swiftqueue.models.registry.register_params import RegisteredParams, RegisterParams
from swiftqueue.serving.deploy.checks import ServableArtifact, check_latency
from swiftqueue.serving.triton.repository import LATENCY

PARAMS_FILE: Final = Path("params.yaml")


@dataclass(frozen=True)
class ServedModel:
    """A model that can be registered, deployed and served beside the others."""

    section: type[RegisteredParams]
    """The section that says how it is registered."""
    check: Callable[[Path], ServableArtifact]
    """Loads an artifact and computes its own answer to smoke windows."""
    made_by: str
    """The command that registers the first version."""
    params_file: Path = PARAMS_FILE
    """Where the section stands."""

    def params(self) -> RegisteredParams:
        """Read the section.

        Raises:
            ValueError: a parameter cannot be; the line names it.
        """
        return read(self.params_file, self.section)


_OWN: Final = ServedModel(RegisterParams, check_latency, "dvc repro register")


@cache
def served_model(kind: str) -> ServedModel:
    """Return what is known of a model, named as `deploy --model` names it.

    Raises:
        ValueError: there is none of that name, as where a study is not here.
    """
    if kind == LATENCY:
        return _OWN
    if kind not in studies.served():
        raise ValueError(f"there is no model {kind}; these are: {', '.join([LATENCY, *studies.served()])}")
    found = studies.named(studies.served()[kind][1])
    assert isinstance(found, ServedModel)  # noqa: S101
    return found
