"""The published search of `swiftqueue tune`, `docs/results/tuning.json`, and the scores that it led to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.published import check, entries_of, origin
from swiftqueue.benchmarks.results.forecasters import entry, with_ends
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import tables as lab

FILE: Final = Path("docs/results/tuning.json")
NEEDED: Final = {"traces", "protocol", "n", "objective", "budget", "variants"}
SCORED_HEAD: Final = ["variant", "AP late, as it was", "tuned", "MAE, ms, as it was", "tuned"]
UNTUNED: Final = "untuned"  # entries of forecasters.json
TUNED: Final = "tuned"


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


def scored(published: Mapping[str, Any]) -> list[str]:
    """Return a line for each variant: its scores on the test slices, as its section has it and tuned.

    Raises:
        ValueError: one of the two is not published.
    """
    before, after = (entry(published, name) for name in (UNTUNED, TUNED))
    lines = lab.head_of(SCORED_HEAD)
    for name, tuned in after["variants"].items():
        if was := before["variants"].get(name):
            scores = [
                with_ends(one["tuned"][score], digits)
                for score, digits in (("average_precision", 3), ("mae_ms", 2))
                for one in (was, tuned)
            ]
            lines.append(lab.row_of([f"`{name}`", *scores]))
    return lines
