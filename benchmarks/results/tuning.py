"""The published search of `swiftqueue tune`, `docs/results/tuning.json`, and the scores that it led to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.published import check, entries_of, origin
from benchmarks.results.forecasters import entry, with_ends
from common.atomic import write_file
from common.json_file import read_object
from laboratory.report import tables as lab

FILE: Final = Path("docs/results/tuning.json")
NEEDED: Final = {"traces", "protocol", "n", "objective", "budget", "variants"}
SEARCHED_HEAD: Final = [
    *("variant", "trials", "CPU, s", "log error, as it was", "best", "AP late, as it was", "best", "chosen"),
]
SCORED_HEAD: Final = ["variant", "parameters", "seeds", "AP late", "MAE, ms", "log error"]
UNTUNED: Final = "untuned"  # entries of forecasters.json
TUNED: Final = "tuned"
CEILING: Final = "ceiling"  # of `forecasts --also`; what is without is in UNTUNED
CEILING_HEAD: Final = [
    "variant",
    "learned from",
    "seeds",
    "AP late, tuned",
    "untuned",
    "of the best",
    "MAE, ms, tuned",
    "untuned",
]


def load(root: Path) -> dict[str, Any]:
    """Read what is published below a checkout; nothing, where nothing is."""
    return entries_of(root / FILE)


def take(search: Path, path: Path = FILE) -> None:
    """Publish a summary in the place of the one that was there.

    Raises:
        OSError: it is not there.
        ValueError: it is not one.
    """
    found = read_object(search)
    check(search, found, NEEDED, "summary of `swiftqueue tune`")
    write_file(path, json.dumps({**origin(), **found}, indent=1) + "\n")


def said(one: Mapping[str, Any]) -> str:
    """What was searched, on what, with which budget."""
    budget = one["budget"]
    return (
        f"Searched on {one['date']} at commit `{one['commit']}`, on {one['machine']}. Traces "
        f"{', '.join(one['traces'])}; protocol `{one['protocol']}`, the last third of the training slices "
        f"({one['n']:,} packets). Budget of each variant: {budget['trials']} trials, none begun after "
        f"{budget['cpu_seconds']:g} seconds of CPU. Seed of the search {budget['seed']}, of training "
        f"{budget['training_seed']}."
    )


def searched(one: Mapping[str, Any]) -> list[str]:
    """A line for each variant: what its search took, and what it found."""
    lines = lab.head_of(SEARCHED_HEAD)
    for name, found in one["variants"].items():
        own, best = found["default"], found["best"]
        lines.append(
            lab.row_of(
                [
                    f"`{name}`",
                    str(len(found["trials"])),
                    f"{found['cpu_s']:.0f}",
                    *(_number(each.get("log_mae"), 4) for each in (own, best)),
                    *(_number(each.get("average_precision"), 3) for each in (own, best)),
                    "as it was" if best == own else _values(best["values"]),
                ]
            )
        )
    return lines


def scored(published: Mapping[str, Any]) -> list[str]:
    """A line for each variant tuned, and one for the same as its section has it, on the test slices.

    Raises:
        ValueError: one of the two is not published.
    """
    before, after = (entry(published, name) for name in (UNTUNED, TUNED))
    lines = lab.head_of(SCORED_HEAD)
    for name in after["variants"]:
        for one, what in ((before, "as in `forecasters.yaml`"), (after, "tuned")):
            if variant := one["variants"].get(name):
                lines.append(
                    lab.row_of([f"`{name}`", what, str(variant["seeds"]), *_scores(variant["tuned"])])
                )
    return lines


def ceiling(published: Mapping[str, Any]) -> list[str]:
    """The event stream beside a large one, taught by the traces' own slices and by other traces too.

    Raises:
        ValueError: one of the two is not published.
    """
    alone, more = (entry(published, name) for name in (UNTUNED, CEILING))
    rows = [("event-stream", alone["variants"]["event-stream"], "training slices")]
    others = f"these and {len(more['also'])} other traces"
    rows += [(name, variant, others) for name, variant in more["variants"].items()]
    forms = ("tuned", "pretrained")
    best = max(variant[form]["average_precision"]["mean"] for _, variant, _ in rows for form in forms)
    lines = lab.head_of(CEILING_HEAD)
    for name, variant, learned in rows:
        precisions = [variant[form]["average_precision"]["mean"] for form in forms]
        errors = [variant[form]["mae_ms"]["mean"] for form in forms]
        lines.append(
            lab.row_of(
                [
                    *(f"`{name}`", learned, str(variant["seeds"])),
                    *(f"{precision:.3f}" for precision in precisions),
                    f"{100 * max(precisions) / best:.0f} %",
                    *(f"{error:.2f}" for error in errors),
                ]
            )
        )
    return lines


def _scores(scores: Mapping[str, Any]) -> list[str]:
    digits = {"average_precision": 3, "mae_ms": 2, "log_mae": 4}
    return [with_ends(scores[name], places) for name, places in digits.items()]


def _number(value: float | None, digits: int) -> str:
    return lab.NONE if value is None else f"{value:.{digits}f}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:{'d' if isinstance(value, int) else '.2g'}}" for name, value in values.items()
    )
