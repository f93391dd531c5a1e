"""Stage `evaluate`: walk-forward scores of the predictor and its baselines, plots and the report."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from models import plot_tables
from models.evaluation import ModelRounds, TracePredictions, fit_trees, load_traces, predict_trace
from models.metrics import evaluate as score
from models.verdict import verdict
from pipelines.stage import StageError, atomic_dir, load_params, stage_main

PARAMS: Final = {"seed", "xgboost_rounds", "false_alarm_rate"}


def evaluate(
    params: dict[str, Any],
    *,
    windows: Path,
    pretrained: Path,
    finetuned: Path,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, Any], list[TracePredictions]]:
    """Predict every test slice with every method and score it; gives metrics.json and the predictions."""
    _check(params)
    window_set, traces = load_traces(windows)
    models = ModelRounds(pretrained, finetuned, window_set)
    trees = {}
    for visibility in next(iter(traces.values())).by_visibility:
        progress(f"training XGBoost, {visibility}")
        trees[visibility] = fit_trees(
            traces.values(), visibility, rounds=params["xgboost_rounds"], seed=params["seed"]
        )
    predictions = [predict_trace(t, models=models, trees=trees, progress=progress) for t in traces.values()]
    progress("scores")
    metrics = score(
        predictions,
        protocol=window_set.protocol,
        seed=params["seed"],
        false_alarm_rate=params["false_alarm_rate"],
    )
    return metrics, predictions


def write(output: Path, metrics: dict[str, Any], predictions: list[TracePredictions], command: str) -> None:
    """Write metrics.json, plots/*.csv and report/ under `output`, each appearing only when complete."""
    from models import figures, report

    over_time = {p.trace: plot_tables.score_over_time_table(p) for p in predictions}
    tables = {
        "precision_recall": plot_tables.precision_recall_table(predictions),
        "error_by_horizon": plot_tables.error_by_horizon_table(predictions),
        "score_over_time": plot_tables.mean_over_time(list(over_time.values())),
        "sharp_changes": plot_tables.sharp_changes_table(predictions),
    }
    output.mkdir(parents=True, exist_ok=True)
    with atomic_dir(output / "plots") as folder:
        for name, table in tables.items():
            table.write_csv(folder / f"{name}.csv", float_precision=6)
    with atomic_dir(output / "report") as folder:
        drawn = figures.draw(
            folder,
            report.caption(metrics),
            tables,
            {trace: plot_tables.mean_over_time([table]) for trace, table in over_time.items()},
            metrics["rounds"],
            [change for p in predictions for change in plot_tables.change_examples(p)],
        )
        (folder / "report.html").write_text(report.render(metrics, drawn, folder, command))
    partial = output / ".metrics.json.partial"
    partial.write_text(json.dumps(metrics, indent=1, allow_nan=False) + "\n")
    os.replace(partial, output / "metrics.json")


def _check(params: dict[str, Any]) -> None:
    rounds, rate = params["xgboost_rounds"], params["false_alarm_rate"]
    if not isinstance(rounds, int) or rounds < 1:
        raise StageError(f"evaluate.xgboost_rounds is {rounds!r}; it must be a whole number from 1 on")
    if not isinstance(rate, int | float) or not 0 < rate < 1:
        raise StageError(f"evaluate.false_alarm_rate is {rate!r}; it must be a share between 0 and 1")
    if not isinstance(params["seed"], int) or params["seed"] < 0:
        raise StageError(f"evaluate.seed is {params['seed']!r}; it must be a whole number from 0 on")


def main() -> None:
    """Read paths from the command line and values from section `evaluate`."""
    from rich.console import Console

    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("params", "windows", "finetuned", "pretrained", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    with stage_main("evaluate"), Console(stderr=True).status("evaluate: reading windows") as status:
        params = load_params(arguments.params, "evaluate", PARAMS)
        metrics, predictions = evaluate(
            params,
            windows=arguments.windows,
            pretrained=arguments.pretrained,
            finetuned=arguments.finetuned,
            progress=lambda step: status.update(f"evaluate: {step}"),
        )
        status.update("evaluate: plots and report")
        command = shlex.join(["python", "-m", "pipelines.evaluate", *sys.argv[1:]])
        write(arguments.output, metrics, predictions, command)
    for sentence in verdict(metrics):
        if sentence.kind != "note":
            print(f"evaluate: {sentence.text}")
    print(f"evaluate: report at {arguments.output / 'report' / 'report.html'}")


if __name__ == "__main__":
    main()
