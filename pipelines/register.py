"""Stage `register`: registers the last fine-tuned head as a version, judged against the champion.

The decision falls here; `swiftqueue deploy` carries it out once the push has succeeded.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.common.section import read, read_all
from swiftqueue.common.state import private_files
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.quality.distribution_shift import as_rows, sample_inputs
from swiftqueue.models.forecasters.forecaster import Forecaster, load, name_of_kind
from swiftqueue.models.forecasters.queries import replayed
from swiftqueue.models.forecasters.traces import Trace, decision_times, read_traces
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.parameters import Level
from swiftqueue.models.registry import gate
from swiftqueue.models.registry.bars import Verdict
from swiftqueue.models.registry.entering import enter, outcome_line
from swiftqueue.models.registry.lineage import packet_sets
from swiftqueue.models.registry.register_params import RegisterParams
from swiftqueue.models.registry.registry import Registry
from swiftqueue.models.registry.runs import own_sections
from swiftqueue.models.registry.saving import INPUTS_FILE
from swiftqueue.models.registry.store import numbers, texts
from swiftqueue.models.sharp import change_of
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.stage import Given, StageError, run_stage

LAST_SLICES: Final = 12  # slices that judge, as many as in a live round


def last_round(finetuned: Path, trace: str) -> Path:
    """Return the artifact folder of the trace's last fine-tuning round.

    Raises:
        StageError: there is none.
    """
    rounds = {int(p.name.removeprefix("round-")): p for p in (finetuned / trace).glob("round-[0-9]*")}
    if not rounds:
        known = ", ".join(sorted(p.name for p in finetuned.glob("[!.]*") if p.is_dir())) or "none"
        raise StageError(f"no fine-tuned model of trace {trace!r} under {finetuned} (traces there: {known})")
    return rounds[max(rounds)]


def judging(trace: Trace) -> NDArray[np.int64]:
    """Return the decisions (B,) that judge: those of the last test slices that no head was tuned on."""
    rounds = trace.slices.rounds
    tested = [np.arange(one.test.lo, one.test.hi) for one in rounds[-LAST_SLICES:]]
    taught = [np.arange(one.finetune.lo, one.finetune.hi) for one in rounds]
    return np.setdiff1d(np.concatenate(tested), np.concatenate(taught)).astype(np.int64)


def held_out_slices(trace: Trace, judging_B: NDArray[np.int64]) -> tuple[gate.HeldOutDecisions, float]:
    """Return the outcomes of the decisions that judge, and the median latency (µs) before them."""
    whole = trace.to_predict(Slice(0, trace.packets.height // HORIZON))
    y_us_BH = whole.latencies_us()
    before = y_us_BH[: judging_B[0]][np.isfinite(y_us_BH[: judging_B[0]])]
    held_out = gate.HeldOutDecisions(
        replayed(whole).x_DHF[judging_B],
        y_us_BH[judging_B],
        decision_times(trace.packets)[judging_B],
        tuple(each.name for each in INPUTS),
        trace.change,
    )
    return held_out, float(np.median(before)) if before.size else 0.0


def training_inputs(traces: Iterable[Trace]) -> NDArray[np.float32]:
    """Return a sample (N, F) of the queries of all traces' pre-training slices, for measuring drift."""
    x_DHF = [replayed(trace.to_predict(trace.slices.pretrain)).x_DHF for trace in traces]
    return sample_inputs(as_rows(np.concatenate(x_DHF)))


def predictions(found: Forecaster, trace: Trace, judging_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return a version's predictions (B, H), in µs, for the decisions that judge."""
    runs = np.split(judging_B, np.flatnonzero(np.diff(judging_B) != 1) + 1)
    parts = [trace.to_predict(Slice(int(run[0]), int(run[-1]) + 1)) for run in runs]
    return np.concatenate([found.predict(part) for part in parts])


def register(
    params: RegisterParams,
    *,
    traces: Mapping[str, Trace],
    packets: Path,
    finetuned: Path,
    evaluation: Path,
    all_params: dict[str, Any],
    lock: Path,
) -> dict[str, Any]:
    """Register (or find again) the version, judge it, point `challenger` at it; return registered.json.

    Raises:
        StageError: there is no such trace, or the version cannot be served.
    """
    if params.trace not in traces:
        raise StageError(f"no trace {params.trace!r} (there are: {', '.join(traces)})")
    trace = traces[params.trace]
    source = last_round(finetuned, params.trace)
    ours = load(source)
    judging_B = judging(trace)
    held_out, otherwise_us = held_out_slices(trace, judging_B)

    def score(folder: Path) -> gate.ScoreTable:
        return gate.score(predictions(load(folder), trace, judging_B), held_out)

    naive = gate.score_naive(held_out, otherwise_us)

    def judge(
        challenger: gate.ScoreTable,
        champion: gate.ScoreTable | None,
        why_not: str,
        reference: gate.ScoreTable | None,
    ) -> Verdict:
        return gate.judge(challenger, champion, naive, why_not, reference)

    def complete(folder: Path) -> None:
        artifact.export_onnx(folder)
        np.save(folder / INPUTS_FILE, training_inputs(traces.values()))

    def figures(scores: Mapping[str, gate.ScoreTable]) -> dict[str, gate.Figures]:
        return {name: one.figures for name, one in {**scores, **naive}.items()}

    def metrics(scores: Mapping[str, gate.ScoreTable]) -> dict[str, float]:
        named = figures(scores).items()
        return {k: v for name, one in named for k, v in one.as_metrics(f"gate.{name}").items()}

    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as scratch:
        served = Path(scratch) / "artifact"
        served.mkdir()
        try:
            ours.export(served, served_level(all_params, ours))
        except ValueError as error:
            raise StageError(f"{source} cannot be served: {error}") from None
        description = artifact.load(served).description
        entered = enter(
            Registry(params.model_name),
            served,
            score=score,
            judge=judge,
            complete=complete,
            tags={
                "schema_hash": description.schema_hash,
                "protocol": str(description.protocol.get("name", "unknown")),
                "visibility": description.visibility,
                "source": f"{source.parent.name}/{source.name}",
            },
            params=texts(own_sections(all_params, "register")),
            metrics=metrics,
            headline=lambda: headline_figures(evaluation),
            data=packet_sets(packets, traces, lock),
            reports=evaluation,
            lock=lock,
        )
    margin = {"average_precision": gate.AP_MARGIN, "log_mae": gate.LOG_MARGIN}
    named = {name: asdict(one) for name, one in figures(entered.scores).items()}
    return entered.record(margin, named, trace=params.trace, round=source.name)


def served_level(params: Mapping[str, Any], trained: Forecaster) -> Level:
    """Return which of several quantiles the section of a trained forecaster serves."""
    section = params.get(name_of_kind(type(trained))) or {}
    level: Level = section.get("served_level")
    return level


def headline_figures(evaluation: Path) -> dict[str, float]:
    """Return the figures of `dvc metrics` as metrics of the version's run; its files have all scores."""
    path = evaluation / "metrics.json"
    if not path.is_file():
        raise StageError(f"{path} is missing; run the stage `evaluate`")
    return numbers(read_object(path))


def main(
    params: Given, packets: Given, split: Given, finetuned: Given, evaluation: Given, output: Given
) -> None:
    """Read paths from the command line and values from section `register`."""
    private_files()  # the local registry belongs to its owner alone
    section = read(params, RegisterParams)
    if why := section.why_nothing():
        nothing = {"version": None, "model": section.model_name, "trace": section.trace, "why": why}
        write_file(output, json.dumps(nothing, indent=1) + "\n")
        print(why)
        return
    result = register(
        section,
        traces=read_traces(packets, split, change_of(params)),
        packets=packets,
        finetuned=finetuned,
        evaluation=evaluation,
        all_params=read_all(params),
        lock=params.with_name("dvc.lock"),
    )
    write_file(output, json.dumps(result, indent=1) + "\n")
    print(outcome_line(result))


if __name__ == "__main__":
    run_stage("register", main)
