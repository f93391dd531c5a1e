"""`python -m serving.ingest.server`: the ingest, on a local Ray or that of `RAY_ADDRESS`, until SIGTERM.

Settings, all optional:
    SWIFTQUEUE_INGEST_PORT      HTTP port on loopback (8010)
    SWIFTQUEUE_TELEMETRY        folder of the telemetry store (var/telemetry)
    SWIFTQUEUE_INGEST_REPLICAS  processes that take batches (1)
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from feature_store import telemetry_off
from models.ray_job import LOOPBACK, ray_cluster
from models.state import state_dir
from serving.ingest.client import host_and_port
from serving.ingest.log import LOG_NAME

ADDRESS_VARIABLE: Final = "SWIFTQUEUE_INGEST"
PORT_VARIABLE: Final = "SWIFTQUEUE_INGEST_PORT"
PORT: Final = 8010
FOLDER_VARIABLE: Final = "SWIFTQUEUE_TELEMETRY"
REPLICAS_VARIABLE: Final = "SWIFTQUEUE_INGEST_REPLICAS"
APPLICATION: Final = "swiftqueue-ingest"
# Serve gives its proxy 5 s to start and 10 s for an answer, too few on a machine that is busy with training.
SERVE_PATIENCE: Final = {
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "30",
}


def port() -> int:
    """Port of the ingest: from its variable, or the default.

    Raises:
        ValueError: the variable is not a port number.
    """
    return _number(PORT_VARIABLE, PORT, 65535)


def elsewhere() -> bool:
    """Whether SWIFTQUEUE_INGEST names one, so that none is started here."""
    return bool(os.environ.get(ADDRESS_VARIABLE))


def address() -> str:
    """`http://HOST:PORT` of the ingest that senders use: that of SWIFTQUEUE_INGEST, or the local one.

    Raises:
        ValueError: the variable is no such address.
    """
    if not elsewhere():
        return f"http://{LOOPBACK}:{port()}"
    url = os.environ[ADDRESS_VARIABLE]
    host_and_port(url)
    return url.rstrip("/")


def telemetry_dir() -> Path:
    """Absolute path of the telemetry store; it may not exist yet."""
    return Path(os.environ.get(FOLDER_VARIABLE) or state_dir() / "telemetry").absolute()


def replicas_log() -> Path:
    """Log of the replicas and the compaction; it is there from now on, for who follows it."""
    path = state_dir() / "ingest" / LOG_NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def serve_ingest(root: Path, port: int, *, replicas: int, compact_s: float = 1.0) -> None:
    """Start the application on the Ray that is connected, and wait until it answers.

    Raises:
        RuntimeError: it did not start.
    """
    from ray import serve
    from ray.exceptions import RayError

    from feature_store.telemetry_compact import KEEP_MINUTES
    from serving.ingest.app import application

    try:
        serve.start(http_options={"host": LOOPBACK, "port": port})
        serve.run(
            application(
                root, replicas_log(), replicas=replicas, compact_s=compact_s, keep_minutes=KEEP_MINUTES
            ),
            name=APPLICATION,
            route_prefix="/",
        )
    except RayError as error:
        reason = " ".join(str(error).split())[-200:]
        raise RuntimeError(f"Ray Serve did not start on port {port}: {reason}") from error


def main() -> None:
    """Serve until told to end."""
    telemetry_off.switch_off()
    ended = threading.Event()
    for end in (signal.SIGTERM, signal.SIGINT):
        signal.signal(end, lambda *_: ended.set())
    try:
        root, number, replicas = telemetry_dir(), port(), _number(REPLICAS_VARIABLE, 1, 64)
        root.mkdir(parents=True, exist_ok=True)
        for name, value in SERVE_PATIENCE.items():  # read by Ray's processes when they start
            os.environ.setdefault(name, value)
        with ray_cluster(workers=1):
            from ray import serve

            serve_ingest(root, number, replicas=replicas)
            print(f"ingest: http://{LOOPBACK}:{number}, {replicas} replica(s), store {root}", flush=True)
            ended.wait()
            serve.delete(APPLICATION)
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"ingest: {error}")


def _number(variable: str, default: int, most: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdigit() or not 0 < int(text) <= most:
        raise ValueError(f"{variable}={text!r}: must be a whole number in 1..{most}")
    return int(text)


if __name__ == "__main__":
    main()
