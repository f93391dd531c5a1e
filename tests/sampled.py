"""A fixed sample of many cases: `make test` tries some, the same ones each time, and `make test-all` all."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

import pytest
from mutants import ALL

T = TypeVar("T")


def some(cases: Sequence[T], count: int) -> list[T]:
    """Return `count` of the cases in their order; all in `make test-all`."""
    if ALL or count >= len(cases):
        return list(cases)
    chosen = random.Random(len(cases)).sample(range(len(cases)), count)
    return [cases[i] for i in sorted(chosen)]


def tried(case: T, cases: Sequence[T], count: int) -> pytest.MarkDecorator:
    """Return the mark of a test that tries one case: it is skipped where the sample has others."""
    chosen = some(cases, count)
    reason = f"the sample is {', '.join(map(str, chosen))}; make test-all tries all"
    return pytest.mark.skipif(case not in chosen, reason=reason)


def is_sampled(test: str, one_in: int) -> bool:
    """Return whether a test is in the sample, by its name: one in so many is."""
    digest = hashlib.sha256(test.encode()).digest()
    return int.from_bytes(digest[:8]) % one_in == 0
