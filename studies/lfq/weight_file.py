"""Read the JSON beside the weight file of LFQ's network, which the queue disc reads."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

SIGNALS: Final = ("queue", "queue_deviation", "limit", "arrival_rate", "departure_rate", "since_loss")
AVERAGES: Final = 10  # averages of each signal, the fastest first (testbed/router/lfq.h)
INPUTS: Final = len(SIGNALS) * AVERAGES
PACKETS: Final = 100.0  # packets that an answer of 1 means
LEAST_LIMIT: Final = 1
MOST_LIMIT: Final = 1000


def content_of(path: Path) -> str:
    """Return the hash of a weight file.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None


def said_of(path: Path) -> dict[str, Any]:
    """Return the JSON beside a weight file: `rule`, `alpha`, `content` and more.

    Raises:
        ValueError: one of these is missing, or the JSON belongs to another weight file.
    """
    try:
        said: dict[str, Any] = json.loads(path.with_suffix(".json").read_text())
        known = said["content"] == content_of(path)
        float(said["alpha"]), str(said["rule"])
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: {path.stem}.json beside it does not say rule, alpha, content") from None
    if not known:
        raise ValueError(f"{path}: its bytes are not those that {path.stem}.json says (content)")
    return said
