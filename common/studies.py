"""Find by their folders what the studies add to the product; no study is named here.

A study is a folder of `studies/`. Its `commands.py` declares constants and imports nothing heavy:

    NAME: its group of commands; HELP: the group's help; FUNCTIONS: "MODULE:FUNCTION" by the command's name
    SERVED: the models that `deploy --model KIND` takes, by KIND: the name in Triton and the registry, and the
        "MODULE:OBJECT" of the `ServedModel` (serving/deploy); a study without a model has none
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent.parent / "studies"  # may be missing


@cache
def declarations() -> list[Any]:
    """Return the `commands.py` of each study, in the order of their folders."""
    found = sorted(FOLDER.glob("*/commands.py"))
    return [importlib.import_module(f"swiftqueue.studies.{file.parent.name}.commands") for file in found]


def served() -> Mapping[str, tuple[str, str]]:
    """Return each study's served model by kind: its name, and the "MODULE:OBJECT" of its description."""
    return {kind: model for study in declarations() for kind, model in getattr(study, "SERVED", {}).items()}


def named(place: str) -> Any:
    """Return the object that "MODULE:OBJECT" names."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
