"""Packet tables that benchmarks learn from: those of a folder, or simulated ones, each made once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import polars as pl

PARAMS_FILE: Final = Path("params.yaml")


def given(folder: Path) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return the names and packet tables of a folder.

    Raises:
        ValueError: the folder has no packet table.
    """
    from feature_store.packets.schema import scan_packets

    names = sorted(path.name.removeprefix("trace=") for path in folder.glob("trace=*"))
    if not names:
        raise ValueError(f"{folder} has no packet table; `swiftqueue extract FILE -o {folder}` makes one")
    for name in names:
        yield name, scan_packets(folder, name).collect()


def simulated(folder: Path, seconds: float, seeds: Iterable[int]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return the traces of section `simulate`, kept in a folder.

    Raises:
        RuntimeError: a trace could not be simulated.
    """
    from common.section import read_all
    from feature_store.packets.extract import ExtractJob
    from feature_store.packets.extract_many import extract_traces
    from pipelines.simulate import SimulateParams, simulate
    from pipelines.simulators import build_simulator

    for seed in seeds:
        made = folder / f"seed-{seed}"
        if not made.is_dir():
            print(f"simulating {seconds:.0f} s, seed {seed}", flush=True)
            section = read_all(PARAMS_FILE)["simulate"]
            params = SimulateParams(**(section | {"seeds": [seed], "duration_s": seconds}))
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                (capture,) = simulate(params, Path(scratch), build_simulator())
                extract_traces([ExtractJob(capture, f"seed-{seed}", None, "acks")], Path(scratch) / "packets")
                (Path(scratch) / "packets").rename(made)
        yield from given(made)
