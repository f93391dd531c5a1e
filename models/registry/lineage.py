"""Tell the origin of a model: the commit of the code, and the DVC hashes of its data."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    import polars as pl

UNKNOWN: Final = "unknown"
# Tracked files that the stages write, as paths for `git status`; a version's tags have their hashes.
RECORDS: Final = ("dvc.lock", "data/evaluation")
RETRAIN: Final = "retrain."  # prefix of tags of a version whose encoder a full re-train made
ORIGIN: Final = ("dvc.", RETRAIN)  # prefixes of an older program's tags that depend on the encoder
MLFLOW_TYPES: Final = {  # type of a column by Polars' name of its type; others are read as text
    **dict.fromkeys(("Int8", "Int16", "Int32", "UInt8", "UInt16"), "integer"),
    **dict.fromkeys(("Int64", "UInt32"), "long"),
    **{"Float32": "float", "Float64": "double", "Boolean": "boolean"},
}


def origin(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that name the origin of a version's encoder."""
    return {name: value for name, value in tags.items() if name.startswith(ORIGIN)}


@dataclass(frozen=True)
class DataSet:
    """A data set of a run, which MLflow shows as its input."""

    name: str
    source: str  # path in the project
    digest: str  # DVC's MD5; without one, a digest of file names and sizes
    use: str  # `training` or `testing`
    rows: int | None
    columns: Mapping[str, str]  # MLflow's type by column name


def packet_sets(packets: Path, traces: Iterable[str], lock: Path, use: str = "training") -> list[DataSet]:
    """Describe the packet tables of some traces; a trace without a table has no entry.

    Args:
        packets: folder of the packet tables.
        traces: names of the traces.
        lock: `dvc.lock`; the project's folder is its parent.
        use: `training` or `testing`.
    """
    import polars as pl

    sets = []
    for name in traces:
        folder = packets / f"trace={name}"
        files = sorted(folder.rglob("*.parquet"))
        if not files:
            continue
        table = pl.scan_parquet(files)
        columns = {
            column: MLFLOW_TYPES.get(str(kind), "string") for column, kind in table.collect_schema().items()
        }
        rows = int(table.select(pl.len()).collect().item())
        sets.append(DataSet(name, *_where_and_what(folder, lock), use, rows, columns))
    return sets


def folder_set(folder: Path, lock: Path) -> DataSet:
    """Describe a folder as one data set, for a stage without packet tables."""
    return DataSet(folder.name, *_where_and_what(folder, lock), "training", None, {})


def telemetry_set(packets: pl.DataFrame) -> DataSet:
    """Describe the packets of a sender that a round learned from.

    Columns are left out: MLflow keeps a row for each data set for ever, and each round has one of its own.
    """
    sender, begin_ns, end_ns = packets["trace"][0], packets["sent_ns"][0], packets["sent_ns"][-1]
    digest = hashlib.sha256(f"{sender} {begin_ns} {end_ns}".encode()).hexdigest()[:32]
    return DataSet(str(sender), f"telemetry/{sender}", digest, "training", packets.height, {})


def _where_and_what(folder: Path, lock: Path) -> tuple[str, str]:
    """Return the path of a folder in the project, and its digest."""
    source = os.path.relpath(folder, lock.parent)
    if known := dvc_hashes(lock).get(source):
        return source, known
    seen = sorted((str(one.relative_to(folder)), one.stat().st_size) for one in folder.rglob("*.*"))
    return source, hashlib.sha256(repr(seen).encode()).hexdigest()[:32]


def git_commit(folder: Path) -> str:
    """Return the commit checked out in `folder`, with `+dirty` if its sources differ; else `unknown`.

    Outputs of `dvc repro` are no sources: on another machine the same sources give other last digits.
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
    """Return the MD5 by path of every output in `dvc.lock`; empty without one (a run outside DVC).

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
    """Return the SHA-256 of an artifact's description and weights: one hash means one model."""
    # Imported here, because it brings PyTorch, which `swiftqueue status` does not need.
    from swiftqueue.models.networks.files import DESCRIPTION_FILE, WEIGHTS_FILE

    digest = hashlib.sha256()
    for name in (DESCRIPTION_FILE, WEIGHTS_FILE):
        digest.update((artifact / name).read_bytes())
    return digest.hexdigest()
