"""Stage `evaluate`: walk-forward scores of the predictor and its baselines, plots and the report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import polars.selectors as cs
import typer
from pydantic import Field

from feature_store.atomic import new_folder, write_file
from models.registry.lineage import folder_set, packet_sets
from models.registry.runs import stage_run
from models.scoring import plot_tables
from models.scoring.evaluation import DIGITS, HEADLINE_METHODS, headline
from models.scoring.evaluation import evaluate as score
from models.scoring.predictions import ModelRounds, TracePredictions, fit_trees, load_traces, predict_trace
from models.scoring.verdict import verdict
from models.section import Section, read, read_all
from models.sharp import Change, change_of
from models.training.protocol import ROUND_S
from pipelines.stage import Given, run_stage

BY_ROUND: Final = ("average_precision", "mae_ms")  # logged by round


class EvaluateParams(Section):
    """What the predictor is compared with."""

    section: ClassVar = "evaluate"
    seed: Annotated[int, Field(ge=0)]
    """Of the trees and of the bootstrap's draws."""
    xgboost_rounds: Annotated[int, Field(ge=1)]
    """Boosted trees."""
    false_alarm_rate: Annotated[float, Field(gt=0, lt=1)]
    """At which the recall of late packets is reported."""
    round_s: Annotated[float, Field(ge=0, default=ROUND_S)]
    """Seconds that a live round on a minute takes until its head answers; before that an earlier head does. A
    shorter fine-tuning slice takes as much less."""


def evaluate(
    params: EvaluateParams,
    change: Change,
    *,
    windows: Path,
    split: Path,
    pretrained: Path,
    finetuned: Path,
    packets: Path | None = None,
    truth: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[TracePredictions]]:
    """Predict every test slice with every method and score it; gives scores.json and the predictions.

    With packet tables and a folder of truths (`load_traces`) the choice between the queues is scored, too.
    """
    folder_set, traces = load_traces(windows, split, change, packets=packets, truths=truth)
    models = ModelRounds(pretrained, finetuned, folder_set)
    progress("training XGBoost")
    trees, otherwise_us = fit_trees(traces.values(), rounds=params.xgboost_rounds, seed=params.seed)
    predictions = [
        predict_trace(
            trace,
            models=models,
            trees=trees,
            otherwise_us=otherwise_us,
            round_s=params.round_s,
            progress=progress,
        )
        for trace in traces.values()
        if trace.windows.rounds
    ]
    progress("scores")
    metrics = score(
        predictions,
        seed=params.seed,
        false_alarm_rate=params.false_alarm_rate,
        round_s=params.round_s,
    )
    return metrics, predictions


def write(output: Path, metrics: dict[str, Any], predictions: list[TracePredictions], command: str) -> None:
    """Write metrics.json, plots/*.csv and report/, with all scores, under `output`, each when complete."""
    from models.scoring import plots, report

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
            # They are committed: beyond these digits, machines differ.
            table.with_columns(cs.float().round_sig_figs(DIGITS)).write_csv(folder / f"{name}.csv")
    with new_folder(output / "report") as folder:
        drawn = plots.draw(
            folder,
            report.caption(metrics),
            tables,
            {trace: plot_tables.mean_over_time([table]) for trace, table in over_time.items()},
            metrics["rounds"],
            [change for p in predictions for change in plot_tables.change_examples(p)],
        )
        (folder / "report.html").write_text(report.render(metrics, drawn, folder, command))
        write_file(folder / "scores.json", json.dumps(metrics, indent=1, allow_nan=False) + "\n")
    write_file(output / "metrics.json", json.dumps(headline(metrics), indent=1, allow_nan=False) + "\n")


def main(
    params: Given,
    windows: Given,
    split: Given,
    pretrained: Given,
    finetuned: Given,
    output: Given,
    packets: Annotated[Path | None, typer.Option()] = None,
    truth: Annotated[Path | None, typer.Option()] = None,
) -> None:
    """Read paths from the command line and values from sections `evaluate` and `change`."""
    from rich.console import Console

    section = read(params, EvaluateParams)
    with Console(stderr=True).status("evaluate: reading windows") as status:
        metrics, predictions = evaluate(
            section,
            change_of(params),
            windows=windows,
            split=split,
            pretrained=pretrained,
            finetuned=finetuned,
            packets=packets,
            truth=truth,
            progress=lambda step: status.update(f"evaluate: {step}"),
        )
        status.update("evaluate: plots and report")
        command = shlex.join(["python", "-m", "pipelines.evaluate", *sys.argv[1:]])
        write(output, metrics, predictions, command)
        status.update("evaluate: MLflow")
        traces = [p.trace for p in predictions]
        with stage_run("evaluate", traces=traces, params=read_all(params), seed=section.seed) as run:
            lock = params.with_name("dvc.lock")
            tables = packet_sets(packets, traces, lock, "testing") if packets else []
            run.takes(tables or [folder_set(windows, lock)])
            run.keep(output, "evaluation")
            run.log(headline(metrics))
            for trace, rounds in metrics["rounds"].items():
                for figures in rounds:
                    shown = {m: {key: figures[m][key] for key in BY_ROUND} for m in HEADLINE_METHODS}
                    run.log({trace: shown}, step=figures["round"])
    for sentence in verdict(metrics):
        if sentence.kind != "note":
            print(f"evaluate: {sentence.text}")
    print(f"evaluate: report at {output / 'report' / 'report.html'}")


if __name__ == "__main__":
    run_stage("evaluate", main)
