"""The users' experience in a run: how long web pages took to load, and where calls stalled.

A table of its own beside the results, a row per run that has pages or calls. Three more are for scenarios
that ask for them: a row for each flow (`flows`), so that the shares of the link can be compared; each flow's
class over time (`classes`), where the router's rule is Confucius; each page's own figures (`page_by_page`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_file
from swiftqueue.laboratory.report.judging import FEWEST_PACKETS
from swiftqueue.laboratory.runs.execution import SUMMARY, folder_of
from swiftqueue.laboratory.runs.results import COMPLETE, KEY, kept_table
from swiftqueue.laboratory.runs.results import load as load_results
from swiftqueue.laboratory.scenarios.schema import LARGEST_PACKET_BYTES, Scenario

Rows = list[dict[str, Any]]
RowsOf = Callable[[Mapping[str, Any], Mapping[str, Any]], Rows]
FILE: Final = "experience.parquet"
PREFIXES: Final = {"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "Ki": 2**10, "Mi": 2**20}  # in ns-3's queue sizes
STALL_S: Final = 0.19  # a frame later than this is one that the viewer waits for
SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "scenario": pl.String,
    "point": pl.String,
    "profile": pl.String,
    "control": pl.String,
    "seed": pl.Int64,
    "run": pl.String,
    "program": pl.String,
    "artifact": pl.String,
    "seconds": pl.Float64,
    "pages": pl.Int64,  # pages that began behind the warm-up and before the end
    "pages_unfinished": pl.Int64,  # those that had not ended with the run; their time until then counts
    "load_mean_s": pl.Float64,  # page load time: until the last object
    "load_p95_s": pl.Float64,
    "frames": pl.Int64,  # behind the warm-up, as are the next ones
    "frame_p50_s": pl.Float64,  # from being made until the last byte is there
    "frame_p99_s": pl.Float64,
    "stall_s": pl.Float64,  # time of the frames later than STALL_S
    "stall_per_page_s": pl.Float64,  # in the time from a page's beginning to the next one's
    "stalling_pages_share": pl.Float64,  # with any frame so late
    "call_mbps": pl.Float64,  # goodput of S1
    "web_mbps": pl.Float64,  # goodput of all others
    "queueing_p99_s": pl.Float64,  # wait of S1's packets, as are the next ones
    "queueing_p999_s": pl.Float64,  # null where fewer than FEWEST_PACKETS make it, as the next but one
    "rtt_p99_s": pl.Float64,
    "rtt_p999_s": pl.Float64,
    "reordered_share": pl.Float64,
    "cpu_s": pl.Float64,  # CPU time of the program
}
FLOWS: Final = "flows.parquet"
_A_RUN: Final = {
    **dict.fromkeys(KEY[:4], pl.String),
    "seed": pl.Int64,
    "run": pl.String,
    "program": pl.String,
}
_A_FLOW: Final = {**_A_RUN, "sender": pl.String, "tcp": pl.String}  # the sender has this flow alone
FLOWS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **_A_FLOW,
    "goodput_mbps": pl.Float64,  # behind the warm-up, as are the next ones
    "queueing_p99_s": pl.Float64,
    "rtt_p99_s": pl.Float64,
    "rtt_mean_s": pl.Float64,  # null in published rows of older runs, as is the next one
    "occupancy": pl.Float64,  # mean part of the first bottleneck's buffer that its packets take
}
CLASSES: Final = "classes.parquet"
CLASSES_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **_A_FLOW,
    "warmup_s": pl.Float64,
    "every_s": pl.Float64,
    "classes": pl.List(pl.Int64),  # at every_s, 2 every_s ...: 0 new, 1 to 3 old; null: not known to the disc
}
CLASS_EVERY_S: Final = 0.1  # simulation/programs/laboratory/class-watch.h
PAGES: Final = "pages.parquet"
PAGES_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **_A_RUN,
    "load_s": pl.List(pl.Float64),  # a value for each page behind the warm-up, in order of their beginnings
    "stall_s": pl.List(pl.Float64),  # stalls of calls until the next page begins, as is the next one
    "frame_worst_s": pl.List(pl.Float64),
}
UPLINKS: Final = "uplinks.parquet"
UPLINKS_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    **_A_RUN,
    "frame_p99_s": pl.Float64,  # frames of all calls together, as is the next one
    "stall_s": pl.Float64,
    "one_way_p99_s": pl.Float64,  # one-way delay of S1's steered packets
    "cross_message_p99_s": pl.Float64,  # unfinished messages count with their age at the end
    "cross_mbps": pl.Float64,  # goodput of the other senders
    "moved_share": pl.Float64,  # share of the steered packets that took the first uplink
    "reordered_share": pl.Float64,  # share of S1's packets, as are the next two
    "retransmitted_share": pl.Float64,
    "spurious_share": pl.Float64,  # retransmitted though the first sending had arrived
    "unrouted": pl.Int64,  # S1's packets whose mark the gateway does not route
    "diverted": pl.Int64,  # S1's packets whose uplink was dead
}
SCHEMAS: Final = {
    FILE: SCHEMA,
    FLOWS: FLOWS_SCHEMA,
    CLASSES: CLASSES_SCHEMA,
    PAGES: PAGES_SCHEMA,
    UPLINKS: UPLINKS_SCHEMA,
}


def load(output: Path, file: str = FILE) -> pl.DataFrame:
    """Return a table of an output folder; none yet is an empty one.

    Raises:
        ValueError: the file is damaged, or another version of this project made it.
    """
    return kept_table(output / file, SCHEMAS[file], "swiftqueue lab run")


def collect(output: Path, scenarios: Mapping[str, Scenario]) -> None:
    """Bring the rows of some scenarios up to the results'.

    A run that is but a row of the results keeps what `keep_rows` laid beside it, or what it has here.
    """
    asking: dict[str, tuple[RowsOf, set[str]]] = {
        FILE: (rows_of, set(scenarios)),
        FLOWS: (flows_of, {name for name, scenario in scenarios.items() if scenario.flows}),
        CLASSES: (classes_of, {name for name, scenario in scenarios.items() if scenario.classes}),
        PAGES: (pages_of, {name for name, scenario in scenarios.items() if scenario.page_by_page}),
        UPLINKS: (uplinks_of, {name for name, scenario in scenarios.items() if scenario.environment.uplinks}),
    }
    known = {file: load(output, file) for file in asking}
    rows: dict[str, Rows] = {file: [] for file in asking}
    whole = pl.col("scenario").is_in(list(scenarios)), pl.col("status") == COMPLETE
    runs = load_results(output).filter(*whole)
    for row in runs.iter_rows(named=True):
        folder = folder_of(output, row["run"])
        path = folder / SUMMARY
        summary = json.loads(path.read_text()) if path.is_file() else None
        for file, (rows_of_run, names) in asking.items():
            if row["scenario"] in names and summary is not None:
                rows[file] += rows_of_run(row, summary)
            elif row["scenario"] in names:
                rows[file] += _kept(load(folder, file) if (folder / file).is_file() else known[file], row)
    for file, found in rows.items():
        _keep(output / file, known[file], found, list(scenarios))


def publish(source: Path, scenario: str, output: Path) -> None:
    """Put what users noticed in a scenario's runs beside its published results, replacing what was there."""
    for file in SCHEMAS:
        rows = load(source, file).filter(pl.col("scenario") == scenario)
        if not rows.is_empty():
            _keep(output / file, load(output, file), rows.to_dicts(), [scenario])


def _kept(known: pl.DataFrame, row: Mapping[str, Any]) -> Rows:
    """Return a table's rows of a run, named as this scenario's: another one may have the same run."""
    kept = known.filter(pl.col("run") == row["run"])
    one_place = kept.select(KEY).unique(maintain_order=True).head(1)
    kept = kept.join(one_place, on=list(KEY), maintain_order="left")
    return [{**one, **{key: row[key] for key in KEY}} for one in kept.iter_rows(named=True)]


def _keep(path: Path, known: pl.DataFrame, rows: Rows, scenarios: Sequence[str]) -> None:
    """Put rows in the place of all that the scenarios had in a table."""
    others = known.filter(~pl.col("scenario").is_in(list(scenarios)))
    by = [name for name in (*KEY, "sender") if name in known.columns]
    table = pl.concat([others, pl.DataFrame(rows, schema=known.schema)]).sort(by)
    if not table.is_empty() or path.is_file():
        with new_file(path) as partial:
            table.write_parquet(partial, compression="zstd")


def rows_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> Rows:
    """Return a run's row where it has pages or calls, from its row of the results and its summary."""
    return [row_of(row, summary)] if "pages" in summary or "calls" in summary else []


def flows_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> Rows:
    """Return a row for each sender of a run that has a flow, from its row of the results and its summary."""
    found = []
    for sender in summary["run"]["senders"]:
        for group in sender["groups"]:
            if group["flows"]:
                classes = summary["senders"][sender["name"]]
                packets = classes["l4s" if classes["l4s"]["packets"] else "classic"]
                found.append(
                    {name: row[name] for name in (*KEY, "run", "program")}
                    | {
                        "sender": sender["name"],
                        "tcp": group["tcp"],
                        "goodput_mbps": packets["goodput_bps"] * 1e-6,
                        "queueing_p99_s": _seconds(packets["queueing_us"]["p99"]),
                        "rtt_p99_s": _seconds(packets["latency_us"]["p99"]),
                        "rtt_mean_s": _seconds(packets["latency_us"]["mean"]),
                        "occupancy": _occupancy(summary["run"], packets),
                    }
                )
    return found


def _occupancy(run: Mapping[str, Any], packets: Mapping[str, Any]) -> float | None:
    """Return the mean part of the first bottleneck's buffer, by Little's law: arrivals times their wait."""
    waited_s = _seconds(packets["queueing_us"]["mean"])
    if waited_s is None:
        return None
    arrived_hz = packets["arrived"] / (float(run["seconds"]) - float(run["warmup_s"]))
    return float(arrived_hz * waited_s / _buffer_packets(run["bottlenecks"][0]))


def _buffer_packets(link: Mapping[str, Any]) -> float:
    """Return how many packets a bottleneck holds; its disc's own limit goes before the buffer."""
    limit = link.get("disc", {}).get("attributes", {}).get("MaxSize", f"{link['buffer_bytes']}B")
    ((number, prefix, unit),) = re.findall(r"^([\d.]+)(.*)([pB])$", limit)
    return float(number) * PREFIXES[prefix] / (1 if unit == "p" else LARGEST_PACKET_BYTES)


def classes_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> Rows:
    """Return a row for each flow of a run that tells their classes; every flow is a sender's only one."""
    senders = [(s["name"], g["tcp"]) for s in summary["run"]["senders"] for g in s["groups"] if g["flows"]]
    return [
        {name: row[name] for name in (*KEY, "run", "program")}
        | {
            "sender": sender,
            "tcp": tcp,
            "warmup_s": float(summary["run"]["warmup_s"]),
            "every_s": CLASS_EVERY_S,
            "classes": classes,
        }
        for (sender, tcp), classes in zip(senders, summary.get("flow_classes", []), strict=False)
    ]


def row_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's row, from its row of the results and its summary (simulation/doc/lab.md)."""
    run = summary["run"]
    pages = _pages(summary)
    load_s = _loads(pages, float(run["seconds"]))
    own = summary["senders"][run["senders"][0]["name"]]
    packets = own["l4s" if own["l4s"]["packets"] else "classic"]
    mbps = {name: sum(group["goodput_bps"] for group in s.values()) for name, s in summary["senders"].items()}
    call_bps = mbps.pop(run["senders"][0]["name"])
    return {
        **{name: row[name] for name in (*KEY, "run", "program", "artifact", "seconds", "cpu_s")},
        "pages": len(pages),
        "pages_unfinished": sum(page["load_s"] is None for page in pages),
        "load_mean_s": float(load_s.mean()) if pages else None,
        "load_p95_s": float(np.quantile(load_s, 0.95)) if pages else None,
        **_frame_figures(_Frames.of(summary), pages),
        "call_mbps": call_bps * 1e-6,
        "web_mbps": sum(mbps.values()) * 1e-6,
        "queueing_p99_s": _seconds(packets["queueing_us"]["p99"]),
        "queueing_p999_s": _p999_s(packets["queueing_us"]),
        "rtt_p99_s": _seconds(packets["latency_us"]["p99"]),
        "rtt_p999_s": _p999_s(packets["latency_us"]),
        "reordered_share": packets["reordered"] / packets["arrived"] if packets["arrived"] else None,
    }


def pages_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> Rows:
    """Return a run's row with each page's own figures, where it has pages."""
    pages, frames = _pages(summary), _Frames.of(summary)
    if not pages:
        return []
    beside = [frames.between(*when) for when in _times(pages, frames.end_s)]
    return [
        {name: row[name] for name in (*KEY, "run", "program")}
        | {
            "load_s": _loads(pages, frames.end_s).tolist(),
            "stall_s": [float(one.late_s.sum()) for one in beside],
            "frame_worst_s": [float(one.delay_s.max(initial=0)) for one in beside],
        }
    ]


def uplinks_of(row: Mapping[str, Any], summary: Mapping[str, Any]) -> Rows:
    """Return a run's row where it has uplinks, from its row of the results and its summary."""
    if "uplinks" not in summary:
        return []
    s1 = summary["run"]["senders"][0]["name"]
    own = summary["senders"][s1]
    frames = _frame_figures(_Frames.of(summary), [])
    links = summary["uplinks"]["links"]
    spurious = summary["uplinks"]["spurious_retransmissions"][s1]

    def share(count: str, of: str) -> float | None:
        whole = sum(one[of] for one in own.values())
        return sum(one[count] for one in own.values()) / whole if whole else None

    packets = sum(one["packets"] for one in own.values())
    return [
        {name: row[name] for name in (*KEY, "run", "program")}
        | {name: frames.get(name) for name in ("frame_p99_s", "stall_s")}
        | {
            "one_way_p99_s": _seconds(own["l4s"]["one_way_us"]["p99"]),
            "cross_message_p99_s": summary.get("cross_message_p99_s"),
            "cross_mbps": row["cross_goodput_bps"] * 1e-6,
            "moved_share": row["moved_share"],
            "reordered_share": share("reordered", "arrived"),
            "retransmitted_share": share("retransmissions", "packets"),
            "spurious_share": spurious / packets if packets else None,
            "unrouted": sum(link["unrouted"] for link in links),
            "diverted": sum(link["diverted"] for link in links),
        }
    ]


def _pages(summary: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the pages that began behind the warm-up, the first one first."""
    warmup_s, end_s = (float(summary["run"][name]) for name in ("warmup_s", "seconds"))
    counted = (page for page in summary.get("pages", []) if warmup_s <= page["start_s"] < end_s)
    return sorted(counted, key=lambda page: float(page["start_s"]))


def _loads(pages: Sequence[Mapping[str, Any]], end_s: float) -> NDArray[np.float64]:
    """Return how long each page took; one that did not end has taken until the end of the run."""
    return np.array([end_s - p["start_s"] if p["load_s"] is None else p["load_s"] for p in pages], np.float64)


def _times(pages: Sequence[Mapping[str, Any]], end_s: float) -> Iterable[tuple[float, float]]:
    """Return the time from each page's beginning to the next one's."""
    begins_s = [float(page["start_s"]) for page in pages]
    return zip(begins_s, [*begins_s[1:], end_s], strict=False)


@dataclass(frozen=True)
class _Frames:
    """The frames of all calls together, so that a stall of two calls counts twice.

    Shapes: F frames. A frame that has not arrived is as late as the end of the run shows.
    """

    made_s: NDArray[np.float64]
    delay_s: NDArray[np.float64]
    late_s: NDArray[np.float64]  # the time that a frame stands for if the viewer waits for it, else 0
    warmup_s: float
    end_s: float

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> _Frames:
        """Return the frames of a run."""
        warmup_s, end_s = (float(summary["run"][name]) for name in ("warmup_s", "seconds"))
        calls = summary.get("calls", [])
        made_s = np.concatenate([[], *(np.asarray(call["made_s"], np.float64) for call in calls)])
        delay_s = np.concatenate([[], *(np.array(call["delay_s"], np.float64) for call in calls)])
        each_s = np.concatenate([[], *(np.full(len(c["made_s"]), 1 / c["frames_per_s"]) for c in calls)])
        delay_s = np.where(np.isnan(delay_s), end_s - made_s, delay_s)
        late_s = np.where((made_s >= warmup_s) & (delay_s > STALL_S), each_s, 0.0)
        return cls(made_s, delay_s, late_s, warmup_s, end_s)

    def between(self, begin_s: float, until_s: float) -> _Frames:
        """Return the frames made between two times."""
        some = (self.made_s >= begin_s) & (self.made_s < until_s)
        return replace(self, made_s=self.made_s[some], delay_s=self.delay_s[some], late_s=self.late_s[some])


def _frame_figures(frames: _Frames, pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of the frames."""
    if not frames.made_s.size:
        return {"frames": 0}
    counted_s = frames.delay_s[frames.made_s >= frames.warmup_s]
    per_page_s = np.array([frames.between(*when).late_s.sum() for when in _times(pages, frames.end_s)])
    return {
        "frames": int(counted_s.size),
        "frame_p50_s": float(np.quantile(counted_s, 0.5)) if counted_s.size else None,
        "frame_p99_s": float(np.quantile(counted_s, 0.99)) if counted_s.size else None,
        "stall_s": float(frames.late_s.sum()),
        "stall_per_page_s": float(per_page_s.mean()) if per_page_s.size else None,
        "stalling_pages_share": float((per_page_s > 0).mean()) if per_page_s.size else None,
    }


def _p999_s(quantiles: Mapping[str, Any]) -> float | None:
    """Return P99.9; None where too few packets are beyond it."""
    enough = quantiles["count"] * 1e-3 >= FEWEST_PACKETS
    return _seconds(quantiles["p999"]) if enough else None


def _seconds(us: float | None) -> float | None:
    return None if us is None else us * 1e-6
