"""A round's challenger becomes a registry version, with its lineage and the gate's decision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from swiftqueue.models.networks import artifact, onnx_head
from swiftqueue.models.registry.decision import REFERENCE_TAG
from swiftqueue.models.registry.entering import inherited
from swiftqueue.models.registry.lineage import content_hash, git_commit, telemetry_set
from swiftqueue.models.registry.registry import CHALLENGER, ITSELF, LIVE, GateDecision, Registry
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.pipelines.live.minute import TuningResult
from swiftqueue.pipelines.live.retrain import RetrainingResult


def register(
    registry: Registry,
    tuned: TuningResult,
    folder: Path,
    *,
    champion: int,
    parent: Path,
    packets: pl.DataFrame,
    finetune: FinetuneParams,
    retrained: RetrainingResult | None,
) -> int:
    """Register a round's result, or find it again; the alias `challenger` moves to it if it passed or is new.

    Args:
        registry: the registry that gets the version.
        tuned: the round's result.
        folder: new folder in which the artifact is put together.
        champion: version that it was judged against.
        parent: artifact of `champion`, with its ONNX network.
        packets: packet table that it learned from.
        finetune: how its head was trained.
        retrained: the re-train that made its encoder; None if it has the champion's.

    Raises:
        OSError: the registry does not answer.
    """
    folder.mkdir()
    for name, written in tuned.files.items():
        (folder / name).write_bytes(written)
    content = content_hash(folder)
    judged = GateDecision(tuned.verdict.passed, tuned.verdict.reason, champion)
    if (known := registry.find(content)) is not None:
        if judged.passed:  # a version that passed before may still be a rollback's target
            registry.decide(known, judged)
            registry.set_alias(CHALLENGER, known)
        return known
    onnx_head.export_onnx(folder, parent)
    # A champion without such inputs (an older registry) gets this minute's from now on.
    np.save(folder / INPUTS_FILE, (retrained or tuned).trained_on)
    description = artifact.load(folder).description
    if retrained is None:  # the encoder is the champion's
        lineage = inherited(registry, champion)
    else:
        lineage = {**retrained.tags, REFERENCE_TAG: ITSELF}
    tags = lineage | {
        "git_commit": git_commit(Path.cwd()),
        "schema_hash": description.schema_hash,
        "parent_version": str(champion),
        "protocol": LIVE,
        "visibility": description.visibility,
        "source": f"telemetry/{packets['trace'][0]}",
        "telemetry_from_ns": str(packets["sent_ns"][0]),
        "telemetry_to_ns": str(packets["sent_ns"][-1]),
    }
    metrics = {
        f"gate.{who}.{name}": float(value)
        for who, figures in tuned.figures.items()
        for name, value in figures.items()
        if value is not None
    }
    params = {f"finetune.{name}": str(value) for name, value in finetune.model_dump().items()}
    version = registry.add(
        folder, judged=judged, tags=tags, params=params, metrics=metrics, data=[telemetry_set(packets)]
    )
    registry.set_alias(CHALLENGER, version)
    return version
