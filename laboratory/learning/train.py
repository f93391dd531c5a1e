"""`swiftqueue lab train`: a model for each queue profile, from exploration traces of a scenario's traffic.

The traces are the laboratory's (training seeds, which no judged run has), their packet tables come from the
simulator's log of S1 (`packet_table.py` says why), the training is the project's own stages. Where
a model is given, half of them show traffic as it is where that chooses: it moves more than exploration does.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from swiftqueue.common.atomic import new_file, new_folder
from swiftqueue.feature_store.packets.truth import write_truth
from swiftqueue.laboratory.learning.champion import MODELS
from swiftqueue.laboratory.learning.judged_models import ORIGIN, check_acks, model_at, models_by_profile
from swiftqueue.laboratory.learning.packet_table import write_packets
from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import Cell, Model, check_tables, control_of, identity, resolve
from swiftqueue.laboratory.scenarios.controls import TREES
from swiftqueue.laboratory.scenarios.files import environment_at, files_of, load
from swiftqueue.laboratory.scenarios.schema import Scenario
from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.networks.parameters import MEDIAN, Level
from swiftqueue.pipelines.params.document import load_yaml, save_yaml
from swiftqueue.pipelines.params.override import override
from swiftqueue.pipelines.simulators import PROJECT

PARAMS: Final = PROJECT / "params.yaml"
SECTION: Final = EventStreamParams.section  # the only network that the simulator's engine computes


def train(
    name: str, *, protocol: str, overrides: list[str], output: Path, artifact: str | None = None
) -> int:
    """Simulate a scenario's exploration traces and train on them; return 1 if a run or a stage failed.

    With `artifact`, a model or a folder of them as `lab run` takes it, half of the traces are of a sender
    that follows it, but for what is explored.

    Leaves `output/models/SCENARIO/PROFILE/`, each an artifact: what `lab run --artifact` takes. Where points
    of the axis have models of their own it leaves `output/models/SCENARIO/POINT/PROFILE/`. Trees lie in
    `output/models/SCENARIO/trees/PROFILE/`, beside the network, for control `trees`.

    Raises:
        ValueError: the scenario is wrong, the program cannot be built, a parameter is unknown, or the model
            cannot be used.
        FileNotFoundError: there is no model.
    """
    ((stem, path),) = files_of([name]).items()
    scenario = load(path)
    points = list(scenario.points_with_models()) or [""]
    wanted = {point: settings(scenario, path, protocol, overrides, point) for point in points}
    trainings = shared(wanted)
    traced = scenario if scenario.explore.points else scenario.model_copy(update={"axis": None})
    check_tables(stem, traced)
    with execution.sole_user(output):
        followed = models_by_profile(artifact, output) if artifact else {}
        check_acks(followed, {stem: scenario.model_copy(update={"controls": ["model"]})})
        program, build = programs.build()
        traces = explore(stem, scenario, program, build, output.resolve(), followed)
    if traces is None:
        return 1
    for profile, runs in traces.items():
        for params, of_points in trainings:
            apart = scenario.explore.flows_apart
            folder = output.resolve() / "training" / f"{stem}-{profile}"
            if code := _pretrain(folder, runs, params, flows_apart=apart):
                return code
            for point in of_points:
                given, origin = wanted[point]
                said = {"scenario": stem, "profile": profile, **origin, "traces": list(runs)}
                if model := model_at(followed, point, profile, stem):
                    said["followed"] = model.content
                kind = TREES if params["architecture"]["name"] == TREES else ""
                with new_folder(output.resolve() / MODELS / stem / point / kind / profile) as partial:
                    _publish(folder / "pretrained", partial, given)
                    (partial / ORIGIN).write_text(json.dumps(said, indent=1) + "\n")
    print(f"models: {output / MODELS / stem}; `swiftqueue lab run {name} --artifact` takes that folder")
    return 0


def settings(
    scenario: Scenario, path: Path, protocol: str, overrides: list[str], point: str = ""
) -> tuple[Any, dict[str, Any]]:
    """Return the stages' parameters, and what a model's origin says of them and of the scenario.

    The scenario's `train` changes params.yaml, that of the point changes it further; `overrides` have the
    last word.

    Raises:
        ValueError: a parameter is unknown or of another kind; the line names it.
    """
    found = scenario.points_with_models().get(point)
    changes = {**scenario.train, **(found.train or {} if found else {})}
    own = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
    params = load_yaml(PARAMS)
    try:
        override(params, protocol, own)
    except ValueError as error:
        raise ValueError(f"{path.name}: train: {str(error).removeprefix('--set ')}") from None
    override(params, protocol, overrides)
    if (name := params["architecture"]["name"]) not in (SECTION, TREES):
        raise ValueError(
            f"architecture.name is {name}; the simulator has no such network, but {SECTION} and {TREES}"
        )
    learned = scenario.environment.controls
    return params, {
        "protocol": protocol,
        "set": [*own, *overrides],
        "acks": learned.acks,
        "moved_ecn": learned.moved_ecn,
    }


def shared(wanted: Mapping[str, tuple[Any, dict[str, Any]]]) -> list[tuple[Any, list[str]]]:
    """Return the trainings that give all points' models: the parameters of each, and its points."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for point, (params, _) in wanted.items():
        found.setdefault(json.dumps(params, sort_keys=True), (params, []))[1].append(point)
    return list(found.values())


def explore(
    name: str,
    scenario: Scenario,
    program: Path,
    build: str,
    output: Path,
    followed: Mapping[str, Model] = MappingProxyType({}),
) -> dict[str, dict[str, Path]] | None:
    """Run the exploration traces; return their folders by profile and trace, or None if a run failed.

    Their captures lie in `output/traces/TRACE.pcap`, with metadata and truth (Parquet) beside. Beside each
    trace stands one that ends in `-model`, whose sender follows the model that `followed` has for it.
    """
    wanted = scenario.explore
    lengthened = scenario.model_copy(update={"seconds": wanted.seconds})
    points = list(scenario.axis.points) if wanted.points and scenario.axis else [""]
    jobs: dict[str, execution.Job] = {}
    captures: dict[str, dict[str, str]] = {}
    for profile, (number, point), seed, burst in itertools.product(
        scenario.profiles, enumerate(points, 1), wanted.seeds, wanted.burst_packets
    ):
        environment = environment_at(scenario, point, f"{name}.yaml")
        exploring = {"share": wanted.share, "burst_packets": burst, "seed": seed}
        of_point = f"-point{number}" if point else ""
        model = model_at(followed, point, profile, name)
        for follows in [None, model] if model else [None]:
            kind = "model" if follows else "default"
            control = control_of(environment, kind, model=follows, share=0.0)
            cell = Cell(name, point, None, profile, kind, seed)
            run = resolve(lengthened, cell, control, ["pcap", "truth"], exploring)
            key = identity(run, build)
            jobs[key] = execution.Job(key, run, follows.folder if follows else None)
            trace = f"{name}-{profile}{of_point}-{seed}-burst{burst}{'-model' if follows else ''}"
            captures.setdefault(profile, {})[trace] = key
    problems = execution.run_missing(program, output, list(jobs.values()), "exploration")
    for key, problem in problems.items():
        print(f"exploration run {key}: {problem}")
    if problems:
        return None
    return {
        profile: {trace: _named(output, trace, key) for trace, key in t.items()}
        for profile, t in captures.items()
    }


def _named(output: Path, trace: str, key: str) -> Path:
    """Put a run's capture under its trace's name, metadata and truth beside it; return the run's folder."""
    folder = output / "traces"
    run = execution.folder_of(output, key)
    for source, target in ((execution.CAPTURE, f"{trace}.pcap"), (execution.TRACE_METADATA, f"{trace}.json")):
        with new_file(folder / target) as partial:
            os.link(run / source, partial)
    write_truth(run, folder / f"{trace}.parquet")
    return run


def _pretrain(folder: Path, runs: dict[str, Path], params: Any, *, flows_apart: bool) -> int:
    """Run the project's stages on a profile's runs in a folder; return a failed stage's code.

    Leaves the forecaster in `pretrained`.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    params.pop("extract", None)  # its traces are others
    save_yaml(folder / "params.yaml", params)
    for trace, run in runs.items():
        write_packets(run, trace, folder / "packets", flows_apart=flows_apart)
    packets = ["--packets", folder / "packets"]
    divided = folder / "split.json"
    for stage, arguments in (
        ("split", [*packets, "--output", divided]),
        ("pretrain", [*packets, "--split", divided, "--output", folder / "pretrained"]),
    ):
        command = [
            sys.executable,
            "-m",
            f"swiftqueue.pipelines.{stage}",
            "--params",
            str(folder / "params.yaml"),
        ]
        command += [str(argument) for argument in arguments]
        code = subprocess.run(command, cwd=PROJECT, check=False).returncode
        if code != 0:
            return code
    return 0


def _publish(trained: Path, folder: Path, params: Any) -> None:
    """Put what the parameters serve of a training into a folder that is there."""
    from swiftqueue.models.forecasters import forecaster

    network = params[SECTION] if params["architecture"]["name"] == SECTION else {}
    level: Level = network.get("served_level")
    if level is None and network.get("quantiles"):
        level = MEDIAN
    forecaster.load(trained).export(folder, level)
