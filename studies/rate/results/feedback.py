"""The published study of forecasts that are fed back: what `swiftqueue rate feedback` wrote."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.studies.rate.experiments.feedback import BBR, BUFFERS_BDP, ORACLE, PATH

FILE: Final = Path("studies/rate/results/rate-feedback.json")
KERNEL: Final = Path("studies/rate/results/bed-fct.json")  # the same, of a kernel's BBR on the bed
BESIDE: Final = Path(
    "studies/rate/results/bed-fct-beside.json"
)  # the same without the network, of other senders
WIDE: Final = 4  # round trips side by side, for narrow windows
MARK: Final = "†"  # marks a sender of the study beside
NAMES: Final = {
    "bbr": "BBR",
    "network": "**BBR, network (ours)**",
    "oracle": "BBR, oracle",
    "half-oracle": "BBR, half the oracle",
    "dispersion": "BBR, dispersion",
    "previous-flow": "BBR, previous flow",
    "random": "BBR, random forecast",
    "initial-window-32": "BBR, initial window of 32",
    "cubic": "Cubic, HyStart",
    "hystart++": "Cubic, HyStart++",
    "suss": "Cubic, SUSS",
}


def said(one: Mapping[str, Any]) -> str:
    """The measured figures, with the paths and the date."""
    seeds, trips = (", ".join(map(str, one[key])) for key in ("seeds", "rtts_ms"))
    several = len(one["seeds"]) > 1
    interval = "In brackets 95 % over seeds" if several else "One seed: no interval, nothing settled"
    where = "by Linux's BBR" if one.get("source") == "kernel" else "in ns-3"
    buffers = " and ".join(f"{each:g}" for each in one.get("buffers_bdp", BUFFERS_BDP))
    load = one.get("traffic", PATH)["load"]
    more = one.get("beside")
    held = "These are held against BBR and the oracle of their own runs."
    other = f" {MARK}: m{said(more)[1:]} {held}" if more else ""
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, {where}. {one['rate_mbps']:g} Mbit/s, round "
        f"trips of {trips} ms, buffers of {buffers} BDP, downloads at a load of {load:g}; seeds {seeds}; "
        f"{one['runs']} runs, {one['flows']:,} judged flows. {interval}."
    ) + other


def senders(one: Mapping[str, Any], window: str) -> list[tuple[str, Mapping[str, Any]]]:
    """A window's senders by name, with their figures.

    Where another study stands beside this one, those that it has besides follow, and its oracle before them.
    """
    own = one["feedback"][window]
    found = [(_named(name, cell, one), cell) for name, cell in own.items()]
    if (more := one.get("beside")) and (others := [n for n in more["feedback"][window] if n not in own]):
        cells = {name: more["feedback"][window][name] for name in (ORACLE, *others)}
        found += [(f"{_named(name, cell, more)} {MARK}", cell) for name, cell in cells.items()]
    return found


def _named(name: str, cell: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    has, seeds = cell["change"]["n"], len(one["seeds"])
    return NAMES[name] if has == seeds else f"{NAMES[name]} ({has} of {seeds} seeds)"


def kernel_file(study: Path, found: Mapping[str, Any], root: Path) -> Path:
    """Where a study of a kernel's flows is published: one without the network stands beside that with it.

    Raises:
        ValueError: the other one is of other paths or downloads.
    """
    file, other = (KERNEL, BESIDE) if found["verdict"] else (BESIDE, KERNEL)
    if (root / other).is_file():
        published = read_object(root / other)
        if unlike := [key for key in ("rtts_ms", "buffers_bdp", "traffic") if found[key] != published[key]]:
            raise ValueError(f"{study}: its {unlike[0]} is not that of {other}, which would stand beside it")
    return file


def rows(one: Mapping[str, Any]) -> list[str]:
    """Each window's variants, against plain BBR's same runs; and what was wanted."""
    lines: list[str] = []
    head = [
        "sender", "median time, %", "share of the oracle's gain, %", "P99, %", "retransmitted, points",
        "others' goodput, %",
    ]  # fmt: skip
    for window in one["feedback"]:
        lines += ["", f"Receive window: {window}.", "", *lab.head_of(head)]
        for name, cell in senders(one, window):
            told = [
                _percent(cell["change"], "+"),
                "–" if name == NAMES[BBR] else _percent(cell["share_of_oracle"]),
            ]
            rest = [_percent(cell["p99"], "+"), _told(cell["points"], "+.2f"), _percent(cell["others"])]
            lines.append(lab.row_of([name, *told, *rest]))
    if not one["verdict"]:  # without the network's forecasts
        return lines
    wanted = {
        "share_of_oracle": "default window, at least 60 % of the oracle's gain",
        "long_change": "8 MB window, -30 % at each round trip from 100 ms on",
        "p99": "P99 at most 5 % more",
        "points": "at most a point more retransmitted",
        "others": "the others' goodput at least 95 %",
    }
    lines += ["", "Of the network's forecasts was wanted:", ""]
    lines += [f"- {text}: {_answer(one['verdict'][key])}" for key, text in wanted.items()]
    return lines


def by_trip(one: Mapping[str, Any]) -> list[str]:
    """Change of the median completion time by round trip."""
    lines: list[str] = []
    for window in one["feedback"]:
        lines += ["", f"Receive window: {window}."]
        trips = [str(trip) for trip in one["rtts_ms"]]
        for some in (trips[at : at + WIDE] for at in range(0, len(trips), WIDE)):
            lines += ["", *lab.head_of(["sender", *(f"{trip} ms" for trip in some)])]
            for name, cell in senders(one, window):
                if name != NAMES[BBR]:
                    cells = [_percent(cell["by_rtt"][trip], "+") for trip in some]
                    lines.append(lab.row_of([name, *cells]))
    return lines


def _answer(verdict: str | bool) -> str:
    if isinstance(verdict, bool):  # published before a figure had an interval
        return "reached" if verdict else "not reached"
    return verdict


def _percent(cell: Mapping[str, Any] | float, sign: str = "") -> str:
    return _told(cell, f"{sign}.1f", 100)


def _told(cell: Mapping[str, Any] | float, form: str, times: float = 1) -> str:
    """A figure with its interval; alone where there is none."""
    if isinstance(cell, float):  # published before it had one
        return f"{times * cell:{form}}"
    mean = f"{times * cell['mean']:{form}}"
    if cell["low"] is None:
        return mean
    return f"{mean} ({times * cell['low']:{form}} to {times * cell['high']:{form}})"
