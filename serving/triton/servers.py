"""All Triton servers of a deployment: a call goes to each at once, so one that hangs delays no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from swiftqueue.serving.triton.endpoint import CALL_TIMEOUT_S, Triton, grpc_addresses

T = TypeVar("T")


@contextmanager
def connected(call_timeout_s: float = CALL_TIMEOUT_S) -> Iterator[list[Triton]]:
    """Yield clients of all servers, in the order of SWIFTQUEUE_TRITON_SERVERS.

    Raises:
        ValueError: the variable is not a list of addresses.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(Triton(address, call_timeout_s)) for address in grpc_addresses()]


def each(servers: Sequence[Triton], call: Callable[[Triton], T]) -> list[T]:
    """Call every server; return their results in their order, once all have answered.

    Raises:
        OSError, RuntimeError: the call failed at one; the first of these failures.
    """
    said = []
    for outcome in try_each(servers, call):
        if isinstance(outcome, Exception):
            raise outcome
        said.append(outcome)
    return said


def try_each(servers: Sequence[Triton], call: Callable[[Triton], T]) -> list[T | OSError | RuntimeError]:
    """Call every server; return each one's result, or its failure."""

    def attempt(server: Triton) -> T | OSError | RuntimeError:
        try:
            return call(server)
        except (OSError, RuntimeError) as error:
            return error

    # Threads take the priority of the one that starts them (serving/deploy/push.py).
    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(attempt, servers))
