"""How the report opens: the question, the answer, one figure and one table of seven rows.

The seven rows are the measures that have a limit. The places are those of one scenario, so that none is
picked for what it says.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from swiftqueue.laboratory.report.comparison import (
    FEW_PACKETS,
    LIMITS,
    Comparison,
    JudgedChange,
    Limit,
    Place,
    change_of,
    compare,
    percent,
    places,
    seeds_wanted,
    why_not_judged,
)
from swiftqueue.laboratory.report.judging import FEWEST_PACKETS, JUDGED, SERVED
from swiftqueue.laboratory.report.measures import MESSAGES, PERCENT, QUEUEING_P99
from swiftqueue.laboratory.report.plots import COLOURS, Plot
from swiftqueue.laboratory.report.tables import TableVerdict, controls_run, head_of, row_of
from swiftqueue.models.scoring.intervals import Estimate
from swiftqueue.models.scoring.plot_style import DPI, grid

QUESTION: Final = "What does choosing the queue packet by packet gain, and when?"
ANSWERS: Final = ("model", "oracle", "oracle_batched", "last_latency", "random")  # the first that was run
MOST_PLACES: Final = 4  # beside each other in a table
NAMED: Final = {"model": "the model", "oracle": "the oracle", "random": "moving by chance"}
COUNTED: Final = {
    "helps": "helps at",
    "harms": "harms at",
    "no harm": "does no harm at",
    "open": "not settled at",
}
TICKS: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
OPEN_COLOUR: Final = "#adb5bd"


@dataclass(frozen=True)
class OpeningRow:
    """A measure: the limit it is held to, and what became of it at each place."""

    measure: str
    limit: str
    changes: tuple[TableVerdict, ...]


@dataclass(frozen=True)
class Opening:
    """The report's beginning; `places` head the columns of the seven rows."""

    scenario: str
    about: str
    control: str
    answer: tuple[str, ...]
    places: tuple[str, ...]
    rows: tuple[OpeningRow, ...]
    plot: Plot

    def markdown(self) -> list[str]:
        """Return the same as Markdown, without the figure."""
        heads = [f"{self.control} at {place}" for place in self.places]
        lines = [f"**{QUESTION}**", "", *(f"- {line}" for line in self.answer), ""]
        lines += head_of([f"{self.scenario}, against default", "limit", *heads])
        lines += [row_of([row.measure, row.limit, *(c.text for c in row.changes)]) for row in self.rows]
        return lines


def opening(runs: pl.DataFrame) -> Opening | None:
    """Open with figure 8 of what is served, else with figure 8, else with the first scenario of a model.

    None: there is nothing to compare.
    """
    found = [one for name in dict.fromkeys(runs["scenario"].sort()) if (one := _candidate(runs, name))]
    if not found:
        return None
    control, here = min(found, key=lambda one: (_rank(one[1][0].scenario), ANSWERS.index(one[0])))
    scenario = here[0].scenario
    compared = {place: of_it for place in here if (of_it := compare(runs, place, control))}
    shown = _ends(list(compared))
    about = runs.filter(pl.col("scenario") == scenario)["about"][0]
    return Opening(
        scenario,
        about or scenario,
        control,
        tuple(_answer(compared, NAMED.get(control, f"`{control}`"))),
        tuple(_named(place) for place in shown),
        tuple(
            _row(limit, runs, control, {place: compared[place] for place in shown})
            for limit in LIMITS
            if limit.measure not in MESSAGES or any(limit.measure in one.found for one in compared.values())
        ),
        Plot(f"{scenario}: P99 of waiting against default, with 95 % intervals", _figure(runs, shown)),
    )


def _rank(scenario: str) -> int:
    return {SERVED: 0, JUDGED: 1}.get(scenario, 2)


def _candidate(runs: pl.DataFrame, scenario: str) -> tuple[str, list[Place]] | None:
    """Return the control that answers there, and the places where it can be compared."""
    here = [place for place in places(runs) if place.scenario == scenario]
    for control in ANSWERS:
        if compared := [place for place in here if change_of(runs, place, control, QUEUEING_P99)]:
            return control, compared
    return None


def _ends(here: Sequence[Place]) -> list[Place]:
    """Return all places, or the first and the last point of each profile where there are too many."""
    if len(here) <= MOST_PLACES:
        return list(here)
    by_profile = [[p for p in here if p.profile == name] for name in dict.fromkeys(p.profile for p in here)]
    return list(dict.fromkeys(p for ones in by_profile for p in (ones[0], ones[-1])))


def _named(place: Place) -> str:
    return ", ".join(part for part in (place.profile, place.point) if part)


def _answer(compared: dict[Place, Comparison], who: str) -> list[str]:
    """Return a sentence for each place, or how many there are of each kind."""
    if len(compared) > MOST_PLACES:
        kinds = Counter(one.judged for one in compared.values())
        said = ", ".join(f"{words} {kinds[kind]}" for kind, words in COUNTED.items() if kinds[kind])
        return [f"Of {len(compared)} places {who} {said}."]
    return [_sentence(_named(place), one, who) for place, one in compared.items()]


def _sentence(where: str, one: Comparison, who: str) -> str:
    p99 = f"P99 of the wait {percent(one.queueing)}"
    if one.judged == "harms":
        found = one.found.get(QUEUEING_P99)
        return f"{where}: {who} {one.verdict}{'' if found and found.beyond else f'; {p99}'}."
    if one.few_packets and one.judged == "open":
        longer = math.ceil(FEWEST_PACKETS / one.packets) if one.packets else "many"
        return (
            f"{where}: what {who} does is not settled; {p99} {FEW_PACKETS} of a run, and runs about "
            f"{longer} times as long would have them."
        )
    if one.judged == "open":
        return f"{where}: what {who} does is {one.verdict.partition(':')[0]}; {p99}."
    return f"{where}: {who} {'does no harm' if one.judged == 'no harm' else one.verdict}; {p99}."


def _row(limit: Limit, runs: pl.DataFrame, control: str, compared: Mapping[Place, Comparison]) -> OpeningRow:
    """Return a row, with the limits that were used: at some places a packet's time is more than the limit."""
    found = {place: one.found.get(limit.measure) for place, one in compared.items()}
    used = {_named(place): _words(judged.limit) for place, judged in found.items() if judged}
    by_place = [f"{words} ({place})" for place, words in used.items()]
    limits = by_place if len(set(used.values())) > 1 else [_words(limit), *used.values()][-1:]
    changes = [
        _change(judged) if judged else _not_judged(runs, place, control, limit)
        for place, judged in found.items()
    ]
    return OpeningRow(limit.name, ", ".join(limits), tuple(changes))


def _words(limit: Limit) -> str:
    return f"{round(limit.most * PERCENT, 1):g} % {'less' if limit.falls else 'more'}"


def _not_judged(runs: pl.DataFrame, place: Place, control: str, limit: Limit) -> TableVerdict:
    is_measured = change_of(runs, place, control, limit.measure) is not None
    return TableVerdict(why_not_judged(runs, place, limit.measure) if is_measured else "not measured", "open")


def _change(found: JudgedChange) -> TableVerdict:
    said = found.words()
    if found.judged == "open":
        said += f", {seeds_wanted([found], found.change.n)}"
    return TableVerdict(said, found.judged.replace(" ", "-"))


def _figure(runs: pl.DataFrame, shown: Sequence[Place]) -> bytes:
    """Draw P99 of each control as a part of default's; hollow and grey where that is not settled."""
    controls = [control for control in controls_run(runs, shown) if control != "default"]
    figure, by_row = grid(1, len(shown), 1.6 + 2.6 * len(shown), 1.1 + 0.3 * len(controls))
    for place, axes in zip(shown, by_row[0], strict=True):
        for i, control in enumerate(reversed(controls)):
            if found := compare(runs, place, control):
                p99 = found.found.get(QUEUEING_P99)
                _point(axes, i, found.queueing, p99, COLOURS[control])
        axes.axvline(1, color="#212529", linewidth=1)
        axes.set_xscale("log")
        labels = list(reversed(controls)) if place == shown[0] else [""] * len(controls)
        axes.set_yticks(range(len(controls)), labels)
        axes.set_ylim(-0.6, len(controls) - 0.4)
        axes.set_title(_named(place), fontsize=9)
    low = min(0.45, *(axes.get_xlim()[0] for axes in by_row[0]))
    high = max(2.2, *(axes.get_xlim()[1] for axes in by_row[0]))
    for axes in by_row[0]:
        axes.set_xlim(low, high)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks := [tick for tick in TICKS if low <= tick <= high], [f"{x:g}×" for x in ticks])
    picture = io.BytesIO()
    figure.savefig(picture, dpi=DPI, format="png", metadata={"Software": None})
    return picture.getvalue()


def _point(axes: Axes, y: int, change: Estimate, p99: JudgedChange | None, colour: str) -> None:
    """Draw a ratio and its interval (a settled harm from its bound on); arrows where the axis ends before."""
    is_settled = p99 is not None and p99.judged != "open"
    shade = colour if is_settled else OPEN_COLOUR
    low, high = change.low, change.high
    if p99 is not None and (bound := p99.bound()) is not None:
        low = bound
    ratio = float(np.clip(1 + change.mean, TICKS[0], TICKS[-1]))
    if low is not None and high is not None:
        ends = np.clip([1 + low, 1 + high], TICKS[0], TICKS[-1])
        axes.plot(ends, [y, y], color=shade, linewidth=2)
        for end, given, marker in zip(ends, (1 + low, 1 + high), "<>", strict=True):
            if end != given:
                axes.plot(end, y, marker, color=shade, markersize=5)
    axes.plot(ratio, y, "o", color=shade, markerfacecolor=shade if is_settled else "white", markersize=6)
