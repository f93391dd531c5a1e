"""Define the section of the event stream: the sizes of its network, and its training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from swiftqueue.common.section import Count
from swiftqueue.models.networks.parameters import QueryNetworkParams, check_heads

BLOCK: Final = 64  # events that attention takes at once; a band is a whole number of blocks


class EventStreamParams(QueryNetworkParams):
    """A Transformer over a sender's events and the queries of a decision."""

    section: ClassVar = "event-stream"
    layers: Annotated[int, Field(ge=1, le=16)]
    """Number of attention layers; a decision sees a band of events for each."""
    band: Annotated[int, Field(ge=BLOCK, le=4032, multiple_of=BLOCK)]
    """Number of events that one layer sees."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Number of values in the vector of each event and query inside the network."""
    heads: Annotated[int, Field(ge=1, le=64)]
    """Number of attention heads, which must divide the width."""
    feed_forward: Annotated[int, Field(ge=1, le=4096)]
    """Number of values in the inner layer of each feed-forward block."""
    segments: Count
    """Number of segments in a training step."""
    segment_events: Count
    """Number of events in a segment whose decisions are targets; earlier events are only seen."""
    calibration: Annotated[Literal["split", "before"] | None, Field(default=None)]
    """Data that move quantiles to their levels. `split` takes the last fifth of the fine-tuning slice, which
    then does not tune the head. `before` takes the last slices, as they were forecast before the head learned
    from them (docs/MODEL.md)."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Self:
        check_heads(self.section, self.width, self.heads)
        return self

    @property
    def reach(self) -> int:
        """Return the number of events that a decision sees: a band for each layer."""
        return self.layers * self.band

    @field_validator("calibration")
    @classmethod
    def _of_quantiles(cls, calibration: str | None, others: ValidationInfo) -> str | None:
        if calibration and not others.data.get("quantiles"):
            raise ValueError("it must be null where there are no quantiles")
        return calibration
