"""What a scenario may say, and what of it is checked before anything is simulated.

A scenario is an environment (links, senders, traffic), how long and with which seeds it is run, under which
queue profiles and controls, and an axis of points that each change some keys of the environment.

This is the only place where ranges are checked: the program trusts the runs that come of a scenario.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

LARGEST_PACKET_BYTES: Final = 1500  # IP length
LARGEST_BUFFER_BYTES: Final = 2_000_000_000
LONGEST_S: Final = 1e5  # of a run
MOST_FLOWS: Final = 20_000  # of a run: each has a port of its own
MOST_SENDERS: Final = 250
ACCESS_MS: Final = 0.1  # one way, of each access link
LEAST_RTT_MS: Final = 4 * ACCESS_MS  # a packet and its ACK pass two access links each
TRAINING_SEEDS_FROM: Final = 1000  # judged seeds are below, so no model is judged on what it was trained on
PROFILES: Final = ("rfc9332", "uncoupled")
FORMER_PROFILES: Final = {
    "premise": "uncoupled"
}  # in what was published or written before: results, models, files
CONTROLS: Final = (
    "default",
    "no_l4s",
    "random",
    "oracle",
    "oracle_in_order",
    "last_latency",
    "model",
)


LADDER: Final = (
    "constant_share",
    "flow_split",
    "always",
    "last_latency_batched",
    "anchor",
    "placebo",
    "oracle_late",
    "oracle_batched",
)
"""Controls that stand beside the model on the ladder of information (docs/LABORATORY.md)."""
ALL_CONTROLS: Final = (*CONTROLS, *LADDER)
VIEWED_BY: Final = ("oracle", "oracle_in_order", "oracle_late", "oracle_batched")  # need a view of the queues
DUAL_PI2: Final = "ns3::DualPi2QueueDisc"  # the disc that a bottleneck has, and that gives a view
WEIGHTS: Final = "Weights"  # attribute of a disc that has learned: a file, relative to the project's folder


def profile_named(name: Any) -> Any:
    """Return the present name of a queue profile; what is none stays as it is."""
    return FORMER_PROFILES.get(name, name) if isinstance(name, str) else name


class Checked(BaseModel):
    """A part of a scenario: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0.01, le=LONGEST_S)]
Microseconds = Annotated[float, Field(ge=0, le=1e9)]
Milliseconds = Annotated[float, Field(gt=0, le=1e6)]
Rate = Annotated[float, Field(ge=1e-6, le=1e5)]  # Mbit/s of a flow
BurstPackets = Annotated[int, Field(ge=1, le=1_000_000)]
NAME: Final = re.compile(r"^[A-Za-z0-9._-]{1,100}$")
Name = Annotated[str, Field(pattern=NAME.pattern)]


class Messages(Checked):
    """Poisson messages."""

    kind: Literal["messages"]
    mbps: Rate
    sizes: Literal["web_search", "hadoop"]


class Greedy(Checked):
    """Always something to send."""

    kind: Literal["greedy"]


class Video(Checked):
    """A frame at each tick, unpaced."""

    kind: Literal["video"]
    mbps: Rate
    frames_per_s: Annotated[float, Field(ge=0.1, le=1000)]


class ConstantRate(Checked):
    """Packets at equal gaps."""

    kind: Literal["cbr"]
    mbps: Rate
    packet_bytes: Annotated[int, Field(ge=1, le=1448)]


class Replay(Checked):
    """The statistics of a packet table: its folder (relative to the project's), and its trace."""

    kind: Literal["replay"]
    packets: str
    trace: str | None = None  # may be left out where the folder holds one


class Lognormal(Checked):
    """Draws of a lognormal distribution, cut at both ends."""

    median: Positive
    sigma: NotNegative  # of the logarithm
    least: Annotated[int, Field(ge=1)] = 1
    most: Annotated[int, Field(ge=1, le=100_000_000)]


class Pages(Checked):
    """Web pages at equal intervals; all objects of one are asked for at once, each by a flow of its own."""

    kind: Literal["pages"]
    pages: Annotated[int, Field(ge=1, le=2000)]
    first_s: NotNegative
    every_s: Positive
    objects: Lognormal | None = None  # of a page
    object_bytes: Lognormal | None = None
    sizes: list[list[Annotated[int, Field(ge=1, le=100_000_000)]]] | None = None  # of each page, in turn

    @model_validator(mode="after")
    def _sound(self) -> Pages:
        drawn = {self.objects is not None, self.object_bytes is not None}
        if drawn != {self.sizes is None}:
            raise ValueError("sizes: give them, or else objects and object_bytes")
        for i, page in enumerate(self.sizes or []):
            if not page:
                raise ValueError(f"sizes.{i}: a page of 0 flows")
        if self.sizes is not None and not self.sizes:
            raise ValueError("sizes: no page is there")
        return self


class RealTime(Checked):
    """A call: at each tick a frame as large as the congestion control's rate allows, between two rates."""

    kind: Literal["real_time"]
    frames_per_s: Annotated[float, Field(ge=1, le=1000)]
    least_mbps: Rate
    most_mbps: Rate
    start_mbps: Rate | None = None  # of tcp gcc; None: the least

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


class Group(Checked):
    """Flows that are alike, of one sender to one receiver."""

    flows: Annotated[int, Field(ge=0, le=2000)]  # 0: as if the group were not there
    tcp: Literal["dctcp", "prague", "cubic", "bbr", "copa", "udp", "gcc"]
    ecn: Literal["ect1", "ect0", "not_ect"]
    receiver: str
    start_s: Annotated[list[NotNegative], Field(min_length=2, max_length=2)] = [0.0, 1.0]
    dupack_threshold: Annotated[int, Field(ge=3, le=10_000)] | Literal["ncr"] = 3
    dscp: Annotated[int, Field(ge=0, le=63)] = 0  # of what the sender sends
    paced: bool = False  # by ns-3; Prague, BBR and Copa pace themselves
    traffic: Traffic


class Disc(Checked):
    """A queue disc of ns-3 by its TypeId; of a DualPI2, these attributes come after the profile's."""

    type: str
    attributes: dict[str, str | int | float | bool] = {}

    def texts(self) -> dict[str, str]:
        """Return the attributes as ns-3 reads them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.attributes.items()
        }


class Bottleneck(Checked):
    """A link with a dual queue, or any other disc; the delay is its part of the path's."""

    mbps: Annotated[float, Field(ge=0.01, le=1e5)]
    buffer_bdp: Positive  # limit of the queue, in bandwidth-delay products of this link and `rtt_ms`
    disc: Disc | None = None  # None: the profile's
    trace: str | None = None  # of a variable link: a file of lines `seconds Mbit/s`; None: always `mbps`


class Receiver(Checked):
    """Where flows end: the router it hangs on, and how much farther away it is than `rtt_ms`."""

    router: Annotated[int, Field(ge=1)] = 1
    extra_rtt_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0


class Sender(Checked):
    """Where flows begin: the router it hangs on, its groups by name."""

    router: Annotated[int, Field(ge=0)] = 0
    groups: dict[str, Group]


class LastLatency(Checked):
    """Control `last_latency`: see simulation/doc/lab.md."""

    threshold_ms: Milliseconds
    stale_ms: Milliseconds


class Oracle(Checked):
    """Controls `oracle` and `oracle_in_order`: see simulation/doc/lab.md."""

    margin_us: Microseconds
    rate_us: Microseconds


class Random(Checked):
    """Control `random`: moved for so many successive packets together."""

    burst_packets: BurstPackets
    share: Share | None  # None: what the model moved in the same run, or else the oracle


class Model(Checked):
    """Control `model`: the sender agent's controller."""

    inference_us: Microseconds
    until_decided: Literal["default", "previous"]
    margin_us: Microseconds
    margin_share: Annotated[float, Field(ge=0, le=1e6)]
    max_moved_unacked: Annotated[int, Field(ge=0, le=1_000_000_000)]
    max_moved_share: Share = 0.0  # of what S1 has in flight, where that is more
    charge_us: Microseconds = 0.0  # for the others: moved only where the predicted gain is larger
    guard: bool = False  # moving stops where it is not settled to help
    guard_packets: Annotated[int, Field(ge=1, le=8)] = 8  # of a batch, that are compared
    guard_growth: Annotated[float, Field(ge=0, le=100)] = 0.0  # of S1's rate, that is allowed; 0: any
    # What the sender is told of a router whose weights follow the flows' ages: simulation/doc/lab.md
    told: Literal["none", "own_ages", "weights"] = "none"
    finetune_every_s: Annotated[float, Field(ge=0.1, le=1e5)] | None  # None: the head stays
    finetune_span_s: Seconds
    finetune_apply_after_s: Annotated[float, Field(ge=0, le=1e5)]


class Ladder(Checked):
    """Parameters of the controls that stand beside the model on the ladder of information."""

    constant_share: Share = 0.75  # of the batches
    flow_share: Share = 0.5  # of the flows
    shift_s: Seconds = 10.0  # how much later the placebo decides what the model decided


class Settings(Checked):
    """Parameters of the controls."""

    moved_ecn: Literal["ect0", "not_ect"]
    acks: Literal["selective", "cumulative"]  # from which ACKs S1 learns latencies
    # How S1's DCTCP answers the mark of a moved packet: as any other, or as a loss
    moved_response: Literal["scalable", "classic"] = "scalable"
    random: Random
    oracle: Oracle
    last_latency: LastLatency
    model: Model
    ladder: Ladder = Ladder()


class Explore(Checked):
    """How traces to train on explore: the share of S1's bursts, and the bursts' lengths, a trace each."""

    share: Share
    burst_packets: Annotated[list[BurstPackets], Field(min_length=1)]
    seconds: Seconds
    seeds: Annotated[list[Annotated[int, Field(ge=TRAINING_SEEDS_FROM, le=1_000_000)]], Field(min_length=1)]


class Environment(Checked):
    """Links, senders and traffic; senders are in order, the first is S1, captured and controlled."""

    # Base round trip of the nearest receiver over all bottlenecks.
    rtt_ms: Annotated[float, Field(ge=LEAST_RTT_MS, le=20_000)]
    bottlenecks: Annotated[list[Bottleneck], Field(min_length=1, max_length=8)]
    receivers: Annotated[dict[Name, Receiver], Field(min_length=1)]
    senders: Annotated[dict[Name, Sender], Field(min_length=1, max_length=MOST_SENDERS)]
    controls: Settings

    def without_view(self) -> str | None:
        """Type of the first disc that gives no view of its queues; None where all do."""
        types = (link.disc.type for link in self.bottlenecks if link.disc)
        return next((name for name in types if name != DUAL_PI2), None)

    def chooses(self) -> bool:
        """Whether the first sender has an L4S flow, for which a control can choose."""
        captured = next(iter(self.senders.values()))
        return any(group.flows for group in captured.groups.values() if group.ecn == "ect1")

    def groups(self) -> Iterator[tuple[str, Sender, Group]]:
        """All groups of flows: each with its key in the environment and its sender."""
        for name, sender in self.senders.items():
            for key, group in sender.groups.items():
                yield f"senders.{name}.groups.{key}", sender, group

    @model_validator(mode="after")
    def _sound(self) -> Environment:
        for i, link in enumerate(self.bottlenecks):
            _check_buffer(f"bottlenecks.{i}.buffer_bdp", link, self.rtt_ms)
        last = len(self.bottlenecks)
        for name, receiver in self.receivers.items():
            if receiver.router > last:
                raise ValueError(f"receivers.{name}.router: {receiver.router} is beyond the last, {last}")
        for where, sender, group in self.groups():
            self._check_group(where, sender, group)
        self._check_response()
        self._check_told()
        if (flows := sum(group.flows for _, _, group in self.groups())) > MOST_FLOWS:
            raise ValueError(f"senders: {flows} flows, at most {MOST_FLOWS} can be simulated")
        first, captured = next(iter(self.senders.items()))
        calls = any(isinstance(group.traffic, RealTime) for group in captured.groups.values())
        if not (calls or self.chooses()):
            raise ValueError(
                f"senders.{first}.groups: the captured sender has no flow with ecn ect1, so nothing to choose"
            )
        return self

    def _check_response(self) -> None:
        """Only a DCTCP that learns which packet a mark is of can answer those of moved packets as a loss."""
        if self.controls.moved_response != "classic":
            return
        first, captured = next(iter(self.senders.items()))
        other = [
            name for name, g in captured.groups.items() if g.flows and g.ecn == "ect1" and g.tcp != "dctcp"
        ]
        if other or self.controls.acks != "selective":
            what = (
                f"senders.{first}.groups.{other[0]}.tcp is not dctcp" if other else "acks are not selective"
            )
            raise ValueError(f"controls.moved_response: classic is not there where {what}")

    def _check_told(self) -> None:
        """Only of one router that weighs by age is there something to tell."""
        if self.controls.model.told == "none":
            return
        discs = [link.disc for link in self.bottlenecks]
        if len(discs) > 1 or discs[0] is None or discs[0].attributes.get("CWeightBy") != "Age":
            raise ValueError("controls.model.told: there is not one bottleneck whose disc has CWeightBy: Age")

    def _check_group(self, where: str, sender: Sender, group: Group) -> None:
        if group.receiver not in self.receivers:
            known = ", ".join(self.receivers)
            raise ValueError(f"{where}.receiver: there is no {group.receiver!r}, there is {known}")
        if self.receivers[group.receiver].router <= sender.router:
            raise ValueError(f"{where}.receiver: {group.receiver!r} is not behind the sender's router")
        if group.tcp in ("dctcp", "prague") and group.ecn != "ect1":
            raise ValueError(f"{where}.ecn: {group.tcp} is always ect1")
        if group.paced and group.tcp not in ("dctcp", "cubic"):
            raise ValueError(f"{where}.paced: only dctcp and cubic are paced by the simulator")
        if group.tcp == "udp" and isinstance(group.traffic, Greedy):
            raise ValueError(f"{where}.traffic: udp cannot be greedy, it would send without end")
        if group.tcp == "udp" and isinstance(group.traffic, Pages | RealTime):
            raise ValueError(
                f"{where}.traffic: {group.traffic.kind} needs a congestion control, udp has none"
            )
        if group.tcp == "gcc" and not isinstance(group.traffic, RealTime):
            raise ValueError(f"{where}.traffic: gcc sends real_time alone, not {group.traffic.kind}")
        if group.tcp == "gcc" and group.ecn != "not_ect":
            raise ValueError(f"{where}.ecn: gcc does not answer marks, so it is always not_ect")
        if isinstance(group.traffic, RealTime) and group.traffic.start_mbps and group.tcp != "gcc":
            raise ValueError(f"{where}.traffic.start_mbps: {group.tcp} finds its first rate itself")
        if isinstance(group.traffic, Pages) and group.flows > 1:
            raise ValueError(
                f"{where}.flows: {group.flows}: of pages give 1, or 0; their objects are the flows"
            )
        if group.start_s[0] > group.start_s[1]:
            raise ValueError(f"{where}.start_s: {group.start_s[0]:g} is after {group.start_s[1]:g}")


class Point(Checked):
    """A point of the axis: which keys of the environment it changes, by their path."""

    set: dict[str, Any]
    profiles: list[str] | None = None  # of the scenario's; None: all
    controls: list[str] | None = None
    at: Annotated[float, Field(allow_inf_nan=False)] | None = None  # place on a numeric axis
    train: dict[str, Any] | None = None  # parameters of the point's own model, beside the scenario's `train`


class Axis(Checked):
    """What a sweep varies.

    Points are given one by one, or as the product of named parts: each point takes one choice of each part.
    Its name is theirs joined by `join`, without those that have none; it sets what they set, and the first
    part varies fastest.
    """

    label: str
    parts: dict[str, dict[str, Point]] = {}
    join: str = ", "  # stands between the names of a point's choices
    only: list[str] | None = None  # patterns of points: the others are left away
    points: Annotated[dict[Annotated[str, Field(min_length=1)], Point], Field(min_length=1)]
    log: bool = False  # whether plots have a logarithmic axis

    @model_validator(mode="before")
    @classmethod
    def _multiplied(cls, raw: Any) -> Any:
        """Write the parts out as points, and leave away those that `only` does not name."""
        if not isinstance(raw, dict) or not (raw.get("parts") or raw.get("only")):
            return raw
        points = {**_product(raw.get("parts") or {}, str(raw.get("join", ", "))), **(raw.get("points") or {})}
        only = raw.get("only")
        if isinstance(only, list):
            for pattern in only:
                if not any(fnmatch.fnmatchcase(name, str(pattern)) for name in points):
                    raise ValueError(f"only: no point is named {pattern!r}")
            points = {
                name: point
                for name, point in points.items()
                if any(fnmatch.fnmatchcase(name, str(pattern)) for pattern in only)
            }
        return {**raw, "points": points}

    @model_validator(mode="after")
    def _placeable(self) -> Axis:
        for name, point in self.points.items():
            if self.log and point.at is not None and point.at <= 0:
                raise ValueError(f"points.{name}.at: {point.at:g} has no place on a logarithmic axis")
        return self


def _product(parts: Any, join: str) -> dict[str, Any]:
    """Points of named parts, as a scenario file has them; `join` stands between the names of choices.

    Raises:
        ValueError: a part has no choices, two parts say the same of a point, or two points have one name.
    """
    if not isinstance(parts, dict):
        raise ValueError(f"parts: {parts!r} is no mapping of parts")
    for part, choices in parts.items():
        if not isinstance(choices, dict) or not choices:
            raise ValueError(f"parts.{part}: has no choices")
        for choice, point in choices.items():
            if not isinstance(point, dict) or not isinstance(point.get("set", {}), dict):
                raise ValueError(f"parts.{part}.{choice}: not a point of the form {{set: {{KEY: VALUE}}}}")
    points: dict[str, Any] = {}
    turned = itertools.product(*(choices.items() for choices in reversed(list(parts.values()))))
    for slowest_first in turned:
        chosen = slowest_first[::-1]
        name = join.join(str(choice) for choice, _ in chosen if choice != "")
        if name in points:
            raise ValueError(f"parts: two points are named {name!r}")
        points[name] = {"set": {}}
        for choice, point in chosen:
            for key, value in point.get("set", {}).items():
                if key in points[name]["set"]:
                    raise ValueError(f"parts: {choice!r} and another part both set {key}")
                points[name]["set"][key] = value
            for key, value in point.items():
                if key != "set" and key in points[name]:
                    raise ValueError(f"parts: {choice!r} and another part both have {key!r}")
                points[name].setdefault(key, value)
    return points


class Scenario(Checked):
    """A whole scenario file."""

    about: str
    figure: str | None = None  # of the paper, that it redraws
    seconds: Seconds
    warmup_s: NotNegative
    seeds: Annotated[list[Annotated[int, Field(ge=1, lt=TRAINING_SEEDS_FROM)]], Field(min_length=1)]
    profiles: Annotated[
        list[Annotated[Literal["rfc9332", "uncoupled"], BeforeValidator(profile_named)]], Field(min_length=1)
    ]
    controls: Annotated[list[str], Field(min_length=1)]
    explore: Explore
    train: dict[str, Any] = {}  # parameters in which `lab train` differs from params.yaml: SECTION.KEY
    environment: Environment
    axis: Axis | None = None
    flows: bool = False  # whether flows.parquet has each flow; then no sender has two
    classes: bool = False  # whether classes.parquet has each flow's class where the disc is Confucius
    regret: bool = False  # whether each choice is scored by what the packet found in both queues

    def points_with_models(self) -> dict[str, Point]:
        """Points of the axis that have a model of their own: all, where one says how it is trained."""
        points = self.axis.points if self.axis else {}
        return points if any(point.train is not None for point in points.values()) else {}

    @model_validator(mode="after")
    def _sound(self) -> Scenario:
        if self.warmup_s >= self.seconds:
            raise ValueError(f"warmup_s: {self.warmup_s:g} s leave nothing of {self.seconds:g} s")
        starts_s = [group.start_s[1] for _, _, group in self.environment.groups()]
        if self.explore.seconds <= (begins_s := max(self.warmup_s, *starts_s)):
            raise ValueError(
                f"explore.seconds: {self.explore.seconds:g} s are too few: warm-up and starts of flows "
                f"take {begins_s:g}"
            )
        check_controls("controls", self.controls)
        for name, point in (self.axis.points if self.axis else {}).items():
            for key in ("profiles", "controls"):
                has, chosen = getattr(self, key), getattr(point, key)
                if unknown := [one for one in chosen or [] if one not in has]:
                    raise ValueError(f"axis.points.{name}.{key}: the scenario has no {unknown[0]!r}")
        _check_train("train", self.train)
        for name, point in self.points_with_models().items():
            if not NAME.fullmatch(name):
                raise ValueError(f"axis.points.{name}.train: the point's name must fit {NAME.pattern}")
            _check_train(f"axis.points.{name}.train", point.train or {})
        for key, values in (("seeds", self.seeds), ("profiles", self.profiles)):
            _check_once(key, values)
        return self


def _check_train(where: str, parameters: Mapping[str, Any]) -> None:
    if unknown := [key for key in parameters if not re.fullmatch(r"[\w-]+\.\w+", key)]:
        raise ValueError(f"{where}.{unknown[0]}: not of the form SECTION.KEY")


def check_times(environment: Environment, seconds: float) -> None:
    """Raise ValueError, which names the key, unless a run of that length has room for what happens in it."""
    for where, _, group in environment.groups():
        if group.flows and group.start_s[1] > seconds:
            raise ValueError(f"{where}.start_s: {group.start_s[1]:g} is after the end, {seconds:g}")
    model = environment.controls.model
    if model.finetune_every_s is not None and model.finetune_every_s < seconds < model.finetune_span_s:
        raise ValueError(
            f"controls.model.finetune_span_s: {model.finetune_span_s:g} s are more than the run's {seconds:g}"
        )


def check_one_flow_each(environment: Environment) -> None:
    """Raise ValueError, which names the sender, where one has two flows: its figures would not be one's."""
    for name, sender in environment.senders.items():
        if (flows := sum(group.flows for group in sender.groups.values())) > 1:
            raise ValueError(f"senders.{name}: {flows} flows; with `flows: true` a sender has one")


def check_controls(key: str, controls: Sequence[str]) -> None:
    """Raise ValueError, which names `key`, unless these are controls, each once, the default among them."""
    if unknown := [control for control in controls if control not in ALL_CONTROLS]:
        raise ValueError(f"{key}: there is no {unknown[0]!r}, there is {', '.join(ALL_CONTROLS)}")
    if "default" not in controls:
        raise ValueError(f"{key}: default must be among them, every other is compared with it")
    _check_once(key, controls)


def _check_once(key: str, values: Sequence[object]) -> None:
    if len(set(values)) < len(values):
        raise ValueError(f"{key}: one stands there twice")


def buffer_bytes(link: Bottleneck, rtt_ms: float) -> int:
    """Limit of a link's queue. bytes = BDP · bit/s · ms / (bit/byte · ms/s)."""
    return round(link.buffer_bdp * link.mbps * 1e6 * rtt_ms / (8 * 1e3))


def _check_buffer(key: str, link: Bottleneck, rtt_ms: float) -> None:
    limit = buffer_bytes(link, rtt_ms)
    if limit < LARGEST_PACKET_BYTES:
        raise ValueError(
            f"{key}: {link.buffer_bdp:g} is a queue of {limit} bytes, smaller than a packet of "
            f"{LARGEST_PACKET_BYTES}"
        )
    if limit > LARGEST_BUFFER_BYTES:
        raise ValueError(
            f"{key}: {link.buffer_bdp:g} is a queue of {limit} bytes, more than {LARGEST_BUFFER_BYTES}"
        )
