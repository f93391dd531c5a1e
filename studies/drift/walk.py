"""Walk forward over a joined trace as the live loop does, under several ways of keeping the model fresh.

Each round is the loop's own (`pipelines/live/minute.py`): it tunes, judges and remembers. What is served in
the window after a round is scored on that window, from which nobody has learned.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.quality.distribution_shift import as_rows, sample_inputs
from swiftqueue.models.forecasters.forecaster import Variant
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import TracePart, decision_times
from swiftqueue.models.networks import artifact
from swiftqueue.models.registry import gate
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import LEAST_DECISIONS
from swiftqueue.pipelines.live import DRIFT
from swiftqueue.pipelines.live.encoding import Decisions, load
from swiftqueue.pipelines.live.minute import Minute, TuningResult, tune
from swiftqueue.pipelines.live.reservoir import EMPTY, Reservoir
from swiftqueue.pipelines.live.rounds_log import DeclinedError
from swiftqueue.pipelines.live.slices import KEPT, JudgingSlice, encoder_of
from swiftqueue.studies.drift.traces import JoinedTrace, between

Files = Mapping[str, bytes]
ROUND_SHARE: Final = 11.1 / 300  # time of a live round until its head answers, as a share of the five minutes
RETRAIN_ROUNDS: Final = 2  # rounds of telemetry that a re-train gets: ten minutes of the loop
PAUSE_ROUNDS: Final = 12  # rounds from one re-train to the next: an hour of the loop
NEVER: Final = "never tuned"
TUNED: Final = "tuned"
MEMORY: Final = "tuned, with memory"
RETRAINED: Final = "re-trained, older half"
FRESH: Final = "re-trained, newer half"


@dataclass(frozen=True)
class Policy:
    """A way of keeping the model fresh."""

    name: str
    memory_decisions: int = 0
    lesson: tuple[float, float] | None = (
        None  # part of a re-train's telemetry that teaches; None: none is made
    )


# The loop's re-train learns from the older half of its ten minutes: its protocol tests on the rest.
POLICIES: Final = (
    Policy(TUNED),
    Policy(MEMORY, 4096),
    Policy(RETRAINED, 4096, (0.0, 0.5)),
    Policy(FRESH, 4096, (0.5, 1.0)),
)


@dataclass(frozen=True)
class Lengths:
    """The lengths of a walk, in seconds and rounds."""

    train_s: float = 60  # beginning of the trace that the first model is trained on; also a new state's model
    every_s: float = 20  # from round to round; stands for the loop's five minutes
    judge_s: float = 4  # the newest seconds, which judge; those before them since the last round teach
    before: int = 4  # rounds before the change
    after: int = 5  # windows after the change; there is a round between each two


@dataclass(frozen=True)
class Trained:
    """A trained model, and a sample of the inputs that it was trained on."""

    files: Files
    inputs_NF: NDArray[np.float32]

    @classmethod
    def on(cls, parts: Sequence[TracePart], variant: Variant, seed: int) -> Trained:
        """Train a model.

        Raises:
            ValueError: there are no training data, or training diverged.
        """
        found = variant.fit(parts, seed)
        with tempfile.TemporaryDirectory() as folder:
            found.write(Path(folder))
            files = artifact.read_files(Path(folder))
        rows = np.concatenate([as_rows(replayed(part).x_DHF) for part in parts])
        return cls(files, sample_inputs(rows))


@dataclass(frozen=True)
class LoopState:
    """The state that a loop keeps from round to round."""

    served: Files
    before: Files  # the version that was served before the last round
    trained: Trained  # the model that brought the served encoder: the gate's reference
    slices: tuple[JudgingSlice, ...] = ()
    reservoir: Reservoir = EMPTY
    candidate: Trained | None = None  # a re-train that waits to be judged
    retrained_in: int | None = None  # round that started the last re-train


@dataclass
class Walk:
    """A joined trace, the models that walk over it, and what is computed once for all of them."""

    trace: JoinedTrace
    lengths: Lengths
    variant: Variant
    how: FinetuneParams
    seed: int
    _encoded: dict[tuple[str, int, int], Decisions] = field(default_factory=dict)
    _loaded: dict[int, tuple[Files, NetworkForecaster, str]] = field(default_factory=dict)

    def round(
        self, state: LoopState, memory_decisions: int, from_ns: int, at_ns: int
    ) -> tuple[LoopState, dict[str, Any]]:
        """Run a round on the packets since the last one; return the next state and what happened."""
        part = between(self.trace.known_at(at_ns), from_ns, at_ns + 1)
        retrained = state.candidate
        minute = Minute(
            packets=part.packets,
            beginning=part.beginning,
            learn_from_ns=from_ns,
            judge_from_ns=at_ns - round(self.lengths.judge_s * 1e9),
            champion=state.served,
            params=self.how,
            trained_on=state.trained.inputs_NF,
            least_decisions=LEAST_DECISIONS,
            retrained=retrained.files if retrained else None,
            reference=None if state.served is state.trained.files else state.trained.files,
            earlier=state.slices,
            reservoir=state.reservoir,
            memory_decisions=memory_decisions,
        )
        try:
            found = tune(minute)
        except DeclinedError as error:
            return replace(state, before=state.served), {"outcome": "declined", "reason": str(error)}
        served = found.files if found.verdict.passed else state.served
        trained = state.trained
        if retrained and found.verdict.passed:
            trained = Trained(served, retrained.inputs_NF)
        after = replace(
            state,
            served=served,
            before=state.served,
            trained=trained,
            slices=_kept(state.slices, found),
            reservoir=found.reservoir or state.reservoir,
            candidate=None,
        )
        return after, {
            "outcome": "pushed" if found.verdict.passed else "kept",
            "reason": found.verdict.reason,
            "psi": max(found.psi.values()),
            "retrained": retrained is not None,
        }

    def version(self, files: Files) -> tuple[NetworkForecaster, str]:
        """Return the model of some files, and the hash of its encoder; each is loaded once."""
        if id(files) not in self._loaded:
            found = load(files)
            self._loaded[id(files)] = files, found, encoder_of(found)  # the files stay, and so does their id
        return self._loaded[id(files)][1:]

    def errors(self, files: Files, from_ns: int, to_ns: int) -> gate.Figures | None:
        """Return the figures of a model on the decisions in a window; None if there is none."""
        answered = self.answers(files, from_ns, to_ns)
        return None if answered is None else self.score(answered, from_ns, to_ns)

    def answers(self, files: Files, from_ns: int, to_ns: int) -> NDArray[np.float32] | None:
        """Return the answers in µs (B, H) of a model on a window; None if there is no decision."""
        version, encoder = self.version(files)
        key = encoder, from_ns, to_ns
        part = between(self.trace.packets, from_ns, to_ns)
        if not len(part):
            return None
        if key not in self._encoded:
            self._encoded[key] = Decisions.of(version, part)
        return version.answer(self._encoded[key].encoded)

    def score(self, us_BH: NDArray[np.float32], from_ns: int, to_ns: int) -> gate.Figures:
        """Return the gate's figures of answers on a window."""
        part = between(self.trace.packets, from_ns, to_ns)
        shown = next(each for key, each in self._encoded.items() if key[1:] == (from_ns, to_ns))
        names = tuple(feature.name for feature in EVENTS.features)
        held_out = gate.HeldOutDecisions(shown.candidates_BHF, part.latencies_us(), _times(part), names)
        return gate.score(us_BH, held_out, drawn=False).figures

    def served_in(self, state: LoopState, from_ns: int, to_ns: int) -> NDArray[np.float32] | None:
        """Return the answers in a window: by the former head until the round that begins it has ended."""
        new_BH = self.answers(state.served, from_ns, to_ns)
        former_BH = self.answers(state.before, from_ns, to_ns)
        if new_BH is None or former_BH is None or state.before is state.served:
            return new_BH
        part = between(self.trace.packets, from_ns, to_ns)
        late_B = _times(part) < from_ns + round(self.lengths.every_s * ROUND_SHARE * 1e9)
        return np.where(late_B[:, None], former_BH, new_BH)

    def retrain(self, state: LoopState, share: tuple[float, float], number: int, at_ns: int) -> LoopState:
        """Return the state with a re-train on a part of the newest telemetry, if one may start now.

        Raises:
            ValueError: training diverged.
        """
        if state.retrained_in is not None and number - state.retrained_in < PAUSE_ROUNDS:
            return state
        span_ns = round(RETRAIN_ROUNDS * self.lengths.every_s * 1e9)
        from_ns, to_ns = (at_ns - span_ns + round(one * span_ns) for one in share)
        lesson = between(self.trace.known_at(at_ns), from_ns, to_ns).to_learn()
        return replace(state, candidate=Trained.on([lesson], self.variant, self.seed), retrained_in=number)


def _times(part: TracePart) -> NDArray[np.int64]:
    """Return the times of a part's decisions, (B,) in ns."""
    return decision_times(part.packets)[part.decisions.lo : part.decisions.hi]


def _kept(slices: tuple[JudgingSlice, ...], found: TuningResult) -> tuple[JudgingSlice, ...]:
    by_time = {one.from_ns: one for one in slices} | {one.from_ns: one for one in found.slices}
    return tuple(by_time[from_ns] for from_ns in sorted(by_time))[-KEPT:]


def walked(
    walk: Walk,
    start: Mapping[str, LoopState],
    policies: Sequence[Policy],
    times_ns: Sequence[int],
    first: int,
) -> Iterator[tuple[int, dict[str, LoopState], dict[str, dict[str, Any]]]]:
    """Yield number, states and records by policy, for rounds at `times_ns[1:]`, the first numbered `first`.

    Policies whose states are the same object share a round: until a re-train starts they do the same.
    """
    states = dict(start)
    for number, (from_ns, at_ns) in enumerate(itertools.pairwise(times_ns), start=first):
        done: dict[tuple[int, int], tuple[LoopState, dict[str, Any]]] = {}
        records = {}
        for policy in policies:
            state = states[policy.name]
            key = id(state), policy.memory_decisions
            if key not in done:
                done[key] = walk.round(state, policy.memory_decisions, from_ns, at_ns)
            after, record = done[key]
            records[policy.name] = record
            if policy.lesson and record.get("psi", 0.0) > DRIFT and not record["retrained"]:
                after = walk.retrain(after, policy.lesson, number, at_ns)
            states[policy.name] = after
        yield number, dict(states), records
