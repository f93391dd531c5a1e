"""The traffic of a scenario's flows, and their congestion control."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from swiftqueue.laboratory.scenarios.checked import NotNegative, Positive, Rate, ScenarioPart


class Messages(ScenarioPart):
    """Messages at Poisson times."""

    kind: Literal["messages"]
    mbps: Rate  # load of a flow, Mbit/s
    sizes: Literal["web_search", "hadoop"]  # distribution of the sizes


class Greedy(ScenarioPart):
    """A flow that always has something to send."""

    kind: Literal["greedy"]


class Video(ScenarioPart):
    """Video with a frame at each tick, unpaced."""

    kind: Literal["video"]
    mbps: Rate  # rate of a flow, Mbit/s
    frames_per_s: Annotated[float, Field(ge=0.1, le=1000)]  # frames a second


class ConstantRate(ScenarioPart):
    """Packets at equal gaps."""

    kind: Literal["cbr"]
    mbps: Rate  # rate of a flow, Mbit/s
    packet_bytes: Annotated[int, Field(ge=1, le=1448)]  # payload of a packet


class Replay(ScenarioPart):
    """The statistics of a packet table: its folder (relative to the project's), and its trace."""

    kind: Literal["replay"]
    packets: str  # folder of packet tables
    trace: str | None = None  # name of the trace; may be omitted if the folder holds one


class Lognormal(ScenarioPart):
    """Draws of a lognormal distribution, cut at both ends."""

    median: Positive  # median of the distribution
    sigma: NotNegative  # standard deviation of the logarithm
    least: Annotated[int, Field(ge=1)] = 1  # smallest value
    most: Annotated[int, Field(ge=1, le=100_000_000)]  # largest value

    @model_validator(mode="after")
    def _sound(self) -> Lognormal:
        if self.least > self.most:
            raise ValueError(f"least: {self.least} is above most")
        return self


class Pages(ScenarioPart):
    """Web pages at equal intervals; all objects of a page are requested at once, each by its own flow."""

    kind: Literal["pages"]
    pages: Annotated[int, Field(ge=1, le=2000)]  # number of pages
    first_s: NotNegative  # time of the first page
    every_s: Positive  # time from one page to the next
    objects: Lognormal | None = None  # number of objects of a page
    object_bytes: Lognormal | None = None  # size of an object
    # Sizes of each page's objects in bytes, pages in turn; given instead of `objects` and `object_bytes`
    sizes: list[list[Annotated[int, Field(ge=1, le=100_000_000)]]] | None = None

    @model_validator(mode="after")
    def _sound(self) -> Pages:
        drawn = {self.objects is not None, self.object_bytes is not None}
        if drawn != {self.sizes is None}:
            raise ValueError("sizes: give them, or else objects and object_bytes")
        for i, page in enumerate(self.sizes or []):
            if not page:
                raise ValueError(f"sizes.{i}: a page of 0 flows")
        if self.sizes is not None and not self.sizes:
            raise ValueError("sizes: there is no page")
        return self


class RealTime(ScenarioPart):
    """A call: at each tick a frame as large as the congestion control's rate allows, between two rates."""

    kind: Literal["real_time"]
    frames_per_s: Annotated[float, Field(ge=1, le=1000)]  # frames a second
    least_mbps: Rate  # lowest rate, Mbit/s
    most_mbps: Rate  # highest rate, Mbit/s
    start_mbps: Rate | None = None  # first rate of tcp gcc; None: the least

    @model_validator(mode="after")
    def _sound(self) -> RealTime:
        if self.least_mbps > self.most_mbps:
            raise ValueError(f"least_mbps: {self.least_mbps:g} is above most_mbps")
        if self.start_mbps is not None and not self.least_mbps <= self.start_mbps <= self.most_mbps:
            raise ValueError(f"start_mbps: {self.start_mbps:g} is not between least_mbps and most_mbps")
        return self


Traffic = Annotated[
    Messages | Greedy | Video | ConstantRate | Replay | Pages | RealTime, Field(discriminator="kind")
]


class Group(ScenarioPart):
    """Flows that are alike, of one sender to one receiver."""

    flows: Annotated[int, Field(ge=0, le=2000)]  # number of flows; 0 leaves the group out
    # Congestion control of the flows; `udp` has none
    tcp: Literal[
        "dctcp",
        "prague",
        "cubic",
        "bbr",
        "copa",
        "vegas",
        "illinois",
        "yeah",
        "new_reno",
        "bic",
        "udp",
        "gcc",
    ]
    ecn: Literal["ect1", "ect0", "not_ect"]  # codepoint of its packets
    receiver: str  # name of its receiver
    # Interval in which each flow begins, at a random time
    start_s: list[NotNegative] = Field(default=[0.0, 1.0], min_length=2, max_length=2)
    # Duplicate ACKs that count as a loss; `ncr`: by RFC 4653
    dupack_threshold: Annotated[int, Field(ge=3, le=10_000)] | Literal["ncr"] = 3
    dscp: Annotated[int, Field(ge=0, le=63)] = 0  # DSCP of the sender's packets
    paced: bool = False  # whether ns-3 paces; Prague, BBR and Copa pace themselves
    uplink: str | None = None  # name of its uplink; S1's groups without one are steered
    traffic: Traffic
