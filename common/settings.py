"""Define the settings of this installation: where its parts are, and which ports and secrets they have.

Each setting is a field. Its environment variable is SWIFTQUEUE_ and the field's name in capitals; an empty
variable counts as unset. `python -m swiftqueue.common.settings > docs/SETTINGS.md` writes the reference page.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from swiftqueue.common.allowed_values import allowed, in_signs

PREFIX: Final = "SWIFTQUEUE_"
Port = Annotated[int, Field(ge=1, le=65535)]
Place = Annotated[
    str,
    Field(
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._/-]+)?$", examples=["s3://BUCKET/PATH"]
    ),
]


class Settings(BaseSettings):
    """All settings; `settings()` reads them from the environment."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    )

    state: Path | None = None
    """Folder of run-time state; on a cluster the round, the ingest and Triton must all see it.
    Otherwise `var` of the working folder, or of the project that an experiment of DVC belongs to."""
    run: Path | None = None
    """Folder of sockets, of heartbeats and of Ray's files, on a local disk; its path has 31 bytes at most.
    Otherwise `run` in the state folder: a link to a new folder in `/tmp` where its path is longer."""
    secrets: Path | None = None
    """Folder of secrets that somebody else keeps, for example one that Kubernetes mounts; no secret is made
    there. Otherwise `secrets` in the state folder."""
    gate_key: Path | None = None
    """File of the key that signs the gate's decisions, of mode 0600, the same on every machine that
    registers, deploys or runs `swiftqueue agent --local`. Otherwise secret `gate`."""
    mlflow_tracking_uri: Annotated[str | None, Field(validation_alias="MLFLOW_TRACKING_URI")] = None
    """Address of the MLflow server that is the registry; none is started here.
    Otherwise SQLite and a folder in `mlflow` of the state folder."""
    mlflow_port: Port = 5000
    """Port of the local MLflow server."""
    ray_address: Annotated[str | None, Field(validation_alias="RAY_ADDRESS")] = None
    """HOST:PORT of a Ray cluster; its nodes see the folders that work writes, or share SWIFTQUEUE_STORAGE.
    Otherwise a local Ray is started for the job, or the live loop's own is used."""
    storage: Place | None = None
    """Storage through which the nodes of a cluster exchange the data of training and laboratory
    (docs/OPERATIONS.md, "Beyond one machine"). Each node has its own AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_DEFAULT_REGION and AWS_ENDPOINT_URL."""
    ray_port: Port = 6380
    """Port of the live loop's Ray head; Ray's own 6379 is left to others."""
    down: str | None = None
    """Content of `var/live/down` when the command was given; `make` reads it before its setup.
    A `down` that came since ends the command. Otherwise the content when the command starts."""
    study: str | None = None
    """Name of the study that a stage belongs to; `swiftqueue study` sets it, and it tags MLflow's runs."""
    part: str | None = None
    """Part and loop that a process belongs to; `up` sets it for each process that it starts."""
    open_ports: str | None = None
    """Ports, separated by commas, that other users of this machine may reach; `up` sets it for each process
    that it starts (docs/DOORS.md)."""
    heartbeat: Path | None = None
    """File that a part touches each second while it lives; `up` sets it for each process that it starts."""
    keep_versions: Annotated[int, Field(ge=2)] = 100
    """Number of versions that the rounds leave in the registry (docs/OPERATIONS.md, "What is kept"), a
    megabyte each; a rollback needs two."""
    triton_servers: str = ""
    """HOST:PORT,HOST:PORT of Tritons that read one repository; none is started here.
    Otherwise the local one."""
    triton_grpc: Port | None = None
    """gRPC port of the local Triton. Otherwise the running Triton's port, or 8001."""
    triton_metrics: Port | None = None
    """Metrics port of the local Triton. Otherwise the running Triton's port, or 8002."""
    triton_secret: Path | None = None
    """File of the secret that allows loading and unloading (docs/SERVING.md, "Who may do what").
    Otherwise secret `triton` for the local Triton, and none for others."""
    arithmetic: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the engine's matrix products (docs/ENGINE.md, "Arithmetic"): of the versions that are
    put into Triton, and of `swiftqueue agent --local`."""
    tls_ca: Path | None = None
    """PEM file of the authority of Triton's certificates, for clients and the local server."""
    tls_cert: Path | None = None
    """PEM file of the certificate that Python clients show to Triton; needs `SWIFTQUEUE_TLS_KEY`."""
    tls_key: Path | None = None
    """PEM file of that certificate's key."""
    tls_server_cert: Path | None = None
    """PEM file of the local Triton's certificate; its name must be the address that clients use."""
    tls_server_key: Path | None = None
    """PEM file of that certificate's key."""
    metrics_address: IPv4Address = IPv4Address("127.0.0.1")
    """Address of this machine where `swiftqueue agent` and `schedule`, started by themselves, answer scrapes;
    0.0.0.0 is every one. The live loop's own parts answer on loopback."""
    agent_metrics: Port = 9200
    """Metrics port of the live loop's agent."""
    scheduler_metrics: Port = 9201
    """Metrics port of the live loop's scheduler."""
    keeper_metrics: Port = 9202
    """Metrics port of the live loop's keeper."""
    page_port: Port = 9203
    """Port of the live loop's page for a browser."""
    prometheus_port: Port = 9090
    """Port of the local Prometheus."""
    alertmanager: str | None = None
    """HOST:PORT of an Alertmanager that gets the local Prometheus' alerts."""
    ingest: str | None = None
    """Address of the ingest that the forwarder sends to, http:// or https://HOST:PORT; none is started here.
    Otherwise the local one."""
    ingest_token_file: Path | None = None
    """File of the token that speaks for the forwarder's senders. Otherwise secret `ingest`."""
    ingest_ca: Path | None = None
    """PEM file of the authority of the ingest's certificate. Otherwise the system's."""
    telemetry: Path | None = None
    """Folder of the ingest's store; with several nodes all must see it.
    Otherwise `telemetry` in the state folder."""
    ingest_port: Port = 8010
    """Port of the local ingest."""
    ingest_host: str = "127.0.0.1"
    """Address at which an ingest started by itself listens; any address but loopback needs the next two."""
    ingest_cert: Path | None = None
    """PEM file of the certificate with which an ingest started by itself speaks TLS."""
    ingest_key: Path | None = None
    """PEM file of that certificate's key."""
    ingest_replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of processes that take batches; one more process compacts."""
    ingest_senders: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Most senders in the store; the next one gets 507. To free the place of one, remove
    `sessions/SENDER` and `packets/trace=SENDER`."""
    ingest_sender_mb: Annotated[int, Field(ge=1, le=1 << 30)] = 4096
    """MiB kept of each sender, 4 to 8 hours at 100 Mbit/s; the oldest minutes go first."""
    ingest_mb: Annotated[int, Field(ge=1, le=1 << 30)] = 65536
    """MiB kept of all senders together; the minutes stored longest ago go first."""
    ingest_free_mb: Annotated[int, Field(ge=1, le=1 << 30)] = 2048
    """MiB of the disk kept free, at most a twentieth of the disk. The minutes stored longest ago go first;
    the last three of each sender stay."""
    senders: str = ""
    """NAME,NAME=WEIGHT of the senders whose telemetry teaches and judges; a weight (1) is a sender's share of
    the rounds. Otherwise all senders of the ingest teach, alike."""
    least_rtt_us: Annotated[float, Field(ge=0)] = 5.0
    """Least round trip of any path, in microseconds; a latency below it is refused."""
    most_mbps: Annotated[float, Field(gt=0)] = 100_000.0
    """Mbit/s that no sender's line exceeds; packets that claim more are not believed."""
    shadow_batches: Annotated[int, Field(ge=0)] = 256
    """Batches of live traffic on which a head that passed the gate is compared with the served one before it
    serves; 0: none."""
    rollback_margin: Annotated[float, Field(gt=0, le=10)] = 0.05
    """A served head that is surely worse than the one before it by more than this is put back. 0.05
    means 5 % of the log-error, or 0.05 of the average precision of late packets."""
    rollback_after_s: Annotated[float, Field(ge=5)] = 20.0
    """Seconds of traffic after which a head may be put back at the earliest."""
    ingest_rate_mb: Annotated[int, Field(ge=1, le=1 << 20)] = 16
    """MiB/s of a sender's batches that each replica takes: 28 times the rate of a sender of 100 Mbit/s.
    After ten seconds above it, batches get 429."""


def settings() -> Settings:
    """Return the settings as the environment has them now.

    Raises:
        ValueError: a variable has a value out of its range; the line names it.
    """
    return _read(tuple(os.environ.items()))


@contextlib.contextmanager
def surrounded_by(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these environment variables for the block and the processes started in it."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def variable(name: str) -> str:
    """Return the environment variable of a setting.

    Raises:
        KeyError: there is no such setting.
    """
    alias = Settings.model_fields[name].validation_alias
    return str(alias) if alias else PREFIX + name.upper()


@lru_cache(maxsize=1)
def _read(_: tuple[tuple[str, str], ...]) -> Settings:
    try:
        return Settings()
    except ValidationError as error:
        first = error.errors()[0]
        name = {_key(one): one for one in Settings.model_fields}[str(first["loc"][0])]
        raise ValueError(
            f"{variable(name)}={first['input']!r}: it must be {allowed(_schema(name))}"
        ) from None


def _key(name: str) -> str:
    """Return the name of a setting in pydantic's errors and schema."""
    return str(Settings.model_fields[name].validation_alias or name)


def _schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = Settings.model_json_schema()["properties"][_key(name)]
    if "anyOf" in schema:  # a variable cannot be null
        (schema,) = (one for one in schema["anyOf"] if one != {"type": "null"})
    return schema


def reference() -> str:
    """Return docs/SETTINGS.md: every setting with its values, default and meaning."""
    lines = [
        "# Settings",
        "",
        "Environment variables that say where the parts of an installation are. All are optional; an empty",
        "one counts as unset. A wrong value ends the program that reads it, with one line that names the",
        "variable. `python -m swiftqueue.common.settings > docs/SETTINGS.md` makes this page.",
        "",
    ]
    for name, field in Settings.model_fields.items():
        default = "" if field.default in (None, "") else f", else `{field.default}`"
        meaning = " ".join(str(field.description).split())
        said = f"- **`{variable(name)}`**: {in_signs(_schema(name))}{default}. {meaning}"
        lines += textwrap.wrap(said, 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
