"""Define the sections of params.yaml about registering, serving and keeping models, one for each model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from swiftqueue.common.section import Section
from swiftqueue.common.state import experiment_name


class RegisteredParams(Section):
    """Parameters of every registered model."""

    model_name: Annotated[str, Field(min_length=1)]
    """Name of the model in the registry and in Triton."""
    keep_versions: Annotated[int, Field(ge=2)]
    """Number of served versions kept in Triton's repository; a rollback needs two."""
    experiments: bool
    """If true, an experiment (`dvc exp run`) may register its model as well."""

    def why_nothing(self) -> str:
        """Return why nothing is registered now, or an empty text."""
        if (name := experiment_name()) and not self.experiments:
            return f"experiment {name} registers nothing: {self.section}.experiments is false"
        return ""


class RegisterParams(RegisteredParams):
    """Parameters of registering the latency model."""

    section: ClassVar = "register"
    trace: Annotated[str, Field(min_length=1)]
    """Trace whose last fine-tuned head is registered."""
