"""Scenario files: `simulation/scenarios/NAME.yaml`, a study's or a user's own, read and checked."""

from __future__ import annotations

import copy
import fnmatch
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from swiftqueue.common.section import meant
from swiftqueue.common.studies import FOLDER as STUDIES
from swiftqueue.laboratory.scenarios.controls import AGENTS
from swiftqueue.laboratory.scenarios.schema import (
    CONFUCIUS,
    DUAL_PI2,
    Environment,
    Scenario,
    check_one_flow_each,
    check_placebo,
    check_times,
)
from swiftqueue.pipelines.simulators import PROJECT

FOLDER: Final = PROJECT / "simulation" / "scenarios"
PUBLISHED: Final = Path("docs/laboratory")
FULL: Final = ("figure8", "figure8-finetuned", "sweep-*", "map-*", "many-flows")
"""The full laboratory: what `swiftqueue lab run --full` runs."""
# pydantic's own steps into the union
_STEPS: Final = {"messages", "greedy", "video", "cbr", "replay", "pages", "real_time"}


def folders() -> list[Path]:
    """Return the folders of the project's scenarios, those of the studies after its own."""
    return [FOLDER, *sorted(STUDIES.glob("*/scenarios"))]


def names() -> list[str]:
    """Return the names of the project's scenarios."""
    found = (path.stem for folder in folders() for path in folder.glob("*.yaml"))
    return sorted(name for name in found if not name.startswith("_"))


def find(name: str) -> Path | None:
    """Return the file of the project's scenario of that name; None where there is none."""
    return next((path for each in folders() if (path := each / f"{name}.yaml").is_file()), None)


def published_in(name: str) -> Path:
    """Return the folder, below a checkout, where a scenario's results are published: its study's, if any."""
    path = find(name)
    is_of_study = path is not None and path.is_relative_to(STUDIES)
    return path.parents[1].relative_to(PROJECT) / "data" if path and is_of_study else PUBLISHED


def full() -> list[str]:
    """Return the names of the full laboratory's scenarios."""
    return [name for pattern in FULL for name in fnmatch.filter(names(), pattern)]


def files_of(scenarios: Sequence[str]) -> dict[str, Path]:
    """Return the files of scenarios by name, under which their results are kept; each name has one file.

    Raises:
        FileNotFoundError: there is no such scenario.
        ValueError: two files have one name, or a user's file has that of a project's scenario.
    """
    files: dict[str, Path] = {}
    for path in map(path_of, scenarios):
        projects = find(path.stem)
        if projects is not None and not projects.samefile(path):
            raise ValueError(f"{path}: the project has a scenario {path.stem}; give the file another name")
        other = files.setdefault(path.stem, path)
        if not other.samefile(path):
            raise ValueError(f"{path}: {other} has the same name; give one of the files another")
    return files


def path_of(scenario: str) -> Path:
    """Return the file of a scenario, given by its name or as a path.

    Raises:
        FileNotFoundError: there is no such scenario.
    """
    path = Path(scenario) if scenario.endswith((".yaml", ".yml")) else find(scenario)
    if path is not None and path.is_file():
        return path
    if path is not None:
        raise FileNotFoundError(f"{scenario}: no such file")
    hints = [hint for hint in (meant(scenario, names()), "`swiftqueue lab scenarios` lists them") if hint]
    raise FileNotFoundError(f"{scenario}: no such scenario; {' '.join(hints)}")


def load(path: Path) -> Scenario:
    """Read and check a scenario; each point of its axis is checked too.

    A key `extends: OTHER` takes missing keys from OTHER.yaml beside the file, or else from the project's
        scenario of that name; mappings are joined by key. In a list of names, later ones override earlier
        ones.

    Raises:
        ValueError: one line that names the file and the key.
    """
    raw = _read(path)
    try:
        scenario = Scenario.model_validate(raw)
    except ValidationError as error:
        raise ValueError(f"{path.name}: {_first(error)}") from None
    check_points(scenario, path.name)
    _check_used(scenario, _own(path), path.name)
    return scenario


def check_points(scenario: Scenario, source: str) -> None:
    """Check that the scenario is sound at each of its points.

    Raises:
        ValueError: it is not; the line begins with `source`.
    """
    points = scenario.axis.points if scenario.axis else {}
    for point in ("", *points):
        environment = environment_at(scenario, point, source)
        profiles = (points[point].profiles if point else None) or scenario.profiles
        if len(profiles) > 1 and (disc := environment.without_profile()) and (point or not points):
            where = f"axis.points.{point}: " if point else ""
            raise ValueError(
                f"{source}: {where}profiles: only queues of {DUAL_PI2} have several; with {disc} give one"
            )
        try:
            check_times(environment, scenario.seconds)
            if "placebo" in scenario.controls:
                check_placebo(environment, scenario.seconds)
            if scenario.flows or scenario.classes:
                check_one_flow_each(environment)
        except ValueError as error:
            where = f"axis.points.{point}: " if point else "environment."
            raise ValueError(f"{source}: {where}{error}") from None


def _check_used(scenario: Scenario, own: Mapping[str, Any], source: str) -> None:
    """Check that each key of the file itself, not of its bases, changes something.

    Raises:
        ValueError: one changes nothing anywhere.
    """
    points = scenario.axis.points if scenario.axis else {}
    environments = {point: environment_at(scenario, point, source) for point in points or ("",)}
    idle = {point: environment.idle_keys() for point, environment in environments.items()}
    for key, why in {key: why for found in idle.values() for key, why in found.items()}.items():
        given = _has(own.get("environment"), key.split("."))
        at = [point for point in idle if given or ("axis" in own and point and key in points[point].set)]
        if at and all(key in idle[point] for point in at):
            raise ValueError(f"{source}: environment.{key}: {why}")
    if _has(own.get("environment"), ("controls", "model")) and not {*AGENTS} & {*scenario.controls}:
        raise ValueError(f"{source}: environment.controls.model: no control of the scenario heeds it")
    if own.get("page_by_page") and not any(each.has_pages() for each in environments.values()):
        raise ValueError(f"{source}: page_by_page: no group has traffic of kind pages")
    if own.get("classes") and not any(each.has_classes() for each in environments.values()):
        raise ValueError(f"{source}: classes: no bottleneck's disc is {CONFUCIUS}")


def _has(tree: Any, keys: Sequence[str]) -> bool:
    for key in keys:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True


def environment_at(scenario: Scenario, point: str, file: str) -> Environment:
    """Return the environment at a point of the axis (`""`: the scenario's own).

    Raises:
        ValueError: the point sets an unknown key, or a value out of range.
    """
    if not point:
        return scenario.environment
    assert scenario.axis is not None  # noqa: S101 - a point has an axis
    changed = scenario.environment.model_dump()
    for key, value in scenario.axis.points[point].set.items():
        if not _put(changed, key.split("."), value):
            raise ValueError(f"{file}: axis.points.{point}.set: the environment has no key {key!r}")
    try:
        return Environment.model_validate(changed)
    except ValidationError as error:
        raise ValueError(f"{file}: axis.points.{point}: {_first(error)}") from None


def _put(tree: Any, keys: Sequence[str], value: Any) -> bool:
    for key in keys[:-1]:
        index: Any = int(key) if isinstance(tree, list) and key.isdigit() else key
        try:
            tree = tree[index]
        except (KeyError, IndexError, TypeError):
            return False
    if not isinstance(tree, dict) or keys[-1] not in tree:
        return False
    tree[keys[-1]] = copy.deepcopy(value)
    return True


class _TwiceError(yaml.MarkedYAMLError):
    """The error for a key that is given twice."""


class _Once(yaml.SafeLoader):
    """A loader that refuses a key given twice; YAML would take the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _TwiceError(problem=f"{key.value}: is given twice", problem_mark=key.start_mark)
                seen.add(key.value)
        return node


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> Any:
    """Return what a YAML text holds. Many scenarios extend the same file, and PyYAML takes 15 ms for each."""
    return yaml.load(text, _Once)  # noqa: S506 - a safe loader


def _own(path: Path) -> dict[str, Any]:
    """Return the keys that a file itself has."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such scenario")
    try:
        raw = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name}: not text in UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark else "somewhere"
        what = error.problem if isinstance(error, _TwiceError) else "not valid YAML"
        raise ValueError(f"{path.name}: {where}: {what}") from None
    except RecursionError:
        raise ValueError(f"{path.name}: nested too deep") from None
    except ValueError as error:  # an impossible date, such as 2026-13-01
        raise ValueError(f"{path.name}: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path.name}: not a mapping of keys")
    return raw


def _read(path: Path, *above: Path) -> dict[str, Any]:
    """Return a file's keys joined with those of its bases; `above` are the files that extend this one."""
    raw, chain = _own(path), (path, *above)
    named = raw.pop("extends", [])
    joined: dict[str, Any] = {}
    for base in named if isinstance(named, list) else [named]:
        joined = _joined(joined, _read(_base(path, base, chain), *chain))
    return _joined(joined, raw)


def _base(path: Path, base: Any, chain: Sequence[Path]) -> Path:
    """Return the file that `path` extends by this name; it must not be in the chain."""
    if not isinstance(base, str):
        raise ValueError(f"{path.name}: extends: {base!r} is no name of a scenario")
    for found in (path.parent / f"{base}.yaml", find(base)):
        if found is not None and found.is_file() and not any(map(found.samefile, chain)):
            return found
    raise ValueError(f"{path.name}: extends: there is no other {base!r}, beside it or in the project")


def _joined(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        # `kind` names a mapping's type: another kind replaces the mapping instead of changing it.
        joinable = isinstance(below, dict) and isinstance(value, dict) and "kind" not in value
        result[key] = _joined(below, value) if joinable and isinstance(below, dict) else value
    return result


def _first(error: ValidationError) -> str:
    """Return one line about the first error: its key and what it must be.

    An unknown key comes first, because a misspelt one is missing as well.
    """
    problems = error.errors()
    problem = next((one for one in problems if one["type"] == "extra_forbidden"), problems[0])
    at = problem["loc"]
    where = ".".join(
        str(part)
        for before, part in zip(("", *at), at, strict=False)
        if part != "[key]" and not (before == "traffic" and part in _STEPS)
    )
    if problem["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    if problem["type"] == "missing":
        return f"{where}: is missing"
    message = problem["msg"].removeprefix("Value error, ")
    given = problem.get("input")
    if problem["type"] == "value_error":
        return f"{where}.{message}" if where else message
    shown = f" (is {given!r})" if isinstance(given, str | int | float) else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}"
