"""`swiftqueue lab explain`: one run with the model, what it predicted beside what came, and its tail.

A model harms where it is wrong, and a P99 of a short run can be one burst: this tells both from a choice that
was bad though the prediction was right.
"""

# Shapes: N packets of S1, B logged questions, H horizon (8 packets); 2 windows, all classic and as marked.

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.packets.schema import QUEUES
from swiftqueue.feature_store.packets.truth import TRUTH
from swiftqueue.laboratory.command import NO_CHOICE, Request, adjusted
from swiftqueue.laboratory.learning.judged_models import check_acks, model_at, models_by_profile
from swiftqueue.laboratory.runs import execution, programs
from swiftqueue.laboratory.runs.resolve import Cell, check_tables, control_of, identity, resolve
from swiftqueue.laboratory.scenarios.files import environment_at, files_of, load
from swiftqueue.laboratory.scenarios.schema import TRAINING_SEEDS_FROM, Scenario, profile_named

QUESTIONS: Final = "questions.npy"
CLASSIC, L4S = map(QUEUES.index, ("classic", "l4s"))  # in truth, questions, and the windows that ask
APART_S: Final = 0.1  # packets of a tail that left further apart are of two episodes
FEWEST: Final = 10  # packets, of which a median says something


@dataclass(frozen=True)
class Errors:
    """Predictions for packets to one receiver beside the latencies that came; NaN where there are few."""

    receiver: str
    least_ms: float  # any of its packets' latency
    moved: float  # share of its packets
    asked: int  # packets with a prediction and a latency
    came_ms: tuple[float, float]  # medians: of those that left as classic, as L4S
    predicted_ms: tuple[float, float]
    error_ms: tuple[float, float]  # mean, absolute
    l4s_worse_ms: float  # median of the prediction for L4S less that for classic, of all


@dataclass(frozen=True)
class Tail:
    """The L4S packets whose queueing delay is above P99."""

    p99_ms: float
    packets: int
    episodes: int
    seconds: float  # length of all episodes together
    largest: float  # share of these packets in the largest episode


def explain(
    name: str,
    *,
    artifact: str,
    profile: str,
    point: str,
    seed: int,
    seconds: float | None,
    output: Path,
) -> int:
    """Run a scenario's point with control model, keep its questions, and print the tables; 1 if it failed.

    Raises:
        ValueError: scenario, point, profile, seed or model is wrong, or heads change during the run.
    """
    profile = profile_named(profile)
    ((stem, path),) = files_of([name]).items()
    scenario = adjusted(load(path), Request([name], seconds=seconds, controls=["default", "model"]))
    _check(scenario, stem, profile, point, seed)
    check_tables(stem, scenario, [point])
    environment = environment_at(scenario, point, f"{stem}.yaml")
    if not environment.chooses():
        raise ValueError(f"{', '.join(filter(None, (stem, point)))}: {NO_CHOICE}")
    with execution.sole_user(output):
        models = models_by_profile(artifact, output)
        if (model := model_at(models, point, profile, stem)) is None:
            raise ValueError(f"--artifact {artifact} has no {profile}/")
        check_acks(models, {stem: scenario})
        program, build = programs.build()
        control = control_of(environment, "model", model=model, share=0.0)
        cell = Cell(stem, point, None, profile, "model", seed)
        run = resolve(scenario, cell, control, ["questions", "truth"])
        if run["finetune"] is not None:
            raise ValueError(f"{stem}: its heads change during the run; name a scenario without fine-tuning")
        job = execution.Job(identity(run, build), run, model.folder)
        problems = execution.run_missing(program, output.resolve(), [job], "the run")
    if problems:
        print(f"not run: {cell.words()}: {problems[job.identity]}")
        return 1
    from swiftqueue.serving.engine import Engine

    folder = execution.folder_of(output, job.identity)
    truth_N, questions_B = np.load(folder / TRUTH), np.load(folder / QUESTIONS)
    groups = run["senders"][0]["groups"]
    receivers = [group["receiver"] for group in groups for _ in range(group["flows"])]
    warmup_ns = round(run["warmup_s"] * 1e9)
    _print(
        f"{cell.words()}, {run['seconds']:g} s",
        list(errors(truth_N, questions_B, receivers, warmup_ns, Engine(model.folder).forward)),
        tail(truth_N, warmup_ns),
    )
    return 0


def errors(
    truth_N: NDArray[Any],
    questions_B: NDArray[Any],
    receivers: list[str],
    warmup_ns: int,
    forward: Callable[[NDArray[np.float32]], NDArray[np.float32]],
) -> Iterator[Errors]:
    """Compare predictions with what came, by receiver of S1's L4S flows.

    Args:
        truth_N: `truth.npy` of the run (simulation/doc/lab.md).
        questions_B: its `questions.npy`.
        receivers: the receiver of each of S1's flows.
        warmup_ns: packets that left before are left out.
        forward: predictions in us, of windows.
    """
    l4s_N = truth_N["default_queue"] == L4S
    later_N = l4s_N & (truth_N["sent_ns"] >= warmup_ns)
    to_N = np.array(receivers)[truth_N["flow"]]
    places, predicted_us = _predictions(truth_N, questions_B, forward)
    kept = later_N[places] & ~np.isnan(truth_N["latency_us"][places])
    asked, predicted_ms = truth_N[places[kept]], predicted_us[kept] / 1e3
    to = to_N[places[kept]]
    for receiver in dict.fromkeys(receivers):
        here_N, here = later_N & (to_N == receiver), to == receiver
        if not here_N.any():
            continue
        took = [here & (asked["queue"] == queue) for queue in (CLASSIC, L4S)]
        came_ms = [asked["latency_us"][some] / 1e3 for some in took]
        expected_ms = [predicted_ms[some, queue] for queue, some in enumerate(took)]
        yield Errors(
            receiver,
            least_ms=float(np.fmin.reduce(truth_N["latency_us"][l4s_N & (to_N == receiver)])) / 1e3,
            moved=float((truth_N["queue"][here_N] == CLASSIC).mean()),
            asked=int(here.sum()),
            came_ms=(_median(came_ms[CLASSIC]), _median(came_ms[L4S])),
            predicted_ms=(_median(expected_ms[CLASSIC]), _median(expected_ms[L4S])),
            error_ms=(_off(expected_ms[CLASSIC], came_ms[CLASSIC]), _off(expected_ms[L4S], came_ms[L4S])),
            l4s_worse_ms=_median(predicted_ms[here, L4S] - predicted_ms[here, CLASSIC]),
        )


def tail(truth_N: NDArray[Any], warmup_ns: int) -> Tail | None:
    """Return what the L4S packets above P99 of queueing delay are: many moments, or a few bursts.

    None: no such packet came.
    """
    later_N = (truth_N["default_queue"] == L4S) & (truth_N["sent_ns"] >= warmup_ns)
    rows = truth_N[later_N & ~np.isnan(truth_N["queueing_us"])]
    if not len(rows):
        return None
    p99_us = float(np.percentile(rows["queueing_us"], 99))
    times_s = np.sort(rows["sent_ns"][rows["queueing_us"] >= p99_us]) / 1e9
    episodes = np.split(times_s, np.flatnonzero(np.diff(times_s) > APART_S) + 1)
    return Tail(
        p99_us / 1e3,
        len(times_s),
        len(episodes),
        float(sum(one[-1] - one[0] for one in episodes)),
        max(map(len, episodes)) / len(times_s),
    )


def _predictions(
    truth_N: NDArray[Any], questions_B: NDArray[Any], forward: Callable[..., NDArray[np.float32]]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the packets that were foreseen in a logged question (places in truth), and both predictions.

    A candidate is the next packet of its flow among the eight that left. The questions number the flows as
    their packets came; the first candidate is the packet that is about to leave, and so names its flow.
    """
    named = {int(one["flow"][0]): int(truth_N["flow"][one["first_packet"]]) for one in questions_B}
    index, predicted = [], []
    for question in questions_B[questions_B["windows"] == 2]:
        first = int(question["first_packet"])
        flows = truth_N["flow"][first : first + len(question["flow"])].tolist()
        y_2H = forward(np.ascontiguousarray(question["x_BWF"]))
        for place, flow in enumerate(named.get(int(one)) for one in question["flow"]):
            if flow in flows:
                index.append(first + flows.index(flow))
                predicted.append(y_2H[:, place])
                flows[flows.index(flow)] = None
    return np.array(index, np.int64), np.array(predicted, np.float32).reshape(-1, 2)


def _median(values: NDArray[np.floating[Any]]) -> float:
    return float(np.median(values)) if len(values) >= FEWEST else float("nan")


def _off(predicted: NDArray[np.floating[Any]], came: NDArray[np.floating[Any]]) -> float:
    return float(np.abs(predicted - came).mean()) if len(came) >= FEWEST else float("nan")


def _check(scenario: Scenario, stem: str, profile: str, point: str, seed: int) -> None:
    if profile not in scenario.profiles:
        raise ValueError(f"--profile {profile}: {stem} has {', '.join(scenario.profiles)}")
    points = list(scenario.axis.points) if scenario.axis else []
    if point not in (points or [""]):
        there = f"{stem} has {', '.join(points)}" if points else f"{stem} has no points"
        raise ValueError(f"--point {point or '(none)'}: {there}")
    if not 1 <= seed < TRAINING_SEEDS_FROM:
        raise ValueError(f"--seed {seed}: give 1 to {TRAINING_SEEDS_FROM - 1}")


def _print(title: str, found: list[Errors], end: Tail | None) -> None:
    if end is None:
        print(f"{title}: no L4S packet of S1 that left after the warm-up came")
        return
    from rich.console import Console
    from rich.table import Table

    print(title)
    table = Table(title="ms; medians of what was predicted for the queue that was taken, and of what came")
    for head in ("S1's L4S flows to", "least", "moved", "packets asked about"):
        table.add_column(head, justify="right")
    for queue in ("L4S", "classic"):
        for head in ("predicted", "came", "mean error"):
            table.add_column(f"{queue}: {head}", justify="right")
    table.add_column("predicted L4S - classic", justify="right")
    for one in found:
        cells = [one.receiver, _ms(one.least_ms), f"{one.moved:.0%}", f"{one.asked:,}"]
        for place in (L4S, CLASSIC):
            cells += map(_ms, (one.predicted_ms[place], one.came_ms[place], one.error_ms[place]))
        table.add_row(*cells, _ms(one.l4s_worse_ms, "+"))
    Console(width=150).print(table)
    print(
        f"P99 of queueing delay {end.p99_ms:.1f} ms: the {end.packets:,} packets above it left in "
        f"{end.episodes} episodes of {end.seconds:.2f} s together, {end.largest:.0%} of them in the largest"
    )


def _ms(value: float, sign: str = "") -> str:
    return "–" if np.isnan(value) else f"{value:{sign}.1f}"
