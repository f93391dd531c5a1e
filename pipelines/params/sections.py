"""All sections of params.yaml: where each is defined, and the reference page made from them.

`python -m swiftqueue.pipelines.params.sections > docs/PARAMETERS.md`
"""

from __future__ import annotations

import importlib
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from swiftqueue.common.allowed_values import in_signs
from swiftqueue.common.section import Section, near, read_all, schema_at
from swiftqueue.models.forecasters.forecaster import kinds

# Classes are named, not imported: some modules import PyTorch.
_OF_STAGES: Final = {
    "simulate": "swiftqueue.pipelines.simulate:SimulateParams",
    "extract": "swiftqueue.pipelines.extract:ExtractParams",
    "split": "swiftqueue.pipelines.split:SplitParams",
    "validate": "swiftqueue.pipelines.validate:ValidateParams",
    "change": "swiftqueue.models.sharp:Change",
    "architecture": "swiftqueue.models.forecasters.forecaster:ArchitectureParams",
    "auto": "swiftqueue.models.forecasters.forecaster:AutoParams",
    "finetune": "swiftqueue.models.training.head:FinetuneParams",
    "live": "swiftqueue.pipelines.live.reservoir:LiveParams",
    "evaluate": "swiftqueue.pipelines.evaluate:EvaluateParams",
    "register": "swiftqueue.models.registry.register_params:RegisterParams",
}


def of_forecasters() -> dict[str, type[Section]]:
    """Return the classes of the sections of all kinds of forecasters, by name."""
    return {name: kind.Params for name, kind in kinds().items()}


def section_of(name: str) -> type[Section]:
    """Return the class of a section.

    Raises:
        ValueError: there is no such section.
    """
    if name in _OF_STAGES:
        module, _, attribute = _OF_STAGES[name].partition(":")
        return cast("type[Section]", getattr(importlib.import_module(module), attribute))
    if name not in (known := of_forecasters()):
        raise ValueError(f"there is no section {name!r}; {near(name, sections())}")
    return known[name]


def sections() -> list[str]:
    """Return the names of all sections that a file may have."""
    return [*_OF_STAGES, *of_forecasters()]


def check(given: Mapping[str, Any]) -> None:
    """Raise ValueError for a section that a stage would refuse.

    Raises:
        ValueError: a section is unknown, or a value is invalid; the line names it.
    """
    for name, values in given.items():
        section_of(name)(**values)


def reference(project: Path) -> str:
    """Return docs/PARAMETERS.md: every parameter, its values, the project's own choice, its meaning."""
    own = read_all(project / "params.yaml")
    lines = [
        "# Parameters",
        "",
        "The sections of `params.yaml`: each parameter with the project's value, the values that it takes,",
        "and its meaning. A stage checks its section before it does any work, and refuses other parameters.",
        "`python -m swiftqueue.pipelines.params.sections > docs/PARAMETERS.md` makes this page.",
    ]
    for name in own:
        section = section_of(name)
        lines += ["", f"## {name}", "", f"{section.__doc__}", ""]
        for key, about in section.model_fields.items():
            here = own[name][key]
            shown = f"{len(here)} traces" if isinstance(here, dict) else f"`{json.dumps(here)}`"
            values = in_signs(schema_at(section, [key]))
            said = f"- **`{key}`** = {shown} ({values}): {about.description}"
            lines += textwrap.wrap(said, 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(Path.cwd()), end="")
