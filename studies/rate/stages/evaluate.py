"""Stage `rate_evaluate`: the networks that forecast rates beside all baselines, on the grid of pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from swiftqueue.common.atomic import write_file
from swiftqueue.common.section import Count, Section, read
from swiftqueue.pipelines.stage import Given, StageError, run_stage

if TYPE_CHECKING:
    from swiftqueue.studies.rate.model.network import RateNetwork
    from swiftqueue.studies.rate.model.study import Pair


class RateEvaluateParams(Section):
    """The predictors that the networks that forecast rates are judged beside (README.md)."""

    section: ClassVar = "rate_evaluate"
    xgboost_rounds: Count
    """Number of trees for each pair."""


def evaluate(params: RateEvaluateParams, flows: Path, models: Sequence[Path]) -> dict[str, Any]:
    """Score networks and baselines, by seed; the summary is what `rate study --json` prints.

    Args:
        params: the section.
        flows: folder of the flows that the networks are of.
        models: folders of the networks, each kind with each seed.

    Raises:
        OSError, ValueError: flows or networks are missing, damaged or foreign; the line names the thing.
    """
    from swiftqueue.studies.rate.model.flows import load, split
    from swiftqueue.studies.rate.model.networks import KINDS
    from swiftqueue.studies.rate.model.networks import load as load_network
    from swiftqueue.studies.rate.model.study import compared, scores, scores_alone, summary
    from swiftqueue.studies.rate.samples.tables import paths_in, source_of_all

    by_seed: dict[int, dict[str, RateNetwork]] = {}
    alone: dict[int, dict[Pair, RateNetwork]] = {}
    fields: list[str] = []
    about = paths_in(flows)
    for folder in models:
        network, described = load_network(folder)
        if described["made_of"]["paths"] != about:
            raise StageError(f"{folder} was trained on other flows than {flows}; run the stage `rate_train`")
        fields = described["made_of"]["params"]["fields"]
        if "pair" in described:
            n, k = described["pair"]
            alone.setdefault(described["seed"], {})[n, k] = network
        else:
            by_seed.setdefault(described["seed"], {})[described["architecture"]["name"]] = network
    if missing := [f"{kind}-{seed}" for seed, own in by_seed.items() for kind in KINDS if kind not in own]:
        raise StageError(f"network {missing[0]} is missing; run the stage `rate_train`")
    every, found, single = load(flows), [], []
    for seed, networks in sorted(by_seed.items()):
        divided = split(every, seed)
        found += scores(every, divided, networks, seed, params.xgboost_rounds)
        single += scores_alone(divided, alone.get(seed, {}), seed)
    kinds = [path["kind"] for path in about.values()]
    return {
        "flows": len(every),
        "fields": fields,  # fields that the networks' layers saw; none: all
        "paths": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "source": source_of_all(about.values()),
        **summary(found),
        "alone": compared(single, found),
    }


def main(params: Given, flows: Given, models: Given, output: Given) -> None:
    """Read `rate_evaluate` of the params file, flows and networks; write the scores, print the headline."""
    networks = sorted(models.glob("*-*/"))
    if not networks:
        raise StageError(f"no networks under {models}; run the stage `rate_train` first")
    found = evaluate(read(params, RateEvaluateParams), flows, networks)
    write_file(output, json.dumps(found, indent=1, allow_nan=False) + "\n")
    for line in said(found):
        print(line)


def said(found: dict[str, Any]) -> list[str]:
    """The pair with most to gain, a line for each predictor, and whether what was wanted is reached."""
    pair = found["headline"]["pair"]
    lines = [f"{pair}, mean absolute percentage error: seen paths, held-out paths"]
    for name, parts in found["grid"].items():
        seen, held_out = (100 * parts[part][pair]["mean"] for part in ("seen", "held_out"))
        lines.append(f"  {name:20} {seen:8.1f} % {held_out:8.1f} %")
    for of, parts in found["alone"].items():
        seen, held_out = (100 * parts[part]["alone"]["mean"] for part in ("seen", "held_out"))
        lines.append(f"  the LSTM trained for {of} alone: {seen:.1f} % {held_out:.1f} %")
    for part in ("seen", "held_out"):
        verdict = found["headline"][part]
        reached = "reached" if verdict["reached"] else "not reached"
        lines.append(
            f"  wanted on {part.replace('_', '-')} paths: {100 * verdict['wanted']:.0f} %, {reached}"
        )
    return lines


if __name__ == "__main__":
    run_stage("rate_evaluate", main)
