"""Stage `register`: the last fine-tuned head becomes a registry version, judged against the champion.

The decision falls here and is carried out by `swiftqueue deploy`, once the push has succeeded.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feature_store.atomic import write_file
from feature_store.events.windows import schema_hash
from feature_store.quality.distribution_shift import sample_inputs
from feature_store.state import experiment_name
from models.json_file import read_object
from models.networks import artifact
from models.networks.prediction import predict
from models.registry import gate
from models.registry.lineage import content_hash, dvc_hashes, git_commit
from models.registry.register_params import RegisterParams
from models.registry.registry import CHALLENGER, CHAMPION, INPUTS_FILE, Decision, Registry
from models.registry.store import numbers, texts
from models.section import read, read_all
from models.training.windows import WindowSet, load_windows
from pipelines.stage import Given, StageError, run_stage


def last_round(finetuned: Path, trace: str) -> Path:
    """Artifact of the trace's last fine-tuning round.

    Raises:
        StageError: there is none.
    """
    rounds = {int(p.name.removeprefix("round-")): p for p in (finetuned / trace).glob("round-[0-9]*")}
    if not rounds:
        known = ", ".join(sorted(p.name for p in finetuned.glob("[!.]*") if p.is_dir())) or "none"
        raise StageError(f"no fine-tuned model of trace {trace!r} under {finetuned} (traces there: {known})")
    return rounds[max(rounds)]


def held_out_slice(windows: WindowSet, trace: str) -> tuple[gate.HeldOut, float]:
    """The last test slice of a trace, and the median latency (µs) before it.

    Raises:
        ValueError: the windows do not have that trace, or were made for other features.
    """
    if windows.schema_hash != schema_hash():
        raise StageError("the windows are of another feature definition; run `dvc repro`")
    found = windows.trace(trace)
    test = found.rounds[-1].test
    before = found.y_us_BH[: test.lo][np.isfinite(found.y_us_BH[: test.lo])]
    held_out = gate.HeldOut(
        found.x_BWF[test.lo : test.hi], found.y_us_BH[test.lo : test.hi], windows.feature_names
    )
    return held_out, float(np.median(before)) if before.size else 0.0


def training_inputs(windows: WindowSet) -> NDArray[np.float32]:
    """Sample (N, F) of the inputs of all traces' pre-training slices: what drift is measured from.

    Shapes: B windows, W tokens of a window, H candidates, F features.
    """
    candidates_BHF = [
        trace.x_BWF[trace.pretrain.lo : trace.pretrain.hi, -windows.horizon :]
        for trace in windows.traces.values()
    ]
    return sample_inputs(np.concatenate(candidates_BHF))


def champion_to_beat(registry: Registry) -> tuple[int | None, str]:
    """The version to be judged against; None with the reason where none may be served."""
    version = registry.alias(CHAMPION)
    if version is None:
        return None, gate.NO_CHAMPION
    if not (why := registry.refusal(version)):
        return version, ""
    # In a registry of before decisions were signed no version is a champion any more, and this is the first.
    signed = any(registry.decided(one) for one in registry.versions())
    return None, f"the alias {CHAMPION} is not followed: {why}" if signed else gate.NO_CHAMPION


def champion_figures(
    registry: Registry, version: int, held_out: gate.HeldOut, challenger: artifact.Description
) -> tuple[gate.Figures | None, str]:
    """Figures of the champion on the slice; None with the reason when it cannot be judged there."""
    with tempfile.TemporaryDirectory() as temporary:
        champion = artifact.load(registry.fetch(version, Path(temporary)))
    for what in ("schema_hash", "tokens", "visibility"):
        theirs, ours = getattr(champion.description, what), getattr(challenger, what)
        if theirs != ours:
            return None, f"champion {version} takes other windows ({what} {theirs}, here {ours})"
    return gate.score(predict(champion.model, held_out.x_BWF), held_out), ""


def register(
    params: RegisterParams,
    *,
    windows: WindowSet,
    finetuned: Path,
    evaluation: Path,
    all_params: dict[str, Any],
    lock: Path,
) -> dict[str, Any]:
    """Register (or find again) the version, judge it, point `challenger` at it; returns registered.json."""
    trace = params.trace
    source = last_round(finetuned, trace)
    loaded = artifact.load(source, schema_hash())
    held_out, otherwise_us = held_out_slice(windows, trace)
    registry = Registry(params.model_name)
    champion, why_not = champion_to_beat(registry)
    content = content_hash(source)
    version = registry.find(content)

    ours = gate.score(predict(loaded.model, held_out.x_BWF), held_out)
    naive = gate.score_naive(held_out, otherwise_us)
    theirs = None
    if champion is not None:
        theirs, why_not = champion_figures(registry, champion, held_out, loaded.description)
    if champion is not None and champion == version:
        verdict = gate.Verdict(
            True, "it is the champion already", gate.judge(ours, theirs, naive, why_not).loses_to
        )
    else:
        verdict = gate.judge(ours, theirs, naive, why_not)

    metrics = ours.as_metrics("gate.challenger")
    metrics |= theirs.as_metrics("gate.champion") if theirs else {}
    for name, figures in naive.items():
        metrics |= figures.as_metrics(f"gate.{name}")
    judged = Decision(verdict.passed, verdict.reason, champion)
    if version is None:
        tags = _lineage(loaded.description, champion, source, lock)
        with tempfile.TemporaryDirectory() as temporary:
            # Exported in a copy: the artifact is an output of another stage, which DVC guards.
            exported = Path(shutil.copytree(source, Path(temporary) / "artifact"))
            artifact.export_onnx(exported)
            np.save(exported / INPUTS_FILE, training_inputs(windows))
            version = registry.add(
                exported,
                judged=judged,
                tags=tags,
                params=texts(all_params),
                metrics=headline_figures(evaluation) | metrics,
                reports=evaluation,
            )
    else:
        registry.decide(version, judged)
        registry.log_metrics(version, metrics)
    if version != champion:
        registry.set_alias(CHALLENGER, version)
    return {
        "version": version,
        "model": registry.model,
        "trace": trace,
        "round": source.name,
        "content_sha256": content,
        "gate": {
            "passed": verdict.passed,
            "reason": verdict.reason,
            "champion": champion,
            "tolerance": {"average_precision": gate.AP_TOLERANCE, "log_mae": gate.LOG_MAE_TOLERANCE},
            "figures": {
                "challenger": asdict(ours),
                "champion": asdict(theirs) if theirs else None,
                **{name: asdict(figures) for name, figures in naive.items()},
            },
            "loses_to": list(verdict.loses_to),
        },
    }


def _lineage(
    description: artifact.Description, parent: int | None, source: Path, lock: Path
) -> dict[str, str]:
    return {
        "git_commit": git_commit(Path.cwd()),
        "schema_hash": description.schema_hash,
        "parent_version": str(parent or "none"),
        "protocol": str(description.protocol.get("name", "unknown")),
        "visibility": description.visibility,
        "source": f"{source.parent.name}/{source.name}",
        # MLflow takes no `=` in a tag's name, which `data/packets/trace=NAME` has.
        **{f"dvc.{path.replace('=', ':')}": md5 for path, md5 in dvc_hashes(lock).items()},
    }


def headline_figures(evaluation: Path) -> dict[str, float]:
    """What `dvc metrics` shows, as metrics of the version's run; all scores stay in the file logged there."""
    path = evaluation / "metrics.json"
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage `evaluate`")
    return numbers(read_object(path))


def main(
    params: Given, windows: Given, split: Given, finetuned: Given, evaluation: Given, output: Given
) -> None:
    """Read paths from the command line and values from section `register`."""
    section = read(params, RegisterParams)
    if (name := experiment_name()) and not section.experiments:
        said = f"experiment {name} registers nothing: register.experiments is false"
        nothing = {"version": None, "model": section.model_name, "trace": section.trace, "why": said}
        write_file(output, json.dumps(nothing, indent=1) + "\n")
        print(said)
        return
    result = register(
        section,
        windows=load_windows(windows, split),
        finetuned=finetuned,
        evaluation=evaluation,
        all_params=read_all(params),
        lock=params.with_name("dvc.lock"),
    )
    write_file(output, json.dumps(result, indent=1) + "\n")
    version, verdict = result["version"], result["gate"]
    outcome = "passed" if verdict["passed"] else "FAILED"
    print(f"version {version} {outcome} the gate: {verdict['reason']}")
    if verdict["loses_to"]:
        losers = ", ".join(verdict["loses_to"])
        print(f"WARNING: on the last held-out slice version {version} loses to: {losers}")


if __name__ == "__main__":
    run_stage("register", main)
