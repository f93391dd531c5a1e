"""Define the base of all sections of params.yaml; a wrong value is one line with the allowed values.

A section is a subclass. Its checks, its types and its part of docs/PARAMETERS.md come from its fields.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from swiftqueue.common.allowed_values import allowed

Count = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """One section of params.yaml, whose constructor raises a ValueError of one line and converts nothing."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
    section: ClassVar[str]

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ValueError(_line(type(self), error, values)) from None


S = TypeVar("S", bound=Section)


def read(path: Path, wanted: type[S]) -> S:
    """Return one section of a parameter file, checked.

    Raises:
        ValueError: the file or the section is missing, or a value is invalid; the line names it.
    """
    sections = read_all(path)
    values = sections.get(wanted.section)
    if not isinstance(values, Mapping):
        hint = near(wanted.section, [str(name) for name in sections])
        raise ValueError(f"{path}: section `{wanted.section}` is missing; {hint}")
    try:
        return wanted(**{str(key): value for key, value in values.items()})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_all(path: Path) -> dict[str, Any]:
    """Return the sections of a parameter file unchecked.

    The file is YAML 1.2, as DVC reads and writes it, where `1e-05` is a number and `off` is a word.

    Raises:
        ValueError: it is missing, or not a YAML mapping.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such parameter file; run this in the project's folder")
    try:
        sections = YAML(typ="safe", pure=True).load(path.read_text()) or {}
    except (YAMLError, ValueError, RecursionError) as error:
        if isinstance(error, MarkedYAMLError) and error.problem_mark:
            reason = f"line {error.problem_mark.line + 1}: {error.problem}"
        else:
            reason = (str(error) or "nested too deep").splitlines()[0]
        raise ValueError(f"{path}: not valid YAML: {reason}") from error
    if not isinstance(sections, dict):
        raise ValueError(f"{path}: must hold sections by name, not a {type(sections).__name__}")
    return sections


def near(word: str, known: list[str]) -> str:
    """Return the closest of some names as a hint, or all of them."""
    return meant(word, known) or f"known: {', '.join(sorted(known))}"


def meant(word: str, known: list[str]) -> str | None:
    """Ask whether the closest of some names was meant; return None if none is close."""
    close = [name for name in known if name.startswith(word)] or difflib.get_close_matches(word, known, 1)
    return f"did you mean {close[0]}?" if close else None


def schema_at(section: type[Section], path: list[Any]) -> dict[str, Any]:
    """Return the JSON schema of the parameter at a path of keys, or of the section without one."""
    whole = section.model_json_schema()
    found: dict[str, Any] = whole
    for key in path:
        if isinstance(key, int):
            found = found.get("items", {})
        else:
            found = found.get("properties", {}).get(key) or found.get("additionalProperties") or {}
        if "$ref" in found:
            found = whole["$defs"][found["$ref"].rpartition("/")[2]]
    return found


def _line(section: type[Section], error: ValidationError, values: Any) -> str:
    """Turn the first thing that pydantic found wrong into one line."""
    found = error.errors()
    # A misspelt name is both unknown and, under its right name, missing; the unknown one says more.
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    path: list[Any] = []
    value = values
    for key in first["loc"]:  # the location names a union's branches too: follow only the keys given
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            break
        path.append(key)
    name = ".".join([section.section, *map(str, path)])
    if first["type"] == "missing":
        return f"parameter {name}.{first['loc'][-1]} is missing"
    if first["type"] == "extra_forbidden":
        known = [str(key) for key in schema_at(section, path[:-1]).get("properties", {})]
        return f"unknown parameter {name}; {near(str(path[-1]), known)}"
    if first["type"] == "value_error":
        return f"{name} is {value!r}; {first['ctx']['error']}" if path else str(first["ctx"]["error"])
    return f"{name} is {value!r}; it must be {allowed(schema_at(section, path))}"
