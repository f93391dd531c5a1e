"""Define the parameters of all networks over queries without importing PyTorch."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from swiftqueue.common.section import Above0, Count, Section, near
from swiftqueue.feature_store.events.event_library import INPUTS

MEDIAN = 0.5
ALL: Final = "all"  # serves every quantile
MOST_LEVELS: Final = 16  # largest number of quantiles in the engine (serving/engine/kernel.h)
Level = float | Literal["all"] | None  # served quantile; None: the median, or the mean
NEEDED: Final = "size_bytes"  # input that tells a packet from padding when the scaling is fitted
ANCHOR_FALLBACK: Final = "last_latency_us"  # the sender's latency, used while the anchor is not visible yet


def check_heads(section: str, width: int, heads: int) -> None:
    """Raise a ValueError of one line if the number of attention heads does not divide the width."""
    if width % heads:
        raise ValueError(
            f"{section}.width is {width}; it must be a multiple of {section}.heads, which is {heads}"
        )


def _inputs(names: list[str]) -> list[str]:
    known = {each.name for each in INPUTS}
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"it names {wrong[0]!r}, which is not an input; {near(wrong[0], sorted(known))}")
    if NEEDED in names:
        raise ValueError(f"it names {NEEDED!r}, which every network needs")
    return names


LeftOut = Annotated[list[str], AfterValidator(_inputs)]
LATENCIES: Final = [each.name for each in INPUTS if each.rows != "events" and "_latency_" in each.name]


def _latency(name: str) -> str:
    if name not in LATENCIES:
        raise ValueError(f"it must be one of {', '.join(LATENCIES)} or null")
    return name


Latency = Annotated[str, AfterValidator(_latency), Field(json_schema_extra={"enum": LATENCIES})]


class QueryNetworkParams(Section):
    """Parameters for training a network over queries."""

    seed: Annotated[int, Field(ge=0)] = 1
    """Seed of weights, batches and dropout. `swiftqueue forecasts` and `tune` count their own."""
    workers: Count = 2
    """Number of Ray Train workers, one core each; each has a share of a step."""
    epochs: Count
    """Number of passes over the training slices; the weights of the best epoch are kept."""
    learning_rate: Above0
    """Highest learning rate of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Rate of AdamW's weight decay, which applies to matrices only."""
    sharp_weight: Above0
    """Number of times that a sharp change counts in the loss (alpha)."""
    quantiles: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(default_factory=list)]
    """Levels of the quantiles that the network outputs, ascending and with 0.5; if empty, it is the mean
    log-latency alone."""
    served_level: Annotated[Annotated[float, Field(gt=0, lt=1)] | Literal["all"] | None, Field(default=None)]
    """Level of `quantiles` that is served; null: the median, or the mean where there are no quantiles;
    `all`: every quantile (event stream only; the laboratory alone uses them; docs/MODEL.md)."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """Share of values that dropout sets to zero in training (0 to 1)."""
    anchor: Latency | None
    """Name of the query's latency that the network corrects, or null."""
    left_out: LeftOut
    """Names of inputs that the network does not see (docs/EVENTS.md)."""

    @field_validator("quantiles")
    @classmethod
    def _ascending(cls, levels: list[float]) -> list[float]:
        if levels and (MEDIAN not in levels or len(levels) < 2 or sorted(set(levels)) != levels):
            raise ValueError(f"it must ascend and hold {MEDIAN} and another level")
        return levels

    @model_validator(mode="after")
    def _level_is_given(self) -> Self:
        level, levels = self.served_level, self.quantiles
        name = f"{self.section}.served_level is {level!r};"
        if level == ALL:
            if not 0 < len(levels) <= MOST_LEVELS:
                raise ValueError(
                    f"{name} there must be quantiles, at most {MOST_LEVELS}, and not {len(levels)}"
                )
        elif level is not None and level not in levels:
            known = ", ".join(map(str, levels)) or "none"
            raise ValueError(f"{name} it must be null or one of quantiles: {known}")
        return self

    @model_validator(mode="after")
    def _anchor_is_seen(self) -> Self:
        if self.anchor and (unseen := {self.anchor, ANCHOR_FALLBACK}.intersection(self.left_out)):
            raise ValueError(
                f"{self.section}.left_out names {min(unseen)!r}, which the anchor {self.anchor!r} needs"
            )
        return self


_OLD_ARCHITECTURES: Final = ("transformer-encoder", "bilstm", "query-mlp")
OLD_SCHEMA_HASH: Final = "ed5cfb08984c5aee135616b101e817c99cfe962ea8aaabdd3d98516674f4bed3"


def why_old(architecture: str, schema_hash: str) -> str:
    """Return why a model of the former form is not served; empty if it does not have that form.

    Either argument may be empty if it is unknown. serving/engine/old_form.h has the same line.
    """
    if architecture not in _OLD_ARCHITECTURES and schema_hash != OLD_SCHEMA_HASH:
        return ""
    return (
        "is of the old form, a network over windows of packets; "
        "commit ebbf31e4 is the last one that serves it"
    )
