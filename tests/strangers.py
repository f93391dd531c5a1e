"""A process of user `nobody`, who shares this machine with us."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

NOBODY = 65534


def as_nobody(work: Callable[[], Any]) -> Any:
    """Return what `work` gives in a process of user nobody; its result must be JSON."""
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with os.fdopen(writing, "w") as told:
                json.dump(work(), told)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    os.waitpid(child, 0)
    assert text, "the process of nobody ended before it said anything"
    return json.loads(text)
