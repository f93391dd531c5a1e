"""Runs of `ns3/rate-exchange.cc`: packets of one sender, and samples of its downloads."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from swiftqueue.common.atomic import new_folder
from swiftqueue.common.parquet import read_parquet
from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA
from swiftqueue.pipelines.simulators import Runs
from swiftqueue.studies.rate.samples.tables import FLOW_SCHEMA, SAMPLE_SCHEMA, checked

PROFILES: Final = ("uncoupled", "rfc9332")
DOWNLOAD_BYTES: Final = (
    800_000  # 555 packets: a fourth of the paper's, so four times as many in the same time
)
STATE: Final = ("cwnd_bytes", "pacing_bytes_per_s", "rate_bytes_per_s", "ce_share")
"""Of a packet's connection when it left: its window, its pacing rate, its newest delivery rate (of a download
BBR's estimate), and the share of its ACKs that said CE (an average with a gain of 1/16)."""
_STATE_TYPES: Final[dict[str, type[pl.DataType]]] = {**dict.fromkeys(STATE, pl.Int64), "ce_share": pl.Float64}
PACKETS: Final = pl.Schema([*PACKET_SCHEMA.items(), *_STATE_TYPES.items()])
DOWNLOADS: Final = pl.Schema([*FLOW_SCHEMA.items(), ("established_ns", pl.Int64), ("flow_id", pl.Int32)])
TABLES: Final = {"packets": PACKETS, "samples": SAMPLE_SCHEMA, "flows": DOWNLOADS}


@dataclass(frozen=True)
class Traffic:
    """One run's tables; all of them in order."""

    profile: str
    seed: int
    packets: pl.DataFrame
    samples: pl.DataFrame
    flows: pl.DataFrame


def make(
    program: Path,
    output: Path,
    wanted: Sequence[tuple[str, int]],
    seconds: float,
    report: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[Traffic]:
    """Make the runs that are not there yet; return all of them.

    Args:
        program: path that `build_simulator(program="rate-exchange")` returned.
        output: folder of the finished runs, each by the hash of its options and its program.
        wanted: profile and seed of each.
        seconds: simulated.
        report: called with how many runs there are, and of how many.

    Raises:
        StageError: a run ended with an error; the line names it.
        ValueError: a finished run is damaged.
    """
    runs, done = Runs(program), itertools.count(1)
    source = hashlib.sha256(program.read_bytes()).hexdigest()

    def one(which: tuple[str, int]) -> Traffic:
        profile, seed = which
        options = {"profile": profile, "seed": seed, "seconds": seconds, "bytes": DOWNLOAD_BYTES}
        key = hashlib.sha256(json.dumps([options, source]).encode()).hexdigest()[:20]
        place = output / key
        if not place.is_dir():
            with tempfile.TemporaryDirectory(prefix="rate-") as scratch, new_folder(place) as partial:
                given = [f"--{name}={value}" for name, value in options.items()]
                runs.run([*given, f"--out={scratch}"], f"{profile}, seed {seed}")
                for name, table in tables_of(Path(scratch), f"{profile}, seed {seed}").items():
                    table.write_parquet(partial / f"{name}.parquet")
        found = {name: read_parquet([place / f"{name}.parquet"]) for name in TABLES}
        for name, table in found.items():
            if table.schema != TABLES[name]:
                raise ValueError(f"{place}: its {name} are damaged; remove the folder and run again")
        report(next(done), len(wanted))
        return Traffic(profile, seed, **found)

    output.mkdir(parents=True, exist_ok=True)
    return runs.each(one, wanted)


def tables_of(folder: Path, name: str) -> dict[str, pl.DataFrame]:
    """The program's output, as tables.

    Raises:
        ValueError: a table of downloads is none; the line names the run.
    """
    packets = pl.read_csv(folder / "packets.csv", schema_overrides={**_STATE_TYPES, "latency_us": pl.Float32})
    packets = packets.with_columns(trace=pl.lit(name), lost=pl.lit(value=False)).select(PACKETS.names())
    samples = pl.read_csv(folder / "samples.csv", schema=SAMPLE_SCHEMA)
    flows = pl.read_csv(folder / "flows.csv", schema=DOWNLOADS)
    checked(name, samples, flows.select(FLOW_SCHEMA.names()))
    return {"packets": packets.cast(PACKETS), "samples": samples, "flows": flows}
