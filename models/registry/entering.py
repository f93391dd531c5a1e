"""How a trained model becomes a version: judged beside champion and reference, signed, made challenger.

What a model's figures are, and what it is judged on, is the stage's; this is the same for all models.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from models.registry.bars import NO_CHAMPION, Verdict
from models.registry.decision import REFERENCE_TAG
from models.registry.lineage import RETRAIN, DataSet, content_hash, dvc_hashes, git_commit
from models.registry.registry import CHALLENGER, CHAMPION, ITSELF, REPLACED_TAG, GateDecision, Registry
from models.registry.store import RegistryError

ScoreTable = TypeVar("ScoreTable")
_Scored = TypeVar("_Scored", contravariant=True)


class Judge(Protocol[_Scored]):
    """A gate, with the naive baselines in it."""

    def __call__(
        self, challenger: _Scored, champion: _Scored | None, why_not: str, reference: _Scored | None, /
    ) -> Verdict:
        """Decide; `models/registry/bars.py` says what each of them is."""


@dataclass(frozen=True)
class Registration(Generic[ScoreTable]):
    """A version, new or found again, and how it was judged."""

    model: str
    version: int
    content: str
    verdict: Verdict
    champion: int | None  # that it was judged against
    scores: Mapping[str, ScoreTable]  # of challenger, and of champion and reference where there are any

    def record(
        self, margin: Mapping[str, float], figures: Mapping[str, Any], **named: str | int
    ) -> dict[str, Any]:
        """Return it as JSON, with the gate's margins, everybody's figures, and what it is made of."""
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
    """Return the version to be judged against; None with the reason where none may be served."""
    version = registry.alias(CHAMPION)
    if version is None:
        return None, NO_CHAMPION
    if not (why := registry.refusal(version)):
        return version, ""
    # In a registry of before decisions were signed no version is a champion any more, and this is the first.
    signed = any(registry.decided(one) for one in registry.versions())
    return None, f"the alias {CHAMPION} is not followed: {why}" if signed else NO_CHAMPION


def enter(
    registry: Registry,
    source: Path,
    *,
    score: Callable[[Path], ScoreTable],
    judge: Judge[ScoreTable],
    complete: Callable[[Path], Any],
    tags: Mapping[str, str],
    params: Mapping[str, str],
    metrics: Callable[[Mapping[str, ScoreTable]], Mapping[str, float]],
    headline: Callable[[], Mapping[str, float]] = dict,
    data: Sequence[DataSet] = (),
    reports: Path | None = None,
    lock: Path | None = None,
    tuned_from: int | None = None,
) -> Registration[ScoreTable]:
    """Register an artifact (or find it again), judge it, point `challenger` at it.

    One that served and fails now keeps its decision, and is no challenger.

    Args:
        registry: of the model.
        source: the artifact's folder, an output of another stage: it is not written to.
        score: figures of the artifact in a folder; a ValueError where it cannot be judged here.
        judge: the gate.
        complete: adds to a copy of the artifact what a version has beside it, `model.onnx` first.
        tags: lineage of this model, beside commit, parent, reference and where its encoder comes from.
        params: of the run.
        metrics: figures of the gate as metrics of the run.
        headline: further metrics of a new version.
        data: what a new version was trained and judged on; inputs of its run.
        reports: folder whose files are logged to a new version's run.
        lock: `dvc.lock`; the hashes of what the stages made become tags of a new version's run.
        tuned_from: the champion that it is judged against and has the encoder of, where a round made it;
            None: it has its own, and is judged against whatever champion there is.

    Raises:
        ValueError: the artifact itself cannot be judged.
        OSError: the registry does not answer, or a file is missing.
    """
    champion, why_not = champion_to_beat(registry) if tuned_from is None else (tuned_from, "")
    content = content_hash(source)
    version = registry.find(content)

    def score_version(of: int) -> ScoreTable:
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
        except (RegistryError, ValueError) as error:  # somebody removed it, or it is of an older program
            why_not = f"reference {bar} cannot be judged here: {error}"
    verdict = judge(scores["challenger"], scores.get("champion"), why_not, scores.get("reference"))
    if champion is not None and champion == version:
        verdict = Verdict(True, "it is the champion already", verdict.loses_to)
    judged = GateDecision(verdict.passed, verdict.reason, champion)
    stands = False  # a decision of before: what served may still be gone back to
    if version is None:
        with tempfile.TemporaryDirectory() as temporary:
            # Completed in a copy: the artifact is an output of another stage, which DVC guards.
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
    """Tags of a version that has a champion's encoder: its reference, and the re-train it comes from, if any.

    Raises:
        RegistryError: there is no such version.
    """
    tags = {name: value for name, value in registry.tags(champion).items() if name.startswith(RETRAIN)}
    return {**tags, REFERENCE_TAG: str(registry.reference(champion))}


def _hashes(lock: Path | None) -> dict[str, str]:
    """Return the hashes of what the stages made, as tags of a run."""
    hashes = {} if lock is None else dvc_hashes(lock)
    # MLflow takes no `=` in a tag's name, which `data/packets/trace=NAME` has.
    return {f"dvc.{path.replace('=', ':')}": md5 for path, md5 in hashes.items()}


def told(record: Mapping[str, Any]) -> str:
    """Say how it went, of a record."""
    version, verdict = record["version"], record["gate"]
    outcome = "passed" if verdict["passed"] else "FAILED"
    line = f"version {version} {outcome} the gate: {verdict['reason']}"
    if losers := ", ".join(verdict["loses_to"]):
        line += f"\nWARNING: on what judges version {version} it loses to: {losers}"
    return line
