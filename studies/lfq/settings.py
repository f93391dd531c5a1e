"""The settings by which LFQ learns and is judged: `lfq.yaml`, checked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import Field, ValidationError, model_validator

from swiftqueue.laboratory.scenarios.checked import NotNegative, Positive, ScenarioPart, Share
from swiftqueue.studies.lfq.weight_file import LEAST_LIMIT, MOST_LIMIT

FILE: Final = Path(__file__).with_name("lfq.yaml")
TCPS: Final = ("new_reno", "bic", "cubic", "bbr")
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class LfqSettings(ScenarioPart):
    """All keys of the file, which says what they are."""

    mbps: Range
    rtt_ms: Range
    tcps: Annotated[list[str], Field(min_length=1)]
    seconds: Positive
    spread: Annotated[float, Field(ge=0, lt=1)]
    initial_window: Count
    alphas: Annotated[list[NotNegative], Field(min_length=1)]
    limits: Annotated[list[Annotated[int, Field(ge=LEAST_LIMIT, le=MOST_LIMIT)]], Field(min_length=2)]
    environments: Annotated[int, Field(ge=5, le=1_000_000)]
    samples: Count
    tolerance: Share
    epochs: Count
    batch: Count
    learning_rate: Positive
    validation: Annotated[float, Field(gt=0, lt=1)]
    seed: Count
    literal_flows: Annotated[int, Field(ge=0)]
    literal_alphas: list[NotNegative]
    literal_batch: Count
    literal_learning_rate: Positive
    literal_begin: Annotated[int, Field(ge=LEAST_LIMIT, le=MOST_LIMIT)]
    points: Count
    at_mbps: Positive
    at_rtt_ms: Positive
    groups: Count
    long_groups: Annotated[int, Field(ge=0)]
    best_environments: Count
    beyond_mbps: Positive
    beyond_rtt_ms: Positive

    @model_validator(mode="after")
    def _sound(self) -> LfqSettings:
        for name in ("mbps", "rtt_ms"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: {low:g} is above {high:g}")
        if unknown := sorted(set(self.tcps) - set(TCPS)):
            raise ValueError(f"tcps: there is no {unknown[0]!r}, there is {', '.join(TCPS)}")
        if self.limits != sorted(set(self.limits)):
            raise ValueError("limits: give each once, the smallest first")
        if math.ceil(self.environments * self.validation) == self.environments:
            raise ValueError(
                f"validation: {self.validation:g} leaves none of {self.environments} environments"
            )
        if 0 < self.literal_flows < (least := 2 * self.literal_batch):  # a fork has two arms
            raise ValueError(f"literal_flows: {self.literal_flows} are no batch; give 0, or {least} or more")
        return self


def load(overrides: list[str] | None = None, path: Path = FILE) -> LfqSettings:
    """Read the file, with `KEY=VALUE` in the place of what it says.

    Raises:
        ValueError: one line that names the key.
    """
    raw: dict[str, Any] = yaml.safe_load(path.read_text())
    for one in overrides or []:
        key, equal, value = one.partition("=")
        if not equal or key not in LfqSettings.model_fields:
            raise ValueError(f"--set {one}: {path.name} has no such key; give KEY=VALUE, as environments=100")
        raw[key] = yaml.safe_load(value)
    try:
        return LfqSettings.model_validate(raw)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        what = problem["msg"].removeprefix("Value error, ")
        raise ValueError(f"{path.name}: {where}: {what}" if where else f"{path.name}: {what}") from None
