"""The ways to see a sender's log as windows [tokens, features]: which C++ class builds the rows.

`window` is `window.h`, `event-stream` is `event_window.h` over `event_stream.h`. Features and their order
stand there only. A model's schema hash says which of them it was made for.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from feature_store.events import event_library, window_library
from feature_store.events.window_library import FEATURES, Feature, schema_hash


@dataclass(frozen=True)
class Definition:
    """One of them."""

    name: str
    features: tuple[Feature, ...]  # of a token, in order
    schema_hash: str
    # Inputs that of the packets about to be sent say nothing.
    not_of_candidates: frozenset[str]
    library: ctypes.CDLL
    functions: Mapping[str, str]  # of the C ABI, by what they do

    def call(self, what: str, *arguments: Any) -> Any:
        """Call a function of the C ABI."""
        return getattr(self.library, self.functions[what])(*arguments)


_WORK: Final = ("new", "free", "sent", "acked", "window", "trace_new", "trace_free", "trace_next")

WINDOW: Final = Definition(
    "window",
    FEATURES,
    schema_hash(),
    frozenset({"age_us", "latency_us", "latency_visible", "candidate"}),
    window_library.ABI,
    dict(
        zip(
            _WORK,
            (
                *("sq_window_new", "sq_window_free", "sq_sent", "sq_acked", "sq_window"),
                *("sq_trace_new", "sq_trace_free", "sq_trace_next"),
            ),
            strict=True,
        )
    ),
)

EVENTS: Final = Definition(
    "event-stream",
    tuple(
        Feature(*line.split())
        for line in event_library.WINDOW_SCHEMA_TEXT.splitlines()[
            -int(event_library.ABI.sq_event_window_features()) :
        ]
    ),
    hashlib.sha256(event_library.WINDOW_SCHEMA_TEXT.encode()).hexdigest(),
    frozenset({"ack", "place", *(each.name for each in event_library.INPUTS if each.rows == "events")}),
    event_library.ABI,
    dict(
        zip(
            _WORK,
            (
                *("sq_event_window_new", "sq_event_window_free", "sq_event_window_sent"),
                *("sq_event_window_acked", "sq_event_window"),
                *("sq_event_trace_new", "sq_event_trace_free", "sq_event_trace_next"),
            ),
            strict=True,
        )
    ),
)

DEFINITIONS: Final = (WINDOW, EVENTS)


def definition_of(schema_hash: str) -> Definition:
    """Return the definition that a schema hash is of.

    Raises:
        ValueError: it is none that this code computes.
    """
    for one in DEFINITIONS:
        if one.schema_hash == schema_hash:
            return one
    known = ", ".join(f"{one.schema_hash[:12]} ({one.name})" for one in DEFINITIONS)
    raise ValueError(
        f"made for features {schema_hash[:12] or '?'}, but this code computes {known}; "
        "train again (dvc repro) or check out the commit that made it"
    )
