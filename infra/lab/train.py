"""`swiftqueue lab train`: a model for each queue profile, from exploration traces of a scenario's traffic.

The traces are the laboratory's (training seeds, which no judged run has), the training is a study: the
project's own stages, in a folder of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Final

from infra.lab import execution
from infra.lab.model_source import MODELS
from infra.lab.runs import Cell, control_of, identity, resolve
from infra.lab.scenario import Scenario
from infra.lab.scenario_file import load, path_of

TRACE_METADATA: Final = "trace.json"
ORIGIN: Final = "origin.json"


def train(name: str, *, protocol: str, overrides: list[str], output: Path) -> int:
    """Simulate a scenario's exploration traces and train on them; return 1 if a run or a stage failed.

    Leaves `output/models/SCENARIO/PROFILE/`, each an artifact: what `lab run --artifact` takes.

    Raises:
        ValueError: the scenario is wrong, the program cannot be built, or a parameter is unknown.
    """
    path = path_of(name)
    scenario = load(path)
    with execution.sole_user(output):
        program, build = execution.build()
        traces = explore(path.stem, scenario, program, build, output.resolve())
    if traces is None:
        return 1
    for profile, captures in traces.items():
        code = _study(path.stem, profile, captures, protocol, overrides, output)
        if code != 0:
            return code
    print(f"models: {output / MODELS / path.stem}; `swiftqueue lab run {name} --artifact` takes that folder")
    return 0


def explore(
    name: str, scenario: Scenario, program: Path, build: str, output: Path
) -> dict[str, list[Path]] | None:
    """Run the exploration traces; return their captures by profile, or None if a run failed."""
    wanted = scenario.explore
    lengthened = scenario.model_copy(update={"seconds": wanted.seconds})
    control = control_of(scenario.environment, "default", model=None, share=0.0)
    jobs: dict[str, execution.Job] = {}
    captures: dict[str, dict[str, str]] = {}
    for profile in scenario.profiles:
        for seed in wanted.seeds:
            for burst in wanted.burst_packets:
                cell = Cell(name, "", None, profile, "default", seed)
                exploring = {"share": wanted.share, "burst_packets": burst, "seed": seed}
                run = resolve(lengthened, cell, control, ["pcap"], exploring)
                key = identity(run, build)
                jobs[key] = execution.Job(key, run)
                captures.setdefault(profile, {})[f"{name}-{profile}-{seed}-burst{burst}"] = key
    failures: list[str] = []

    def done(job: execution.Job, problem: str | None) -> None:
        if problem is not None:
            failures.append(job.identity)
            print(f"exploration run {job.identity}: {problem}")

    todo = [job for key, job in jobs.items() if not execution.is_complete(output, key)]
    execution.run_all(program, output, todo, done, "exploration")
    if failures:
        return None
    return {
        profile: [_named(output, trace, key) for trace, key in t.items()] for profile, t in captures.items()
    }


def _named(output: Path, trace: str, key: str) -> Path:
    """Put a run's capture under its trace's name, as a study wants it, with its metadata beside it."""
    folder = output / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    run = execution.folder_of(output, key)
    for source, target in ((execution.CAPTURE, f"{trace}.pcap"), (TRACE_METADATA, f"{trace}.json")):
        partial = folder / f".{target}.partial"
        partial.unlink(missing_ok=True)
        os.link(run / source, partial)
        partial.replace(folder / target)
    return folder / f"{trace}.pcap"


def _study(
    name: str, profile: str, captures: list[Path], protocol: str, overrides: list[str], output: Path
) -> int:
    """Train on a profile's captures, and publish the pre-trained model."""
    from infra.study import run_study

    folder = output / "studies" / f"{name}-{profile}"
    # Nothing here evaluates the offline protocol `previous`, and its windows are as large again.
    settings = ["windows.visibility=[acked]", *overrides]
    code = run_study(folder, captures, protocol=protocol, overrides=settings, until="pretrain")
    if code != 0:
        return code
    artifact = folder / "data" / "models" / "pretrained"
    target = output / MODELS / name / profile
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in ("model.json", "model.safetensors"):
        shutil.copyfile(artifact / file, partial / file)
    origin: dict[str, Any] = {"scenario": name, "profile": profile, "protocol": protocol, "set": overrides}
    origin["traces"] = [path.stem for path in captures]
    (partial / ORIGIN).write_text(json.dumps(origin, indent=1) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return 0
