"""A run's files as one row of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from swiftqueue.common.atomic import new_folder
from swiftqueue.laboratory.runs import experience
from swiftqueue.laboratory.runs.execution import COST, ROW, SUMMARY, TRACE_METADATA, folder_of, is_complete
from swiftqueue.laboratory.runs.programs import Equals
from swiftqueue.laboratory.runs.resolve import PlannedRun, identity
from swiftqueue.laboratory.runs.results import COMPLETE, NOT_RUN, load
from swiftqueue.laboratory.scenarios.schema import Scenario


def not_run(asked: PlannedRun, scenario: Scenario, reason: str) -> dict[str, Any]:
    """Return the row of a cell that could not be run, with the reason."""
    return {**asked.cell.key(), **described(scenario), "status": NOT_RUN, "reason": reason}


def complete(
    asked: PlannedRun, scenario: Scenario, identity: str, program: str, folder: Path
) -> dict[str, Any]:
    """Return the row of a run whose result lies in `folder`; figures leave the warm-up out."""
    if (folder / ROW).is_file():
        kept = json.loads((folder / ROW).read_text())
        return {**kept, **asked.cell.key(), **described(scenario), "share_of": asked.share_of}
    summary = json.loads((folder / SUMMARY).read_text())
    cost = json.loads((folder / COST).read_text())
    run = summary["run"]
    senders, classes = summary["senders"], summary["classes"]
    captured = senders[run["senders"][0]["name"]]
    l4s = captured["l4s"]
    total_bps = sum(group["goodput_bps"] for group in classes.values())
    s1_bps = sum(group["goodput_bps"] for group in captured.values())
    return {
        **asked.cell.key(),
        **described(scenario),
        "status": COMPLETE,
        "run": identity,
        "program": program,
        "artifact": asked.model.content if asked.model else None,
        "share_of": asked.share_of,
        "seconds": run["seconds"],
        "warmup_s": run["warmup_s"],
        "parameters": json.dumps(asked.run, sort_keys=True),
        "reordering": reordering_rule(run),
        **_quantiles("queueing", l4s["queueing_us"], ("mean", "p50", "p90", "p99")),
        **_quantiles("one_way", l4s["one_way_us"], ("p50", "p90", "p99")),
        **_quantiles("rtt", l4s["latency_us"], ("p50", "p90", "p99")),
        "queueing_cdf_us": _floats(l4s["queueing_us"]["cdf"]),
        "rtt_cdf_us": _floats(l4s["latency_us"]["cdf"]),
        "packets": l4s["packets"],
        "moved_share": summary["moved"]["share"],
        "unforeseen_share": _unforeseen(summary, folder),
        "retransmitted_share": _share(l4s["retransmissions"], l4s["packets"]),
        "reordered_share": _share(l4s["reordered"], l4s["arrived"]),
        "dropped_share": _share(l4s["dropped"], l4s["packets"]),
        "s1_l4s_goodput_bps": l4s["goodput_bps"],
        "s1_classic_goodput_bps": captured["classic"]["goodput_bps"],
        "s1_goodput_bps": s1_bps,
        "cross_goodput_bps": total_bps - s1_bps,
        "classic_share": summary["classic_share"],
        "engine_wall_s": cost.get("engine_s"),
        "cpu_s": cost["cpu_s"],
        **_quantiles("queueing", l4s["queueing_us"], ("p999", "max")),
        "queueing_packets": l4s["queueing_us"]["count"],
        **_choice(summary.get("choice")),
        **_messages(summary.get("messages"), run["senders"][0]["name"]),
    }


def keep_rows(output: Path) -> None:
    """Let each row of the results stand for its run where that run's folder is not there.

    So what others have published can be gone on with. What users noticed in the run stays with it, whatever
    becomes of the tables. A program that was listed after it ran has the list's name from then on. Runs that
    left captures or packets are none of these: a row does not stand for those.
    """
    listed = Equals.load().programs
    tables = {file: experience.load(output, file) for file in experience.SCHEMAS}
    for row in load(output).filter(pl.col("status") == COMPLETE).iter_rows(named=True):
        run = json.loads(row["parameters"])
        program = listed[0] if row["program"] in listed else row["program"]
        name = {"run": identity(run, program), "program": program}
        if is_complete(output, name["run"]) or {"pcap", "truth"} & set(run["outputs"]):
            continue
        with new_folder(folder_of(output, name["run"])) as partial:
            (partial / ROW).write_text(json.dumps(row | name) + "\n")
            for file, table in tables.items():
                noticed = table.filter(pl.col("run") == row["run"])
                if not noticed.is_empty():
                    named = noticed.with_columns(pl.lit(value).alias(key) for key, value in name.items())
                    named.write_parquet(partial / file)


def _unforeseen(summary: Mapping[str, Any], folder: Path) -> float | None:
    """Return the share of S1's packets that were L4S without a decision of their own; None without a model.

    Both are of the whole run: no file of a run has the number of its L4S packets with the warm-up.
    """
    if (decisions := summary.get("decisions")) is None:
        return None
    return _share(decisions["unforeseen"], json.loads((folder / TRACE_METADATA).read_text())["packets"])


def _choice(scored: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return how good the choices were, where they were scored."""
    if scored is None:
        return {}
    return {
        "choice_right_share": _share(scored["right"], scored["apart"]),
        "choice_regret_mean_us": scored["regret_us"]["mean"],
        "choice_regret_p99_us": scored["regret_us"]["p99"],
    }


def _messages(by_sender: Mapping[str, Any] | None, s1: str) -> dict[str, Any]:
    """Return how long messages took, each weighted by its bytes, where there are any."""
    if by_sender is None:
        return {}
    own = list(by_sender[s1].values())
    cross = [group for name, groups in by_sender.items() if name != s1 for group in groups.values()]
    return {
        "s1_message_us": _byte_mean_us(own),
        "cross_message_us": _byte_mean_us(cross),
        "unfinished_share": _share(
            sum(group["unfinished_bytes"] for group in own), sum(group["bytes"] for group in own)
        ),
    }


def _byte_mean_us(groups: Sequence[Mapping[str, Any]]) -> float | None:
    some = [group for group in groups if group["count"]]
    byte_us = sum(group["bytes"] * group["byte_mean_s"] * 1e6 for group in some)
    return _share(byte_us, sum(group["bytes"] for group in some))


def described(scenario: Scenario) -> dict[str, Any]:
    """Return the columns by which a report describes a scenario."""
    axis = scenario.axis
    return {
        "about": scenario.about,
        "figure": scenario.figure,
        "axis_label": axis.label if axis else None,
        "axis_log": axis.log if axis else None,
    }


def reordering_rule(run: Mapping[str, Any]) -> str:
    """Name the rule by which S1's L4S flows take reordering for loss."""
    if run["control"]["kind"] == "no_l4s":
        return "3 duplicate ACKs"
    rules = {g["dupack_threshold"] for g in run["senders"][0]["groups"] if g["ecn"] == "ect1"}
    named = ["non-congestion robustness (RFC 4653)" if r == "ncr" else f"{r} duplicate ACKs" for r in rules]
    return ", ".join(sorted(named)) or "no L4S flow"


def _quantiles(name: str, q: Mapping[str, Any], which: tuple[str, ...]) -> dict[str, Any]:
    return {f"{name}_{key}_us": q[key] for key in which}


def _floats(values: list[float] | None) -> list[float] | None:
    return None if values is None else [float(value) for value in values]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
