"""Keep fitted forecasters, so that scoring can change without training them again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from swiftqueue.common.import_closure import code_hash
from swiftqueue.common.json_file import read_object
from swiftqueue.models.forecasters.forecaster import DESCRIPTION_FILE, Forecaster, Say, Variant, load, save
from swiftqueue.models.forecasters.traces import TracePart, fingerprint


def fit(
    variant: Variant, seed: int, parts: Sequence[TracePart], say: Say, folder: Path | None = None
) -> tuple[Forecaster, float]:
    """Fit a variant, or load it if it was fitted before with the same lessons, parameters, seed and code.

    With a `folder` it is kept there as `VARIANT-SEED`. The result is read back with or without a folder,
    because loaded trees draw other rows when they are tuned.

    Returns:
        The forecaster, and the seconds of CPU that fitting it took.

    Raises:
        ValueError: as `Forecaster.fit`.
        OSError: the folder cannot be written.
    """
    if folder is None:
        with TemporaryDirectory(prefix="swiftqueue-") as scratch:
            return fit(variant, seed, parts, say, Path(scratch))
    place, key = folder / f"{variant.name}-{seed}", key_of(variant, seed, fingerprint(parts))
    if found := _read(place, key):
        say("fitted before")
        return found
    started = time.process_time()
    forecaster = variant.fit(parts, seed, say)
    cpu_s = round(time.process_time() - started, 2)
    known = {"visibility": parts[0].visibility, "told": parts[0].told}
    save(place, forecaster, key=key, params=variant.params.model_dump(), fit_cpu_s=cpu_s, **known)
    return load(place), cpu_s


def key_of(variant: Variant, seed: int, work: str, *modules: str) -> str:
    """Return the name of a fitted variant and seed for some work; other sizes or code have other names.

    The code is that of the variant's kind and of `modules`.
    """
    content = [variant.kind_name, variant.params.model_dump(), seed, work]
    code = _code_of(variant.kind.__module__, *modules)
    return f"{work}-{hashlib.sha256(json.dumps([*content, code]).encode()).hexdigest()[:16]}"


@cache
def _code_of(*modules: str) -> str:
    """Return the hash of some code, computed once: later edits of a file do not change our runs."""
    return code_hash(*modules)


def _read(place: Path, key: str) -> tuple[Forecaster, float] | None:
    """Return the forecaster kept under that key, or None if it is another one or unreadable."""
    try:
        described: dict[str, Any] = read_object(place / DESCRIPTION_FILE)
        return (load(place), float(described["fit_cpu_s"])) if described.get("key") == key else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
