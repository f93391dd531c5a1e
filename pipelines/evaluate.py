"""Stage `evaluate`: walk-forward scores of the predictor and its baselines, plots and the report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import polars.selectors as cs
import typer
from pydantic import Field

from swiftqueue.common.atomic import new_folder, write_file
from swiftqueue.common.section import Section, read, read_all
from swiftqueue.models.forecasters.forecaster import Forecaster, load, name_of_kind
from swiftqueue.models.forecasters.selection import chosen_in
from swiftqueue.models.forecasters.traces import Trace, lessons, read_traces, tested
from swiftqueue.models.forecasters.walk import AT_ONCE as AS_IF_AT_ONCE
from swiftqueue.models.forecasters.walk import PRETRAINED as UNTUNED
from swiftqueue.models.forecasters.walk import TUNED, Heads, predict_trace, tune_heads
from swiftqueue.models.registry.lineage import packet_sets
from swiftqueue.models.registry.runs import stage_run
from swiftqueue.models.repeated.forecaster import RepeatedLatency, RepeatedParams
from swiftqueue.models.scoring import plot_tables
from swiftqueue.models.scoring.baselines import LAST_VISIBLE
from swiftqueue.models.scoring.evaluation import DIGITS, HEADLINE_METHODS, headline, stable
from swiftqueue.models.scoring.evaluation import evaluate as score
from swiftqueue.models.scoring.predictions import (
    AT_ONCE,
    EWMA,
    FINETUNED,
    PRETRAINED,
    TREES,
    TREES_CONTINUED,
    VIRTUAL_QUEUES,
    TracePredictions,
)
from swiftqueue.models.scoring.verdict import verdict
from swiftqueue.models.sharp import Change, change_of
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import ROUND_S
from swiftqueue.models.trees.forecaster import Trees, TreesParams
from swiftqueue.models.virtual_queue.forecaster import Rates, VirtualQueue, VirtualQueueParams
from swiftqueue.pipelines.stage import Given, run_stage

RATES: Final[Sequence[Rates]] = ("fitted", "online")  # rates of the two virtual queues
BY_ROUND: Final = ("average_precision", "mae_ms")  # scores that are logged by round


class EvaluateParams(Section):
    """How the predictor is scored and compared with its baselines."""

    section: ClassVar = "evaluate"
    seed: Annotated[int, Field(ge=0)]
    """Seed of the trees and of the bootstrap's draws."""
    xgboost_rounds: Annotated[int, Field(ge=1)]
    """Number of boosted trees in the baseline."""
    false_alarm_rate: Annotated[float, Field(gt=0, lt=1)]
    """Share of false alarms at which the recall of late packets is reported."""
    round_s: Annotated[float, Field(ge=0, default=ROUND_S)]
    """Seconds from the end of a live round's minute until its head answers; an earlier head answers before.
    They scale with the length of a shorter fine-tuning slice."""


def evaluate(
    params: EvaluateParams,
    change: Change,
    *,
    packets: Path,
    split: Path,
    pretrained: Path,
    finetuned: Path,
    truth: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[TracePredictions]]:
    """Predict every test slice with every method and score it; return scores.json and the predictions.

    The choice between the queues is scored where a trace has its truth in folder `truth`.
    """
    traces = read_traces(packets, split, change)
    base = load(pretrained)
    progress("training the baselines")
    parts = lessons(list(traces.values()))
    trees = Trees.fit(parts, TreesParams(rounds=params.xgboost_rounds), params.seed, progress)
    rules: dict[str, Forecaster] = {
        name: RepeatedLatency.fit(parts, RepeatedParams(input=latency), params.seed, progress)
        for name, latency in {EWMA: "mean8_latency_flow_us", **LAST_VISIBLE}.items()
    }
    rules |= {
        name: VirtualQueue.fit(parts, VirtualQueueParams(rates=rates), params.seed, progress)
        for name, rates in zip(VIRTUAL_QUEUES, RATES, strict=True)
    }
    how = FinetuneParams(  # the trees use none of these: a round adds trees
        seed=params.seed, workers=1, epochs=1, batch_size=1, learning_rate=1.0, sharp_weight=1.0
    )
    predictions = []
    for trace in tested(traces):
        if truth:
            trace = trace.with_waits(truth)
        ours, grown = heads_of(base, finetuned, trace), tune_heads(trees, trace, how)
        methods: dict[str, tuple[Heads, str]] = {
            FINETUNED: (ours, TUNED),
            AT_ONCE: (ours, AS_IF_AT_ONCE),
            PRETRAINED: (ours, UNTUNED),
            TREES: (grown, UNTUNED),
            TREES_CONTINUED: (grown, TUNED),
            **{name: ({-1: one}, UNTUNED) for name, one in rules.items()},
        }
        predictions.append(predict_trace(trace, methods, params.round_s, progress))
    progress("scores")
    metrics = score(
        predictions,
        seed=params.seed,
        false_alarm_rate=params.false_alarm_rate,
        round_s=params.round_s,
    )
    choice = chosen_in(pretrained).get("why", "")
    metrics["about"] |= {"forecaster": name_of_kind(type(base)), "choice": choice}
    return metrics, predictions


def heads_of(base: Forecaster, finetuned: Path, trace: Trace) -> dict[int, Forecaster]:
    """Load the heads of a trace's rounds; round -1 is the model that they were tuned from.

    Raises:
        ValueError: a round's encoder is not the pre-trained one, so its head was tuned from another model.
    """
    heads = {-1: base}
    for k in range(len(trace.slices.rounds)):
        folder = finetuned / trace.name / f"round-{k}"
        heads[k] = load(folder)
        if not base.same_but_head(heads[k]):
            raise ValueError(f"{folder}: was not tuned from the pre-trained model; run dvc repro")
    return heads


def write(output: Path, metrics: dict[str, Any], predictions: list[TracePredictions], command: str) -> None:
    """Write metrics.json, plots/*.csv and report/, with all scores, under `output`, each atomically."""
    from swiftqueue.models.scoring import plots, report
    from swiftqueue.models.scoring.plot_sentences import sentences

    over_time = {p.trace: plot_tables.score_over_time_table(p) for p in predictions}
    tables = {
        "precision_recall": plot_tables.precision_recall_table(predictions),
        "error_by_horizon": plot_tables.error_by_horizon_table(predictions),
        "score_over_time": plot_tables.mean_over_time(list(over_time.values())),
        "sharp_changes": plot_tables.sharp_changes_table(predictions),
    }
    output.mkdir(parents=True, exist_ok=True)
    with new_folder(output / "plots") as folder:
        for name, table in tables.items():
            # The plots are committed: machines differ beyond these digits.
            table.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv(folder / f"{name}.csv")
    with new_folder(output / "report") as folder:
        changes = [change for p in predictions for change in plot_tables.change_examples(p)]
        drawn = plots.draw(
            folder,
            tables,
            {trace: plot_tables.mean_over_time([table]) for trace, table in over_time.items()},
            metrics["rounds"],
            changes,
            sentences(metrics, tables, changes),
        )
        (folder / "report.html").write_text(report.render(metrics, drawn, folder, command))
        write_file(folder / "scores.json", json.dumps(stable(metrics), indent=1, allow_nan=False) + "\n")
    write_file(output / "metrics.json", json.dumps(headline(metrics), indent=1, allow_nan=False) + "\n")


def main(
    params: Given,
    packets: Given,
    split: Given,
    pretrained: Given,
    finetuned: Given,
    output: Given,
    truth: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Read paths from the command line and values from sections `evaluate` and `change`."""
    from rich.console import Console

    section = read(params, EvaluateParams)
    with Console(stderr=True).status("evaluate: reading packets") as status:
        metrics, predictions = evaluate(
            section,
            change_of(params),
            packets=packets,
            split=split,
            pretrained=pretrained,
            finetuned=finetuned,
            truth=truth,
            progress=lambda step: status.update(f"evaluate: {step}"),
        )
        status.update("evaluate: plots and report")
        command = shlex.join(["python", "-m", "swiftqueue.pipelines.evaluate", *sys.argv[1:]])
        write(output, metrics, predictions, command)
        status.update("evaluate: MLflow")
        traces = [p.trace for p in predictions]
        with stage_run("evaluate", traces=traces, params=read_all(params), seed=section.seed) as run:
            run.takes(packet_sets(packets, traces, params.with_name("dvc.lock"), "testing"))
            run.keep(output, "evaluation")
            if choice := chosen_in(pretrained):
                run.chose(choice["chosen"])
            run.log(headline(metrics))
            for trace, rounds in metrics["rounds"].items():
                for figures in rounds:
                    shown = {m: {key: figures[m][key] for key in BY_ROUND} for m in HEADLINE_METHODS}
                    run.log({trace: {"by_round": shown}}, step=figures["round"])
    for sentence in verdict(metrics):
        if sentence.kind != "note":
            print(f"evaluate: {sentence.text}")
    print(f"evaluate: report at {output / 'report' / 'report.html'}")


if __name__ == "__main__":
    run_stage("evaluate", main)
