"""What every stage's main needs: arguments, its own section of params.yaml, atomic outputs."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from feature_store import telemetry_off


class StageError(Exception):
    """A stage cannot go on; the message names the thing and says what to do."""


def load_params(path: Path, stage: str, known: set[str]) -> dict[str, Any]:
    """Return section `stage` of a params file, refusing unknown and missing keys.

    Raises:
        StageError: the file or the section is missing, or its keys are not exactly `known`.
    """
    if not path.is_file():
        raise StageError(f"{path}: no such parameter file")
    try:
        sections = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise StageError(f"{path}: not valid YAML: {str(error).splitlines()[-1].strip()}") from error
    section = sections.get(stage) if isinstance(sections, dict) else None
    if not isinstance(section, dict):
        raise StageError(f"{path}: section `{stage}` is missing")
    if unknown := sorted(set(section) - known):
        raise StageError(
            f"{path}: unknown parameter {stage}.{unknown[0]} (known: {', '.join(sorted(known))})"
        )
    if missing := sorted(known - set(section)):
        raise StageError(f"{path}: parameter {stage}.{missing[0]} is missing")
    return section


def check_number(stage: str, section: dict[str, Any], key: str, low: float, high: float) -> None:
    """Refuse a parameter that is not a number in `low..high`.

    Raises:
        StageError: the line names the parameter, its value and what it must be.
    """
    value = section[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise StageError(f"{stage}.{key} is {value!r}; it must be a number from {low:g} to {high:g}")


@contextlib.contextmanager
def atomic_dir(target: Path) -> Iterator[Path]:
    """Yield a fresh folder beside `target` that takes its place only when the block succeeds."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if target.exists():
        shutil.rmtree(target)
    partial.rename(target)


@contextlib.contextmanager
def stage_main(name: str) -> Iterator[None]:
    """Run a stage's main: no telemetry, and one clear line instead of a traceback for known errors."""
    telemetry_off.switch_off()
    try:
        yield
    except (StageError, FileNotFoundError, ValueError, OSError) as error:
        sys.exit(f"{name}: {error}")
