"""Render the evaluation as one self-contained HTML page: a verdict in words, plots, tables."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from swiftqueue.models.scoring.evaluation import SHARP, VARIANTS
from swiftqueue.models.scoring.plots import EvaluationPlot
from swiftqueue.models.scoring.predictions import METHODS, SEND_GAP
from swiftqueue.models.scoring.verdict import (
    CHOICE,
    ERROR,
    LATE,
    LEAST_BLOCKS,
    HeadlineFigure,
    verdict,
    verdict_by_trace,
)
from swiftqueue.models.sharp import Change

TEMPLATE: Final = "report.html.j2"
BEFORE: Final = {"sharp": "sender", "sharp_by_flow": "flow"}  # owner of the packet before
SIGNS: Final = {"prediction_change": "p(x) − p(x−1)", "truth_change": "p(x) − t(x−1)"}


def render(metrics: Mapping[str, Any], plots: Sequence[EvaluationPlot], folder: Path, command: str) -> str:
    """Render the page; the panels of `plots` are files in `folder`."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        about={"forecaster": "", "choice": "", **metrics["about"]},
        least_blocks=LEAST_BLOCKS,
        caption=caption(metrics),
        change=Change(**metrics["about"]["change"]).words(),
        command=command,
        sentences=verdict(metrics),
        by_trace=verdict_by_trace(metrics) if len(metrics["traces"]) > 1 else [],
        headline=[_headline(title, scores, metrics["about"]) for title, scores in _scopes(metrics)],
        sharp=[_sharp(title, scores, metrics["about"]) for title, scores in _scopes(metrics)],
        plots=plots,
        encoded={
            name: base64.b64encode((folder / name).read_bytes()).decode()
            for plot in plots
            for name in plot.panels
        },
    )


def caption(metrics: Mapping[str, Any]) -> str:
    """Describe the conditions of every plot."""
    about, n = metrics["about"], metrics["all"][METHODS[0]]["acked"]["n"]
    said = f"protocol {about['protocol']}, visibility {about['visibility']}, seed {about['seed']}"
    return f"{said}, n = {n:,} packets"


def _scopes(metrics: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    pooled = [("All traces, pooled", metrics["all"])] if len(metrics["traces"]) > 1 else []
    return pooled + [(f"Trace {name}", scores) for name, scores in metrics["traces"].items()]


def _headline(title: str, scores: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return late packets and absolute error, one row per method."""
    rate = f"recall at {about['false_alarm_rate']:.0%} false alarms"
    columns = (
        LATE._replace(words="AP late"),
        HeadlineFigure("late", "recall_at_false_alarms", rate, True, 3, ""),
        ERROR._replace(words="MAE ms", unit=""),
        HeadlineFigure("error", "p50_ms", "P50 ms", False, 2, ""),
        HeadlineFigure("error", "p90_ms", "P90 ms", False, 2, ""),
        HeadlineFigure("error", "p99_ms", "P99 ms", False, 1, ""),
        HeadlineFigure("error", "log_mae", "log error", False, 3, ""),
        CHOICE._replace(words="regret ms", unit=""),
    )
    late = scores[METHODS[0]]["acked"]["late"]
    base = "–" if late["base_rate"] is None else f"{late['base_rate']:.3f}"
    return {
        "title": title,
        "caption": f"Protocol {about['protocol']} · visibility acked · seed {about['seed']} · "
        f"n = {scores[METHODS[0]]['acked']['n']:,} packets of known latency, {late['n_late']:,} late "
        f"(base rate {base}), {late['n_without_reference']:,} not scored for lack of a visible latency"
        f"{_bounds(scores[METHODS[0]]['acked']['choice'])}",
        "columns": [column.words for column in columns],
        "rows": _rows(METHODS, [[_figure(scores[m], c) for m in METHODS] for c in columns], columns),
    }


def _bounds(choice: Mapping[str, Any]) -> str:
    """Return the regrets of always staying and of always moving; an oracle's is 0."""
    if not choice["n"]:
        return ""
    bounds = f"never moving {choice['never_ms']:.2f} ms, always {choice['always_ms']:.2f} ms, an oracle 0"
    return f" · regret of {choice['n']:,} packets; {bounds}"


def _figure(scores: Mapping[str, Any], column: HeadlineFigure) -> tuple[float | None, str]:
    interval = scores["acked"][column.group].get(f"{column.key}_95")
    text = f"{interval[0]:.{column.digits}f}–{interval[1]:.{column.digits}f}" if interval else ""
    return column.of(scores), text


def _sharp(title: str, scores: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return F1 of sharp changes in both variants: from the sender's packet before, and from the flow's."""
    methods = (*METHODS, SEND_GAP)
    wanted = [(name, variant, "all") for name in SHARP for variant in VARIANTS]
    wanted += [("sharp", variant, part) for part in ("rises", "drops") for variant in VARIANTS]
    columns = [
        HeadlineFigure(variant, part, f"{part} · {SIGNS[variant]} · {BEFORE[name]}", True, 3, "")
        for name, variant, part in wanted
    ]
    values: list[list[tuple[float | None, str]]] = [
        [(scores[m]["acked"][name][variant][part]["f1"], "") for m in methods]
        for name, variant, part in wanted
    ]
    counts = scores[METHODS[0]]["acked"]["sharp"]["truth_change"]
    return {
        "title": title,
        "caption": f"Protocol {about['protocol']} · seed {about['seed']} · F1; "
        f"{counts['rises']['n_true']:,} rises and {counts['drops']['n_true']:,} drops among "
        f"{scores[METHODS[0]]['acked']['n']:,} packets",
        "columns": [column.words for column in columns],
        "rows": _rows(methods, values, columns),
    }


def _rows(
    methods: Sequence[str],
    values: Sequence[Sequence[tuple[float | None, str]]],
    columns: Sequence[HeadlineFigure],
) -> list[dict[str, Any]]:
    """Turn columns of (value, interval) into rows of cells; the best value of each column is marked."""
    best = []
    for column, pairs in zip(columns, values, strict=True):
        known = [value for value, _ in pairs if value is not None]
        best.append((max if column.higher_is_better else min)(known) if known else None)
    return [
        {
            "name": method,
            "cells": [
                {
                    "text": column.text(pairs[i][0]),
                    "interval": pairs[i][1],
                    "best": top is not None and pairs[i][0] == top,
                }
                for column, pairs, top in zip(columns, values, best, strict=True)
            ],
        }
        for i, method in enumerate(methods)
    ]
