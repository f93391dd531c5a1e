"""Keep the model registry (MLflow): versions with lineage tags, and the aliases champion and challenger.

A version is the artifact (safetensors, JSON, ONNX) beside an `MLmodel` file with the signature; nothing is
pickled. models/registry/store.py chooses the store. Its answers are not trusted: a version's files and the
gate's decision count only with our signature (models/registry/decision.py), and a malformed answer raises a
RegistryError.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.redaction import redacted
from swiftqueue.models.registry import decision
from swiftqueue.models.registry.decision import CONTENT_TAG, FILES_TAG, REFERENCE_TAG
from swiftqueue.models.registry.lineage import DataSet, origin
from swiftqueue.models.registry.live_runs import day_run
from swiftqueue.models.registry.saving import hashes, save_model, sha256
from swiftqueue.models.registry.store import (
    PARENT_TAG,
    RegistryError,
    clear_errors,
    connect,
    experiment,
    log_data,
    log_params,
    tracking_uri,
)

EXPERIMENT: Final = "swiftqueue"
CHAMPION: Final = "champion"  # the served version
CHALLENGER: Final = "challenger"  # the version that may take its place
ITSELF: Final = "itself"  # value of REFERENCE_TAG for the version with which an encoder came
LIVE: Final = "live"  # tag `protocol` of a round's version
REPLACED_TAG: Final = "replaced_version"  # tag of a version that served: the champion before it, or "none"
PAGE: Final = 1000  # versions in one answer
# The text on the page of every registered model.
ABOUT: Final = (
    f"The alias `{CHAMPION}` is the version that is served, `{CHALLENGER}` the newest that the gate judged. "
    "The description of a version says how it was judged, and its run has parameters, data sets and figures."
)

_VERSION: Final = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision about a version."""

    passed: bool
    reason: str
    champion: int | None  # version of the champion that it was judged against

    def tags(self) -> dict[str, str]:
        """Return the decision as tags of a version."""
        return {
            decision.DECISION_TAG: decision.PASSED if self.passed else decision.FAILED,
            decision.REASON_TAG: self.reason,
            "gate_champion": str(self.champion or "none"),
        }


def described(tags: Mapping[str, str]) -> str:
    """Return the text of a version's page: the gate's decision, its reason, and the version's origin."""
    passed = tags.get(decision.DECISION_TAG) == decision.PASSED
    reason = tags.get(decision.REASON_TAG) or "no reason"
    said = f"**The gate {'passed' if passed else 'refused'} it**: {reason}."
    champion = tags.get("gate_champion", "none")
    said += f" It was judged against version {champion}." if champion != "none" else ""
    origin = [tags[name] for name in ("source", "protocol") if tags.get(name)]
    commit = f", commit {tags['git_commit'][:12]}" if tags.get("git_commit") else ""
    return said + (f"\n\nMade from {', protocol '.join(origin)}{commit}." if origin else "")


def _unless_gone(delete: Callable[[str], Any], what: str) -> None:
    """Delete an object that may be gone already."""
    from mlflow.exceptions import MlflowException

    try:
        delete(what)
    except MlflowException as error:
        if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            raise


def _number(version: Any) -> int:
    """Return the number of a version as the registry writes it."""
    if not _VERSION.fullmatch(str(version)):
        raise RegistryError(f"the registry {redacted(tracking_uri())} names a version {str(version)[:30]!r}")
    return int(version)


class Registry:
    """The versions of one registered model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._client = connect()

    def find(self, content: str) -> int | None:
        """Return the newest version with this content hash whose decision we signed, or None."""
        known = self.tags_by_version(f" and tags.{CONTENT_TAG} = '{content}'")
        signed = (
            version
            for version, tags in known.items()
            if tags.get(CONTENT_TAG) == content and not decision.unsigned(self.model, version, tags)
        )
        return max(signed, default=None)

    def versions(self) -> list[int]:
        """Return all versions, ascending."""
        return sorted(self.tags_by_version())

    def tags_by_version(self, condition: str = "") -> dict[int, dict[str, str]]:
        """Return the tags of all versions, or of those that meet MLflow's further `condition`."""
        known: dict[int, dict[str, str]] = {}
        token: str | None = ""
        with clear_errors("search"):
            while token is not None:
                found = self._client.search_model_versions(
                    f"name = '{self.model}'{condition}", max_results=PAGE, page_token=token or None
                )
                known |= {
                    _number(one.version): {str(name): str(value) for name, value in one.tags.items()}
                    for one in found
                }
                token = found.token or None
        return known

    def aliases(self) -> dict[str, int]:
        """Return every alias and its version."""
        with clear_errors("aliases"):
            found = self._client.search_registered_models(f"name = '{self.model}'", max_results=1)
            named = found[0].aliases.items() if found else ()
            return {str(name): _number(version) for name, version in named}

    def remove(self, version: int) -> None:
        """Remove a version with its tags, its run and its logged model, even if it is half removed.

        `mlflow gc` frees the files (models/registry/retention.py); MLflow keeps two rows of each version for
        ever.
        """
        with clear_errors(f"removal of version {version}"):
            found = self._client.get_model_version(self.model, str(version))
            model_id = str(found.source).removeprefix("models:/")
            _unless_gone(self._client.delete_logged_model, model_id)
            _unless_gone(self._client.delete_run, found.run_id)
            for name in found.tags:  # MLflow keeps the tags of a deleted version
                self._client.delete_model_version_tag(self.model, str(version), name)
            self._client.delete_model_version(self.model, str(version))

    def alias(self, name: str) -> int | None:
        """Return the version of an alias; serving/deploy/champion.py decides whether it may be served."""
        from mlflow.exceptions import MlflowException

        with clear_errors(f"alias {name}"):
            try:
                return _number(self._client.get_model_version_by_alias(self.model, name).version)
            except MlflowException as error:
                # The model or alias is unknown; the error's code depends on the store.
                if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    return None
                raise

    def set_alias(self, name: str, version: int) -> None:
        """Point an alias to a version."""
        with clear_errors(f"alias {name}"):
            self._client.set_registered_model_alias(self.model, name, str(version))

    def remove_alias(self, name: str) -> None:
        """Remove an alias; harmless if it is not set."""
        if self.alias(name) is not None:
            with clear_errors(f"alias {name}"):
                self._client.delete_registered_model_alias(self.model, name)

    def tags(self, version: int) -> dict[str, str]:
        """Return the tags of a version.

        Raises:
            RegistryError: there is no such version.
        """
        with clear_errors(f"version {version}"):
            tags = self._client.get_model_version(self.model, str(version)).tags
            return {str(name): str(value) for name, value in tags.items()}

    def reference(self, version: int) -> int:
        """Return the version with which a version's encoder came, from the stages or a full re-train.

        Raises:
            RegistryError: there is no such version, or its tag makes no sense.
        """
        tags = self.tags(version)
        if (named := tags.get(REFERENCE_TAG, ITSELF)) != ITSELF:
            return _number(named)
        if REFERENCE_TAG in tags or tags.get("protocol") != LIVE:
            return version
        # A round of an older program made it and named no reference.
        alike = (v for v, other in self.tags_by_version().items() if origin(other) == origin(tags))
        return min(alike, default=version)

    def refusal(self, version: int) -> str:
        """Return, in one line, why a version may not be served; empty if a signed decision passed it.

        Raises:
            RegistryError: there is no such version.
        """
        return decision.refusal(self.model, version, self.tags(version))

    def decided(self, version: int) -> bool:
        """Return whether we signed a decision about a version, passed or not."""
        return not decision.unsigned(self.model, version, self.tags(version))

    def decide(self, version: int, judged: GateDecision) -> None:
        """Replace the decision about a version and sign it.

        Raises:
            RegistryError: the last decision was not ours, so its files are unknown.
        """
        tags = self.tags(version)
        if why := decision.unsigned(self.model, version, tags):
            raise RegistryError(why)
        decided = tags | judged.tags()
        signed = {**judged.tags(), decision.SIGNATURE_TAG: decision.signature(self.model, version, decided)}
        self.set_tags(version, {name: value for name, value in signed.items() if tags.get(name) != value})
        with clear_errors(f"description of version {version}"):
            self._client.update_model_version(self.model, str(version), described(decided))

    def registered(self, version: int) -> float:
        """Return when a version was registered, in seconds since the epoch.

        Raises:
            RegistryError: there is no such version.
        """
        with clear_errors(f"version {version}"):
            return float(self._client.get_model_version(self.model, str(version)).creation_timestamp) / 1e3

    def set_tags(self, version: int, tags: Mapping[str, str]) -> None:
        """Add or replace tags of a version."""
        with clear_errors(f"version {version}"):
            for key, value in tags.items():
                self._client.set_model_version_tag(self.model, str(version), key, value)

    def fetch(self, version: int, folder: Path) -> Path:
        """Copy a version's artifact (safetensors, JSON, ONNX, and INPUTS_FILE if there is one) into `folder`.

        No file is read before its SHA-256 matches the signed decision.

        Raises:
            RegistryError: there is no such version, its decision is not ours, or a file is missing or
                differs.
        """
        import mlflow

        tags = self.tags(version)
        if why := decision.unsigned(self.model, version, tags):
            raise RegistryError(why)
        hashes: dict[str, str] = json.loads(tags[FILES_TAG])
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            for name, expected in hashes.items():
                # The files are copied by name, because other files of the registry are not ours.
                with clear_errors(f"download of {name} of version {version}"):
                    uri = self._client.get_model_version_download_uri(self.model, str(version))
                    source = Path(mlflow.artifacts.download_artifacts(f"{uri}/{name}", dst_path=temporary))
                    shutil.copyfile(source, folder / name)
                if (found := sha256(folder / name)) != expected:
                    (folder / name).unlink()
                    raise RegistryError(
                        f"version {version} of {self.model}: {name} is not the file that was registered "
                        f"(SHA-256 {found[:12]}, signed was {expected[:12]}): damaged, or swapped there. "
                        "If it is the champion: swiftqueue rollback, or swiftqueue deploy --version N"
                    )
        return folder

    def add(
        self,
        artifact: Path,
        *,
        judged: GateDecision,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        run_tags: Mapping[str, str] | None = None,
        data: Sequence[DataSet] = (),
        reports: Path | None = None,
    ) -> int:
        """Log an artifact (with its `model.onnx`) in a run of its own and register it as a new version.

        The run of a live round's version is nested under its day's run (models/registry/live_runs.py).

        Args:
            artifact: folder holding the ARTIFACT_FILES and, if it is known, INPUTS_FILE.
            judged: the gate's decision, which is signed.
            tags: tags of the run and the version, beside its hashes and the decision.
            params: parameters of the run.
            metrics: metrics of the run; finite numbers.
            run_tags: tags of the run alone.
            data: data sets of the run.
            reports: folder whose files are logged to the run (metrics, plots, report).
        """
        import mlflow
        from mlflow.entities import LoggedModelOutput, Metric

        tags = {**tags, **judged.tags(), **hashes(artifact)}
        run_tags = {**(run_tags or {}), **tags}
        with clear_errors("registration"):
            if tags.get("protocol") == LIVE:
                where, run_tags[PARENT_TAG] = day_run(self._client, self.model)
            else:
                where = experiment(self._client, EXPERIMENT)
        with (
            clear_errors("registration"),
            # The tags go in the call that makes the run, since each call waits for the disk.
            mlflow.start_run(experiment_id=where, tags=run_tags) as run,
            tempfile.TemporaryDirectory() as temporary,
        ):
            run_id = run.info.run_id
            log_params(self._client, run_id, params)
            log_data(self._client, run_id, data)
            if reports is not None:
                mlflow.log_artifacts(str(reports), "evaluation")
            model = self._client.create_logged_model(
                run.info.experiment_id, self.model, run_id, params=dict(params)
            )
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
            now_ms = round(time.time() * 1e3)
            values = [Metric(*pair, now_ms, 0, model_id=model.model_id) for pair in metrics.items()]
            self._client.log_batch(run_id, metrics=values)
            folder = Path(temporary) / "model"
            interface = save_model(artifact, folder, model, run_id, tags)
            self._client.log_model_artifacts(model.model_id, str(folder))
            self._client.finalize_logged_model(model.model_id, "READY")
            self._describe_model(interface)
            version = self._client.create_model_version(
                *(self.model, f"models:/{model.model_id}", run_id, dict(tags)),
                model_id=model.model_id,
                description=described(tags),
            )
            number = _number(version.version)
            self._client.set_tag(run_id, "registered_version", str(number))
            self._client.set_tag(
                run_id, "mlflow.runName", f"version {number} {tags.get('source', '')}".strip()
            )
            self.set_tags(number, {decision.SIGNATURE_TAG: decision.signature(self.model, number, tags)})
        return number

    def _describe_model(self, interface: str) -> None:
        """Make the registered model if it is missing, with a page that describes its versions."""
        said = f"{interface} {ABOUT}"
        found = self._client.search_registered_models(f"name = '{self.model}'", max_results=1)
        if not found:
            self._client.create_registered_model(self.model, description=said)
        elif found[0].description != said:
            self._client.update_registered_model(self.model, said)

    def log_metrics(self, version: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to the run that made a version."""
        from mlflow.entities import Metric

        with clear_errors(f"metrics of version {version}"):
            run_id = self._client.get_model_version(self.model, str(version)).run_id
            self._client.log_batch(run_id, metrics=[Metric(*pair, 0, 0) for pair in metrics.items()])
