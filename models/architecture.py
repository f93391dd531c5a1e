"""Sizes of networks over events and queries, without PyTorch: the stage that makes the windows reads them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from feature_store.events.event_library import INPUTS
from feature_store.packets.schema import HORIZON
from models.section import Above0, Count, Section, near

MEDIAN = 0.5
ALL: Final = "all"  # of the quantiles: each is served
MOST_LEVELS: Final = 16  # that the engine gives (serving/engine/kernel.h)
Level = float | Literal["all"] | None  # of quantiles, what is served; None: the median, or the mean
NEEDED: Final = "size_bytes"  # tells a packet from padding when the scaling is fitted
ANCHOR_FALLBACK: Final = "last_latency_us"  # the sender's, where the anchor is not visible yet
BLOCK = 64  # events that attention takes at once: a band has a whole number of these


def check_heads(section: str, width: int, heads: int) -> None:
    """Raise a ValueError of one line where the heads of attention do not divide its width."""
    if width % heads:
        raise ValueError(
            f"{section}.width is {width}; it must be a multiple of {section}.heads, which is {heads}"
        )


def _inputs(names: list[str]) -> list[str]:
    known = {each.name for each in INPUTS}
    if wrong := [name for name in names if name not in known]:
        raise ValueError(f"it names {wrong[0]!r}, which is no input; {near(wrong[0], sorted(known))}")
    if NEEDED in names:
        raise ValueError(f"it names {NEEDED!r}, which no network can do without")
    return names


LeftOut = Annotated[list[str], AfterValidator(_inputs)]
LATENCIES: Final = [each.name for each in INPUTS if each.rows != "events" and "_latency_" in each.name]


def _latency(name: str) -> str:
    if name not in LATENCIES:
        raise ValueError(f"it must be one of {', '.join(LATENCIES)} or null")
    return name


Latency = Annotated[str, AfterValidator(_latency), Field(json_schema_extra={"enum": LATENCIES})]


class QueryFit(Section):
    """How a network over queries is trained."""

    epochs: Count
    """Passes over the training slices; the best one's weights are kept."""
    learning_rate: Above0
    """Highest one of AdamW."""
    weight_decay: Annotated[float, Field(ge=0)]
    """Of AdamW, of matrices only."""
    sharp_weight: Above0
    """Alpha of the loss, on sharp changes."""
    quantiles: Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(default_factory=list)]
    """Levels of the latencies that it gives, ascending, 0.5 among them; none: the mean log-latency alone."""
    dropout: Annotated[float, Field(ge=0, lt=1)]
    """In training."""
    anchor: Latency | None
    """A latency of the query that the network corrects, by the input's name, or null."""
    left_out: LeftOut
    """Inputs that it does not see, by name (docs/EVENTS.md)."""

    @field_validator("quantiles")
    @classmethod
    def _ascending(cls, levels: list[float]) -> list[float]:
        if levels and (MEDIAN not in levels or len(levels) < 2 or sorted(set(levels)) != levels):
            raise ValueError(f"it must ascend and hold {MEDIAN} and another level")
        return levels

    @model_validator(mode="after")
    def _anchor_is_seen(self) -> Self:
        if self.anchor and (unseen := {self.anchor, ANCHOR_FALLBACK}.intersection(self.left_out)):
            raise ValueError(
                f"{self.section}.left_out names {min(unseen)!r}, which the anchor {self.anchor!r} needs"
            )
        return self


class EventStreamFit(QueryFit):
    """Sizes of the event stream's network and how it is trained."""

    section: ClassVar = "event-stream"
    layers: Annotated[int, Field(ge=1, le=16)]
    """Of the network."""
    band: Annotated[int, Field(ge=BLOCK, le=4032, multiple_of=BLOCK)]
    """Events that one layer sees."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Of each event and query in it."""
    heads: Annotated[int, Field(ge=1, le=64)]
    """Of its attention; they divide the width."""
    feed_forward: Annotated[int, Field(ge=1, le=4096)]
    """Width of the inner layers."""
    segments: Count
    """Of a step."""
    segment_events: Count
    """Events of a segment whose decisions are targets; what these see comes before them."""
    calibration: Annotated[Literal["split", "before"] | None, Field(default=None)]
    """What moves quantiles to their levels: `split`: the last fifth of the fine-tuning slice, which then does
    not tune the head; `before`: the last slices, as they were forecast before the head learned from them
    (docs/MODEL.md)."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        check_heads(self.section, self.width, self.heads)
        return self

    @property
    def reach(self) -> int:
        """Events that a decision sees in all: a band for each layer."""
        return self.layers * self.band

    @field_validator("calibration")
    @classmethod
    def _of_quantiles(cls, calibration: str | None, others: ValidationInfo) -> str | None:
        if calibration and not others.data.get("quantiles"):
            raise ValueError("it must be null where there are no quantiles")
        return calibration


class MlpFit(QueryFit):
    """Sizes of the network of linear layers and how it is trained."""

    reach: ClassVar = HORIZON  # events of the smallest event window; it sees none
    layers: Annotated[int, Field(ge=1, le=16)]
    """Before the head."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Of each layer."""
    batch_size: Count
    """Decisions of a step, over all workers."""


class LoopFit(QueryFit):
    """What the section of a network over queries has besides, where `architecture.name` chooses it."""

    seed: Annotated[int, Field(ge=0)]
    """Of weights, batches and dropout."""
    workers: Count
    """Ray Train workers, one core each; each has a share of a step."""
    served_level: Annotated[Annotated[float, Field(gt=0, lt=1)] | Literal["all"] | None, Field(default=None)]
    """The one of `quantiles` that is served; null: the median, or the mean where there are no quantiles;
    `all`: every quantile (event stream only; the laboratory alone uses them; docs/MODEL.md)."""

    @field_validator("served_level")
    @classmethod
    def _given(cls, level: Level, others: ValidationInfo) -> Level:
        levels = others.data.get("quantiles", [])
        if level == ALL:
            if not 0 < len(levels) <= MOST_LEVELS:
                raise ValueError(f"there must be quantiles, at most {MOST_LEVELS}, and not {len(levels)}")
        elif level is not None and level not in levels:
            raise ValueError(f"it must be null or one of quantiles: {', '.join(map(str, levels)) or 'none'}")
        return level


class EventStreamLoop(LoopFit, EventStreamFit):
    """The event stream, where `architecture.name` chooses it. Section `finetune` tunes its head."""


class MlpLoop(LoopFit, MlpFit):
    """Linear layers on a query's inputs, where `architecture.name` chooses them."""

    section: ClassVar = "mlp"

    @field_validator("served_level")
    @classmethod
    def _one(cls, level: Level) -> Level:
        if level == ALL:
            raise ValueError("the engine alone gives all levels, and ONNX Runtime serves this network")
        return level
