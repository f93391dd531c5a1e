"""A sample of many cases, chosen by the commit: `make test` tries some, `make test-all` all."""

from __future__ import annotations

import functools
import hashlib
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from mutants import ALL

T = TypeVar("T")


@functools.cache
def this_commit() -> str:
    """The commit under test; without git, always the same."""
    git = ["git", "rev-parse", "HEAD"]
    here = Path(__file__).parent
    return subprocess.run(git, cwd=here, capture_output=True, text=True, check=False).stdout.strip()


def some(cases: Sequence[T], count: int) -> list[T]:
    """Return `count` of the cases in their order, the same for the same commit; all in `make test-all`."""
    if ALL or count >= len(cases):
        return list(cases)
    chosen = random.Random(this_commit()).sample(range(len(cases)), count)
    return [cases[i] for i in sorted(chosen)]


def tried(case: T, cases: Sequence[T], count: int) -> pytest.MarkDecorator:
    """Return the mark of a test that tries one case: where the commit chose others, it is skipped."""
    chosen = some(cases, count)
    reason = f"of this commit: {', '.join(map(str, chosen))}; make test-all tries all"
    return pytest.mark.skipif(case not in chosen, reason=reason)


def drawn(test: str, one_in: int) -> bool:
    """Whether this commit draws a test, by its name: one in so many, and another part with each commit."""
    digest = hashlib.sha256(f"{this_commit()} {test}".encode()).digest()
    return int.from_bytes(digest[:8]) % one_in == 0
