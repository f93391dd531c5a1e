"""The published exchange of inputs of forecasts: what `swiftqueue rate exchange` wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from swiftqueue.laboratory.report import tables as lab

FILE: Final = Path("studies/rate/results/rate-exchange.json")
MODELS: Final = {"xgboost": "trees", "mlp": "MLP"}
FIGURES: Final = {"average_precision": ("average precision", 1, 3), "mae_ms": ("MAE, ms", 1, 2)}


def said(one: Mapping[str, Any]) -> str:
    """The measured figures, with the traffic and the date."""
    runs = [
        f"`{profile}`: seeds {_named(found['seeds'])}; {found['packets']:,} packets, "
        f"{found['downloads']} downloads"
        for profile, found in one["exchange"].items()
    ]
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, in ns-3, {one['seconds']:g} s a seed, "
        f"downloads of {one['download_bytes'] / 1e6:g} MB. {'. '.join(runs)}. In brackets 95 % over seeds."
    )


def _named(seeds: Sequence[int]) -> str:
    first, last = seeds[0], seeds[-1]
    in_a_row = list(seeds) == list(range(first, last + 1))
    return f"{first} to {last}" if in_a_row else ", ".join(map(str, seeds))


def rows(one: Mapping[str, Any], question: str) -> list[str]:
    """Each profile's models and figures with both kinds of inputs, and what the exchange changes."""
    lines: list[str] = []
    head = ["model", "figure", "own inputs", "and the other's", "placebo", "than own", "than placebo", ""]
    for profile, found in one["exchange"].items():
        lines += ["", f"Profile `{profile}`.", "", *lab.head_of(head)]
        for model, figures in found[question].items():
            for figure, cell in figures.items():
                # A rate's figures are horizons, in packets.
                name, times, digits = FIGURES.get(figure, (f"MAPE at {figure}, %", 100, 1))
                means = [f"{times * cell[key]['mean']:.{digits}f}" for key in ("own", "exchanged", "placebo")]
                less = [_told(cell[key], f"+.{digits}f", times) for key in ("than_own", "than_placebo")]
                lines.append(lab.row_of([MODELS[model], name, *means, *less, cell["verdict"]]))
    return lines


def _told(cell: Mapping[str, Any], form: str, times: float) -> str:
    return f"{times * cell['mean']:{form}} ({times * cell['low']:{form}} to {times * cell['high']:{form}})"
