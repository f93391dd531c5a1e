"""Tables of short TCP flows: a row per sample, a row per flow; each path's in a folder of its own.

`FOLDER/path=NAME/{samples,flows}.parquet`, and `path.json` beside them: what was simulated. A folder is whole
or not there. Name of the path and truth are in the flow table only; inputs are made of samples alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_folder
from swiftqueue.common.parquet import read_parquet
from swiftqueue.studies.rate.samples.definition import HORIZONS, LARGEST_RATE, MOST_SAMPLES, NAMES

KINDS: Final = ("train", "held-out")
"""A path that is learned from (some of its flows are not), or one that no model has seen."""
SAMPLE_SCHEMA: Final = pl.Schema({"flow": pl.Int64, "sample": pl.Int64} | {name: pl.Int64 for name in NAMES})
FLOW_SCHEMA: Final = pl.Schema(
    {
        "flow": pl.Int64,  # by arrival
        "receiver": pl.Int64,
        "started_ns": pl.Int64,
        "samples": pl.Int64,  # ACKs in all; the first 35 are in the sample table
    }
    | {f"rate_{packets}_bytes_per_s": pl.Int64 for packets in HORIZONS}  # the truth; null: never reached
    | {f"at_{packets}_ns": pl.Int64 for packets in HORIZONS}  # when so many packets were delivered
)
KERNEL, ADDED, NS3 = "kernel", "added", "ns3"
"""Who made a path: `swiftqueue rate collect`, `rate add`, or a simulation (`source_of`)."""
SAMPLES, FLOWS, PATH = "samples.parquet", "flows.parquet", "path.json"


def write_path(
    folder: Path, name: str, path: Mapping[str, Any], samples: pl.DataFrame, flows: pl.DataFrame
) -> None:
    """Write one path's tables, whole or not at all.

    Raises:
        ValueError: a table is none of these; the line names the path.
    """
    samples, flows = checked(name, samples, flows)
    with new_folder(folder / f"path={name}") as partial:
        samples.write_parquet(partial / SAMPLES)
        flows.write_parquet(partial / FLOWS)
        (partial / PATH).write_text(json.dumps(path, indent=1) + "\n")


def tables_of(flows: Iterable[tuple[int, int, NDArray[np.int64]]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Samples and flows of what was sampled at every ACK; flows are counted as they come.

    Args:
        flows: for each its receiver, when it began (ns), and all of its samples (N, F), from the first on.
    """
    samples: list[dict[str, int]] = []
    rows: list[dict[str, int | None]] = []
    for number, (receiver, started_ns, x_NF) in enumerate(flows):
        row: dict[str, int | None] = {
            "flow": number, "receiver": receiver, "started_ns": started_ns, "samples": len(x_NF)
        }  # fmt: skip
        delivered, rate, ts = (x_NF[:, NAMES.index(name)] for name in ("delivered", "bbr_bw", "ts"))
        for packets in HORIZONS:
            at = int(np.searchsorted(delivered, packets))
            there = at < len(x_NF) and rate[at] > 0
            row[f"rate_{packets}_bytes_per_s"] = int(rate[at]) if there else None
            row[f"at_{packets}_ns"] = started_ns + 1000 * int(ts[at]) if there else None
        rows.append(row)
        for sample, values in enumerate(x_NF[:MOST_SAMPLES].tolist()):
            samples.append({"flow": number, "sample": sample} | dict(zip(NAMES, values, strict=True)))
    return pl.DataFrame(samples, SAMPLE_SCHEMA), pl.DataFrame(rows, FLOW_SCHEMA)


def read_path(folder: Path, name: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read one path's samples and flows, each in order.

    Raises:
        OSError: a file is not there.
        ValueError: a file is damaged or foreign; the line names it.
    """
    place = folder / f"path={name}"
    try:
        return checked(name, read_parquet([place / SAMPLES]), read_parquet([place / FLOWS]))
    except ValueError as error:
        said = str(error)
        raise ValueError(said if str(place) in said else f"{place}: {said}") from None


def checked(name: str, samples: pl.DataFrame, flows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Both tables with their columns in order, sorted.

    Raises:
        ValueError: columns are missing or of another type, a flow's samples have a gap, or a rate cannot be.
    """
    try:
        samples = samples.match_to_schema(SAMPLE_SCHEMA).sort("flow", "sample")
        flows = flows.match_to_schema(FLOW_SCHEMA).sort("flow")
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"path {name}: not a table of flows: {str(error).splitlines()[0][:200]}") from None
    if samples.null_count().sum_horizontal().item() or flows["flow"].n_unique() < len(flows):
        raise ValueError(f"path {name}: a sample has a null, or a flow stands there twice")
    counted = samples.group_by("flow", maintain_order=True).agg(
        pl.len().alias("n"), pl.col("sample").max().alias("last"), pl.col("sample").n_unique().alias("unique")
    )
    wrong = flows.join(counted, on="flow", how="full", coalesce=True).filter(
        pl.col("samples").is_null()
        | (pl.col("n").fill_null(0) != pl.min_horizontal("samples", MOST_SAMPLES))
        | (pl.col("last") != pl.col("n") - 1)
        | (pl.col("unique") != pl.col("n"))
    )
    if len(wrong):
        raise ValueError(
            f"path {name}, flow {wrong['flow'][0]}: its samples and what the flow table says of them differ"
        )
    for packets in HORIZONS:
        rate = pl.col(f"rate_{packets}_bytes_per_s")
        if len(bad := flows.filter((rate <= 0) | (rate >= LARGEST_RATE))):
            flow = bad["flow"][0]
            raise ValueError(
                f"path {name}, flow {flow}: its rate at packet {packets} must be above 0, below 1 Tbit/s"
            )
    return samples, flows


def described(place: Path) -> dict[str, Any] | None:
    """Return the description of a folder's path; None where it is missing or damaged."""
    try:
        about = json.loads((place / PATH).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return about if isinstance(about, dict) and about.get("kind") in KINDS else None


def source_of(about: Mapping[str, Any]) -> str:
    """Who made a path; a simulated one's `source` is the hash of its program."""
    source = about.get("source")
    return str(source) if source in (KERNEL, ADDED) else NS3


def source_of_all(paths: Iterable[Mapping[str, Any]]) -> str:
    """Who made some paths: one of the above, or `mixed`."""
    sources = {source_of(about) for about in paths}
    return sources.pop() if len(sources) == 1 else "mixed"


def paths_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the description of each path under `folder` by name, in the names' order.

    Raises:
        ValueError: there is none, or a description is damaged.
    """
    found: dict[str, dict[str, Any]] = {}
    for place in sorted(folder.glob("path=*")):
        about = described(place)
        if about is None:
            raise ValueError(f"{place / PATH} is damaged, or its `kind` is none of {', '.join(KINDS)}")
        found[place.name.removeprefix("path=")] = about
    if not found:
        raise ValueError(
            f"no flows under {folder}; `swiftqueue rate simulate`, `rate collect` or `rate add` makes some"
        )
    return found
