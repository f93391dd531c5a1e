"""`swiftqueue part ingest`: runs the ingest on a local Ray or that of `RAY_ADDRESS`.

Its settings are SWIFTQUEUE_TELEMETRY and SWIFTQUEUE_INGEST_* (docs/SETTINGS.md).
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftqueue.common.local_ray import LOOPBACK, ray_cluster
from swiftqueue.common.say import say
from swiftqueue.common.settings import settings, variable
from swiftqueue.common.state import private_dir, private_file, state_dir
from swiftqueue.feature_store.telemetry.log import check_format
from swiftqueue.serving.ingest.client import host_and_port
from swiftqueue.serving.ingest.log import LOG_NAME

if TYPE_CHECKING:
    from swiftqueue.serving.ingest.bounds import Limits

ADDRESS_VARIABLE: Final = variable("ingest")
HOST_VARIABLE, CERT_VARIABLE, KEY_VARIABLE = map(variable, ("ingest_host", "ingest_cert", "ingest_key"))
LISTEN_VARIABLES: Final = (HOST_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
APPLICATION: Final = "swiftqueue-ingest"
# Serve gives its proxy 5 s to start and 10 s for an answer, too few on a machine that is busy with training.
SERVE_PATIENCE: Final = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
}


def elsewhere() -> bool:
    """Return whether SWIFTQUEUE_INGEST names an ingest, so that none is started here."""
    return settings().ingest is not None


def address() -> str:
    """Return `http(s)://HOST:PORT` of the senders' ingest: that of SWIFTQUEUE_INGEST, or the local one.

    Raises:
        ValueError: the variable is no such address.
    """
    url = settings().ingest
    if url is None:
        return f"http://{LOOPBACK}:{settings().ingest_port}"
    host_and_port(url)
    return url.rstrip("/")


def telemetry_dir() -> Path:
    """Return the absolute path of the telemetry store; it may not exist yet."""
    return (settings().telemetry or state_dir() / "telemetry").absolute()


def replicas_log() -> Path:
    """Return the log of the replicas and the compaction, made if it is missing so that it can be followed."""
    path = state_dir() / "ingest" / LOG_NAME
    private_dir(path.parent)
    return private_file(path)


@dataclass(frozen=True)
class Tls:
    """The PEM files of a server's certificate and key."""

    certificate: Path
    key: Path


def listen_at() -> tuple[str, Tls | None]:
    """Return the address to listen at, and the certificate for it.

    Raises:
        ValueError: the address is public and would be without TLS, or half of a pair is set.
    """
    host, certificate, key = settings().ingest_host, settings().ingest_cert, settings().ingest_key
    if bool(certificate) != bool(key):
        raise ValueError(f"{CERT_VARIABLE} and {KEY_VARIABLE} go together: set both")
    if certificate and key:
        return host, Tls(certificate.absolute(), key.absolute())
    if host != LOOPBACK:
        raise ValueError(f"{HOST_VARIABLE}={host}: tokens would be in clear there; set {CERT_VARIABLE}")
    return host, None


def limits() -> Limits:
    """Return the limits of a sender, by the settings."""
    from swiftqueue.serving.ingest.bounds import Limits

    return Limits(senders=settings().ingest_senders, bytes_s=float(settings().ingest_rate_mb << 20))


def keep() -> dict[str, int]:
    """Return the retention of the compaction (the arguments of `Compactor`), by the settings."""
    from swiftqueue.feature_store.telemetry import compact

    return {
        "keep_minutes": compact.KEEP_MINUTES,
        "keep_bytes": settings().ingest_sender_mb << 20,
        "keep_total_bytes": settings().ingest_mb << 20,
        "free_bytes": settings().ingest_free_mb << 20,
    }


def serve_ingest(
    root: Path,
    port: int,
    *,
    replicas: int,
    host: str = LOOPBACK,
    tls: Tls | None = None,
) -> None:
    """Start the application on the connected Ray, and wait until it answers.

    Raises:
        RuntimeError: it did not start.
        ValueError: the store is of an earlier version.
    """
    from ray import serve
    from ray.exceptions import RayError

    from swiftqueue.serving.ingest.app import application

    check_format(root)
    http: dict[str, str | int] = {"host": host, "port": port}
    if tls:
        http |= {"ssl_certfile": str(tls.certificate), "ssl_keyfile": str(tls.key)}
    try:
        # Access lines of every request would be gigabytes a day.
        serve.start(http_options=http, logging_config={"enable_access_log": False})
        serve.run(
            application(
                root,
                replicas_log(),
                replicas=replicas,
                keep=keep(),
                limits=limits(),
            ),
            name=APPLICATION,
            route_prefix="/",
        )
    except RayError as error:
        reason = " ".join(str(error).split())[-200:]
        raise RuntimeError(f"Ray Serve did not start on port {port}: {reason}") from error


def main() -> None:
    """Serve telemetry's ingest, on a local Ray or that of `RAY_ADDRESS`, until SIGTERM.

    Example: swiftqueue part ingest
    """
    ended = threading.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: ended.set())
    root, port, replicas = telemetry_dir(), settings().ingest_port, settings().ingest_replicas
    host, tls = listen_at()
    private_dir(root)
    check_format(root)
    for name, value in SERVE_PATIENCE.items():  # Ray's processes read it when they start
        os.environ.setdefault(name, value)
    with ray_cluster(workers=1):
        from ray import serve

        serve_ingest(root, port, replicas=replicas, host=host, tls=tls)
        url = f"http{'s' if tls else ''}://{host}:{port}"
        say(f"ingest: {url}, {replicas} replica(s), store {root}")
        ended.wait()
        serve.delete(APPLICATION)
