"""Resolve each scenario's points, profiles, controls and seeds to `run.json`.

The format of a run is that of simulation/doc/lab.md. Two scenarios that ask for the same run share it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.section import read_all
from swiftqueue.laboratory.scenarios.axis import Point
from swiftqueue.laboratory.scenarios.controls import AGENT_RULE, FOR_UPLINKS, LADDER, TREES, ModelControl
from swiftqueue.laboratory.scenarios.files import environment_at
from swiftqueue.laboratory.scenarios.pages import allotted, drawn, rates_of
from swiftqueue.laboratory.scenarios.replay import replayed
from swiftqueue.laboratory.scenarios.schema import (
    ACCESS_MS,
    FORMER_PROFILES,
    WEIGHTS,
    Bottleneck,
    Environment,
    Scenario,
    Uplink,
    buffer_bytes,
    check_flows,
)
from swiftqueue.laboratory.scenarios.traffic import Group, Pages, RealTime, Replay
from swiftqueue.pipelines.simulators import PROJECT

FORMAT: Final = 1
CONTROL_SEED: Final = 1  # seed of the draws of control `random`; the traffic's seed varies beside it
FIRST_VERSION: Final = 1
ROUND: Final = "swiftqueue.laboratory.learning.finetune_round"
# Order of the engine's sums, which an answer's last bits depend on. Runs without it are of blocks of 64 rows.
SUMS: Final = "tiles of 16 rows"
ROUND_SECTIONS: Final = ("change", "finetune")
BATCHING: Final = {"inference_us", "until_decided", "margin_us", "margin_share", "max_moved_unacked"}
# As published runs have it; the program reads the first key alone.
GUARD: Final = {"guard": "on", "guard_packets": 1, "guard_growth": 0.5, "guard_advantage": 0.5}
NO_EXPLORATION: Final = {"share": 0.0, "burst_packets": 1, "seed": 1}


@dataclass(frozen=True)
class Model:
    """A model to be judged: where it lies, and the hash of what it is."""

    folder: Path
    content: str
    acks: str | None = None  # ACKs of the latencies that it was trained on, as its origin says


@dataclass(frozen=True)
class Cell:
    """A place of the results: a run of a scenario's point under one profile, control and seed."""

    scenario: str
    point: str
    at: float | None
    profile: str
    control: str
    seed: int

    def key(self) -> dict[str, Any]:
        """Return it as columns of the results."""
        return asdict(self)

    def words(self) -> str:
        """Name it on one line."""
        parts = (self.scenario, self.point, self.profile, self.control, f"seed {self.seed}")
        return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class PlannedRun:
    """A cell and the run it needs; `run` is None, with the reason, where it cannot be run."""

    cell: Cell
    run: dict[str, Any] | None
    reason: str | None = None
    model: Model | None = None
    share_of: str | None = None  # control random: whose moved share it has
    record: str | None = None  # control placebo: the run whose decisions it repeats


def is_named(point: str, patterns: Sequence[str] | None) -> bool:
    """Return whether `--points` names a point; None names all."""
    return patterns is None or any(fnmatch.fnmatchcase(point, pattern) for pattern in patterns)


def cells(name: str, scenario: Scenario, patterns: Sequence[str] | None = None) -> Iterator[Cell]:
    """Yield all cells of a scenario, at the points that the patterns name."""
    points = scenario.axis.points if scenario.axis else {"": Point(set={})}
    for point, made in points.items():
        if not is_named(point, patterns):
            continue
        for profile in made.profiles or scenario.profiles:
            for control in made.controls or scenario.controls:
                for seed in scenario.seeds:
                    yield Cell(name, point, made.at, profile, control, seed)


def resolve(
    scenario: Scenario,
    cell: Cell,
    control: Mapping[str, Any],
    outputs: list[str],
    explore: Mapping[str, Any] = NO_EXPLORATION,
) -> dict[str, Any]:
    """Return `run.json` of a cell under a control that `control_of` gave.

    Raises:
        ValueError: a file that it names cannot be read, or its pages have too many objects; the line names
            the key.
    """
    environment = environment_at(scenario, cell.point, f"{cell.scenario}.yaml")
    finetune = control.get("finetune")
    if finetune is not None and finetune["every_s"] >= scenario.seconds:
        finetune = None  # its first round would come after the end
    if finetune is not None:
        finetune = {**finetune, "content": finetuning_content()}
    return {
        "format": FORMAT,
        "name": "run",  # one name for all, so that scenarios with the same run share it
        "seed": cell.seed,
        "seconds": scenario.seconds,
        "warmup_s": scenario.warmup_s,
        "profile": cell.profile,
        **_network(environment, cell.seed, scenario.seconds),
        "control": {key: value for key, value in control.items() if key != "finetune"},
        **_hold(environment),
        "moved_ecn": environment.controls.moved_ecn,
        **_response(environment, cell.control),
        "acks": environment.controls.acks,
        "explore": dict(explore),
        "finetune": finetune,
        "outputs": sorted(
            [
                *outputs,
                *_scored(scenario, environment),
                *_repeated(scenario, cell.control),
                *_classes(scenario, environment),
            ]
        ),
    }


def _scored(scenario: Scenario, environment: Environment) -> list[str]:
    """Return the outputs of a run whose choices are scored, where the discs allow it."""
    if not scenario.regret:
        return []
    return ["waits"] if environment.without_view() is None else []


def _repeated(scenario: Scenario, control: str) -> list[str]:
    """Return the outputs of a run whose decisions the placebo repeats."""
    return ["decisions"] if control == "model" and "placebo" in scenario.controls else []


def _classes(scenario: Scenario, environment: Environment) -> list[str]:
    """Return the outputs of a run whose flows' classes are kept, where a bottleneck has any."""
    return ["classes"] if scenario.classes and environment.has_classes() else []


def _response(environment: Environment, control: str) -> dict[str, str]:
    """Return the response to moved packets' ACKs, where it differs from other packets' and any are moved."""
    response = environment.controls.moved_response
    other = response != "scalable" and control not in ("default", "no_l4s")
    return {"moved_response": response} if other else {}


def _hold(environment: Environment) -> dict[str, str]:
    """Return what a decision holds for, where it is more than a packet."""
    hold = environment.controls.hold
    return {} if hold == "packet" else {"hold": hold}


def check_tables(name: str, scenario: Scenario, patterns: Sequence[str] | None = None) -> None:
    """Raise ValueError, which names file and key, unless what the runs are made of can be read."""
    for cell in {cell.point: cell for cell in cells(name, scenario, patterns)}.values():
        try:
            resolve(scenario, cell, {"kind": "default"}, [])
        except ValueError as error:
            raise ValueError(f"{name}.yaml: {error}") from None


def control_of(
    environment: Environment, name: str, *, model: Model | None, share: float, record: str = ""
) -> dict[str, Any]:
    """Return `control` of run.json.

    The model's folder is put in when the run starts: where it lies must not change what the run is.

    Args:
        environment: has the controls' parameters.
        name: the control's name.
        model: the model of controls model, anchor and trees.
        share: the share that control random moves.
        record: for control placebo, the identity of the run whose decisions it repeats.
    """
    settings = environment.controls
    if name == "random":
        burst = settings.random.burst_packets
        return {"kind": "random", "share": share, "burst_packets": burst, "seed": CONTROL_SEED}
    if name in ("oracle", "oracle_in_order"):
        order = "any" if name == "oracle" else "kept"
        return {"kind": "oracle", "order": order, **settings.oracle.model_dump()}
    if name == "last_latency":
        return _last_latency(environment)
    if name == "virtual_queue":
        return {"kind": "virtual_queue", **settings.virtual_queue.model_dump()}
    if name == AGENT_RULE:
        return {"kind": name, **settings.model.model_dump(include={"inference_us", "until_decided"})}
    if name in FOR_UPLINKS:
        return {"kind": "least_latency", **_least(environment, name)}
    if name == "flow_split":
        return {"kind": "flow_split", "share": settings.ladder.flow_share}
    if name in LADDER and name != "anchor":
        by = _forecast(environment, name, record)
        return {"kind": "batched", "by": by, **_batching(settings.model)}
    if name not in ("model", "anchor", TREES):
        return {"kind": name}
    assert model is not None  # noqa: S101 - the caller has said why it is not run
    chosen = settings.model
    finetune = None
    if chosen.finetune_every_s is not None and name == "model":
        finetune = {
            "every_s": chosen.finetune_every_s,
            "span_s": chosen.finetune_span_s,
            "apply_after_s": chosen.finetune_apply_after_s,
            "command": [],  # put in when the run starts
        }
    return {
        "kind": "model",
        "artifact": model.content,
        "sums": SUMS,
        "version": FIRST_VERSION,
        **_batching(chosen),
        "finetune": finetune,
    }


def _batching(model: ModelControl) -> dict[str, Any]:
    """Return how forecasts become queues; keys that older runs lack stand there only if they matter."""
    share = {"max_moved_share": model.max_moved_share} if model.max_moved_share else {}
    return {**model.model_dump(include=BATCHING), **share, **(GUARD if model.guard else {})}


def _last_latency(environment: Environment) -> dict[str, Any]:
    own = environment.controls.last_latency
    times = {"threshold_us": own.threshold_ms * 1e3, "stale_us": own.stale_ms * 1e3}
    return {"kind": "last_latency", **times}


def _least(environment: Environment, name: str) -> dict[str, Any]:
    """Return which latencies of the uplinks are compared, and when."""
    if name == "least_mean":
        return {"of": "mean", **environment.controls.least_mean.model_dump()}
    return {"of": "last" if name == "least_latency" else "smoothed", "margin_us": 0.0, "every_s": 0.0}


def _forecast(environment: Environment, name: str, record: str) -> dict[str, Any]:
    """Return the forecaster in the model's place: `by` of a batched control."""
    settings = environment.controls
    if name == "constant_share":
        return {"kind": "chance", "share": settings.ladder.constant_share, "seed": CONTROL_SEED}
    if name == "last_latency_batched":
        return _last_latency(environment)
    if name == "virtual_queue_batched":
        return {"kind": "virtual_queue"}
    if name == "placebo":
        return {"kind": "record", "decisions": record, "shift_us": settings.ladder.shift_s * 1e6}
    if name in ("oracle_late", "oracle_batched"):
        age_us = environment.rtt_ms * 1e3 if name == "oracle_late" else 0.0
        return {"kind": "view", "rate_us": settings.oracle.rate_us, "age_us": age_us}
    return {"kind": "always"}


@cache
def finetuning_content(params: Path = PROJECT / "params.yaml") -> str:
    """Return a hash of a fine-tuning round: its code and the sections of params.yaml that it reads."""
    from swiftqueue.common.import_closure import files_of

    read = read_all(params)
    sections = {name: read[name] for name in ROUND_SECTIONS}
    digest = hashlib.sha256(json.dumps(sections, sort_keys=True).encode())
    for path in files_of(ROUND):
        digest.update((PROJECT / path).read_bytes())
    return digest.hexdigest()


def identity(run: Mapping[str, Any], program: str) -> str:
    """Return the hash of a run and of its program: runs of one hash have one result.

    A profile counts by its first name, so that a new one makes no other run.
    """
    first = {name: former for former, name in FORMER_PROFILES.items()}
    named = {**run, "profile": first.get(run["profile"], run["profile"])}
    text = json.dumps(named, sort_keys=True, allow_nan=False)
    return hashlib.sha256(f"{program}\n{text}".encode()).hexdigest()[:24]


def _network(environment: Environment, seed: int, seconds: float) -> dict[str, Any]:
    links, page_seeds = environment.links(), _page_seeds(seed)
    uplinks = {link.name: i for i, link in enumerate(environment.uplinks)}
    # ms = ms / 2 - access links at both ends, divided among the bottlenecks
    one_way_ms = (environment.rtt_ms / 2 - 2 * ACCESS_MS) / len(links)
    kind = "uplinks" if uplinks else "bottlenecks"
    senders: list[dict[str, Any]] = [
        {
            "name": name,
            "router": sender.router,
            "delay_ms": ACCESS_MS,
            "groups": [
                {**_group(name, key, g, page_seeds, environment.load), **_pinned(g, uplinks)}
                for key, g in sender.groups.items()
                if g.flows
            ],
        }
        for name, sender in environment.senders.items()
        if any(g.flows for g in sender.groups.values())
    ]
    check_flows(group["flows"] for sender in senders for group in sender["groups"])  # pages' objects too
    return {
        "bottlenecks": [
            {
                **_bottleneck(link, one_way_ms, environment.rtt_ms, f"{kind}.{i}"),
                **_rates(link, f"{kind}.{i}", seconds, (seed, i)),
            }
            for i, link in enumerate(links)
        ],
        **({"uplinks": [_uplink(link) for link in environment.uplinks]} if uplinks else {}),
        "receivers": [
            {"name": name, "router": r.router, "delay_ms": ACCESS_MS + r.extra_rtt_ms / 2}
            for name, r in environment.receivers.items()
        ],
        "senders": senders,
    }


def _uplink(link: Uplink) -> dict[str, Any]:
    """Return what an uplink has besides a bottleneck's keys."""
    dies = {} if link.dies_s is None else {"dies_s": link.dies_s}
    return {"name": link.name, "dscp": link.dscp, "routed": "on" if link.routed else "off", **dies}


def _pinned(group: Group, uplinks: Mapping[str, int]) -> dict[str, int]:
    """Return the index of a group's uplink; nothing for one that is steered."""
    return {} if group.uplink is None else {"uplink": uplinks[group.uplink]}


def _rates(link: Bottleneck, key: str, seconds: float, seed: Sequence[int]) -> dict[str, Any]:
    """Return `rates` of a link, where they vary."""
    if isinstance(link, Uplink) and link.allotted:
        shares = link.allotted
        drawn_bps = allotted(link.mbps * 1e6, shares.every_s, (shares.least, shares.most), seconds, seed)
        return {"rates": drawn_bps}
    return rates_of(link.trace, f"{key}.trace", seconds)


def _weights_content(file: str, key: str) -> str:
    """Return a weight file's hash; the path is relative to the project. Another content is another run."""
    try:
        return hashlib.sha256((PROJECT / file).read_bytes()).hexdigest()[:16]
    except OSError:
        raise ValueError(f"{key}: {file} cannot be read") from None


def _bottleneck(link: Bottleneck, one_way_ms: float, rtt_ms: float, key: str) -> dict[str, Any]:
    disc: dict[str, Any] = {}
    if link.disc:
        disc = {"disc": {"type": link.disc.type, "attributes": link.disc.texts()}}
        if weights := link.disc.texts().get(WEIGHTS):
            disc["disc"]["content"] = _weights_content(weights, f"{key}.disc.attributes.{WEIGHTS}")
    return {
        "rate_bps": round(link.mbps * 1e6),
        "delay_ms": link.delay_ms if isinstance(link, Uplink) else one_way_ms,
        "buffer_bytes": buffer_bytes(link, rtt_ms),
        **disc,
    }


def _page_seeds(seed: int) -> Iterator[Sequence[int]]:
    """Yield another seed for each group of pages: with the same one, all would load the same pages."""
    return ((seed, number) for number in count())  # (seed, 0) draws what the seed alone would


def _group(
    sender: str, key: str, group: Group, page_seeds: Iterator[Sequence[int]], load: float
) -> dict[str, Any]:
    traffic = group.traffic
    fields = group.model_dump(include={"flows", "tcp", "ecn", "receiver", "start_s", "dupack_threshold"})
    if group.dscp:  # a run without has the name that it had before there was this key
        fields["dscp"] = group.dscp
    if group.paced:
        fields["paced"] = "on"
    if isinstance(traffic, Replay):
        described = replayed(traffic, f"senders.{sender}.groups.{key}.traffic")
    elif isinstance(traffic, Pages):
        described = {"kind": "pages", "pages": drawn(traffic, next(page_seeds))}
        fields["flows"] = sum(len(page["bytes"]) for page in described["pages"])
    elif isinstance(traffic, RealTime):
        described = traffic.model_dump(include={"kind", "frames_per_s"})
        described["least_bps"] = round(traffic.least_mbps * 1e6)
        described["most_bps"] = round(traffic.most_mbps * 1e6)
        if traffic.start_mbps is not None:
            described["start_bps"] = round(traffic.start_mbps * 1e6)
    else:
        described = traffic.model_dump()
        if "mbps" in described:
            factor = load if traffic.kind in ("messages", "video") else 1
            described["rate_bps"] = round(described.pop("mbps") * factor * 1e6)
    return {**fields, "traffic": described}
