"""A round's arithmetic for rates: which flows teach, which judge, and a new linear head. Pure.

Of each path the newest flows judge and never teach, in this round or a later one; the older ones teach in
every round, since a head that learns from new paths alone forgets the others. Flows of held-out paths judge.
What the stages trained a network on neither teaches nor judges.

Shapes: N flows, S samples (35), D width of what the head reads, H horizons (6), P paths.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from swiftqueue.common.section import Above0, Count, Section
from swiftqueue.studies.rate.model.flows import Flows
from swiftqueue.studies.rate.model.network import RateNetwork
from swiftqueue.studies.rate.model.networks import percentage_errors
from swiftqueue.studies.rate.samples.definition import MOST_SAMPLES, PREFIXES

TUNED_ON: Final = "tuned_on"  # in a network's description: the paths that its rounds learned from, as below
HEAD: Final = "out"  # the last linear layer of every kind of network
_ENCODE_BATCH: Final = 256  # flows


class RateRoundParams(Section):
    """A round of the rate model (README.md); read by `swiftqueue rate round`, by no stage."""

    section: ClassVar = "rate_round"
    seed: Annotated[int, Field(ge=0, le=2**31)]
    """Seed of the order of the flows."""
    epochs: Count
    """Number of passes over the flows that teach."""
    batch_size: Count
    """Number of flows of a step."""
    learning_rate: Above0
    """Learning rate of Adam."""
    judge_share: Annotated[float, Field(gt=0, lt=1)]
    """Number of a path's newest flows that judge and never teach."""
    least_flows: Count
    """Fewer that teach, or that judge: the round is declined."""


@dataclass(frozen=True)
class Division:
    """Flows of a round."""

    learn: Flows  # with the rates that were known when the first flow of the path that judges began
    judge: Flows  # with the rates at the horizons that are taught
    taught: Mapping[str, str]  # paths that teach: the name of each, by its identity
    new: Mapping[str, str]  # paths that no round has learned from, likewise
    came: int  # flows of these paths
    short: int  # number of them that ended before the last sample: they neither teach nor judge


def identity(name: str, path: Mapping[str, Any]) -> str:
    """Return the facts that tell a path's flows from others of its name; being held out is not among them."""
    said = json.dumps([name, {key: value for key, value in path.items() if key != "kind"}], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def trained_on(about: Mapping[str, Any]) -> set[str]:
    """Identities of the paths that a network was trained on, by its description."""
    paths = about.get("made_of", {}).get("paths", {}).items()
    return {identity(name, path) for name, path in paths if path["kind"] == "train"}


def divide(
    every: Flows,
    paths: Mapping[str, Mapping[str, Any]],
    *,
    trained: Collection[str],
    tuned: Collection[str],
    share: float,
) -> Division:
    """Divide flows by path and time.

    Args:
        every: the flows.
        paths: description of each path, in the order of their numbers in `every`.
        trained: identities of paths that the network was trained on.
        tuned: names of paths that rounds have learned from.
        share: share of a path's flows that judges.
    """
    identities = [identity(name, path) for name, path in paths.items()]
    trained_P = np.array([one in trained for one in identities])
    known_P = trained_P | np.array([one in tuned for one in identities])
    whole_N = every.samples_N >= MOST_SAMPLES
    newest_N, y_NH = np.zeros(len(every), bool), every.y_NH.copy()
    for path in np.unique(every.path_N[whole_N]):
        rows = np.flatnonzero((every.path_N == path) & whole_N)
        rows = rows[np.argsort(every.started_N[rows], kind="stable")]
        first = len(rows) - math.ceil(share * len(rows))
        older, newest_N[rows[first:]] = rows[:first], True
        # A rate that was reached later than that is none that a sender could have learned from.
        later = ~(every.at_NH[older] < every.started_N[rows[first]])
        y_NH[older] = np.where(later, np.nan, y_NH[older])
    came_N = ~every.held_out_N & ~known_P[every.path_N]
    own_N = whole_N & ~trained_P[every.path_N] & ~every.held_out_N
    learn_N = own_N & ~newest_N & np.isfinite(y_NH).any(1)
    taught_H = np.isfinite(y_NH[learn_N]).any(0)
    judged_NH = np.where(taught_H, every.y_NH, np.nan)
    held_out_N = whole_N & ~known_P[every.path_N] & every.held_out_N
    judge_N = (held_out_N | own_N & newest_N) & np.isfinite(judged_NH).any(1)

    def of(chosen_N: NDArray[np.bool_]) -> dict[str, str]:
        there = set(every.path_N[chosen_N].tolist())
        named = enumerate(zip(identities, paths, strict=True))
        return {one: name for place, (one, name) in named if place in there}

    return Division(
        replace(every, y_NH=y_NH).take(learn_N),
        replace(every, y_NH=judged_NH).take(judge_N),
        of(learn_N),
        of(came_N),
        int(came_N.sum()),
        int((came_N & ~whole_N).sum()),
    )


def tune_head(
    network: RateNetwork, flows: Flows, params: RateRoundParams
) -> tuple[RateNetwork, tuple[float, float]]:
    """Fine-tune a copy of a network's linear head; all else of the copy is the network's, bit for bit.

    Returns the copy, for inference, and its error on the flows before and after.

    Raises:
        ValueError: the error is no longer finite.
    """
    tuned = copy.deepcopy(network).eval()
    tuned.requires_grad_(False)
    head = tuned.get_submodule(HEAD).requires_grad_()
    read_NSD, rest_NSH = _encode(tuned, head, torch.from_numpy(flows.x_NSF))
    y_NH = torch.from_numpy(flows.y_NH).float()
    asked_S = torch.arange(MOST_SAMPLES)[:, None] >= min(PREFIXES) - 1
    weight_NSH = asked_S * torch.isfinite(y_NH)[:, None]

    def error(rows: Tensor) -> Tensor:
        errors = percentage_errors(head(read_NSD[rows]) + rest_NSH[rows], y_NH[rows])
        return (errors * weight_NSH[rows]).sum() / weight_NSH[rows].sum().clamp(min=1)

    every, order = torch.arange(len(flows)), torch.Generator().manual_seed(params.seed)
    optimizer = torch.optim.Adam(head.parameters(), lr=params.learning_rate)
    with torch.no_grad():
        before = float(error(every))
    for _ in range(params.epochs):
        for rows in torch.randperm(len(flows), generator=order).split(params.batch_size):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            error(rows).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(head.parameters(), 1.0)
            optimizer.step()
    with torch.no_grad():
        after = float(error(every))
    if not math.isfinite(after):
        raise ValueError(f"the head diverged (error {after}); lower rate_round.learning_rate")
    return tuned.requires_grad_(), (before, after)


def _encode(network: RateNetwork, head: nn.Module, x_NSF: Tensor) -> tuple[Tensor, Tensor]:
    """The head's inputs (N, S, D), and the offset of its answers (N, S, H): neither changes with it."""
    read: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: read.append(given[0]))
    try:
        with torch.no_grad():
            log_NSH = torch.cat([network(rows) for rows in x_NSF.split(_ENCODE_BATCH)])  # type: ignore[no-untyped-call]
    finally:
        hook.remove()
    read_NSD = torch.cat(read)
    with torch.no_grad():
        return read_NSD, log_NSH - head(read_NSD)
