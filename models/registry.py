"""The model registry (MLflow): versions with lineage tags, and the aliases champion and challenger.

A version is the artifact (safetensors, JSON, ONNX) beside an `MLmodel` file with the signature; no pickle.
By default it is a SQLite file and a folder under `var/mlflow`, otherwise what MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.state import state_dir

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT: Final = "swiftqueue"
CHAMPION: Final = "champion"  # the served version
CHALLENGER: Final = "challenger"  # the version that may take its place
CONTENT_TAG: Final = "content_sha256"
ARTIFACT_FILES: Final = ("model.safetensors", "model.json", "model.onnx")
INPUTS_FILE: Final = (
    "inputs.npy"  # beside them: a sample (N, F) of the inputs that the encoder was trained on
)
BATCH: Final = 500  # metrics in one call; MLflow takes at most 1000
PARAMS_BATCH: Final = 100  # as many as it takes


class RegistryError(OSError):
    """The registry does not answer or has not what was asked for; the message says what to do."""


def local_store() -> tuple[str, Path]:
    """Address of the default store, and the folder of its artifacts."""
    folder = state_dir() / "mlflow"
    return f"sqlite:///{folder / 'mlflow.db'}", folder / "artifacts"


def tracking_uri() -> str:
    """Where the registry is: MLFLOW_TRACKING_URI, or the SQLite file under `var/mlflow`."""
    return os.environ.get("MLFLOW_TRACKING_URI") or local_store()[0]


def registry_exists() -> bool:
    """Whether there can be anything to read: a tracking URI is set, or the local store was made."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI")) or (state_dir() / "mlflow" / "mlflow.db").is_file()


@contextmanager
def _clear_errors(what: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException as error:
        line = str(error).strip().splitlines()[0][:300]
        raise RegistryError(f"{what} failed at the registry {tracking_uri()}: {line}") from error


class Registry:
    """The versions of one registered model."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._uri = tracking_uri()
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        # A server that does not answer is an error within seconds, not after MLflow's minutes of retries.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        import mlflow

        for name in ("mlflow", "alembic"):  # lines about tables made and updated
            logging.getLogger(name).setLevel(logging.WARNING)
        if self._uri == local_store()[0]:
            local_store()[1].mkdir(parents=True, exist_ok=True)
        _choose(self._uri)
        with _clear_errors("connecting"):
            self._client: MlflowClient = mlflow.MlflowClient(self._uri, self._uri)

    def find(self, content: str) -> int | None:
        """Newest version with this content hash."""
        with _clear_errors("search"):
            found = self._client.search_model_versions(
                f"name = '{self.model}' and tags.{CONTENT_TAG} = '{content}'"
            )
        return max((int(v.version) for v in found), default=None)

    def versions(self) -> list[int]:
        """All versions, ascending."""
        with _clear_errors("search"):
            found = self._client.search_model_versions(f"name = '{self.model}'")
        return sorted(int(v.version) for v in found)

    def alias(self, name: str) -> int | None:
        """Version that an alias points to."""
        from mlflow.exceptions import MlflowException

        try:
            return int(self._client.get_model_version_by_alias(self.model, name).version)
        except MlflowException as error:
            # Unknown model or alias; which code says so depends on the store.
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            with _clear_errors(f"alias {name}"):
                raise

    def set_alias(self, name: str, version: int) -> None:
        """Point an alias to a version, away from any other."""
        with _clear_errors(f"alias {name}"):
            self._client.set_registered_model_alias(self.model, name, str(version))

    def remove_alias(self, name: str) -> None:
        """Remove an alias; harmless if it is not set."""
        if self.alias(name) is not None:
            with _clear_errors(f"alias {name}"):
                self._client.delete_registered_model_alias(self.model, name)

    def tags(self, version: int) -> dict[str, str]:
        """Tags of a version.

        Raises:
            RegistryError: there is no such version.

        """
        with _clear_errors(f"version {version}"):
            return dict(self._client.get_model_version(self.model, str(version)).tags)

    def registered(self, version: int) -> float:
        """When a version was registered, in seconds since the epoch.

        Raises:
            RegistryError: there is no such version.

        """
        with _clear_errors(f"version {version}"):
            return float(self._client.get_model_version(self.model, str(version)).creation_timestamp) / 1e3

    def set_tags(self, version: int, tags: Mapping[str, str]) -> None:
        """Add or replace tags of a version."""
        with _clear_errors(f"version {version}"):
            for key, value in tags.items():
                self._client.set_model_version_tag(self.model, str(version), key, value)

    def fetch(self, version: int, folder: Path) -> Path:
        """Copy a version's artifact (safetensors, JSON, ONNX, INPUTS_FILE if it has one) into `folder`."""
        import mlflow

        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as temporary:
            with _clear_errors(f"download of version {version}"):
                uri = self._client.get_model_version_download_uri(self.model, str(version))
                source = Path(mlflow.artifacts.download_artifacts(uri, dst_path=temporary))
            for name in ARTIFACT_FILES:
                if not (source / name).is_file():
                    raise RegistryError(f"version {version} of {self.model}: {name} is missing")
                shutil.copyfile(source / name, folder / name)
            _copy_inputs(source, folder)
        return folder

    def add(
        self,
        artifact: Path,
        *,
        tags: Mapping[str, str],
        params: Mapping[str, str],
        metrics: Mapping[str, float],
        reports: Path | None = None,
    ) -> int:
        """Log an artifact (with its `model.onnx`) in a run of its own and register it as a new version.

        Args:
            artifact: folder holding the ARTIFACT_FILES and, if it is known, INPUTS_FILE.
            tags: of the run and of the version.
            params: of the run.
            metrics: of the run; finite numbers.
            reports: folder whose files are logged to the run (metrics, plots, report).

        """
        import mlflow
        from mlflow.entities import LoggedModelOutput, Metric, Param

        with (
            _clear_errors("registration"),
            # Tags in one call with the run; what can go in one call does, since each waits for the disk.
            mlflow.start_run(experiment_id=self._experiment(), tags=dict(tags)) as run,
            tempfile.TemporaryDirectory() as temporary,
        ):
            run_id = run.info.run_id
            for part in _parts(params, PARAMS_BATCH):
                self._client.log_batch(run_id, params=[Param(*pair) for pair in part.items()])
            if reports is not None:
                mlflow.log_artifacts(str(reports), "evaluation")
            model = self._client.create_logged_model(
                run.info.experiment_id, self.model, run_id, params=dict(params)
            )
            self._client.log_outputs(run_id, [LoggedModelOutput(model.model_id, 0)])
            now_ms = round(time.time() * 1e3)
            for part in _parts(metrics, BATCH):
                values = [Metric(*pair, now_ms, 0, model_id=model.model_id) for pair in part.items()]
                self._client.log_batch(run_id, metrics=values)
            folder = Path(temporary) / "model"
            _save_model(artifact, folder, model, run_id, tags)
            self._client.log_model_artifacts(model.model_id, str(folder))
            self._client.finalize_logged_model(model.model_id, "READY")
            if not self._client.search_registered_models(f"name = '{self.model}'"):
                self._client.create_registered_model(self.model)
            version = self._client.create_model_version(
                self.model, f"models:/{model.model_id}", run_id, dict(tags), model_id=model.model_id
            )
            self._client.set_tag(run_id, "registered_version", str(version.version))
        return int(version.version)

    def log_metrics(self, version: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to the run that made a version."""
        from mlflow.entities import Metric

        with _clear_errors(f"metrics of version {version}"):
            run_id = self._client.get_model_version(self.model, str(version)).run_id
            for part in _parts(metrics, BATCH):
                entities = [Metric(key, value, 0, 0) for key, value in part.items()]
                self._client.log_batch(run_id, metrics=entities)

    def _experiment(self) -> str:
        """Id of the project's experiment, made on first use."""
        if found := self._client.get_experiment_by_name(EXPERIMENT):
            return str(found.experiment_id)
        local = self._uri == local_store()[0]
        location = local_store()[1].as_uri() if local else None  # else the server's own default
        return str(self._client.create_experiment(EXPERIMENT, artifact_location=location))


def _save_model(artifact: Path, folder: Path, model: Any, run_id: str, tags: Mapping[str, str]) -> None:
    """Write what MLflow keeps of a version: the network with its signature, and our own files beside it."""
    import mlflow.onnx
    import onnx
    import onnxruntime
    from mlflow.models import Model

    network = onnx.load(str(artifact / "model.onnx"))
    mlflow.onnx.save_model(
        network,
        str(folder),
        mlflow_model=Model(
            artifact_path=model.artifact_location,
            model_uuid=model.model_id,
            run_id=run_id,
            model_id=model.model_id,
        ),
        signature=_signature(network),
        pip_requirements=[f"onnxruntime=={onnxruntime.__version__}"],
        onnx_execution_providers=["CPUExecutionProvider"],
        save_as_external_data=False,
        metadata=dict(tags),
    )
    for name in ARTIFACT_FILES:
        shutil.copyfile(artifact / name, folder / name)
    _copy_inputs(artifact, folder)


def _copy_inputs(source: Path, target: Path) -> None:
    if (source / INPUTS_FILE).is_file():  # versions of before it was kept have none
        shutil.copyfile(source / INPUTS_FILE, target / INPUTS_FILE)


def _choose(uri: str) -> None:
    """Point MLflow to a store without its side effect on the environment.

    It would set MLFLOW_TRACKING_URI, and what the user chose could no longer be told from our default.
    """
    import mlflow

    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    if before is None:
        os.environ.pop("MLFLOW_TRACKING_URI", None)
    else:
        os.environ["MLFLOW_TRACKING_URI"] = before


def _parts(items: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    pairs = list(items.items())
    for first in range(0, len(pairs), size):
        yield dict(pairs[first : first + size])


def _signature(network: Any) -> Any:
    """MLflow's signature of an ONNX network; a free dimension is -1."""
    import numpy as np
    from mlflow.models import ModelSignature
    from mlflow.types import Schema, TensorSpec

    def specs(values: Any) -> Any:
        described = []
        for value in values:
            dims = value.type.tensor_type.shape.dim
            shape = tuple(int(d.dim_value) if d.HasField("dim_value") else -1 for d in dims)
            described.append(TensorSpec(np.dtype("float32"), shape, value.name))
        return Schema(described)

    return ModelSignature(inputs=specs(network.graph.input), outputs=specs(network.graph.output))
