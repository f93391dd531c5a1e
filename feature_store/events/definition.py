"""Read the inputs of an event window's row from the library built from `event_window.h` (docs/EVENTS.md)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from swiftqueue.feature_store.events.event_library import ABI, WINDOW_SCHEMA_TEXT


@dataclass(frozen=True)
class Feature:
    """One input of a row, in raw units."""

    name: str
    unit: str


@dataclass(frozen=True)
class Definition:
    """The features of a row, in order, and the hash by which a model names them."""

    features: tuple[Feature, ...]
    schema_hash: str


_FEATURES: Final = WINDOW_SCHEMA_TEXT.splitlines()[-int(ABI.sq_event_window_features()) :]
EVENTS: Final = Definition(
    tuple(Feature(*line.split()) for line in _FEATURES),
    hashlib.sha256(WINDOW_SCHEMA_TEXT.encode()).hexdigest(),
)
