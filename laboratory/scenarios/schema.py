"""The schema of a scenario, and the checks before anything is simulated.

A scenario is an environment (links, senders, traffic), how long and with which seeds it is run, under which
queue profiles and controls, and an axis of points that each change some keys of the environment.

Ranges are checked only here: the simulation program trusts the runs made from a scenario.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
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
from swiftqueue.laboratory.scenarios.controls import ControlSettings, check_controls
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
    trace: str | None = None  # file of lines `seconds Mbit/s` for a variable link; None: always `mbps`


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

    # Base round trip of the nearest receiver over all bottlenecks.
    rtt_ms: Annotated[float, Field(ge=LEAST_RTT_MS, le=20_000)]
    bottlenecks: Annotated[list[Bottleneck], Field(min_length=1, max_length=8)]
    receivers: Annotated[dict[Name, Receiver], Field(min_length=1)]
    senders: Annotated[dict[Name, Sender], Field(min_length=1, max_length=MOST_SENDERS)]
    controls: ControlSettings

    def without_view(self) -> str | None:
        """Return the type of the first disc that gives no view of its queues; None if all do."""
        types = (link.disc.type for link in self.bottlenecks if link.disc)
        return next((name for name in types if name != DUAL_PI2), None)

    def without_profile(self) -> str | None:
        """Return the type of the first disc if every bottleneck has one without a profile; else None."""
        types = [link.disc.type if link.disc else DUAL_PI2 for link in self.bottlenecks]
        return types[0] if DUAL_PI2 not in types else None

    def chooses(self) -> bool:
        """Return whether the first sender has an L4S flow, for which a control can choose."""
        captured = next(iter(self.senders.values()))
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
        for i, link in enumerate(self.bottlenecks):
            _check_buffer(f"bottlenecks.{i}.buffer_bdp", link, self.rtt_ms)
        last = len(self.bottlenecks)
        for name, receiver in self.receivers.items():
            if receiver.router > last:
                raise ValueError(f"receivers.{name}.router: {receiver.router} is beyond the last, {last}")
        for where, sender, group in self.groups():
            self._check_group(where, sender, group)
        self._check_response()
        check_flows(group.flows for _, _, group in self.groups())
        first, captured = next(iter(self.senders.items()))
        calls = any(isinstance(group.traffic, RealTime) for group in captured.groups.values())
        if not (calls or self.chooses()):
            raise ValueError(
                f"senders.{first}.groups: the captured sender has no flow with ecn ect1, so nothing to choose"
            )
        return self

    def _check_response(self) -> None:
        """Raise ValueError unless S1 can answer moved packets' ACKs in this way."""
        if (response := self.controls.moved_response) == "scalable":
            return
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
