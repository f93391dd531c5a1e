"""The worker of the live loop: one warm process that rounds and probation give their work to."""

from __future__ import annotations

from typing import Any, Final

from swiftqueue.models.training.warm_worker import WarmWorker
from swiftqueue.pipelines.live.minute import Minute
from swiftqueue.pipelines.live.watch import HeadPair, work

WORK_TIMEOUT_S: Final = 120.0
WARM_START_TIMEOUT_S: Final = 300.0


class Worker:
    """The warm worker, started when there is work to do, and again after it was closed."""

    def __init__(self) -> None:
        """Start nothing yet."""
        self._worker: WarmWorker | None = None

    def warm(self) -> WarmWorker:
        """Start the worker and wait for it; do nothing when it is up.

        Raises:
            WarmWorkerError, ConnectionError, TimeoutError: the worker does not come up.
        """
        if self._worker is None:
            self._worker = WarmWorker(work)
        self._worker.wait_ready(WARM_START_TIMEOUT_S)
        return self._worker

    def do(self, what: Minute | HeadPair) -> Any:
        """Return the result for a minute, or for a pair of heads.

        Raises:
            DeclinedError, OSError, ValueError, RuntimeError: the work failed.
            WarmWorkerError, ConnectionError, TimeoutError: the worker is gone, or takes too long.
        """
        return self.warm().do(what, WORK_TIMEOUT_S)

    def close(self) -> None:
        """End the worker; the next work starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
