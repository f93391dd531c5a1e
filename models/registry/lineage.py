"""Where a model comes from: the commit of the code and the DVC hashes of the data it was made with."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

UNKNOWN: Final = "unknown"
# What the stages write of tracked files, as `git status` takes paths. A version's tags have the hashes in it.
RECORDS: Final = ("dvc.lock", "data/evaluation")
ORIGIN: Final = ("dvc.", "retrain.")  # tags that say where a version's encoder comes from


def origin(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags that say where a version's encoder comes from."""
    return {name: value for name, value in tags.items() if name.startswith(ORIGIN)}


def git_commit(folder: Path) -> str:
    """Commit checked out in `folder`, with `+dirty` if its sources differ; `unknown` where git does not say.

    What `dvc repro` writes is no source: on another machine the same sources give it other last digits.
    """
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        records = [f":(exclude,top){path}" for path in RECORDS]
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/", *records)
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN
    return f"{commit}+dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, timeout=30
    )
    return done.stdout.strip()


def dvc_hashes(lock: Path) -> dict[str, str]:
    """MD5 by path of every output that `dvc.lock` knows; empty without one (a run outside DVC).

    Raises:
        ValueError: the file is malformed.
    """
    if not lock.is_file():
        return {}
    try:
        stages = (yaml.safe_load(lock.read_text()) or {}).get("stages") or {}
        outs = [out for stage in stages.values() for out in stage.get("outs", [])]
        return {str(out["path"]): str(out["md5"]) for out in outs if "md5" in out}
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = (str(error) or "nested too deep").splitlines()[0]
        raise ValueError(f"{lock}: not what DVC writes ({reason}); dvc repro writes it anew") from error


def content_hash(artifact: Path) -> str:
    """SHA-256 of an artifact's description and weights: two artifacts with one hash are one model."""
    # Here, because it brings PyTorch, which `swiftqueue status` can do without.
    from models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE

    digest = hashlib.sha256()
    for name in (DESCRIPTION_FILE, WEIGHTS_FILE):
        digest.update((artifact / name).read_bytes())
    return digest.hexdigest()
