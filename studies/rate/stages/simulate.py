"""Stage `rate_simulate`: short BBR flows through many simulated paths, a sample at each ACK.

Each path is a run of `ns3/rate.cc`, started here and never imported (it links ns-3 and is
GPL-2.0-only). Paths that are there are left alone, so that a run goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import polars as pl
from pydantic import Field

from swiftqueue.common.section import Section, read
from swiftqueue.pipelines.simulators import PROJECT, Runs, build_simulator
from swiftqueue.pipelines.stage import Given, StageError, run_stage
from swiftqueue.studies.rate.samples.tables import (
    FLOW_SCHEMA,
    NS3,
    SAMPLE_SCHEMA,
    described,
    source_of,
    write_path,
)

SOURCES: Final = (
    "simulation/helper/link.h",
    "simulation/helper/tcp-endpoints.cc",
    "studies/rate/ns3/download.h",
    "studies/rate/ns3/forecast-bbr.h",
    "studies/rate/ns3/forecasts.h",
    "studies/rate/ns3/hystart-plus-plus.h",
    "studies/rate/ns3/rate.cc",
    "studies/rate/ns3/receiver.h",
    "studies/rate/ns3/sampled-bbr.h",
    "studies/rate/ns3/suss.h",
    "studies/rate/ns3/tables.h",
    "studies/rate/samples/feedback.h",
    "studies/rate/samples/tcp_sample.h",
)
Rates = Annotated[list[Annotated[float, Field(ge=1, le=1_000)]], Field(min_length=1)]
Times = Annotated[list[Annotated[float, Field(ge=1, le=1_000)]], Field(min_length=1)]
Buffers = Annotated[list[Annotated[float, Field(ge=0.1, le=10)]], Field(min_length=1)]
Shares = Annotated[list[Annotated[float, Field(ge=0, le=0.9)]], Field(min_length=1)]
Loads = Annotated[list[Annotated[float, Field(ge=0.01, le=2)]], Field(min_length=1)]


class RateSimulateParams(Section):
    """The flows from which forecasts of rates are learned (README.md)."""

    section: ClassVar = "rate_simulate"
    seed: Annotated[int, Field(ge=1, le=2**31)]
    """Seed of all random choices; each path's has its number besides."""
    flows: Annotated[int, Field(ge=1, le=100_000)]
    """Number of flows of a path."""
    receivers: Annotated[int, Field(ge=1, le=200)]
    """Number of hosts of a path that flows go to."""
    bytes: Annotated[int, Field(ge=1, le=100_000_000)]
    """Size of a flow; the paper's is 3.2 MB."""
    train_mbps: Rates
    """Rates of the paths to learn from, in Mbit/s; each with each round trip."""
    train_rtt_ms: Times
    """Round trips of these paths, in ms."""
    held_out_mbps: Rates
    """Rates, in Mbit/s, of the paths that no model learns from."""
    held_out_rtt_ms: Times
    """Round trips of those paths, in ms."""
    buffer_bdp: Buffers
    """Bottleneck's queue in rate times round trip; drawn for each path, as all below."""
    load: Loads
    """Share of the rate that flows offer."""
    cross: Shares
    """Share of the rate that unresponsive packets take."""

    def paths(self) -> dict[str, dict[str, Any]]:
        """Return the description of each path by its name.

        Raises:
            StageError: the same rate and round trip stands in both grids.
        """
        found: dict[str, dict[str, Any]] = {}
        source = source_hash()
        grids = (
            ("train", self.train_mbps, self.train_rtt_ms),
            ("held-out", self.held_out_mbps, self.held_out_rtt_ms),
        )
        for kind, rates, trips in grids:
            for mbps, rtt_ms in itertools.product(rates, trips):
                name = f"{mbps:g}mbps-{rtt_ms:g}ms"
                if name in found:
                    raise StageError(
                        f"rate_simulate: the path of {mbps:g} Mbit/s and {rtt_ms:g} ms stands twice"
                    )
                draw = np.random.default_rng([self.seed, len(found)])
                drawn = {
                    key: float(draw.choice(getattr(self, key))) for key in ("buffer_bdp", "load", "cross")
                }
                options = {
                    "rate-bps": mbps * 1e6,
                    "rtt-ms": rtt_ms,
                    "buffer-bdp": drawn["buffer_bdp"],
                    "load": drawn["load"],
                    "cross": drawn["cross"],
                    "receivers": self.receivers,
                    "flows": self.flows,
                    "bytes": self.bytes,
                    "seed": int(draw.integers(1, 2**31)),
                }
                found[name] = {"format": 1, "kind": kind, "source": source, "options": options}
        return found


def source_hash() -> str:
    """Hash of what the program is made of here: other sources make other flows."""
    digest = hashlib.sha256()
    for source in SOURCES:
        digest.update((PROJECT / source).read_bytes())
    return digest.hexdigest()[:16]


def simulate(
    params: RateSimulateParams,
    output: Path,
    program: Path,
    report: Callable[[str, int, int], None] = lambda _name, _done, _of: None,
) -> int:
    """Simulate the paths that are not there yet, as many at a time as there are cores; return how many.

    Args:
        params: the section.
        output: folder of the tables; paths of other settings in it are replaced or removed, but for those
            that were not simulated, or that nobody can say what they are.
        program: path that `build_simulator(program="rate")` returned.
        report: called with the name of a path that is ready, how many are, and of how many.

    Raises:
        StageError: a path that was not simulated has the name of one that is asked for; or the program ended
            with an error, or what it wrote cannot be; the line names the path.
    """
    wanted = params.paths()
    known = {place.name.removeprefix("path="): described(place) for place in output.glob("path=*")}
    for name, about in known.items():
        if name in wanted and about is not None and source_of(about) != NS3:
            raise StageError(
                f"{output / f'path={name}'} was not simulated (source {source_of(about)}), and rate_simulate "
                "asks for a path of that name: rename it"
            )
    there = {name for name, about in known.items() if wanted.get(name) == about}
    for name, about in known.items():
        if name not in wanted and about is not None and source_of(about) == NS3:
            shutil.rmtree(output / f"path={name}")
    todo = [name for name in wanted if name not in there]
    done = itertools.count(len(there) + 1)
    runs = Runs(program)

    def run(name: str) -> None:
        with tempfile.TemporaryDirectory(prefix="rate-") as scratch:
            options = [f"--{key}={value}" for key, value in wanted[name]["options"].items()]
            runs.run([*options, f"--out={scratch}"], f"path {name}")
            samples = pl.read_csv(Path(scratch) / "samples.csv", schema=SAMPLE_SCHEMA)
            flows = pl.read_csv(Path(scratch) / "flows.csv", schema=FLOW_SCHEMA)
            # Where every round trip of the last ten was lost BBR estimates 0: nothing to forecast.
            rates = pl.selectors.starts_with("rate_")
            flows = flows.with_columns(pl.when(rates > 0).then(rates).name.keep())
        write_path(output, name, wanted[name], samples, flows)
        report(name, next(done), len(wanted))

    runs.each(run, todo)
    return len(todo)


def main(params: Given, output: Given) -> None:
    """Read `rate_simulate` of the params file and write the tables; a line for each path."""
    section = read(params, RateSimulateParams)
    section.paths()
    program = build_simulator(program="rate")
    made = simulate(
        section, output, program, lambda name, done, of: print(f"path {done} of {of}: {name}", flush=True)
    )
    print(f"{output}: {len(section.paths())} paths of {section.flows} flows, {made} of them made now")


if __name__ == "__main__":
    run_stage("rate_simulate", main)
