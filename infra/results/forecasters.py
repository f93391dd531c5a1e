"""Published scores of `swiftqueue forecasts`: `docs/results/forecasters.json`, an entry by kind of trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.published import origin
from feature_store.atomic import write_file
from laboratory.report import tables as lab
from models.json_file import read_object

FILE: Final = Path("docs/results/forecasters.json")
NEEDED: Final = {"traces", "protocol", "within_training", "against", "n", "n_late", "base_rate", "variants"}
DIFFERENCE: Final = "less the reference"
HEAD: Final = [
    "variant",
    "seeds",
    "AP late",
    DIFFERENCE,
    "MAE, ms",
    DIFFERENCE,
    "log error",
    "M multiply-adds",
]
MILLION: Final = 1e6


def load(root: Path) -> dict[str, Any]:
    """Read what is published below a checkout; nothing, where nothing is."""
    path = root / FILE
    return read_object(path) if path.is_file() else {}


def take(name: str, scores: Path, path: Path = FILE) -> None:
    """Put a summary into the file, in the place of the one that it had under this name.

    Raises:
        OSError: it is not there.
        ValueError: it is not one.
    """
    found = read_object(scores)
    if missing := sorted(NEEDED - set(found)):
        raise ValueError(f"{scores} is no summary of `swiftqueue forecasts`: {missing[0]} is missing")
    entries = {**(read_object(path) if path.is_file() else {}), name: {**origin(), **found}}
    write_file(path, json.dumps({key: entries[key] for key in sorted(entries)}, indent=1) + "\n")


def said(one: Mapping[str, Any]) -> str:
    """What was measured, on what, when."""
    where = "the last third of the training slices" if one["within_training"] else "all test slices"
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, on {one['machine']}. Traces "
        f"{', '.join(one['traces'])}; protocol `{one['protocol']}`, {where}: {one['n']:,} packets, "
        f"{one['n_late']:,} of them late (share {one['base_rate']:.3f}). Reference: `{one['against']}`. "
        "In brackets 95 % of the difference: over seeds, then over seeds and seconds."
    )


def rows(one: Mapping[str, Any], form: str) -> list[str]:
    """A line for each variant, `tuned` or as `pretrained`, the best average precision first."""
    by_score = sorted(one["variants"].items(), key=lambda each: -_mean(each[1][form]["average_precision"]))
    lines = lab.head_of(HEAD)
    for name, found in by_score:
        scores = found[form]
        lines.append(
            lab.row_of(
                [
                    f"**`{name}`**" if name == one["against"] else f"`{name}`",
                    str(found["seeds"]),
                    *_beside(scores["average_precision"], 3),
                    *_beside(scores["mae_ms"], 2),
                    _number(scores["log_mae"], 4),
                    f"{found['multiply_adds'] / MILLION:.2f}",
                ]
            )
        )
    return lines


def _mean(score: Mapping[str, Any] | None) -> float:
    return -1.0 if score is None else float(score["mean"])


def _beside(score: Mapping[str, Any] | None, digits: int) -> tuple[str, str]:
    if score is None or "less_reference" not in score:
        return _number(score, digits), lab.NONE
    less = score["less_reference"]
    ends = [_ends(less[key], digits) for key in ("seeds_95", "seconds_95")]
    return _number(score, digits), f"{less['mean']:+.{digits}f} ({'; '.join(ends)})"


def _ends(ends: Sequence[float] | None, digits: int) -> str:
    return lab.NONE if ends is None else f"{ends[0]:+.{digits}f} to {ends[1]:+.{digits}f}"


def _number(score: Mapping[str, Any] | None, digits: int) -> str:
    return lab.NONE if score is None or score["mean"] is None else f"{score['mean']:.{digits}f}"
