"""Stage `simulate`: make the default traces with the laboratory's program, one for each seed.

A captured sender and others share one bottleneck with a dual queue (simulation/README.md). The program is
built and started here, never imported: it links ns-3 and is GPL-2.0-only.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import typer
from pydantic import AfterValidator, Field, model_validator

from swiftqueue.common.atomic import new_folder
from swiftqueue.common.section import Section, read
from swiftqueue.feature_store.packets.truth import write_truth
from swiftqueue.pipelines.simulators import Runs, build_simulator
from swiftqueue.pipelines.stage import Given, run_stage

FIRST_PORT: Final = 5000  # port of the first flow; the flow of port p goes to receiver p modulo their number
ACCESS_MS: Final = 0.1  # delay of an access link, ms
RECEIVER_STEP_MS: Final = 4  # further base round trip of each next receiver, ms
QUEUE_BYTES: Final = 1_000_000  # limit of each queue, bytes
# ns-3 has no RACK. An explored packet arrives tens of ms out of order, which the usual 3 duplicate ACKs would
# take for a loss; no other flow is reordered.
EXPLORED_DUPACKS: Final = 12
Seed = Annotated[int, Field(ge=1, le=2**32 - 1)]


def _distinct(seeds: list[int]) -> list[int]:
    if len(set(seeds)) < len(seeds):
        raise ValueError("a seed is given twice, and would make the same trace twice")
    return seeds


class SimulateParams(Section):
    """The simulated traces: their network and their traffic."""

    section: ClassVar = "simulate"
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]
    """Seeds of the simulated traces; seed N makes trace dumbbell-N."""
    duration_s: Annotated[float, Field(ge=1, le=86_400)]
    """Simulated seconds of a trace."""
    bottleneck_mbps: Annotated[float, Field(ge=1, le=1_000)]
    """Rate of the bottleneck in Mbit/s; access links have 1 Gbit/s, or four times it if that is more."""
    rtt_ms: Annotated[float, Field(ge=1, le=1_000)]
    """Base round trip through the bottleneck, in ms."""
    receivers: Annotated[int, Field(ge=1, le=100)]
    """Number of hosts that the captured sender sends to."""
    dctcp_flows: Annotated[int, Field(ge=0, le=1_000)]
    """Number of L4S flows of the captured sender, ECT(1)."""
    cubic_flows: Annotated[int, Field(ge=0, le=1_000)]
    """Number of classic flows of the captured sender."""
    cross_flows: Annotated[int, Field(ge=0, le=100)]
    """Number of flows of other senders through the same bottleneck, a node each."""
    flow_mbps: Annotated[float, Field(ge=0.01, le=1_000)]
    """Offered load of a flow in Mbit/s, in Poisson messages."""
    explore_share: Annotated[float, Field(ge=0, le=1)]
    """Share of the captured sender's batches of 8 whose L4S packets are sent as classic."""
    l_step_ms: Annotated[float, Field(ge=0, le=1_000)]
    """Waiting time in ms above which the L queue marks (RFC 9332: 1)."""

    @model_validator(mode="after")
    def _something_to_capture(self) -> SimulateParams:
        if self.dctcp_flows + self.cubic_flows == 0:
            raise ValueError("simulate.dctcp_flows and simulate.cubic_flows are both 0: nothing to capture")
        return self

    def run(self, seed: int) -> dict[str, Any]:
        """Return `run.json` of the trace of a seed, which the program simulates (simulation/doc/lab.md)."""
        flows = [*["dctcp"] * self.dctcp_flows, *["cubic"] * self.cubic_flows]
        flows += ["cubic" if i % 2 else "dctcp" for i in range(self.cross_flows)]
        own = self.dctcp_flows + self.cubic_flows
        groups = [
            {
                "flows": 1,
                "tcp": tcp,
                "ecn": "ect1" if tcp == "dctcp" else "ect0",
                "receiver": f"r{(FIRST_PORT + i) % self.receivers}",
                "start_s": [0, 1],
                "dupack_threshold": EXPLORED_DUPACKS if i < self.dctcp_flows else 3,
                "traffic": {"kind": "messages", "rate_bps": self.flow_mbps * 1e6, "sizes": "web_search"},
            }
            for i, tcp in enumerate(flows)
        ]
        senders = [groups[:own], *([group] for group in groups[own:])]
        bottleneck = {
            "rate_bps": self.bottleneck_mbps * 1e6,
            "delay_ms": self.rtt_ms / 2 - 2 * ACCESS_MS,
            "buffer_bytes": QUEUE_BYTES,
            "l_step_ms": self.l_step_ms,
        }
        return {
            "format": 1,
            "seed": seed,
            "streams": "traces",
            "seconds": self.duration_s,
            "warmup_s": 0,
            "profile": "uncoupled",
            "bottlenecks": [bottleneck],
            "receivers": [
                {"name": f"r{i}", "router": 1, "delay_ms": ACCESS_MS + i * RECEIVER_STEP_MS / 2}
                for i in range(self.receivers)
            ],
            "senders": [
                {"name": f"s{i + 1}", "router": 0, "delay_ms": ACCESS_MS, "groups": groups}
                for i, groups in enumerate(senders)
            ],
            "control": {"kind": "default"},
            "moved_ecn": "not_ect",
            "acks": "selective",
            "explore": self._explore(seed),
            "finetune": None,
            "outputs": ["pcap", "truth", "waits"],
        }

    def description(self, seed: int) -> str:
        """Return the JSON file beside the capture: all parameters, whole numbers without a point."""
        values = self.model_dump(exclude={"seeds", "explore_share"})
        described = {"format": 1, "seed": seed, **values, "explore": self._explore(seed)}
        described["dctcp_dupack_threshold"] = EXPLORED_DUPACKS
        whole = (
            (name, int(value) if isinstance(value, float) and value.is_integer() else value)
            for name, value in described.items()
        )
        return json.dumps(dict(whole)) + "\n"

    def _explore(self, seed: int) -> dict[str, float]:
        share = int(self.explore_share) if self.explore_share.is_integer() else self.explore_share
        return {"share": share, "burst_packets": 8, "seed": seed}


def simulate(
    params: SimulateParams,
    output_dir: Path,
    program: Path,
    report: Callable[[str, float], None] = lambda _name, _seconds: None,
) -> list[Path]:
    """Simulate each seed, as many at a time as there are cores, and return the captures' paths.

    Args:
        params: section `simulate`.
        output_dir: existing folder for `dumbbell-SEED.pcap`, `.json` with the simulated parameters, and
            `.parquet` with the truth of its packets.
        program: result of `build_simulator`.
        report: called with a trace's name and its simulated seconds as they pass.

    Raises:
        StageError: the program ended with an error; the others are stopped.

    """

    def run(seed: int) -> Path:
        path = output_dir / f"dumbbell-{seed}.pcap"
        result, file = path.with_suffix(""), path.with_suffix(".json")
        file.write_text(json.dumps(params.run(seed)))

        def hear(line: str) -> None:
            if line.startswith("progress "):
                report(path.stem, float(line.split()[1]))

        runs.run([f"--run={file}", f"--out={result}"], f"seed {seed}", hear)
        (result / "s1.pcap").replace(path)
        write_truth(result, path.with_suffix(".parquet"))
        shutil.rmtree(result)
        file.write_text(params.description(seed))
        report(path.stem, params.duration_s)
        return path

    runs = Runs(program)
    return runs.each(run, params.seeds)


@contextmanager
def _progress_bars(names: list[str], duration_s: float) -> Iterator[Callable[[str, float], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} s simulated"))
    with Progress(*columns, TimeElapsedColumn()) as progress:
        tasks = {name: progress.add_task(name, total=duration_s) for name in names}
        yield lambda name, seconds: progress.update(tasks[name], completed=seconds)


def main(params: Given, output: Given, seed: Annotated[int | None, typer.Option()] = None) -> None:
    """Read `simulate` of the params file and write the captures, all or the one of `--seed`."""
    section = read(params, SimulateParams)
    if seed is not None:
        section = SimulateParams(**section.model_dump() | {"seeds": [seed]})
    program = build_simulator()
    names = [f"dumbbell-{number}" for number in section.seeds]
    done = output / f".done-{section.seeds[0]}"  # a file beside those that other seeds make meanwhile
    with new_folder(done) as partial, _progress_bars(names, section.duration_s) as report:
        simulate(section, partial, program, report)
    for made in done.iterdir():
        made.replace(output / made.name)
    done.rmdir()


if __name__ == "__main__":
    run_stage("simulate", main)
