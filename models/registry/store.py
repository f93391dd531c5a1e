"""Connect to the MLflow store, and turn its errors into one line.

The store is what MLFLOW_TRACKING_URI names, by default a SQLite file and a folder under `var/mlflow`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

from swiftqueue.common.redaction import redacted
from swiftqueue.common.settings import settings
from swiftqueue.common.state import private_dir, private_file, secret, state_dir, stranger_listens
from swiftqueue.models.registry.lineage import DataSet

if TYPE_CHECKING:
    from mlflow import MlflowClient

PARAMS_BATCH: Final = 100  # parameters in one call, MLflow's limit
TRAINING: Final = "swiftqueue-training"  # the experiment of the stages' runs
LIVE_ROUNDS: Final = "swiftqueue-live"  # the experiment of the live rounds
PARENT_TAG: Final = "mlflow.parentRunId"  # tag by which MLflow nests runs
USER: Final = "swiftqueue"  # user name at the MLflow server that `up` starts
DATABASE: Final = "mlflow.db"
PASSWORD: Final = "mlflow"  # noqa: S105 - the name of its file under `var/secrets`


class RegistryError(OSError):
    """The error of a registry that does not answer or lacks an object; the message says what to do."""


def local_store() -> tuple[str, Path]:
    """Return the address of the default store, and the folder of its artifacts."""
    folder = state_dir() / "mlflow"
    return f"sqlite:///{folder / DATABASE}", folder / "artifacts"


def tracking_uri() -> str:
    """Return the address of the registry: MLFLOW_TRACKING_URI, or the SQLite file under `var/mlflow`."""
    return settings().mlflow_tracking_uri or local_store()[0]


def registry_exists() -> bool:
    """Return whether there can be a registry: a tracking URI is set, or the local store was made."""
    return settings().mlflow_tracking_uri is not None or (state_dir() / "mlflow" / DATABASE).is_file()


def connect() -> MlflowClient:
    """Connect to the store; a missing local one is made.

    Raises:
        RegistryError: the store does not answer.
        OSError: the local store cannot be made.
    """
    uri = tracking_uri()
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # A silent server becomes an error within seconds, not after MLflow's minutes of retries.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # the address may hold a password
    import mlflow
    from mlflow.entities.model_registry import RegisteredModel

    for name in ("mlflow", "alembic"):  # they log each table that is made or updated
        logging.getLogger(name).setLevel(logging.WARNING)
    if uri == local_store()[0]:
        private_dir(local_store()[1].parent)
        private_dir(local_store()[1])
        private_file(local_store()[1].with_name(DATABASE))
    address = _with_password(uri)
    _choose(address)

    class Client(mlflow.MlflowClient):  # type: ignore[misc]  # MLflow has no types
        """MLflow's client without the check of the registered model before each change.

        MLflow checks that the model is no prompt, and for that reads all versions, deleted ones too, which
        takes 2.7 s for a year's 105,000. Search for a model to learn about it.
        """

        def get_registered_model(self, name: str) -> Any:
            """Return a model of that name without attributes, which passes as no prompt."""
            return RegisteredModel(name)

    with clear_errors("connecting"):
        return Client(address, address)


def experiment(client: MlflowClient, name: str) -> str:
    """Return the id of an experiment, made on first use."""
    if found := client.get_experiment_by_name(name):
        return str(found.experiment_id)
    local = tracking_uri() == local_store()[0]
    location = local_store()[1].as_uri() if local else None  # None: the server's own default
    return str(client.create_experiment(name, artifact_location=location))


@contextmanager
def clear_errors(what: str) -> Iterator[None]:
    """Turn any error in the block, named `what`, into a RegistryError of one line."""
    try:
        yield
    except RegistryError:
        raise
    except Exception as error:  # MLflow's own errors, and its client's for a malformed answer
        raise RegistryError(
            f"{what} failed at the registry {redacted(tracking_uri())}: {_line(error)}"
        ) from error


def _line(error: Exception) -> str:
    from mlflow.exceptions import MlflowException

    said = next(iter(str(error).strip().splitlines()), "")
    said = said if isinstance(error, MlflowException) else f"not understood ({type(error).__name__}: {said})"
    return redacted("".join(c if c.isprintable() else "?" for c in said))[:300]


def _with_password(uri: str) -> str:
    """Return the address of the server that `up` started with its password; other addresses unchanged.

    Credentials in the environment take precedence. Ours are not put there, since programs that we start, or
    later code, may ask another server.
    """
    names = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
    if any(os.environ.get(name) for name in names) or not is_own_server(uri):
        return uri
    parts = urlsplit(uri)
    if stranger_listens(parts.port):
        return uri
    return urlunsplit(parts._replace(netloc=f"{USER}:{secret(PASSWORD)}@{parts.netloc}"))


def is_own_server(uri: str) -> bool:
    """Return whether an address without credentials is that of the MLflow server started by `up`."""
    try:
        record = json.loads((state_dir() / "mlflow" / "server.json").read_text())
        parts = urlsplit(uri)
        local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "localhost")
        return local and parts.username is None and parts.port == record["ports"]["http"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _choose(uri: str) -> None:
    """Point MLflow to a store without its side effect on the environment.

    MLflow would set two variables. The user's choice could then not be told from our default, and programs
    that we start would find a password there.
    """
    import mlflow

    names = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI")
    before = {name: os.environ.pop(name, None) for name in names}
    mlflow.set_tracking_uri(uri)
    mlflow.set_registry_uri(uri)
    for name, value in before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def log_data(client: MlflowClient, run_id: str, data: Iterable[DataSet]) -> None:
    """Log data sets as a run's inputs; MLflow keeps one row for each, whatever the number of runs."""
    from mlflow.entities import Dataset, DatasetInput, InputTag
    from mlflow.types import ColSpec, Schema

    inputs = []
    for one in data:
        source = json.dumps({"uri": one.source})
        columns = [ColSpec(kind, name) for name, kind in one.columns.items()]
        schema = json.dumps({"mlflow_colspec": Schema(columns).to_dict()}) if columns else None
        profile = None if one.rows is None else json.dumps({"num_rows": one.rows})
        entity = Dataset(one.name, one.digest, "local", source, schema, profile)
        inputs.append(DatasetInput(entity, [InputTag("mlflow.data.context", one.use)]))
    if inputs:
        client.log_inputs(run_id, inputs)


def log_params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    """Log a run's parameters in batches of MLflow's limit."""
    from mlflow.entities import Param

    pairs = list(params.items())
    for first in range(0, len(pairs), PARAMS_BATCH):
        client.log_batch(run_id, params=[Param(*pair) for pair in pairs[first : first + PARAMS_BATCH]])


def flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by `section.key`."""
    if not isinstance(values, Mapping):
        return {prefix: values}
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the leaves of nested parameters as MLflow stores them."""
    return {name: str(value)[:500] for name, value in flat(values).items()}


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the leaves of nested figures that are finite numbers."""
    return {
        name: float(value)
        for name, value in flat(values).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
