"""Stage `register`: the last fine-tuned head becomes a registry version, judged against the champion.

The decision falls here and is carried out by `swiftqueue deploy`, once the push has succeeded.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import NDArray

from feature_store.distribution_shift import sample_inputs
from feature_store.windows import schema_hash
from models import artifact, gate
from models.lineage import content_hash, dvc_hashes, git_commit
from models.registry import CHALLENGER, CHAMPION, CONTENT_TAG, INPUTS_FILE, Registry
from pipelines.stage import StageError, load_params, stage_main

PARAMS: Final = {"model_name", "trace", "keep_versions"}


def read_params(path: Path) -> dict[str, Any]:
    """Read section `register`, which `swiftqueue deploy` reads too.

    Raises:
        StageError: a key is unknown, missing or has a value that cannot be.
    """
    params = load_params(path, "register", PARAMS)
    for key in ("model_name", "trace"):
        if not isinstance(params[key], str) or not params[key]:
            raise StageError(f"register.{key} is {params[key]!r}; it must be a name")
    keep = params["keep_versions"]
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 2:
        raise StageError(f"register.keep_versions is {keep!r}; a rollback needs at least 2")
    return params


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


def held_out_slice(windows: Path, trace: str) -> tuple[gate.HeldOut, float]:
    """The last test slice of a trace, and the median latency (µs) before it.

    Raises:
        StageError: the windows do not have that trace, or were made for other features.
    """
    meta = json.loads((windows / "meta.json").read_text())
    if meta["schema_hash"] != schema_hash():
        raise StageError(f"{windows}: windows of another feature definition; run `dvc repro`")
    if trace not in meta["traces"]:
        raise StageError(
            f"{windows} has no trace {trace!r} (traces there: {', '.join(sorted(meta['traces']))})"
        )
    low, high = meta["traces"][trace]["rounds"][-1]["test"]
    x_BWF = np.load(windows / trace / "x_acked.npy", mmap_mode="r")[low:high]
    y_BH = np.load(windows / trace / "y_us.npy")
    names = tuple(f if isinstance(f, str) else f["name"] for f in meta["features"])
    before = y_BH[:low][np.isfinite(y_BH[:low])]
    return gate.HeldOut(x_BWF, y_BH[low:high], names), float(np.median(before)) if before.size else 0.0


def training_inputs(windows: Path) -> NDArray[np.float32]:
    """Sample (N, F) of the inputs of all traces' pre-training slices: what drift is measured from.

    Shapes: B windows, W tokens of a window, H candidates, F features.
    """
    meta = json.loads((windows / "meta.json").read_text())
    candidates_BHF = []
    for trace, slices in meta["traces"].items():
        low, high = slices["pretrain"]
        x_BWF = np.load(windows / trace / "x_acked.npy", mmap_mode="r")
        candidates_BHF.append(x_BWF[low:high, -meta["horizon"] :])
    return sample_inputs(np.concatenate(candidates_BHF))


def champion_figures(
    registry: Registry, version: int | None, held_out: gate.HeldOut, challenger: artifact.Description
) -> tuple[gate.Figures | None, str]:
    """Figures of the champion on the slice; None with the reason when it cannot be judged there."""
    if version is None:
        return None, gate.NO_CHAMPION
    with tempfile.TemporaryDirectory() as temporary:
        champion = artifact.load(registry.fetch(version, Path(temporary)))
    for what in ("schema_hash", "tokens", "visibility"):
        theirs, ours = getattr(champion.description, what), getattr(challenger, what)
        if theirs != ours:
            return None, f"champion {version} takes other windows ({what} {theirs}, here {ours})"
    return gate.score(gate.predict(champion.model, held_out.x_BWF), held_out), ""


def register(
    params: dict[str, Any],
    *,
    windows: Path,
    finetuned: Path,
    evaluation: Path,
    all_params: dict[str, Any],
    lock: Path,
) -> dict[str, Any]:
    """Register (or find again) the version, judge it, point `challenger` at it; returns registered.json."""
    trace = str(params["trace"])
    source = last_round(finetuned, trace)
    loaded = artifact.load(source, schema_hash())
    held_out, otherwise_us = held_out_slice(windows, trace)
    registry = Registry(str(params["model_name"]))
    champion = registry.alias(CHAMPION)
    content = content_hash(source)
    version = registry.find(content)

    ours = gate.score(gate.predict(loaded.model, held_out.x_BWF), held_out)
    naive = gate.score_naive(held_out, otherwise_us)
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
    gate_tags = {
        "gate": "passed" if verdict.passed else "failed",
        "gate_reason": verdict.reason,
        "gate_champion": str(champion or "none"),
    }
    if version is None:
        tags = _lineage(loaded.description, content, champion, source, lock) | gate_tags
        with tempfile.TemporaryDirectory() as temporary:
            # Exported in a copy: the artifact is an output of another stage, which DVC guards.
            exported = Path(shutil.copytree(source, Path(temporary) / "artifact"))
            artifact.export_onnx(exported)
            np.save(exported / INPUTS_FILE, training_inputs(windows))
            version = registry.add(
                exported,
                tags=tags,
                params=_flat(all_params),
                metrics=_evaluation_metrics(evaluation) | metrics,
                reports=evaluation,
            )
    else:
        registry.set_tags(version, gate_tags)
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
    description: artifact.Description, content: str, parent: int | None, source: Path, lock: Path
) -> dict[str, str]:
    return {
        CONTENT_TAG: content,
        "git_commit": git_commit(Path.cwd()),
        "schema_hash": description.schema_hash,
        "parent_version": str(parent or "none"),
        "protocol": str(description.protocol.get("name", "unknown")),
        "visibility": description.visibility,
        "source": f"{source.parent.name}/{source.name}",
        **{f"dvc.{path}": md5 for path, md5 in dvc_hashes(lock).items()},
    }


def _flat(values: Any, prefix: str = "") -> dict[str, str]:
    """Nested parameters as `section.key`."""
    if not isinstance(values, dict):
        return {prefix: str(values)[:500]}
    flat: dict[str, str] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _evaluation_metrics(evaluation: Path) -> dict[str, float]:
    """Every finite number of metrics.json as an MLflow metric; lists (intervals) stay in the logged file."""

    def walk(value: Any, name: str) -> dict[str, float]:
        if isinstance(value, dict):
            found: dict[str, float] = {}
            for key, inner in value.items():
                found |= walk(inner, f"{name}.{key}" if name else str(key))
            return found
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return {name: float(value)} if number and np.isfinite(value) else {}

    path = evaluation / "metrics.json"
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage `evaluate`")
    return walk(json.loads(path.read_text()), "")


def main() -> None:
    """Read paths from the command line and values from section `register`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("params", "windows", "finetuned", "evaluation", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    with stage_main("register"):
        params = read_params(arguments.params)
        result = register(
            params,
            windows=arguments.windows,
            finetuned=arguments.finetuned,
            evaluation=arguments.evaluation,
            all_params=yaml.safe_load(arguments.params.read_text()),
            lock=arguments.params.with_name("dvc.lock"),
        )
        partial = arguments.output.with_name(f".{arguments.output.name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(result, indent=1) + "\n")
        os.replace(partial, arguments.output)
        version, verdict = result["version"], result["gate"]
        outcome = "passed" if verdict["passed"] else "FAILED"
        print(f"version {version} {outcome} the gate: {verdict['reason']}")
        if verdict["loses_to"]:
            losers = ", ".join(verdict["loses_to"])
            print(f"WARNING: on the last held-out slice version {version} loses to: {losers}")


if __name__ == "__main__":
    main()
