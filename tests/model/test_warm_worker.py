"""The worker of the live rounds does work again and again, and its errors are the handler's own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swiftqueue.models.training.warm_worker import WarmWorker, WarmWorkerError

pytestmark = pytest.mark.slow

START_S = 240.0  # on a busy machine


def handler() -> Callable[[tuple[str, Any]], Any]:
    """Stand for a round's handler; made here, so that it goes to the worker by value."""

    def act(what: tuple[str, Any]) -> Any:
        match what:
            case ("double", number):
                return 2 * number
            case ("sleep", seconds):
                time.sleep(seconds)
            case ("refuse", line):
                raise ValueError(line)
            case ("fail", line):
                raise KeyError(line)
            case ("die once", path) if not path.exists():
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case ("die", _):
                os.kill(os.getpid(), signal.SIGKILL)
        return "alive"

    return act


@pytest.fixture(scope="module")
def worker(ray_cluster: None) -> Iterator[WarmWorker]:
    warm = WarmWorker(handler())
    try:
        warm.wait_ready(START_S)
        yield warm
    finally:
        warm.close()


def test_the_handlers_errors_come_back_and_cost_no_worker(worker: WarmWorker) -> None:
    with pytest.raises(ValueError, match=r"^too few windows$") as refused:
        worker.do(("refuse", "too few windows"), 60)
    assert type(refused.value) is ValueError
    with pytest.raises(RuntimeError, match=r"^KeyError: 'a mistake'$"):
        worker.do(("fail", "a mistake"), 60)
    assert worker.do(("double", 21), 60) == 42


def test_work_of_a_worker_that_dies_is_done_again(
    worker: WarmWorker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert worker.do(("die once", tmp_path / "died"), START_S) == "alive"
    assert "Ray's worker died; another did its work again" in capsys.readouterr().out
    assert worker.do(("double", 2), 60) == 4
    assert capsys.readouterr().out == ""


@pytest.mark.long
def test_work_that_kills_every_worker_is_given_up_and_the_next_is_done(worker: WarmWorker) -> None:
    with pytest.raises(WarmWorkerError, match="Ray's worker is gone"):
        worker.do(("die", None), START_S)
    worker.wait_ready(START_S)
    assert worker.do(("double", 3), 60) == 6


def test_work_that_takes_too_long_is_given_up(worker: WarmWorker) -> None:
    with pytest.raises(WarmWorkerError, match=r"did not finish its work within 0\.2 s"):
        worker.do(("sleep", 3), 0.2)
