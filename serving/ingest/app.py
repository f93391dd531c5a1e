"""The ingest as a Ray Serve application: replicas that take batches, and one process that compacts.

Every replica writes segments of its own, so a batch may go to any of them; what a retry brought to two is
found by the compaction. The answer 200 means: on disk.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from feature_store.telemetry_compact import Compactor
from feature_store.telemetry_events import ACK, MAX_BODY_BYTES, RefusedError, checked
from feature_store.telemetry_log import write_durably
from feature_store.telemetry_sessions import check_session, open_session
from serving.ingest.log import SERVE, keep_log

if TYPE_CHECKING:
    from ray.serve import Application

ONGOING_REQUESTS: Final = 128  # of a replica; beyond, and beyond those waiting, Serve itself answers 503
WAITING_REQUESTS: Final = 256
RETRY_AFTER_S: Final = 1
METRICS_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"  # read by prometheus_client when it is imported
STATUS: Final = {"too_large": 413, "two_senders": 409, "session": 409}  # by reason; the others 400
_log = logging.getLogger(SERVE)


class Ingest:
    """One replica."""

    def __init__(self, root: str, log: str, _compaction: Any) -> None:
        from serving.ingest import metrics  # once the replica's environment names the metrics folder
        from serving.ingest.committer import BusyError, Committer

        keep_log(log, "a replica")
        self._root = Path(root)
        self._metrics, self._busy = metrics, BusyError
        self._committer: Committer | None = None
        self._new_committer = Committer
        metrics.forget_dead_processes()

    def check_health(self) -> None:
        """Tell Serve whether batches can still be appended; it replaces a replica that cannot."""
        if self._committer is not None and self._committer.ended():
            raise RuntimeError("the appending task ended")

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        match (request.method, request.url.path.strip("/").split("/")):
            case ("POST", ["v1", "batches"]):
                return await self._batch(request)
            case ("POST", ["v1", "senders", sender, "sessions"]):
                return self._session(sender)
            case ("POST", ["v1", "check"]):
                return self._check()
            case ("GET", ["metrics"]):
                return Response(self._metrics.exposition(), media_type="text/plain; version=0.0.4")
        return JSONResponse({"error": f"{request.method} {request.url.path}: no such call"}, 404)

    async def _batch(self, request: Request) -> Response:
        metrics = self._metrics
        try:
            size = request.headers.get("content-length", "")
            if not size.isdigit() or int(size) > MAX_BODY_BYTES:
                raise RefusedError(
                    "too_large", f"{size or 'unknown'} bytes: a batch may have {MAX_BODY_BYTES:,}"
                )
            body = await request.body()
            key, events = checked(body)
            check_session(self._root, key)
        except RefusedError as error:
            metrics.REFUSED.labels(error.reason).inc()
            metrics.BATCHES.labels("refused").inc()
            _log.warning("ingest: a batch is refused (%s): %s", error.reason, error)
            return _refusal(error)
        try:
            if self._committer is None:
                self._committer = self._new_committer(self._root)
            stored = await self._committer.append(key, body)
        except self._busy as error:
            metrics.BATCHES.labels("busy").inc()
            return _later(f"busy: {error}")
        except OSError as error:
            metrics.BATCHES.labels("failed").inc()
            _log.error("ingest: a batch of sender %s cannot be stored: %s", key.sender, error)
            return _later(f"cannot be stored: {error}")
        if not stored:
            metrics.DUPLICATES.inc()
            metrics.BATCHES.labels("duplicate").inc()
            return JSONResponse({"sequence": key.sequence, "duplicate": True})
        acks = int((events.column("kind").to_numpy() == ACK).sum())
        metrics.EVENTS.labels("ack").inc(acks)
        metrics.EVENTS.labels("send").inc(events.num_rows - acks)
        metrics.BATCHES.labels("accepted").inc()
        return JSONResponse({"sequence": key.sequence, "duplicate": False})

    def _session(self, sender: str) -> Response:
        try:
            return JSONResponse({"session": open_session(self._root, sender)}, 201)
        except RefusedError as error:
            return _refusal(error)
        except OSError as error:
            return _later(f"no session can be opened: {error}")

    def _check(self) -> Response:
        """Write and read in the store, as a batch is."""
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


def _refusal(error: RefusedError) -> Response:
    return JSONResponse({"error": str(error), "reason": error.reason}, STATUS.get(error.reason, 400))


def _later(line: str) -> Response:
    return JSONResponse({"error": line}, 503, {"Retry-After": str(RETRY_AFTER_S)})


class Compaction:
    """The one process that compacts; if it is killed, Serve starts another, which goes on."""

    def __init__(self, root: str, log: str, every_s: float, keep_minutes: int) -> None:
        from serving.ingest import metrics

        keep_log(log, "the compaction")
        self._root, self._every_s, self._keep = Path(root), every_s, keep_minutes
        self._metrics = metrics
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check_health(self) -> None:
        """Tell Serve whether the compaction still works."""
        if not self._thread.is_alive():
            raise RuntimeError("the compaction ended")

    def _run(self) -> None:
        compactor: Compactor | None = None
        while True:
            started = time.perf_counter()
            try:
                compactor = compactor or Compactor(self._root, keep_minutes=self._keep)
                report = compactor.run()
            except (OSError, ValueError) as error:  # disk full; the one before still ends
                _log.error("ingest: the compaction waits: %s", error)
                self._metrics.COMPACT_FAILURES.inc()
            else:
                for name in report.damaged:
                    _log.error("ingest: segment %s is torn; kept in %s", name, self._root / "damaged")
                self._metrics.DUPLICATES.inc(report.counts.duplicate_batches)
                self._metrics.GAPS.inc(report.counts.gaps)
                if report.segments:
                    self._metrics.COMPACT_SECONDS.observe(time.perf_counter() - started)
            time.sleep(self._every_s)


def application(
    root: Path, log: Path, *, replicas: int = 1, compact_s: float = 1.0, keep_minutes: int, cpus: float = 0.0
) -> Application:
    """Return the application: bind it to a Serve instance with `serve.run`.

    Args:
        root: folder of the telemetry store; on a cluster one that every node sees.
        log: file of what they say of errors.
        replicas: processes that take batches.
        compact_s: pause between two compactions.
        keep_minutes: minutes kept of each sender.
        cpus: what each process reserves in Ray; 0 lets training have all.
    """
    folder = root / "metrics"
    folder.mkdir(parents=True, exist_ok=True)
    options = {
        "num_cpus": cpus,
        "runtime_env": {
            "env_vars": {METRICS_FOLDER: str(folder), "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        },
    }
    health = {"health_check_period_s": 5, "health_check_timeout_s": 20}
    compaction = serve.deployment(
        Compaction, num_replicas=1, ray_actor_options=options, graceful_shutdown_timeout_s=5, **health
    )
    ingest = serve.deployment(
        Ingest,
        num_replicas=replicas,
        max_ongoing_requests=ONGOING_REQUESTS,
        max_queued_requests=WAITING_REQUESTS,
        ray_actor_options=options,
        graceful_shutdown_timeout_s=5,
        **health,
    )
    return ingest.bind(str(root), str(log), compaction.bind(str(root), str(log), compact_s, keep_minutes))
