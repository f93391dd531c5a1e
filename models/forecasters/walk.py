"""Forecasters walked forward over traces and scored on packets: the same packets and knowledge for each.

A forecaster is trained on the pre-training slices of all traces. Round by round its head is tuned on the
slice before the boundary and predicts the slice after it from when the round has ended; until then the head
before it does. Beside that stands the same without any tuning.

Shapes: B decisions, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from feature_store.events.event_stream import AS_SENT
from feature_store.packets.schema import HORIZON
from feature_store.packets.truth import Waits
from models.forecasters.forecaster import Forecaster, Part, Say, Trace, Variant, decision_times
from models.forecasters.kept import fit, key_of
from models.forecasters.queries import column, replayed
from models.forecasters.spread import Spread
from models.scoring.choice import RULED, movable_and_moved, score_choice, score_explored, score_sooner
from models.scoring.evaluation import TRACE_OFFSET_NS
from models.scoring.metrics import DRAWN, late_from, score_predictions, score_sharp, score_with_replicates
from models.sharp import Change
from models.training.protocol import Round, Slice, Slices, answered

FORMS: Final = ("tuned", "pretrained")
Floats = NDArray[np.float64]
TRACE_FLOWS: Final = 2**32  # more than one trace has
DRAWS_SEED: Final = 1  # of the blocks of time drawn: the same for all, so that differences are paired


@dataclass(frozen=True)
class Judging:
    """How forecasts are judged: of section `evaluate` of params.yaml."""

    round_s: float  # that a live round on a minute takes until its head answers
    false_alarm_rate: float  # at which the recall of late packets is reported


@dataclass(frozen=True)
class Asked:
    """The packets of all test slices: what came of them, and what was visible of each one's flow."""

    came_BH: NDArray[np.float64]
    last_flow_BH: NDArray[np.float64]  # as `acked` shows it: what is late does not depend on who is asked
    flow_BH: NDArray[np.int64]  # of all traces: no two have the same
    change: Change  # of latency that counts
    trace_B: NDArray[np.int64]  # number of the trace
    time_ns_B: NDArray[np.int64]
    waits_BH3: NDArray[np.float64] | None  # classic, L4S in µs; 1 where the packet is movable
    moved_BH2: NDArray[np.bool_]  # whether the packet is movable, and was moved
    explored: float | None  # share of movable packets that were moved at random; None: none were

    @classmethod
    def of(cls, traces: Sequence[Trace]) -> Asked:
        """Of some traces, one after the other."""
        came, last, flows, numbers, times, waits, moved = [], [], [], [], [], [], []
        changes = {trace.change for trace in traces}
        if len(changes) > 1:
            raise ValueError("the traces do not have one definition of a sharp change")
        for number, trace in enumerate(traces):
            sent_ns = trace.packets["sent_ns"].to_numpy()
            moved_N2 = np.stack(movable_and_moved(trace.packets), -1)
            for each in trace.slices.rounds:
                part = trace.to_predict(each.test)
                came.append(part.latencies_us().astype(np.float64))
                shown = replayed(replace(part, told="all", visibility="acked"))
                last.append(column(shown.x_DHF, "last_latency_flow_us"))
                flows.append(_flows(part) + number * TRACE_FLOWS)
                numbers.append(np.full(len(part), number, np.int64))
                here = slice(each.test.lo * HORIZON, each.test.hi * HORIZON)
                moved.append(moved_N2[here].reshape(-1, HORIZON, 2))
                if trace.waits:
                    waits.append(_waits(trace.waits, each.test))
                times.append(sent_ns[part.first_packets] - sent_ns[0] + number * TRACE_OFFSET_NS)
        return cls(
            np.concatenate(came),
            np.concatenate(last),
            np.concatenate(flows),
            changes.pop(),
            np.concatenate(numbers),
            np.concatenate(times),
            np.concatenate(waits) if all(trace.waits for trace in traces) else None,
            np.concatenate(moved),
            traces[0].explored,
        )


def _flows(part: Part) -> NDArray[np.int64]:
    """Flow of each packet decided, (B, H)."""
    decided = part.packets[part.decisions.lo * HORIZON : part.decisions.hi * HORIZON]
    return decided["flow_id"].to_numpy().astype(np.int64).reshape(-1, HORIZON)


def _waits(waits: Waits, part: Slice) -> NDArray[np.float64]:
    here = slice(part.lo * HORIZON, part.hi * HORIZON)
    columns = waits.classic_us_N[here], waits.l4s_us_N[here], waits.movable_N[here]
    return np.stack([each.astype(np.float64).reshape(-1, HORIZON) for each in columns], -1)


def within_training(traces: Sequence[Trace]) -> list[Trace]:
    """The traces' training slices alone: the last third to predict, so that a choice sees no test slice."""
    chosen = []
    for trace in traces:
        lo, hi = trace.slices.pretrain.lo, trace.slices.pretrain.hi
        middle = hi - (hi - lo) // 3
        tune = Slice(
            max(lo, middle - (hi - lo) // 5), middle
        )  # as the protocols: a fifth of what is trained on
        slices = Slices(
            trace.slices.protocol,
            trace.slices.duration_s,
            Slice(lo, middle),
            (Round(tune, Slice(middle, hi)),),
        )
        packets = trace.to_learn(trace.slices.pretrain).packets
        chosen.append(replace(trace, packets=packets, slices=slices))
    return chosen


def name_of(table: pl.DataFrame) -> str:
    """Name of a packet table's trace."""
    return str(table["trace"][0])


def lessons(traces: Sequence[Trace], also: Sequence[pl.DataFrame] = ()) -> list[Part]:
    """What is learned from: the traces' training slices, and other packet tables from end to end."""
    own = [trace.to_learn(trace.slices.pretrain) for trace in traces]
    whole = [Slice(0, table.height // HORIZON) for table in also]
    return own + [
        Part(name_of(table), table, decisions, traces[0].visibility, traces[0].told, traces[0].change)
        for table, decisions in zip(also, whole, strict=True)
    ]


def key_of_run(variant: Variant, seed: int, work: str) -> str:
    """Name of what `run` gives for some work: the same only for the same sizes and code."""
    return key_of(variant, seed, work, __name__)


def run(
    variant: Variant,
    seed: int,
    traces: Sequence[Trace],
    asked: Asked,
    judging: Judging,
    say: Say,
    also: Sequence[pl.DataFrame] = (),
    kept: Path | None = None,
) -> dict[str, Any]:
    """Fit, tune, predict and score one variant with one seed; plain JSON, without NaN.

    Packet tables of `also` are learned from besides (`lessons`), and not scored. In the folder `kept` is what
    was fitted before, and is not fitted again (`models.forecasters.kept`).

    Raises:
        ValueError: there is nothing to learn from, or training diverged; the line names the traces.
    """
    learned = lessons(traces, also)
    with _learning_from(part.trace for part in learned):
        fitted, fit_cpu_s = fit(variant, seed, learned, say, kept)
    both = asked.waits_BH3 is not None or asked.explored is not None
    walked = _walked(fitted, traces, judging.round_s, both=both)
    found: dict[str, Any] = {
        "variant": variant.name,
        "seed": seed,
        "fit_cpu_s": fit_cpu_s,
        "multiply_adds": fitted.multiply_adds(),
    }
    for form in FORMS:
        said = walked[form]
        scores, drawn = score_with_replicates(
            said.us_BH,
            asked.came_BH,
            asked.last_flow_BH,
            time_ns_B=asked.time_ns_B,
            false_alarm_rate=judging.false_alarm_rate,
            seed=DRAWS_SEED,
            lateness_BH=_lateness(said, asked),
            change=asked.change,
        )
        replicates = {} if drawn is None else {name: getattr(drawn, name) for name in DRAWN}
        parts: dict[str, Any] = {}
        if said.spread is not None:
            parts["spread"] = said.spread.scores(asked.came_BH)
        if said.both is not None and asked.explored is not None:
            classic, l4s = said.both
            parts["explored"] = _explored(classic.us_BH, l4s.us_BH, asked, asked.explored)
        if said.both is not None and asked.waits_BH3 is not None:
            some, regrets = _choice(*said.both, asked.waits_BH3, asked.time_ns_B)
            parts |= some
            replicates |= regrets
        found[form] = {
            "n": scores["n"],
            "late": scores["late"],
            "error": scores["error"],
            "f1": _f1(said.us_BH, asked),
            **parts,
            "by_trace": _by_trace(said, asked),
            "blocks": 0 if drawn is None else drawn.blocks,
            "draws": {
                name: [None if not np.isfinite(v) else round(float(v), 5) for v in values]
                for name, values in replicates.items()
            },
        }
    return found


@contextmanager
def _learning_from(traces: Iterable[str]) -> Iterator[None]:
    """Name the traces that are learned from before the line of what fails."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"learning from {', '.join(traces)}: {error}") from error


def _lateness(said: _Said, asked: Asked) -> Floats | None:
    """How likely each packet is late, (B, H), where the forecaster has quantiles."""
    return None if said.spread is None else said.spread.above(late_from(asked.last_flow_BH, asked.change))


def _by_trace(said: _Said, asked: Asked) -> dict[str, list[float | None]]:
    """The scores that get intervals, of each trace alone."""
    lateness_BH = _lateness(said, asked)
    found: dict[str, list[float | None]] = {name: [] for name in (*DRAWN, "regret_ms", *RULED)}
    for number in np.unique(asked.trace_B):
        rows = asked.trace_B == number
        some = said.of(rows)
        scores = score_predictions(
            some.us_BH,
            asked.came_BH[rows],
            asked.last_flow_BH[rows],
            change=asked.change,
            lateness_BH=None if lateness_BH is None else lateness_BH[rows],
        )
        found["average_precision"].append(scores["late"]["average_precision"])
        found["mae_ms"].append(scores["error"]["mae_ms"])
        if some.both is not None and asked.waits_BH3 is not None:
            chosen, _ = _choice(*some.both, asked.waits_BH3[rows], asked.time_ns_B[rows])
            found["regret_ms"].append(chosen["choice"]["regret_ms"])
            for name in RULED:
                found[name].append(chosen["sooner"][name])
    return found


def _f1(us_BH: Floats, asked: Asked) -> dict[str, float | None]:
    """F1 of sharp changes in both variants, from the sender's packet before and from the flow's."""
    known = np.isfinite(asked.came_BH)
    pred_N, came_N, flow_N = us_BH[known], asked.came_BH[known], asked.flow_BH[known]
    trace_N = np.repeat(asked.trace_B, HORIZON)[known.ravel()]  # no change is counted across two traces
    by_sender, by_flow = (score_sharp(pred_N, came_N, asked.change, each) for each in (trace_N, flow_N))
    return {
        f"{variant}{end}": scores[variant]["all"]["f1"]
        for end, scores in (("", by_sender), ("_by_flow", by_flow))
        for variant in scores
    }


def _choice(
    classic: _Said, l4s: _Said, waits_BH3: Floats, time_ns_B: NDArray[np.int64]
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Scores of the packets that may be moved, and their draws.

    Each goes where the forecast is less, and stays where they are equal; then, by the rules on how probable
    it is that the classic queue is faster. Who forecasts one latency is sure.
    """
    movable = waits_BH3[..., 2] > 0
    faster_BH = classic.us_BH < l4s.us_BH
    sooner_BH = faster_BH.astype(np.float64)
    if classic.spread is not None and l4s.spread is not None:
        sooner_BH = classic.spread.sooner_than(l4s.spread)
    classic_us_N, l4s_us_N = waits_BH3[movable][:, :2].T
    known = classic_us_N, l4s_us_N, np.repeat(time_ns_B, HORIZON)[movable.ravel()], DRAWS_SEED
    choice, regrets = score_choice(faster_BH[movable], *known)
    sooner, drawn = score_sooner(sooner_BH[movable], *known)
    return {"choice": choice, "sooner": sooner}, drawn | ({} if regrets is None else {"regret_ms": regrets})


def _explored(classic_us_BH: Floats, l4s_us_BH: Floats, asked: Asked, share: float) -> dict[str, Any]:
    """What the same choice gains over never moving, by the packets that were moved at random."""
    movable = asked.moved_BH2[..., 0]
    time_ns_N = np.repeat(asked.time_ns_B, HORIZON)[movable.ravel()]
    return score_explored(
        (classic_us_BH < l4s_us_BH)[movable],
        asked.moved_BH2[..., 1][movable],
        asked.came_BH[movable],
        share,
        time_ns_N,
        DRAWS_SEED,
    )


@dataclass(frozen=True)
class _Said:
    """What was forecast of all test slices, (B, H)."""

    us_BH: Floats
    spread: Spread | None
    both: tuple[_Said, _Said] | None = None  # asked for the classic queue, and for the other

    def of(self, rows: NDArray[np.bool_]) -> _Said:
        """The same of some decisions."""
        spread = self.spread and Spread(self.spread.levels, self.spread.us_BHL[rows])
        both = self.both and (self.both[0].of(rows), self.both[1].of(rows))
        return _Said(self.us_BH[rows], spread, both)


def _walked(fitted: Forecaster, traces: Sequence[Trace], round_s: float, *, both: bool) -> dict[str, _Said]:
    """Forecasts of all test slices, with the head that answers and with that of training.

    Both queues are asked for with each round's head only: it doubles the time.
    """
    parts: list[tuple[Forecaster, Part]] = []
    for trace in traces:
        heads = {-1: fitted}
        rounds = trace.slices.rounds
        after_s = trace.slices.protocol.answers_after_s(round_s)
        pieces = answered(rounds, decision_times(trace.packets), after_s)
        for k, (each, some) in enumerate(zip(rounds, pieces, strict=True)):
            head = heads[k - 1]
            with _learning_from([trace.name]):
                heads[k] = head.tuned(trace.to_learn(each.finetune)) if len(each.finetune) else head
            parts += [(heads[piece.head], trace.to_predict(piece.part)) for piece in some]
    said = _said(parts)
    if both:
        said = replace(said, both=(_said(parts, 0), _said(parts, 1)))
    unchanged = all(tuned is fitted for tuned, _ in parts)
    plain = replace(said, both=None) if unchanged else _said([(fitted, part) for _, part in parts])
    return {"tuned": said, "pretrained": plain}


def _said(parts: Sequence[tuple[Forecaster, Part]], queue: int = AS_SENT) -> _Said:
    spreads = [each.spread(part, queue) for each, part in parts]
    whole = [each for each in spreads if each is not None]
    if whole:
        spread = Spread.joined(whole)
        return _Said(spread.median_us.astype(np.float64), spread)
    return _Said(_joined([each.predict(part, queue) for each, part in parts]), None)


def _joined(parts: Sequence[NDArray[np.float32]]) -> Floats:
    return np.concatenate(parts).astype(np.float64)
