"""Make a trained model a version: judge it beside champion and reference, sign it, make it challenger.

The stage chooses a model's figures and judging data; the rest is the same for all models.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from swiftqueue.models.registry.bars import NO_CHAMPION, Verdict
from swiftqueue.models.registry.decision import REFERENCE_TAG
from swiftqueue.models.registry.lineage import RETRAIN, DataSet, content_hash, dvc_hashes, git_commit
from swiftqueue.models.registry.registry import (
    CHALLENGER,
    CHAMPION,
    ITSELF,
    REPLACED_TAG,
    GateDecision,
    Registry,
)
from swiftqueue.models.registry.store import RegistryError

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Judge(Protocol[T_contra]):
    """A gate with the naive baselines in it."""

    def __call__(
        self, challenger: T_contra, champion: T_contra | None, why_not: str, reference: T_contra | None, /
    ) -> Verdict:
        """Decide; `models/registry/bars.py` explains the arguments."""


@dataclass(frozen=True)
class Registration(Generic[T]):
    """A version, new or known, and its verdict."""

    model: str
    version: int
    content: str
    verdict: Verdict
    champion: int | None  # version number of the champion in the comparison
    scores: Mapping[str, T]  # by `challenger`, `champion` and `reference`, if there are any

    def record(
        self, margin: Mapping[str, float], figures: Mapping[str, Any], **named: str | int
    ) -> dict[str, Any]:
        """Return it as JSON, with the gate's margins, all figures, and the names of its parts."""
        verdict = asdict(self.verdict) | {"loses_to": list(self.verdict.loses_to)}
        gate = {"champion": self.champion, "margin": dict(margin), "figures": dict(figures)}
        return {
            "version": self.version,
            "model": self.model,
            **named,
            "content_sha256": self.content,
            "gate": verdict | gate,
        }


def champion_to_beat(registry: Registry) -> tuple[int | None, str]:
    """Return the version to judge against, or None with the reason why none may be served."""
    version = registry.alias(CHAMPION)
    if version is None:
        return None, NO_CHAMPION
    if not (why := registry.refusal(version)):
        return version, ""
    # In a registry from before decisions were signed, no version counts as champion, and this is the first.
    signed = any(registry.decided(one) for one in registry.versions())
    return None, f"the alias {CHAMPION} is not followed: {why}" if signed else NO_CHAMPION


def enter(
    registry: Registry,
    source: Path,
    *,
    score: Callable[[Path], T],
    judge: Judge[T],
    complete: Callable[[Path], Any],
    tags: Mapping[str, str],
    params: Mapping[str, str],
    metrics: Callable[[Mapping[str, T]], Mapping[str, float]],
    headline: Callable[[], Mapping[str, float]] = dict,
    data: Sequence[DataSet] = (),
    reports: Path | None = None,
    lock: Path | None = None,
    tuned_from: int | None = None,
) -> Registration[T]:
    """Register an artifact, unless it is a version already, judge it, and point `challenger` at it.

    A version that has served and fails now keeps its earlier decision and becomes no challenger.

    Args:
        registry: registry of the model.
        source: the artifact's folder, an output of another stage, which is not changed.
        score: returns the scores of the artifact in a folder; a ValueError if it cannot be judged here.
        judge: the gate.
        complete: adds a version's other files, such as `model.onnx`, to a copy of the artifact.
        tags: lineage of this model, in addition to commit, parent, reference and the encoder's origin.
        params: parameters of the run.
        metrics: returns the gate's figures as metrics of the run.
        headline: returns further metrics of a new version.
        data: data sets that trained and judged a new version; inputs of its run.
        reports: folder whose files are logged to a new version's run.
        lock: `dvc.lock`; the hashes of the stages' outputs become tags of a new version's run.
        tuned_from: the champion whose encoder a round's version shares, and that it is judged against; None:
            it has its own encoder, and is judged against the current champion.

    Raises:
        ValueError: the artifact itself cannot be judged.
        OSError: the registry does not answer, or a file is missing.
    """
    champion, why_not = champion_to_beat(registry) if tuned_from is None else (tuned_from, "")
    content = content_hash(source)
    version = registry.find(content)

    def score_version(of: int) -> T:
        with tempfile.TemporaryDirectory() as temporary:
            return score(registry.fetch(of, Path(temporary)))

    scores = {"challenger": score(source)}
    if champion is not None:
        try:
            scores["champion"] = score_version(champion)
        except ValueError as error:
            why_not = f"champion {champion} cannot be judged here: {error}"
        bar = champion
        try:
            if (bar := registry.reference(champion)) != champion:
                scores["reference"] = score_version(bar)
        except (RegistryError, ValueError) as error:  # removed by somebody, or written by an older program
            why_not = f"reference {bar} cannot be judged here: {error}"
    verdict = judge(scores["challenger"], scores.get("champion"), why_not, scores.get("reference"))
    if champion is not None and champion == version:
        verdict = Verdict(True, "it is the champion already", verdict.loses_to)
    judged = GateDecision(verdict.passed, verdict.reason, champion)
    stands = False  # an earlier decision: a rollback may still use a version that served
    if version is None:
        with tempfile.TemporaryDirectory() as temporary:
            # A copy is completed: the artifact is an output of another stage, which DVC guards.
            whole = Path(shutil.copytree(source, Path(temporary) / "artifact"))
            complete(whole)
            version = registry.add(
                whole,
                judged=judged,
                tags={
                    **tags,
                    "git_commit": git_commit(Path.cwd()),
                    "parent_version": str(champion or "none"),
                    **({REFERENCE_TAG: ITSELF} if tuned_from is None else inherited(registry, tuned_from)),
                },
                run_tags=_hashes(lock),
                params=params,
                metrics={**headline(), **metrics(scores)},
                data=data,
                reports=reports,
            )
    else:
        registry.log_metrics(version, metrics(scores))
        if not (stands := not judged.passed and REPLACED_TAG in registry.tags(version)):
            registry.decide(version, judged)
    if version != champion and not stands:
        registry.set_alias(CHALLENGER, version)
    return Registration(registry.model, version, content, verdict, champion, scores)


def inherited(registry: Registry, champion: int) -> dict[str, str]:
    """Return the tags of a version with a champion's encoder: its reference, and any re-train it comes from.

    Raises:
        RegistryError: there is no such version.
    """
    tags = {name: value for name, value in registry.tags(champion).items() if name.startswith(RETRAIN)}
    return {**tags, REFERENCE_TAG: str(registry.reference(champion))}


def _hashes(lock: Path | None) -> dict[str, str]:
    """Return the hashes of the stages' outputs, as tags of a run."""
    hashes = {} if lock is None else dvc_hashes(lock)
    # MLflow takes no `=` in a tag's name, which `data/packets/trace=NAME` has.
    return {f"dvc.{path.replace('=', ':')}": md5 for path, md5 in hashes.items()}


def outcome_line(record: Mapping[str, Any]) -> str:
    """Describe the outcome of a registration's record in words."""
    version, verdict = record["version"], record["gate"]
    outcome = "passed" if verdict["passed"] else "FAILED"
    line = f"version {version} {outcome} the gate: {verdict['reason']}"
    if losers := ", ".join(verdict["loses_to"]):
        line += f"\nWARNING: on the judging data version {version} loses to: {losers}"
    return line
