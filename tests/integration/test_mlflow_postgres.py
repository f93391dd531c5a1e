"""Beyond one machine: MLflow on PostgreSQL and S3 as in infra/k8s/mlflow.yaml."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import psycopg2
import pytest
import yaml
from cmdlines import cmdlines
from registered import add_version
from s3_server import s3_client, s3_server
from waiting import wait_until

from swiftqueue.infra.local.processes import free_ports

pytestmark = pytest.mark.slow

MANIFEST = Path(__file__).resolve().parents[2] / "infra" / "k8s" / "mlflow.yaml"
LOOPBACK = "127.0.0.1"
BUCKET = "swiftqueue"
PASSWORD = "of this test only"  # noqa: S105
START_TIMEOUT_S = 180  # MLflow: 41 s were seen on a busy machine


# PostgreSQL -----------------------------------------------------------------------------------------


def postgres_programs() -> Path:
    """Folder of `initdb` and `postgres`; Debian keeps them out of PATH."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file() and (folder / "postgres").is_file():
            return folder
    pytest.skip("PostgreSQL's server is not installed (on Debian: apt-get install postgresql)")


def postgres_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as the user of its package, or nobody."""
    import pwd

    if os.getuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    entry = names.get("postgres") or names.get("nobody")
    if entry is None:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`")
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL with a data folder of its own, on loopback, with a password; yields a URI."""
    programs, user, port = postgres_programs(), postgres_user(), free_ports(1)[0]
    if user:
        os.chown(folder, user["user"], user["group"])
    password = folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o644)
    quiet: dict[str, Any] = {"cwd": folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}, **user}
    subprocess.run(
        [
            *(programs / "initdb", "--pgdata", folder / "data", "--username", "swiftqueue", "--no-sync"),
            *("--auth", "scram-sha-256", "--pwfile", password, "--encoding", "UTF8"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        **quiet,
    )
    settings = {"listen_addresses": LOOPBACK, "port": port, "unix_socket_directories": folder, "fsync": "off"}
    log = (folder / "log").open("wb")
    server = subprocess.Popen(
        [
            *(programs / "postgres", "-D", folder / "data"),
            *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
        ],
        stdout=log,
        stderr=log,
        **quiet,
    )
    connect = {"host": LOOPBACK, "port": port, "user": "swiftqueue", "password": PASSWORD}
    try:

        def connected() -> Any:
            with contextlib.suppress(psycopg2.OperationalError):
                return psycopg2.connect(dbname="postgres", **connect)
            assert server.poll() is None, (folder / "log").read_text()
            return None

        connection = wait_until(connected, (folder / "log").read_text)
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE mlflow")
        connection.close()
        quoted = PASSWORD.replace(" ", "%20")
        yield f"postgresql+psycopg2://swiftqueue:{quoted}@{LOOPBACK}:{port}/mlflow"
    finally:
        server.terminate()
        server.wait(30)
        log.close()


# MLflow, as in the manifest -------------------------------------------------------------------------


@dataclass(frozen=True)
class Stack:
    """The running servers."""

    mlflow: str  # URL
    database: str  # URI
    s3: Any  # a client


def container(kind: str) -> dict[str, Any]:
    """First `containers` or `initContainers` of the manifest's Deployment."""
    documents = yaml.safe_load_all(MANIFEST.read_text())
    [deployment] = [d for d in documents if d["kind"] == "Deployment"]
    found: dict[str, Any] = deployment["spec"]["template"]["spec"][kind][0]
    return found


def command(spec: dict[str, Any], environment: dict[str, str], replaced: dict[str, str]) -> list[str]:
    """The container's command line as Kubernetes would run it, but for the options in `replaced`.

    A replacement that begins with a comma is added to what stands there.
    """
    names = {entry["name"] for entry in spec["env"]}
    assert names <= environment.keys()
    words = [*spec["command"], *spec.get("args", [])]
    for k, word in enumerate(words):
        for name in names:
            word = word.replace(f"$({name})", environment[name])
        option = word.split("=")[0]
        other = replaced.get(option)
        words[k] = word if other is None else word + other if other[0] == "," else f"{option}={other}"
    return [str(Path(sys.executable).with_name(words[0])), *words[1:]]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    # Not under pytest's folder, which only its owner may enter: PostgreSQL may run as another user.
    folder = Path(tempfile.mkdtemp(prefix="swiftqueue-postgres-"))
    try:
        with postgres(folder) as database, s3_server(BUCKET, LOOPBACK) as keys:
            port = free_ports(1)[0]
            environment = {
                **{k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_TRACKING", "AWS_"))},
                **{name: value for name, value in keys.items() if name != "AWS_ENDPOINT_URL"},
                "MLFLOW_BACKEND_STORE_URI": database,
                "MLFLOW_S3_ENDPOINT_URL": keys["AWS_ENDPOINT_URL"],
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "S3_BUCKET": BUCKET,
            }
            made = command(container("initContainers"), environment, {})
            assert not any(PASSWORD in unquote(word) for word in made)
            subprocess.run(made, env=environment, check=True)
            replaced = {"--host": LOOPBACK, "--port": str(port), "--workers": "1"}
            replaced["--allowed-hosts"] = f",{LOOPBACK}:{port}"
            words = command(container("containers"), environment, replaced)
            with serving(words, environment, folder / "mlflow.log", f"http://{LOOPBACK}:{port}"):
                assert not any(PASSWORD in unquote(line.decode("utf-8", "replace")) for line in cmdlines())
                yield Stack(f"http://{LOOPBACK}:{port}", database, s3_client(keys))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def serving(words: list[str], environment: dict[str, str], log: Path, url: str) -> Iterator[None]:
    """Run a server until the block ends; it and its workers are gone then."""
    with log.open("wb") as output:
        server = subprocess.Popen(
            words, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_until(lambda: server.poll() is not None or status(f"{url}/health") == 200, log.read_text)
        assert server.poll() is None, log.read_text()[-2000:]
        yield
    finally:
        server.terminate()
        server.wait(30)


def status(url: str, host: str | None = None) -> int:
    """HTTP status of a GET; 0 where nobody answers."""
    request = urllib.request.Request(url, headers={"Host": host} if host else {})  # noqa: S310 - loopback http
    try:
        with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (urllib.error.URLError, OSError):
        return 0


# What is stored where -------------------------------------------------------------------------------


@pytest.mark.long
def test_versions_are_registered_served_and_rolled_back(
    stack: Stack,
    triton: Path,
    make_artifact: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """`deploy` and `rollback` as on one machine; MLFLOW_TRACKING_URI is all that differs."""
    from swiftqueue.models.registry.lineage import content_hash
    from swiftqueue.models.registry.registry import CHALLENGER, CHAMPION, Registry
    from swiftqueue.models.registry.store import RegistryError
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion
    from swiftqueue.serving.triton.endpoint import Triton

    # Only the server has the keys of S3 and of the database.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MLFLOW_S3_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.mlflow)
    registry = Registry("swiftqueue")
    assert registry.versions() == []
    assert registry.alias(CHAMPION) is None
    artifacts = [make_artifact(seed, onnx=True) for seed in (1, 2)]
    for number, artifact in enumerate(artifacts, 1):
        version = add_version(artifact, params={"seed": str(number)}, metrics={"late.ap": 0.5})
        assert version == number
        registry.set_alias(CHALLENGER, version)
        deploy_version(None)
        assert registry.alias(CHAMPION) == version
        assert registry.alias(CHALLENGER) is None
    assert registry.find(content_hash(artifacts[1])) == 2
    assert registry.versions() == [1, 2]
    registry.log_metrics(2, {"gate.log_mae": 0.25})
    with pytest.raises(RegistryError, match="version 99"):
        registry.tags(99)

    rollback_champion()
    assert Registry("swiftqueue").alias(CHAMPION) == 1
    with Triton() as served:
        assert served.served_version() == 1
    assert registry.tags(2)["replaced_version"] == "1"
    for version, artifact in enumerate(artifacts, 1):
        fetched = registry.fetch(version, tmp_path / str(version))
        for name in ("model.safetensors", "model.json", "model.onnx"):
            assert (fetched / name).read_bytes() == (artifact / name).read_bytes()

    # Rows in PostgreSQL, bytes in S3, nothing beside them
    with (
        psycopg2.connect(stack.database.replace("+psycopg2", "")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT alias, version FROM registered_model_aliases WHERE name = 'swiftqueue'")
        assert cursor.fetchall() == [("champion", 1)]
    stored = stack.s3.list_objects_v2(Bucket=BUCKET, Prefix="mlflow/")["Contents"]
    weights = [o["Size"] for o in stored if o["Key"].endswith("model.safetensors")]
    assert weights == [(a / "model.safetensors").stat().st_size for a in artifacts]


@pytest.mark.long
def test_the_server_answers_to_its_own_names_only(stack: Stack) -> None:
    path = f"{stack.mlflow}/api/2.0/mlflow/experiments/get?experiment_id=0"
    for host in ("mlflow:5000", "mlflow.swiftqueue.svc:5000"):
        assert status(path, host) == 200, host
    assert status(path, "elsewhere.example") == 403
    assert status(f"{stack.mlflow}/health", "10.1.2.3:5000") == 200  # a probe names the pod's address


def test_lost_connections_to_the_database_heal(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL ends every connection (a fail-over does); the next call makes a new one."""
    from swiftqueue.models.registry.registry import Registry

    monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.mlflow)
    registry = Registry("swiftqueue")
    before = registry.versions()
    with (
        psycopg2.connect(stack.database.replace("+psycopg2", "")) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = 'mlflow' AND pid <> pg_backend_pid()"
        )
        assert cursor.rowcount > 0
    assert registry.versions() == before
