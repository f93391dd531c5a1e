"""Published scores of the stage `evaluate`: `docs/results/evaluations.json`, an entry for each question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.published import origin
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.models.scoring.predictions import FINETUNED, METHODS

FILE: Final = Path("docs/results/evaluations.json")
LATE: Final = ("average_precision", "average_precision_95", "recall_at_false_alarms")
ERROR: Final = ("mae_ms", "mae_ms_95", "p99_ms", "log_mae")
CHOICE: Final = ("n", "never_ms", "always_ms")  # scores that are the same for every method
REGRET: Final = ("regret_ms", "regret_ms_95")
DIGITS: Final = 6


def taken(path: Path) -> dict[str, Any]:
    """Return what the pages need of a `scores.json`.

    Raises:
        OSError: it is not there.
        ValueError: it is not one.
    """
    scores = read_object(path)
    try:
        pooled = scores["all"]
        late, choice = (pooled[FINETUNED]["acked"][group] for group in ("late", "choice"))
        about = ("protocol", "seed", "traces", "false_alarm_rate")
        return {
            "about": {key: scores["about"][key] for key in about},
            "n": pooled[FINETUNED]["acked"]["n"],
            "n_late": late["n_late"],
            "base_rate": round(late["base_rate"], DIGITS),
            "choice": {key: _rounded(choice[key]) for key in CHOICE} if choice["n"] else None,
            "methods": {method: _method(pooled[method]) for method in METHODS},
        }
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no scores.json of the stage evaluate: {error}") from None


def take(name: str, scores: Path, path: Path = FILE) -> None:
    """Put an evaluation's scores into the file, in the place of those that it had under this name."""
    entries = {**read_object(path), name: {**origin(), **taken(scores)}}
    write_file(path, json.dumps({key: entries[key] for key in sorted(entries)}, indent=1) + "\n")


def _method(scores: dict[str, Any]) -> dict[str, Any]:
    acked = scores["acked"]
    found = {key: acked["late"][key] for key in LATE} | {key: acked["error"][key] for key in ERROR}
    found |= {key: acked["choice"].get(key) for key in REGRET}
    found["f1_sharp_acked"] = acked["sharp"]["prediction_change"]["all"]["f1"]
    return {key: _rounded(value) for key, value in found.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return value if value is None else round(value, DIGITS)
