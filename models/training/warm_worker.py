"""Keep a warm worker: a Ray actor that is started once and then does one piece of work after another.

Starting a process with PyTorch takes longer than fine-tuning a head, so the five-minute round keeps one.
docs/decisions/0007-a-round-is-tuned-by-a-ray-actor.md explains why it is an actor and no Ray Train job.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

from swiftqueue.common.local_ray import ray_cluster

RESTART_ALWAYS: Final = -1
RETRIES: Final = 1  # retries of work that a worker had begun when it died


class WarmWorkerError(RuntimeError):
    """The error for work that was not done, because the worker or Ray is gone or it took too long."""


class WarmActor:
    """The actor that runs in the worker."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        import torch

        torch.set_num_threads(1)  # the handler sets its own number of threads
        self._handler = handler

    def process(self) -> int:
        """Return its process id."""
        return os.getpid()

    def do(self, payload: Any) -> tuple[int, Any]:
        """Return its process id and the handler's result for the payload."""
        return os.getpid(), self._handler(payload)


class WarmWorker:
    """A worker that calls `handler(payload)` for each piece of work; Ray restarts it when it dies."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        """Start Ray (or join `RAY_ADDRESS`) and the worker, which comes up in the background.

        Raises:
            ConnectionError, TimeoutError: Ray does not answer or did not start.
        """
        self._stack = contextlib.ExitStack()
        with _signals_kept():
            self._stack.enter_context(ray_cluster(workers=1))
        import ray

        self._ray = ray
        actor = ray.remote(num_cpus=1, max_restarts=RESTART_ALWAYS, max_task_retries=RETRIES)(WarmActor)
        self._actor: Any = actor.remote(handler)
        self._process: int | None = None

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until the worker has come up.

        Raises:
            WarmWorkerError: it was not up in time.
        """
        self._process = self._get(self._actor.process.remote(), timeout_s, "its start")

    def do(self, payload: Any, timeout_s: float) -> Any:
        """Have a piece of work done and return the handler's result; a new worker repeats lost work.

        Raises:
            ValueError, OSError: the handler raised it.
            RuntimeError: the handler raised another error, which the line names.
            WarmWorkerError: there is no result in time, or Ray is gone.
        """
        process, made = self._get(self._actor.do.remote(payload), timeout_s, "its work")
        if self._process not in (None, process):
            print("Ray's worker died; another did its work again", flush=True)
        self._process = process
        return made

    def close(self) -> None:
        """End the worker, and Ray if it was started for it."""
        self._actor = None
        self._stack.close()

    def _get(self, reference: Any, timeout_s: float, what: str) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(reference, timeout=timeout_s)
        except errors.RayTaskError as error:
            if isinstance(error.cause, ValueError | OSError):
                raise error.cause from None
            raise RuntimeError(f"{type(error.cause).__name__}: {error.cause}") from error
        except errors.GetTimeoutError as error:
            raise WarmWorkerError(f"Ray's worker did not finish {what} within {timeout_s:g} s") from error
        except errors.RayError as error:
            raise WarmWorkerError(f"Ray's worker is gone: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this program's own signal handlers, since Ray's would end it in the middle of a round."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
