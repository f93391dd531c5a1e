"""The one way to wait in tests: for a condition, with a limit that a busy machine does not reach.

How long something takes is no property of what is tested. Where a time is the claim, it is judged beside a
control in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

LIMIT_S: Final = 300.0  # Ray, the ingest and its workers take 170 s beside other work

T = TypeVar("T")


def wait_until(
    true: Callable[[], T],
    otherwise: str | Callable[[], object] = "it did not happen",
    seconds: float = LIMIT_S,
) -> T:
    """Return what the condition gives once it is true.

    Raises:
        AssertionError: it is not within `seconds`; says what `otherwise` is or gives.
    """
    begin = time.monotonic()
    while not (found := true()):
        waited = time.monotonic() - begin
        if waited > seconds:
            raise AssertionError(otherwise() if callable(otherwise) else otherwise)
        time.sleep(min(0.01 + waited / 50, 0.2))  # to look often takes a core from what is waited for
    return found
