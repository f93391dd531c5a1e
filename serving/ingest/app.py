"""The ingest as a Ray Serve application: replicas that take batches, and one process that compacts.

Every replica writes segments of its own, so a batch may go to any of them. The compaction finds batches that
a retry brought to two replicas. The answer 200 means that the batch is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from swiftqueue.common.atomic import write_durably
from swiftqueue.common.state import private_dir, secret
from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.events import ACK, MAX_BODY_BYTES, RefusedError, checked
from swiftqueue.feature_store.telemetry.sessions import check_session, open_session, read_asked
from swiftqueue.serving.ingest.bounds import Allowance, Bounds, LaterError, Limits
from swiftqueue.serving.ingest.log import SERVE, keep_log
from swiftqueue.serving.ingest.senders import INSTALLATION, hashed, may_speak

if TYPE_CHECKING:
    from ray.serve import Application

ONGOING_REQUESTS: Final = 128  # most at a replica; beyond them and the waiting ones, Serve answers 503
WAITING_REQUESTS: Final = 256
RETRY_AFTER_S: Final = 1
CHECK_S: Final = 1.0  # seconds between checks: anybody may ask for one, and it waits for the disk
BODY_S: Final = 30.0  # seconds after which a body that has not come is given up
STRANGERS_S: Final = 0.1  # log lines per second about requests without a right token
COMPACT_PAUSE_S: Final = 1.0  # seconds between two compactions
ASKED_BYTES: Final = 1024  # most bytes in the body of a request for a session
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # prometheus_client reads it when it is imported
STATUS: Final = {
    "token": 401,
    "two_senders": 409,
    "session": 409,
    "no_size": 411,
    "too_large": 413,
    "senders": 507,
}  # status by reason; the others are 400
_log = logging.getLogger(SERVE)


class Ingest:
    """One replica."""

    def __init__(self, root: str, log: str, installation: str, limits: Limits, _compaction: Any) -> None:
        from swiftqueue.serving.ingest import (
            metrics,  # imported once the replica's environment names the metrics folder
        )
        from swiftqueue.serving.ingest.committer import BusyError, Committer

        keep_log(log, "a replica")
        self._root, self._installation, self._limits = Path(root), installation, limits
        self._metrics, self._later = metrics, (BusyError, LaterError)
        self._committer: Committer | None = None
        self._new_committer = Committer
        self._bounds = Bounds(self._root, limits)
        self._strangers = Allowance(STRANGERS_S, 1)
        self._checking: asyncio.Task[Response] | None = None
        self._checked_s = 0.0
        metrics.forget_dead_processes()

    def check_health(self) -> None:
        """Raise an error if batches cannot be appended any more; Serve then replaces the replica."""
        if self._committer is not None and self._committer.ended():
            raise RuntimeError("the appending task ended")

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        match (request.method, request.url.path.strip("/").split("/")):
            case ("POST", ["v1", "senders", sender, "batches"]):
                return await self._answered(sender, request, self._batch, "batch")
            case ("POST", ["v1", "senders", sender, "sessions"]):
                return await self._answered(sender, request, self._session, "session")
            case ("POST", ["v1", "check"]):
                now_s = time.monotonic()
                if self._checking is None or (self._checking.done() and now_s > self._checked_s + CHECK_S):
                    self._checked_s = now_s
                    self._checking = asyncio.create_task(asyncio.to_thread(self._check))
                return await asyncio.shield(self._checking)
            case ("GET", ["metrics"]):
                return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4")
        return JSONResponse({"error": f"{request.method} {request.url.path}: no such call"}, 404)

    async def _answered(
        self,
        sender: str,
        request: Request,
        answer: Callable[[str, Request], Awaitable[Response]],
        what: str,
    ) -> Response:
        """Handle a request of a sender, if it speaks for that sender and is in its turn."""
        metrics = self._metrics
        try:
            if not may_speak(
                self._root, self._installation, sender, request.headers.get("authorization", "")
            ):
                raise RefusedError("token", f"no token, or none that speaks for sender {sender[:64]!r}")
            with self._bounds.turn(sender):
                return await answer(sender, request)
        except RefusedError as error:
            metrics.REFUSED.labels(error.reason).inc()
            metrics.BATCHES.labels("refused").inc(what == "batch")
            if error.reason != "token" or self._strangers.take(1):  # such requests cannot fill the log
                _log.warning("ingest: a %s is refused (%s): %s", what, error.reason, error)
            return _refusal(error)
        except self._later as error:
            metrics.BATCHES.labels("busy").inc(what == "batch")
            return _later(f"busy: {error}", 429 if isinstance(error, LaterError) else 503)
        except TimeoutError:
            return JSONResponse({"error": f"the {what} took over {BODY_S:g} s to come"}, 408)
        except OSError as error:
            metrics.BATCHES.labels("failed").inc(what == "batch")
            _log.error("ingest: a %s of sender %s cannot be stored: %s", what, sender[:64], error)
            return _later(f"cannot be stored: {error}")

    async def _batch(self, sender: str, request: Request) -> Response:
        metrics = self._metrics
        body = await _body(request, MAX_BODY_BYTES)
        key, events = checked(body)
        if key.sender != sender:
            raise RefusedError("schema", f"the batch is of sender {key.sender}, the request of {sender}")
        check_session(self._root, key)
        await self._bounds.check(key, events, len(body))
        if self._committer is None:
            self._committer = self._new_committer(self._root)
        stored = await self._committer.append(key, body)
        self._bounds.note(key, events)
        if not stored:
            metrics.DUPLICATES.inc()
            metrics.BATCHES.labels("duplicate").inc()
            return JSONResponse({"sequence": key.sequence, "duplicate": True})
        acks = int((events["kind"] == ACK).sum())
        metrics.EVENTS.labels("ack").inc(acks)
        metrics.EVENTS.labels("send").inc(len(events) - acks)
        metrics.BATCHES.labels("accepted").inc()
        return JSONResponse({"sequence": key.sequence, "duplicate": False})

    async def _session(self, sender: str, request: Request) -> Response:
        asked = read_asked(await _body(request, ASKED_BYTES))
        self._bounds.check_opening(sender)
        number = await asyncio.to_thread(
            open_session, self._root, sender, asked.events_before, most=self._limits.senders
        )
        return JSONResponse({"session": number}, 201)

    def _check(self) -> Response:
        """Write and read in the store, as for a batch."""
        content, path = secrets.token_hex(), self._root / f"check-{os.getpid()}"
        started = time.perf_counter()
        try:
            write_durably(path, content.encode())
            same = path.read_text() == content
            path.unlink()
        except OSError as error:
            return _later(f"the store cannot be written: {error}")
        took_ms = round((time.perf_counter() - started) * 1e3, 2)
        return JSONResponse({"ok": same, "took_ms": took_ms}, 200 if same else 500)


async def _body(request: Request, most: int) -> bytes:
    """Read a request's body, once its size is known and allowed.

    Raises:
        RefusedError: the request does not say its size, or is too large; nothing more of it is read.
        TimeoutError: the body does not come.
    """
    size = request.headers.get("content-length", "")
    if not (size.isascii() and size.isdecimal()) or "transfer-encoding" in request.headers:
        raise RefusedError("no_size", "a body must say its size: Content-Length, and not chunked")
    line = f"{size[:20]} bytes: this body may have {most:,}"
    if len(size) > 10 or int(size) > most:
        raise RefusedError("too_large", line)
    parts, came = [], 0
    async with asyncio.timeout(BODY_S):
        async for part in request.stream():
            parts.append(part)
            came += len(part)
            if came > most:
                raise RefusedError("too_large", line)
    return b"".join(parts)  # joined at once: a buffer that grows breaks the heap into pieces


def _refusal(error: RefusedError) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if error.reason == "token" else None
    said = {"error": str(error), "reason": error.reason}
    return JSONResponse(said, STATUS.get(error.reason, 400), headers)


def _later(line: str, status: int = 503) -> Response:
    return JSONResponse({"error": line}, status, {"Retry-After": str(RETRY_AFTER_S)})


class Compaction:
    """The one process that compacts; if it is killed, Serve starts another, which goes on."""

    def __init__(self, root: str, log: str, keep: dict[str, int]) -> None:
        from swiftqueue.serving.ingest import metrics

        keep_log(log, "the compaction")
        self._root, self._metrics = Path(root), metrics
        self._keep = keep
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check_health(self) -> None:
        """Raise an error if the compaction has ended; Serve then replaces it."""
        if not self._thread.is_alive():
            raise RuntimeError("the compaction ended")

    def _run(self) -> None:
        compactor: Compactor | None = None
        while True:
            started = time.perf_counter()
            try:
                compactor = compactor or Compactor(self._root, **self._keep)
                report = compactor.run()
            except (OSError, ValueError) as error:  # for example a full disk
                _log.error("ingest: the compaction waits: %s", error)
                self._metrics.COMPACT_FAILURES.inc()
            else:
                for line in report.damaged:
                    _log.error("ingest: %s", line)
                self._metrics.DUPLICATES.inc(report.counts.duplicate_batches)
                self._metrics.GAPS.inc(report.counts.gaps)
                self._metrics.MISSING_EVENTS.inc(report.counts.missing_events)
                if report.segments:
                    self._metrics.COMPACT_SECONDS.observe(time.perf_counter() - started)
            time.sleep(COMPACT_PAUSE_S)


def application(
    root: Path,
    log: Path,
    *,
    replicas: int = 1,
    keep: dict[str, int],
    limits: Limits,
    cpus: float = 0.0,
) -> Application:
    """Return the application; `serve.run` binds it to a Serve instance.

    Args:
        root: folder of the telemetry store; on a cluster every node must see it.
        log: file for the errors of the processes.
        replicas: number of processes that take batches.
        keep: retention of the compaction, as arguments of `Compactor`.
        limits: limits of a sender.
        cpus: number of cores that each process reserves in Ray; 0 leaves all to training.
    """
    folder = private_dir(private_dir(root) / "metrics")
    options = {
        "num_cpus": cpus,
        "runtime_env": {
            "env_vars": {METRICS_FOLDER: str(folder), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        },
    }
    health = {"health_check_period_s": 5, "health_check_timeout_s": 20}
    quiet = {"enable_access_log": False}
    compaction = serve.deployment(
        Compaction,
        num_replicas=1,
        ray_actor_options=options,
        graceful_shutdown_timeout_s=5,
        logging_config=quiet,
        **health,
    )
    ingest = serve.deployment(
        Ingest,
        num_replicas=replicas,
        max_ongoing_requests=ONGOING_REQUESTS,
        max_queued_requests=WAITING_REQUESTS,
        ray_actor_options=options,
        graceful_shutdown_timeout_s=5,
        logging_config=quiet,
        **health,
    )
    return ingest.bind(
        str(root),
        str(log),
        hashed(secret(INSTALLATION)),
        limits,
        compaction.bind(str(root), str(log), keep),
    )
