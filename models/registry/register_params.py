"""Section `register` of params.yaml: which model is registered, served and kept."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from models.section import Section


class RegisterParams(Section):
    """Which model goes into the registry."""

    section: ClassVar = "register"
    model_name: Annotated[str, Field(min_length=1)]
    """Its name there, and in Triton."""
    trace: Annotated[str, Field(min_length=1)]
    """Trace whose last fine-tuned head is registered."""
    keep_versions: Annotated[int, Field(ge=2)]
    """Served versions kept in Triton's repository; a rollback needs two."""
    experiments: bool
    """Whether an experiment (`dvc exp run`) registers its model, too."""
