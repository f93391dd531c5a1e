"""A Ray Train job that stays: its workers are started once and then do one piece of work after another.

Starting a job's workers takes longer than fine-tuning a head does, so the five-minute job keeps them. Work
and results go through a Ray actor, so that no folder need be shared between the machines.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from models.ray_job import ray_cluster, run_job

POLL_S: Final = 0.05  # a worker asks for work this often
RESTART_ALWAYS: Final = -1
STOP_TIMEOUT_S: Final = 20.0


class WarmJobError(RuntimeError):
    """The job did not do its work: a worker or Ray itself is gone, or it took too long."""


@dataclass(frozen=True)
class Work:
    """One piece of work, for every worker alike.

    Pickled, as an outcome is: the mailbox need not import what workers do (PyTorch costs 2 s and 290 MiB).
    """

    number: int
    payload: bytes


@dataclass(frozen=True)
class Outcome:
    """What rank 0 made of it: a value, or an error of the handler's own."""

    pickled: bytes
    is_error: bool
    deaths: int = 0  # of workers that had begun it


class Mailbox:
    """Work for each worker and the outcomes, in an actor. A worker that died takes nothing with it."""

    def __init__(self, workers: int) -> None:
        self._work: list[deque[Work | None]] = [deque() for _ in range(workers)]
        self._begun: dict[int, tuple[str, Work]] = {}  # by rank: who is at what
        self._deaths = 0
        self._outcomes: dict[int, Outcome] = {}
        self._ready: set[int] = set()

    def put(self, work: Work | None) -> None:
        """Give every worker the next piece of work; None ends the job."""
        for queue in self._work:
            queue.append(work)

    def drop(self) -> None:
        """Take back what no worker has begun, and forget every outcome."""
        for queue in self._work:
            queue.clear()
        self._begun.clear()
        self._deaths = 0
        self._outcomes.clear()

    def take(self, rank: int, process: str) -> tuple[bool, Work | None]:
        """Return whether there is work for this worker, and the work.

        What a worker had begun when it died is given again to the process that takes its place.
        """
        self._ready.add(rank)
        queue = self._work[rank]
        if (begun := self._begun.get(rank)) is not None and begun[0] != process:
            queue.appendleft(begun[1])
            self._deaths += 1
        if not queue:
            return False, None
        work = queue.popleft()
        if work is not None:
            self._begun[rank] = process, work
        return True, work

    def answer(self, number: int, outcome: Outcome) -> None:
        """Keep the outcome of a piece of work until it is asked for."""
        self._begun.clear()
        self._outcomes[number] = replace(outcome, deaths=self._deaths)

    def outcome(self, number: int) -> Outcome | None:
        """Return the outcome of a piece of work, once, or None while it is being done."""
        return self._outcomes.pop(number, None)

    def ready(self) -> bool:
        """Whether every worker has asked for work."""
        return len(self._ready) == len(self._work)


class WarmJob:
    """Workers that each call `handler(payload, rank, workers)` for every piece of work."""

    def __init__(self, handler: Callable[[Any, int, int], Any], *, workers: int, storage: Path) -> None:
        """Start Ray (or join `RAY_ADDRESS`) and the workers; they come up in the background.

        Raises:
            ConnectionError, TimeoutError: Ray does not answer or did not start.
        """
        self._stack = contextlib.ExitStack()
        with _signals_kept():
            self._stack.enter_context(ray_cluster(workers + 1))  # and the job's controller
        import ray

        self._ray = ray
        self._mailbox = ray.remote(num_cpus=0)(Mailbox).remote(workers)
        self._number = 0
        self._error: BaseException | None = None
        config = {"mailbox": self._mailbox, "handler": handler}
        self._thread = threading.Thread(
            target=self._run, args=(config, workers, storage), name="warm-job", daemon=True
        )
        self._thread.start()

    def _run(self, config: Mapping[str, Any], workers: int, storage: Path) -> None:
        try:
            run_job(
                _work_for_ever,
                config,
                workers=workers,
                storage=storage,
                say=lambda record: None,
                restarts=RESTART_ALWAYS,
            )
        except Exception as error:  # reported to whoever asks for work next
            self._error = error

    def alive(self) -> bool:
        """Whether the job is running; a worker that just died is being started again."""
        return self._thread.is_alive()

    def wait_ready(self, timeout_s: float) -> None:
        """Wait until every worker has come up.

        Raises:
            WarmJobError: they did not within the time.
        """
        self._await(lambda: self._ask(self._mailbox.ready.remote()) or None, timeout_s, "its workers' start")

    def do(self, payload: Any, timeout_s: float) -> Any:
        """Have a piece of work done and return what rank 0's handler returned.

        Raises:
            ValueError, OSError: the handler's own.
            RuntimeError: any other error of the handler, by its name.
            WarmJobError: no outcome within the time, or Ray is gone.
        """
        self._number += 1
        number = self._number
        self._ask(self._mailbox.drop.remote())
        self._ask(self._mailbox.put.remote(Work(number, pickle.dumps(payload))))
        outcome = self._await(lambda: self._ask(self._mailbox.outcome.remote(number)), timeout_s, "work")
        if outcome.deaths:
            print("a worker of the Ray Train job died; another did its work again", flush=True)
        made = pickle.loads(outcome.pickled)  # noqa: S301 - of our own worker
        if outcome.is_error:
            raise made
        return made

    def close(self) -> None:
        """End the workers, and Ray where this job started it."""
        with contextlib.suppress(WarmJobError):
            self._ask(self._mailbox.drop.remote())
            self._ask(self._mailbox.put.remote(None))
            self._thread.join(STOP_TIMEOUT_S)
        self._stack.close()

    def _await(self, look: Callable[[], Any], timeout_s: float, what: str) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if (found := look()) is not None:
                return found
            if not self.alive():
                raise WarmJobError(f"the Ray Train job ended while waiting for {what}: {self._error}")
            time.sleep(POLL_S)
        raise WarmJobError(f"the Ray Train job did not finish {what} within {timeout_s:g} s")

    def _ask(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference, timeout=STOP_TIMEOUT_S)
        except self._ray.exceptions.RayError as error:
            raise WarmJobError(f"Ray is gone: {str(error).splitlines()[0]}") from error


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep this program's own handlers: Ray's would end it at once, in the middle of a round."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work_for_ever(config: dict[str, Any]) -> None:
    """Do, in one Ray Train worker, each piece of work of the mailbox until told to end."""
    import ray
    import ray.train
    import torch

    torch.set_num_threads(1)  # one core per worker
    context = ray.train.get_context()
    rank, workers = context.get_world_rank(), context.get_world_size()
    mailbox, handler = config["mailbox"], config["handler"]
    process = secrets.token_hex(8)
    while True:
        found, work = ray.get(mailbox.take.remote(rank, process))
        if not found:
            time.sleep(POLL_S)
            continue
        if work is None:
            return
        try:
            made = handler(pickle.loads(work.payload), rank, workers)  # noqa: S301 - of who started this job
            is_error = False
        except (ValueError, OSError) as error:
            made, is_error = error, True
        except Exception as error:  # else Ray starts this worker again and it is given the same work
            made, is_error = RuntimeError(f"{type(error).__name__}: {error}"), True
        if rank == 0:
            ray.get(mailbox.answer.remote(work.number, Outcome(pickle.dumps(made), is_error)))
