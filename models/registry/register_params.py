"""Sections of params.yaml that say which model is registered, served and kept: one for each model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from common.section import Section
from common.state import experiment_name


class RegisteredParams(Section):
    """What every registered model needs."""

    model_name: Annotated[str, Field(min_length=1)]
    """Its name there, and in Triton."""
    keep_versions: Annotated[int, Field(ge=2)]
    """Served versions kept in Triton's repository; a rollback needs two."""
    experiments: bool
    """Whether an experiment (`dvc exp run`) registers its model, too."""

    def why_nothing(self) -> str:
        """Return why nothing is registered now; empty where something is."""
        if (name := experiment_name()) and not self.experiments:
            return f"experiment {name} registers nothing: {self.section}.experiments is false"
        return ""


class RegisterParams(RegisteredParams):
    """Which model goes into the registry."""

    section: ClassVar = "register"
    trace: Annotated[str, Field(min_length=1)]
    """Trace whose last fine-tuned head is registered."""
