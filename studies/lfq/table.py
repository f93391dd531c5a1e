"""`swiftqueue lfq table`: the table of 400 runs, and how near each network comes to the best limit.

Three studies, a row per run in a table of their own. `lfq-400`: both TCPs over 100 rates and 100 round trips.
`lfq-best`: drawn environments that nothing was learned from, with every limit kept from beginning to end.
`lfq-beyond`: paths and TCPs beyond those that were learned from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from swiftqueue.common.atomic import new_file
from swiftqueue.laboratory.learning.champion import champion_folder
from swiftqueue.laboratory.runs import execution
from swiftqueue.laboratory.runs.results import kept_table
from swiftqueue.models.registry.registry import CHAMPION
from swiftqueue.studies.lfq.commands import KIND
from swiftqueue.studies.lfq.flows import LFQ, NO_LIMIT, Flow, FlowDisc, FlowPath, Simulator, drawn
from swiftqueue.studies.lfq.learning import KEPT, LITERAL
from swiftqueue.studies.lfq.settings import TCPS, LfqSettings, load
from swiftqueue.studies.lfq.weight_file import content_of, said_of

TABLE: Final = "lfq-400"
BEST: Final = "lfq-best"
BEYOND: Final = "lfq-beyond"
FILE: Final = "lfq.parquet"
BEST_FROM: Final = 2_000_000  # numbers of environments that nothing learns from
LENGTHS_FROM: Final = 3_000_000
BEGIN: Final = 100  # packets of an LFQ's flow before the first decision, where it learned from many
FQ_CODEL: Final = "FqCoDel"
STATIC: Final = "static "
SCHEMA: Final[dict[str, Any]] = {
    "study": pl.String,
    "rule": pl.String,
    "tcp": pl.String,
    "axis": pl.String,  # bandwidth | delay | drawn
    "mbps": pl.Float64,
    "rtt_ms": pl.Float64,
    "seconds": pl.Float64,
    "initial_window": pl.Int64,
    "group": pl.Int64,
    "program": pl.String,
    "weights": pl.String,  # hash of an LFQ's
    "goodput_mbps": pl.Float64,
    "queue_mean": pl.Float64,  # packets, as are the next ones
    "queue_max": pl.Float64,
    "limit_mean": pl.Float64,
    "decisions": pl.Int64,
    "fallbacks": pl.Int64,  # decisions for which an input was out of the training's range
    "dropped": pl.Int64,
}


def run_table(artifact: str | None, controls: list[str] | None, overrides: list[str], output: Path) -> int:
    """Run both studies with the networks of a folder; rows take the place of those of the same rule.

    Args:
        artifact: folder of weight files, as `swiftqueue lfq train` leaves it, or `champion` of the registry;
            None: no LFQ.
        controls: names of the rules to run; None: all.
        overrides: KEY=VALUE of `lfq.yaml`.
        output: where the table is.

    Raises:
        ValueError: a rule is unknown, a file is no weight file, or the program cannot be built.
    """
    settings = load(overrides)
    networks = networks_of(artifact, output) if artifact else {}
    rules = {**networks, **router_rules()}
    if unknown := sorted(set(controls or []) - set(rules)):
        raise ValueError(f"--controls: there is no rule {unknown[0]!r}, there is {', '.join(rules)}")
    chosen = {name: disc for name, disc in rules.items() if controls is None or name in controls}
    kept = {f"{STATIC}{limit}": static(limit) for limit in settings.limits}
    with execution.sole_user(output):
        simulator = Simulator(output.resolve() / KEPT)
        grid = [
            (BEST, name, "drawn", group, Flow(environment, disc))
            for name, disc in {**kept, **{k: v for k, v in chosen.items() if k in networks}}.items()
            for group, environment in best_environments(settings)
        ]
        grid += [
            (TABLE, name, axis, group, Flow(environment, disc))
            for name, disc in chosen.items()
            for axis, group, environment in points(settings)
            if name != "fq 1000" or group < settings.long_groups
        ]
        grid += [
            (BEYOND, name, "drawn", 0, Flow(environment, disc))
            for name, disc in chosen.items()
            if name != "fq 1000"
            for environment in beyond(settings)
        ]
        found = simulator.run([flow for *_, flow in grid], TABLE).rows
        rows = [
            _row(study, name, axis, group, flow, outcome, simulator.name)
            for (study, name, axis, group, flow), outcome in zip(
                grid, found.iter_rows(named=True), strict=True
            )
        ]
        keep(output, rows)
    print(f"results: {output / FILE}; `swiftqueue lfq verdict {TABLE} --output {output}` judges them")
    return 0


def networks_of(artifact: str, output: Path) -> dict[str, FlowDisc]:
    """Return the networks of a folder, or the registry's champion, by name, as `LFQ counterfactual 10`.

    Raises:
        FileNotFoundError: there is no champion.
        ValueError: there is none, or nothing says how one learned.
    """
    folder = champion_folder(output, KIND) if artifact == CHAMPION else Path(artifact)
    found: dict[str, FlowDisc] = {}
    for path in sorted(folder.resolve().glob("*.safetensors")):
        said = said_of(path)
        found[f"LFQ {said['rule']} {said['alpha']:g}"] = learned(path)
    if not found:
        raise ValueError(f"--artifact {artifact}: there is no weight file; `swiftqueue lfq train` makes some")
    return found


def learned(weights: Path) -> FlowDisc:
    """Return LFQ with a weight file; a flow begins with the limit that it began with in training.

    The literal rules know no other: from another every decision would be out of range, for ever.
    """
    said = said_of(weights)
    begin = said["settings"]["literal_begin"] if said["rule"] in LITERAL else BEGIN
    return FlowDisc(LFQ, {"MaxSize": NO_LIMIT, "FlowLimit": str(begin)}, weights)


def static(limit: int) -> FlowDisc:
    """Return a fair queue that keeps one limit, in packets, for every flow."""
    return FlowDisc("swiftqueue::FairQueueDisc", {"MaxSize": NO_LIMIT, "FlowLimit": str(limit)})


def router_rules() -> dict[str, FlowDisc]:
    """Return the rules beside LFQ."""
    return {
        FQ_CODEL: FlowDisc("ns3::FqCoDelQueueDisc", {"MaxSize": NO_LIMIT}),
        "fq 100": static(100),
        "fq 1000": static(1000),
    }


def points(settings: LfqSettings) -> list[tuple[str, int, FlowPath]]:
    """Return the grid: axis, group and environment; each group is spread over all of it."""
    found: list[tuple[str, int, FlowPath]] = []
    for axis, (low, high) in (("bandwidth", settings.mbps), ("delay", settings.rtt_ms)):
        for tcp in settings.tcps:
            for i, value in enumerate(np.linspace(low, high, settings.points)):
                drawn_one, _ = drawn(settings, LENGTHS_FROM + len(found))
                mbps, rtt_ms = (
                    (value, settings.at_rtt_ms) if axis == "bandwidth" else (settings.at_mbps, value)
                )
                environment = FlowPath(
                    tcp, float(mbps), float(rtt_ms), drawn_one.seconds, settings.initial_window
                )
                found.append((axis, i % settings.groups, environment))
    return found


def beyond(settings: LfqSettings) -> list[FlowPath]:
    """Return environments with a rate or a round trip that nothing was learned from, for every TCP."""
    paths = ((settings.beyond_mbps, settings.at_rtt_ms), (settings.at_mbps, settings.beyond_rtt_ms))
    return [
        FlowPath(tcp, mbps, rtt_ms, settings.seconds, settings.initial_window)
        for mbps, rtt_ms in paths
        for tcp in TCPS
    ]


def best_environments(settings: LfqSettings) -> list[tuple[int, FlowPath]]:
    """Return drawn environments, each with its group."""
    numbers = range(settings.best_environments)
    return [(i % settings.groups, drawn(settings, BEST_FROM + i)[0]) for i in numbers]


def _row(
    study: str, name: str, axis: str, group: int, flow: Flow, found: Mapping[str, Any], program: str
) -> dict[str, Any]:
    return {
        "study": study,
        "rule": name,
        "axis": axis,
        "group": group,
        **asdict(flow.environment),
        "program": program,
        "weights": content_of(flow.disc.weights) if flow.disc.weights else None,
        "goodput_mbps": found["bytes"] * 8e-6 / flow.environment.seconds,
        **{key: found[key] for key in ("queue_mean", "queue_max", "limit_mean", "decisions", "fallbacks")},
        "dropped": found["dropped"],
    }


def keep(output: Path, rows: list[dict[str, Any]]) -> None:
    """Put rows in the place of those of the same study, rule and initial window."""
    new = pl.DataFrame(rows, schema=SCHEMA)
    others = read(output).join(new, on=["study", "rule", "initial_window"], how="anti")
    table = pl.concat([others, new]).sort(
        "study", "rule", "initial_window", "axis", "tcp", "mbps", "rtt_ms", maintain_order=True
    )
    with new_file(output / FILE) as partial:
        table.write_parquet(partial, compression="zstd")


def read(output: Path) -> pl.DataFrame:
    """Return the table of an output folder; none yet is an empty one.

    Raises:
        ValueError: the file is damaged, or another version of this project made it.
    """
    return kept_table(output / FILE, SCHEMA, "swiftqueue lfq table")
