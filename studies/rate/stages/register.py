"""Stage `rate_register`: a trained network that forecasts rates becomes a registry version.

The decision falls here and is carried out by `swiftqueue deploy --model rate`, once the push has succeeded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.common.section import read, read_all
from swiftqueue.common.state import private_files
from swiftqueue.models.registry.register_params import RegisteredParams
from swiftqueue.pipelines.stage import Given, StageError, run_stage

if TYPE_CHECKING:
    from swiftqueue.models.registry.registry import Registry


class RateRegisterParams(RegisteredParams):
    """The network that forecasts rates and goes into the registry (README.md)."""

    section: ClassVar = "rate_register"
    network: Literal["transformer", "lstm"]
    """Name of its kind."""
    seed: Annotated[int, Field(ge=1, le=2**31)]
    """Its seed, one of `rate_train.seeds`."""


def register(
    params: RateRegisterParams,
    *,
    flows: Path,
    models: Path,
    study: Path,
    all_params: Mapping[str, Any],
    lock: Path,
) -> dict[str, Any]:
    """Register (or find again) the network, judge it on flows of held-out paths, make it the challenger.

    Args:
        params: the section.
        flows: folder of the flows that it was trained on.
        models: folder of the networks.
        study: folder that `rate_evaluate` wrote; the run has its figures.
        all_params: all parameters of the run.
        lock: `dvc.lock`.

    Raises:
        OSError, ValueError: something is missing, damaged or foreign; the line names it.
    """
    import torch

    from swiftqueue.models.registry.entering import enter
    from swiftqueue.models.registry.lineage import folder_set
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import numbers, texts
    from swiftqueue.studies.rate.model import gate
    from swiftqueue.studies.rate.model.flows import load, split
    from swiftqueue.studies.rate.model.networks import export_onnx
    from swiftqueue.studies.rate.model.networks import load as load_network
    from swiftqueue.studies.rate.samples.tables import paths_in

    torch.set_num_threads(1)
    source = models / f"{params.network}-{params.seed}"
    if not source.is_dir():
        known = ", ".join(sorted(place.name for place in models.glob("*-*/"))) or "none"
        raise StageError(f"no network {source.name} under {models} (there: {known}); run `rate_train`")
    _, about = load_network(source)
    paths = paths_in(flows)
    if about["made_of"]["paths"] != paths:
        raise StageError(f"{source} was trained on other flows than {flows}; run the stage `rate_train`")
    if not study.is_file():
        raise StageError(f"{study} is missing; run the stage `rate_evaluate`")
    every = load(flows)
    names = dict(enumerate(paths))
    registry = Registry(params.model_name)
    held_out = gate.HeldOut.of(every, names, _champions_paths(registry))
    bench = gate.Bench.of(split(every, params.seed).train, every, held_out)
    entered = enter(
        registry,
        source,
        score=bench.score,
        judge=bench.judge,
        complete=export_onnx,
        tags={
            "schema_hash": str(about["schema_hash"]),
            "protocol": "held-out paths",
            "source": source.name,
        },
        params=texts(all_params),
        metrics=bench.metrics,
        headline=lambda: numbers({"study": read_object(study)["headline"]}),
        data=[folder_set(flows, lock)],
        lock=lock,
    )
    named = {name: asdict(one) for name, one in bench.figures(entered.scores).items()}
    return entered.record({"mape": gate.MARGIN}, named, network=params.network, seed=params.seed)


def _champions_paths(registry: Registry) -> set[str]:
    """Names of the paths that the champion learned from; none where there is no champion, or an unread one.

    One that cannot be read is not judged either, which the gate says.
    """
    from swiftqueue.models.registry.entering import champion_to_beat
    from swiftqueue.studies.rate.model.networks import load as load_network
    from swiftqueue.studies.rate.model.tuning import TUNED_ON

    champion, _ = champion_to_beat(registry)
    if champion is None:
        return set()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            _, about = load_network(registry.fetch(champion, Path(temporary)))
            trained_on = about["made_of"]["paths"].items()
            tuned_on = about.get(TUNED_ON, {}).values()
            return {*tuned_on, *(name for name, path in trained_on if path["kind"] == "train")}
        except (ValueError, KeyError, TypeError, AttributeError):
            return set()


def main(params: Given, flows: Given, models: Given, study: Given, output: Given) -> None:
    """Read `rate_register` of the params file; write the version and how it was judged."""
    from swiftqueue.models.registry.entering import outcome_line

    private_files()  # files of the local registry are its owner's alone
    section = read(params, RateRegisterParams)
    if why := section.why_nothing():
        result: dict[str, Any] = {"version": None, "model": section.model_name, "why": why}
    else:
        result = register(
            section,
            flows=flows,
            models=models,
            study=study,
            all_params={key: values for key, values in read_all(params).items() if key.startswith("rate_")},
            lock=params.with_name("dvc.lock"),
        )
    write_file(output, json.dumps(result, indent=1) + "\n")
    print(result.get("why") or outcome_line(result))


if __name__ == "__main__":
    run_stage("rate_register", main)
