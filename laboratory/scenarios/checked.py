"""The base of every part of a scenario, which refuses unknown keys, and numbers with ranges."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

LONGEST_S: Final = 1e5  # largest length of a run, s
LEAST_LINK_MBPS: Final = 0.01  # a link below a bit a second would end the program
MOST_LINK_MBPS: Final = 1e5


class ScenarioPart(BaseModel):
    """A part of a scenario, which refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0.01, le=LONGEST_S)]
Microseconds = Annotated[float, Field(ge=0, le=1e9)]
Milliseconds = Annotated[float, Field(gt=0, le=1e6)]
Rate = Annotated[float, Field(ge=1e-6, le=1e5)]  # rate of a flow, Mbit/s
BurstPackets = Annotated[int, Field(ge=1, le=1_000_000)]
NAME: Final = re.compile(r"^[A-Za-z0-9._-]{1,100}$")
Name = Annotated[str, Field(pattern=NAME.pattern)]


def check_once(key: str, values: Sequence[object]) -> None:
    """Check that no value stands twice.

    Raises:
        ValueError: one does; the line names `key`.
    """
    if len(set(values)) < len(values):
        raise ValueError(f"{key}: a value is given twice")
