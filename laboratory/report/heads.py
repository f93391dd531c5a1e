"""What it changes that the model's head is tuned during a run: figure 8 with that, beside it without."""

from __future__ import annotations

from typing import Final

import polars as pl

from laboratory.report.comparison import Place, by_seed, percent
from laboratory.report.judging import FEWEST_SEEDS, SETTLED
from laboratory.report.measures import (
    CHOICE_RIGHT,
    CLASSIC_SHARE,
    CROSS_GOODPUT,
    MOVED,
    QUEUEING_MAX,
    QUEUEING_P99,
    QUEUEING_P999,
    REGRET,
    RTT_P99,
    S1_GOODPUT,
)
from laboratory.report.tables import NONE, cell, head_of, row_of, sample
from models.scoring.intervals import corrected, paired_change

SCENARIO: Final = "figure8-finetuned"
NEVER, TUNED = (Place(SCENARIO, point, "uncoupled") for point in ("never", "at 100 s"))
MEASURES: Final = (
    *(QUEUEING_P99, QUEUEING_P999, QUEUEING_MAX, RTT_P99, CHOICE_RIGHT, REGRET, MOVED),
    *(S1_GOODPUT, CROSS_GOODPUT, CLASSIC_SHARE),
)


def tuned(runs: pl.DataFrame) -> list[str]:
    """Return each measure without tuning and with it; *settled* is corrected for their number (Holm)."""
    pairs = {m: [by_seed(runs, place, "model", m) for place in (TUNED, NEVER)] for m in MEASURES}
    found = {measure: paired_change(*pair) for measure, pair in pairs.items()}
    asked = {m: change for m, change in found.items() if change and change.n >= FEWEST_SEEDS}
    if not asked:
        return ["Not run."]
    chances = corrected([2 * one.chance(0, below=one.mean < 0) for one in asked.values()])  # two-sided
    settled = {m for m, chance in zip(asked, chances, strict=True) if chance < SETTLED}
    lines = [f"**The head is tuned, `uncoupled`** ({sample(runs, NEVER)})", ""]
    lines += head_of(["measure", "`default`", "model, never", "model, at 100 s", "change", "settled"])
    for m, change in found.items():
        cells = [cell(runs, NEVER, control, m).text for control in ("default", "model")]
        cells.append(cell(runs, TUNED, "model", m).text)
        said = percent(change) if change else NONE
        lines.append(row_of([f"{m.title}, {m.unit}", *cells, said, "yes" if m in settled else "no"]))
    return lines
