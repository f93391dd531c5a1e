"""The schema of a scenario, and the checks before anything is simulated.

A scenario is an environment (links, senders, traffic), how long and with which seeds it is run, under which
queue profiles and controls, and an axis of points that each change some keys of the environment.

Ranges are checked only here: the simulation program trusts the runs made from a scenario.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from swiftqueue.laboratory.scenarios.axis import Axis, Point
from swiftqueue.laboratory.scenarios.checked import (
    LEAST_LINK_MBPS,
    MOST_LINK_MBPS,
    NAME,
    BurstPackets,
    Name,
    NotNegative,
    Positive,
    ScenarioPart,
    Seconds,
    Share,
    check_once,
)
from swiftqueue.laboratory.scenarios.controls import (
    FOR_UPLINKS,
    NOT_FOR_UPLINKS,
    ControlSettings,
    check_controls,
)
from swiftqueue.laboratory.scenarios.traffic import Greedy, Group, Pages, RealTime

LARGEST_PACKET_BYTES: Final = 1500  # IP length
LARGEST_BUFFER_BYTES: Final = 2_000_000_000
MOST_FLOWS: Final = 20_000  # flows of a run: each has a port of its own
MOST_SENDERS: Final = 250
ACCESS_MS: Final = 0.1  # one-way delay of each access link
LEAST_RTT_MS: Final = 4 * ACCESS_MS  # a packet and its ACK pass two access links each
TRAINING_SEEDS_FROM: Final = 1000  # judged seeds are below, so no model is judged on what it was trained on
PROFILES: Final = ("rfc9332", "uncoupled")
FORMER_PROFILES: Final = {"premise": "uncoupled"}  # names in older results and files
DUAL_PI2: Final = "ns3::DualPi2QueueDisc"  # the default disc of a bottleneck, whose queues can be viewed
CONFUCIUS: Final = "swiftqueue::ConfuciusQueueDisc"  # a disc whose flows have classes
WITHOUT_ACKS: Final = ("udp", "gcc")
WEIGHTS: Final = "Weights"  # attribute of a disc that has learned: a file, relative to the project's folder


def profile_named(name: Any) -> Any:
    """Return the present name of a queue profile; other names stay."""
    return FORMER_PROFILES.get(name, name) if isinstance(name, str) else name


class Disc(ScenarioPart):
    """An ns-3 queue disc by its TypeId; for a DualPI2, these attributes come after the profile's."""

    type: str  # TypeId of ns-3
    attributes: dict[str, str | int | float | bool] = Field(default_factory=dict)  # ns-3's, by name

    @field_validator("attributes")
    @classmethod
    def _finite(cls, found: dict[str, str | float]) -> dict[str, str | float]:
        for name, value in found.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name}: must be finite, not {value:g}")
        return found

    def texts(self) -> dict[str, str]:
        """Return the attributes as ns-3 reads them."""
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.attributes.items()
        }


class Bottleneck(ScenarioPart):
    """A link with a dual queue, or another disc; its delay is a part of the path's."""

    mbps: Annotated[float, Field(ge=LEAST_LINK_MBPS, le=MOST_LINK_MBPS)]  # rate of the link, Mbit/s
    buffer_bdp: Positive  # limit of the queue, in bandwidth-delay products of this link and `rtt_ms`
    disc: Disc | None = None  # disc of the link; None: the profile's
    # File of a variable link's rates, in the project's folder. Each line has a time in s and the rate up to
    # then in Mbit/s. Times ascend from above 0, and the last is the run's end or later. `mbps` still sizes
    # the buffer.
    trace: str | None = None  # None: always `mbps`


class Allotment(ScenarioPart):
    """Rates that are drawn anew at equal intervals, as a satellite's are."""

    every_s: Annotated[float, Field(ge=0.1, le=1e5)]
    least: Annotated[float, Field(gt=0, le=1)]  # least share of `mbps`
    most: Annotated[float, Field(ge=1, le=100)]  # largest share of `mbps`


class Uplink(Bottleneck):
    """One of two links from S1's gateway to the receivers; a steered packet takes the second unless moved."""

    name: Name  # name that groups call it by
    delay_ms: Annotated[float, Field(ge=0, le=10_000)]  # one-way delay of the link
    dscp: Annotated[int, Field(ge=0, le=63)]  # mark of its packets
    allotted: Allotment | None = None  # None: always `mbps`, or the trace's
    routed: bool = True  # whether the gateway has a rule for the mark; else S1's packets take the other link
    dies_s: Seconds | None = None  # time from which nothing passes; S1's packets take the other link then


class Receiver(ScenarioPart):
    """An end of flows: the router of its link, and its distance beyond `rtt_ms`."""

    router: Annotated[int, Field(ge=1)] = 1  # number of the router that its access link leads to
    extra_rtt_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0  # round trip beyond `rtt_ms`


class Sender(ScenarioPart):
    """A start of flows: the router of its link, and its groups by name."""

    router: Annotated[int, Field(ge=0)] = 0  # number of the router that its access link leads to
    groups: dict[str, Group]  # groups of flows by name


class Explore(ScenarioPart):
    """Traces for training, in which a share of S1's bursts is moved at random."""

    share: Share  # share of the bursts that are moved
    burst_packets: Annotated[list[BurstPackets], Field(min_length=1)]  # lengths of bursts, a trace each
    seconds: Seconds  # length of a trace
    # Seeds of the traces, each for every length of bursts
    seeds: Annotated[list[Annotated[int, Field(ge=TRAINING_SEEDS_FROM, le=1_000_000)]], Field(min_length=1)]
    flows_apart: bool = False  # whether each L4S flow is its own sender, as with `swiftqueue mark follow`
    points: bool = False  # whether each point of the axis has traces, for one model of all points


class Environment(ScenarioPart):
    """Links, senders and traffic; senders are in order, the first is S1, captured and controlled."""

    # Base round trip of the nearest receiver over all bottlenecks. Uplinks have delays of their own; for them
    # it is the round trip of `buffer_bdp` and of `oracle_late`.
    rtt_ms: Annotated[float, Field(ge=LEAST_RTT_MS, le=20_000)]
    bottlenecks: Annotated[list[Bottleneck], Field(max_length=8)]  # one or more, or uplinks in their place
    uplinks: list[Uplink] = Field(default_factory=list)  # two links in the bottlenecks' place, joined behind
    load: Annotated[float, Field(gt=0, le=100)] = 1.0  # factor of the rates of messages and video
    receivers: Annotated[dict[Name, Receiver], Field(min_length=1)]
    senders: Annotated[dict[Name, Sender], Field(min_length=1, max_length=MOST_SENDERS)]
    controls: ControlSettings

    def links(self) -> Sequence[Bottleneck]:
        """Return the bottlenecks or the uplinks."""
        return self.uplinks or self.bottlenecks

    def without_view(self) -> str | None:
        """Return the type of the first disc that gives no view of its queues; None if all do."""
        types = (link.disc.type for link in self.bottlenecks if link.disc)  # an uplink's bytes suffice
        return next((name for name in types if name != DUAL_PI2), None)

    def without_profile(self) -> str | None:
        """Return the type of the first disc if every bottleneck has one without a profile; else None."""
        types = [link.disc.type if link.disc else DUAL_PI2 for link in self.links()]
        return types[0] if DUAL_PI2 not in types else None

    def chooses(self) -> bool:
        """Return whether the first sender has a flow for which a control can choose: L4S, or not pinned."""
        captured = next(iter(self.senders.values()))
        if self.uplinks:
            return any(group.flows for group in captured.groups.values() if group.uplink is None)
        return any(group.flows for group in captured.groups.values() if group.ecn == "ect1")

    def groups(self) -> Iterator[tuple[str, Sender, Group]]:
        """Yield all groups of flows, each with its key in the environment and its sender."""
        for name, sender in self.senders.items():
            for key, group in sender.groups.items():
                yield f"senders.{name}.groups.{key}", sender, group

    def has_pages(self) -> bool:
        """Return whether any flow loads web pages."""
        return any(isinstance(group.traffic, Pages) and group.flows for _, _, group in self.groups())

    def has_classes(self) -> bool:
        """Return whether a bottleneck's disc puts flows into classes."""
        return any(link.disc is not None and link.disc.type == CONFUCIUS for link in self.bottlenecks)

    def idle_keys(self) -> dict[str, str]:
        """Return keys that change nothing here, whatever their values, each with the reason."""
        return {
            f"{where}.dupack_threshold": f"{group.tcp} has no ACKs"
            for where, _, group in self.groups()
            if group.tcp in WITHOUT_ACKS
        }

    @model_validator(mode="after")
    def _sound(self) -> Environment:
        kind = "uplinks" if self.uplinks else "bottlenecks"
        for i, link in enumerate(self.links()):
            _check_buffer(f"{kind}.{i}.buffer_bdp", link, self.rtt_ms)
        self._check_uplinks()
        last = 1 if self.uplinks else len(self.bottlenecks)
        for name, receiver in self.receivers.items():
            if receiver.router > last:
                raise ValueError(f"receivers.{name}.router: {receiver.router} is beyond the last, {last}")
        for where, sender, group in self.groups():
            self._check_group(where, sender, group)
        self._check_response()
        check_flows(group.flows for _, _, group in self.groups())
        first, captured = next(iter(self.senders.items()))
        calls = any(isinstance(group.traffic, RealTime) for group in captured.groups.values())
        if self.uplinks and not self.chooses():
            raise ValueError(f"senders.{first}.groups: each has its uplink, so there is nothing to steer")
        if not (calls or self.chooses()):
            raise ValueError(
                f"senders.{first}.groups: the captured sender has no flow with ecn ect1, so nothing to choose"
            )
        return self

    def _check_response(self) -> None:
        """Raise ValueError unless S1 can answer moved packets' ACKs in this way."""
        if (response := self.controls.moved_response) == "scalable":
            return
        if self.uplinks:
            raise ValueError(f"controls.moved_response: {response} is for one link; uplinks leave ECN alone")
        if self.controls.moved_ecn == "not_ect":
            raise ValueError("controls.moved_response: classic answers marks; moved_ecn: not_ect has none")
        first, captured = next(iter(self.senders.items()))
        why = "acks are not selective" if self.controls.acks != "selective" else ""
        for name, group in captured.groups.items():
            if not group.flows or group.ecn != "ect1":
                continue
            if group.tcp != "dctcp":
                why = f"senders.{first}.groups.{name}.tcp is not dctcp"
            elif isinstance(group.traffic, Pages | RealTime):
                why = f"senders.{first}.groups.{name}.traffic is {group.traffic.kind}"
        if why:
            raise ValueError(f"controls.moved_response: {response} is not possible where {why}")

    def _check_uplinks(self) -> None:
        """Raise ValueError unless there are bottlenecks, or two uplinks that can be told apart."""
        if not self.uplinks:
            if not self.bottlenecks:
                raise ValueError("bottlenecks: there is none; give bottlenecks, or two uplinks")
            return
        if self.bottlenecks:
            raise ValueError("uplinks: bottlenecks are given too; set bottlenecks: [] for uplinks")
        if (count := len(self.uplinks)) != 2:
            raise ValueError(f"uplinks: {count} given; a mark chooses between two")
        for key in ("name", "dscp"):
            first, second = (getattr(link, key) for link in self.uplinks)
            if first == second:
                raise ValueError(f"uplinks.1.{key}: {second!r} is the first one's; give another")
        if not any(link.routed and link.dies_s is None for link in self.uplinks):
            raise ValueError("uplinks: nothing is left to S1's packets; one must be routed and never die")
        for i, link in enumerate(self.uplinks):
            if link.allotted and link.trace:
                raise ValueError(f"uplinks.{i}.allotted: its rates are the trace's; give one of both")

    def _check_group(self, where: str, sender: Sender, group: Group) -> None:
        if group.receiver not in self.receivers:
            known = ", ".join(self.receivers)
            raise ValueError(f"{where}.receiver: there is no {group.receiver!r}, there is {known}")
        if self.receivers[group.receiver].router <= sender.router:
            raise ValueError(f"{where}.receiver: {group.receiver!r} is not behind the sender's router")
        self._check_uplink(where, sender, group)
        if group.tcp in ("dctcp", "prague") and group.ecn != "ect1":
            raise ValueError(f"{where}.ecn: {group.tcp} is always ect1")
        if group.paced and group.tcp not in ("dctcp", "cubic"):
            raise ValueError(f"{where}.paced: only dctcp and cubic are paced by the simulator")
        if group.tcp == "udp" and isinstance(group.traffic, Greedy):
            raise ValueError(f"{where}.traffic: udp cannot be greedy, it would send without end")
        if group.tcp == "udp" and isinstance(group.traffic, Pages | RealTime):
            raise ValueError(f"{where}.traffic: {group.traffic.kind} needs a congestion control, not udp")
        if group.tcp == "gcc" and not isinstance(group.traffic, RealTime):
            raise ValueError(f"{where}.traffic: gcc sends real_time alone, not {group.traffic.kind}")
        if group.tcp == "gcc" and group.ecn != "not_ect":
            raise ValueError(f"{where}.ecn: gcc does not answer marks, so it is always not_ect")
        if isinstance(group.traffic, RealTime) and group.traffic.start_mbps and group.tcp != "gcc":
            raise ValueError(f"{where}.traffic.start_mbps: {group.tcp} finds its first rate itself")
        if isinstance(group.traffic, Pages) and group.flows > 1:
            raise ValueError(f"{where}.flows: {group.flows}: pages take 1 or 0; their objects are the flows")
        if group.start_s[0] > group.start_s[1]:
            raise ValueError(f"{where}.start_s: {group.start_s[0]:g} is after {group.start_s[1]:g}")

    def _check_uplink(self, where: str, sender: Sender, group: Group) -> None:
        """Raise ValueError unless a group takes an uplink that there is, or is steered as S1's can be."""
        named = [link.name for link in self.uplinks]
        if group.uplink is not None and group.uplink not in named:
            there = f"there is {' and '.join(named)}" if named else "the scenario has none"
            raise ValueError(f"{where}.uplink: there is no {group.uplink!r}, {there}")
        if named and group.uplink is None and sender is not next(iter(self.senders.values())):
            raise ValueError(f"{where}.uplink: is missing; only the captured sender's groups are steered")
        if named and group.dscp:
            raise ValueError(f"{where}.dscp: the uplink's mark is its DSCP")


class Scenario(ScenarioPart):
    """A whole scenario file."""

    about: str  # one line about it
    figure: str | None = None  # figure of the paper that it redraws
    seconds: Seconds  # simulated time
    warmup_s: NotNegative  # time at the start that the figures leave out
    # Seeds of the runs; each is one sample
    seeds: Annotated[list[Annotated[int, Field(ge=1, lt=TRAINING_SEEDS_FROM)]], Field(min_length=1)]
    # Profiles of the queues (simulation/doc/lab.md)
    profiles: Annotated[
        list[Annotated[Literal["rfc9332", "uncoupled"], BeforeValidator(profile_named)]], Field(min_length=1)
    ]
    controls: Annotated[list[str], Field(min_length=1)]  # the controls, `default` among them
    explore: Explore  # traces of `lab train`
    # Parameters of `lab train` that differ from params.yaml: SECTION.KEY
    train: dict[str, Any] = Field(default_factory=dict)
    environment: Environment  # network, traffic and controls
    axis: Axis | None = None  # parameters that a sweep varies
    flows: bool = False  # whether flows.parquet has a row for each flow; a sender then has one flow at most
    classes: bool = False  # whether classes.parquet has each flow's class where the disc is Confucius
    page_by_page: bool = False  # whether pages.parquet has each page's own figures
    regret: bool = False  # whether each choice is scored by the packet's waits in both queues

    def points_with_models(self) -> dict[str, Point]:
        """Return the points with a model of their own: all, if one of them sets its training."""
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
        if self.explore.points and (self.axis is None or self.points_with_models()):
            raise ValueError("explore.points: needs an axis whose points have no models of their own")
        check_controls("controls", self.controls)
        uplinks = bool(self.environment.uplinks)
        if unfit := [one for one in self.controls if one in (NOT_FOR_UPLINKS if uplinks else FOR_UPLINKS)]:
            raise ValueError(f"controls: {unfit[0]} is {'not for' if uplinks else 'for two'} uplinks")
        if uplinks and self.regret:
            raise ValueError("regret: is of one link's two queues, not of uplinks")
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
            check_once(key, values)
        return self


def _check_train(where: str, parameters: Mapping[str, Any]) -> None:
    if unknown := [key for key in parameters if not re.fullmatch(r"[\w-]+\.\w+", key)]:
        raise ValueError(f"{where}.{unknown[0]}: not of the form SECTION.KEY")


def check_times(environment: Environment, seconds: float) -> None:
    """Check that a run of that length has room for its events.

    Raises:
        ValueError: it has not; the line names the key.
    """
    for where, _, group in environment.groups():
        if group.flows and group.start_s[1] > seconds:
            raise ValueError(f"{where}.start_s: {group.start_s[1]:g} is after the end, {seconds:g}")
    model = environment.controls.model
    if model.finetune_every_s is not None and model.finetune_every_s < seconds < model.finetune_span_s:
        raise ValueError(
            f"controls.model.finetune_span_s: {model.finetune_span_s:g} s are more than the run's {seconds:g}"
        )


def check_placebo(environment: Environment, seconds: float) -> None:
    """Check that the placebo decides at other times than the model.

    Raises:
        ValueError: it does not; the line names the key.
    """
    if (shift_s := environment.controls.ladder.shift_s) >= seconds:
        raise ValueError(
            f"controls.ladder.shift_s: {shift_s:g} s are not less than the run's {seconds:g}: the placebo "
            "would not decide at other times than the model"
        )
    if environment.controls.model.until_decided != "previous":
        raise ValueError(
            "controls.model.until_decided: only with `previous` are there decisions that a placebo can repeat"
        )


def check_flows(of_groups: Iterable[int]) -> None:
    """Check that groups have no more flows than a run can have.

    Raises:
        ValueError: they have.
    """
    if (flows := sum(of_groups)) > MOST_FLOWS:
        raise ValueError(f"senders: {flows} flows, at most {MOST_FLOWS} can be simulated")


def check_one_flow_each(environment: Environment) -> None:
    """Check that no sender has two flows, whose figures would mix.

    Raises:
        ValueError: one has; the line names it.
    """
    for name, sender in environment.senders.items():
        if (flows := sum(group.flows for group in sender.groups.values())) > 1:
            raise ValueError(f"senders.{name}: {flows} flows; with `flows: true` a sender has one")


def buffer_bytes(link: Bottleneck, rtt_ms: float) -> int:
    """Return the limit of a link's queue: bytes = BDP · bit/s · ms / (bit/byte · ms/s)."""
    return round(link.buffer_bdp * link.mbps * 1e6 * rtt_ms / (8 * 1e3))


def _check_buffer(key: str, link: Bottleneck, rtt_ms: float) -> None:
    limit = buffer_bytes(link, rtt_ms)
    said = f"{key}: {link.buffer_bdp:g} is a queue of {limit} bytes"
    if limit < LARGEST_PACKET_BYTES:
        raise ValueError(f"{said}, smaller than a packet of {LARGEST_PACKET_BYTES}")
    if limit > LARGEST_BUFFER_BYTES:
        raise ValueError(f"{said}, more than {LARGEST_BUFFER_BYTES}")
