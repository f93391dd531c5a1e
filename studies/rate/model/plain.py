"""Flows as they are, before anyone forecasts: the paper's figures 5 to 7.

How long downloads take by round trip and buffer, what BBR estimates at a packet, and how much more that is
than at the last sample of a forecast's input. All are quartiles over flows, least and most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from swiftqueue.studies.rate.samples import tables
from swiftqueue.studies.rate.samples.definition import HORIZONS, PREFIXES

LAST: Final = max(HORIZONS)
"""A download has taken until so many packets are delivered: the table has no later moment."""
QUARTILES: Final = ("least", "lower", "median", "upper", "most")


def plain(folders: Sequence[Path]) -> dict[str, Any]:
    """Quartiles of the flows in some folders.

    Returns:
        `source`: who made them; `downloads`: seconds, a row for each rate, round trip and buffer of
        simulated paths; `estimates`: Mbit/s by packet; `growth`: ratio of the estimate at a packet to that
        at sample n, by "n-packet".

    Raises:
        OSError, ValueError: a table is missing, damaged or foreign; the line names it.
    """
    paths = [(folder, *one) for folder in folders for one in tables.paths_in(folder).items()]
    flows = pl.concat([_path(*one) for one in paths])
    grouped = flows.drop_nulls("rtt_ms").group_by("mbps", "rtt_ms", "buffer_bdp").agg("took_s").sort(pl.all())
    return {
        "source": tables.source_of_all(about for _, _, about in paths),
        "flows": flows.height,
        "downloads": [
            {"mbps": mbps, "rtt_ms": rtt_ms, "buffer_bdp": buffer_bdp, **quartiles(took_s)}
            for mbps, rtt_ms, buffer_bdp, took_s in grouped.iter_rows()
        ],
        "estimates": {str(k): quartiles(flows[f"at_{k}"] * 8e-6) for k in (*PREFIXES, *HORIZONS)},
        "growth": {
            f"{n}-{k}": quartiles(flows[f"at_{k}"] / flows[f"at_{n}"]) for n in PREFIXES for k in HORIZONS
        },
    }


def quartiles(values: Iterable[float | None]) -> dict[str, Any]:
    """Quartiles of what is known, and how many values that are."""
    known = np.array([value for value in values if value is not None], np.float64)
    found = np.quantile(known, (0, 0.25, 0.5, 0.75, 1)).tolist() if known.size else [None] * len(QUARTILES)
    return {"n": known.size, **dict(zip(QUARTILES, found, strict=True))}


def lines(found: dict[str, Any]) -> list[str]:
    """Return the text for a terminal."""
    said = [f"{found['flows']:,} flows; quartiles over flows"]
    for one in found["downloads"]:
        where = f"{one['mbps']:g} Mbit/s, {one['rtt_ms']:g} ms, {one['buffer_bdp']:g} BDP"
        said.append(f"{where}: {LAST} packets in {_told(one, '.2f')} s")
    said += [f"estimate at packet {k}: {_told(one, '.2f')} Mbit/s" for k, one in found["estimates"].items()]
    for pair, one in found["growth"].items():
        n, k = pair.split("-")
        said.append(f"estimate at packet {k} against sample {n}: {_told(one, '.1f')} times")
    return said


def _told(one: dict[str, Any], form: str) -> str:
    if not one["n"]:
        return "never reached"
    return f"{one['median']:{form}} ({one['lower']:{form}} to {one['upper']:{form}})"


def _path(folder: Path, name: str, about: dict[str, Any]) -> pl.DataFrame:
    """A row a flow: what its path is, how long it took, its estimate at each packet in bytes/s."""
    samples, flows = tables.read_path(folder, name)
    options = about.get("options", {})
    is_known = {"rate-bps", "rtt-ms", "buffer-bdp"} <= set(options)
    at_sample = (
        samples.filter(pl.col("sample") + 1 == n, pl.col("bbr_bw") > 0).select(
            "flow", pl.col("bbr_bw").alias(f"at_{n}")
        )
        for n in PREFIXES
    )
    found = flows.select(
        "flow",
        *(pl.col(f"rate_{k}_bytes_per_s").alias(f"at_{k}") for k in HORIZONS),
        ((pl.col(f"at_{LAST}_ns") - pl.col("started_ns")) * 1e-9).alias("took_s"),
        pl.lit(options["rate-bps"] / 1e6 if is_known else None, pl.Float64).alias("mbps"),
        pl.lit(options["rtt-ms"] if is_known else None, pl.Float64).alias("rtt_ms"),
        pl.lit(options["buffer-bdp"] if is_known else None, pl.Float64).alias("buffer_bdp"),
    )
    for each in at_sample:
        found = found.join(each, on="flow", how="left")
    return found.drop("flow")
