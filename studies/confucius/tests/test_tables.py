"""Confucius' tables and pictures."""

from __future__ import annotations

import polars as pl
import pytest

from swiftqueue.laboratory.runs import experience
from swiftqueue.studies.confucius import judges as lab_confucius
from swiftqueue.studies.confucius import tables as confucius
from swiftqueue.studies.confucius import web_pages


def noticed(scenario: str, point: str, seed: int, **columns: float) -> dict[str, object]:
    """A row of what users noticed, of which the other columns are null."""
    key = {"scenario": scenario, "point": point, "profile": "rfc9332", "control": "default", "seed": seed}
    return {**dict.fromkeys(experience.SCHEMA), **key, **columns}


def test_pages_are_compared_one_by_one_with_those_of_fair_queuing() -> None:
    """The same page of the same seed; under fair queuing itself there is nothing to compare."""
    key = {**dict.fromkeys(experience.PAGES_SCHEMA), "scenario": "confucius-web"}
    rows = [
        key
        | {"point": f"{rule}, Copa", "seed": seed, "load_s": load, "stall_s": stall, "frame_worst_s": stall}
        for seed in (1, 2)
        for rule, load, stall in (
            ("Confucius", [1.0, 1.0], [0.0, 0.6]),
            ("FQ+FIFO", [1.5, 0.5 * seed], [0.0, 0.0]),
        )
    ]
    pages = pl.DataFrame(rows, schema=experience.PAGES_SCHEMA)
    lines = [line.split(" | ")[1:] for line in web_pages.table(pages)[2:]]
    assert lines == [["FQ+FIFO", "4", "100", "0", "–", "0 |"], ["Confucius", "4", "50", "50", "75", "50 |"]]
    assert len(web_pages.picture(pages).axes) == 3
    assert web_pages.picture(pages.clear()).axes


def test_a_class_is_right_where_its_tcp_belongs_behind_the_warm_up() -> None:
    rows = [
        {"seed": 1, "tcp": tcp, "warmup_s": 0.2, "every_s": 0.1, "classes": classes}
        for tcp, classes in (("cubic", [3, 0, 3, 3, None]), ("gcc", [3, 1, 1, 1, 1]))
    ]
    classes = pl.DataFrame(rows, schema=experience.CLASSES_SCHEMA)
    assert lab_confucius.right_class(classes) == {1: pytest.approx((2 / 4 + 1) / 2)}


def test_figures_of_calls_that_were_not_run_are_left_out() -> None:
    columns = {"stall_per_page_s": 0.1, "stalling_pages_share": 0.1, "load_mean_s": 0.2}
    rows = [
        noticed(confucius.WEB, f"{rule}, GCC", seed, **columns)
        for rule in ("Confucius", "FIFO", "FQ+FIFO", "FqCoDel")
        for seed in range(1, 6)
    ]
    lines = confucius.web_verdicts(pl.DataFrame(rows, schema=experience.SCHEMA))
    assert len(lines) == 2 + 4
    assert all("| GCC: " in line for line in lines[2:])
    assert lines[-1] == "| GCC: share of pages that stall | at most 0.2 | 0.100 (0.100 to 0.100) | held |"
    assert lines[3].endswith("| not held |")  # as much stall as FqCoDel


def test_confucius_tables_show_what_was_run() -> None:
    """Only scenarios with runs; the corrected bound is the closed form; Jain's index is of all flows."""
    assert [round(1e3 * confucius.later_s(flows)) for flows in (8, 19, 100)] == [140, 188, 232]
    rows = [
        noticed(confucius.FLOWS, f"{rule}, GCC, 60", seed, stall_per_page_s=0.0, load_mean_s=load)
        for rule, load in (("Confucius", 0.8), ("FQ+FIFO", 0.5))
        for seed in range(1, 6)
    ]
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    key = {"scenario": "confucius-mix", "point": "Confucius, GCC", "profile": "rfc9332", "control": "default"}
    flows = pl.DataFrame(
        [
            {**dict.fromkeys(experience.FLOWS_SCHEMA), **key, "seed": seed, "sender": tcp, "tcp": tcp}
            | {"goodput_mbps": rate, "queueing_p99_s": 0.05}
            for seed in range(1, 6)
            for tcp, rate in (("gcc", 1.0), ("bbr", 3.0))
        ],
        schema=experience.FLOWS_SCHEMA,
    )
    seen = {"warmup_s": 0.0, "every_s": 0.1, "sender": "bbr", "tcp": "bbr", "classes": [1, 2, 2, 2]}
    classes = pl.DataFrame(
        [{**dict.fromkeys(experience.CLASSES_SCHEMA), **key, "seed": seed} | seen for seed in range(1, 6)],
        schema=experience.CLASSES_SCHEMA,
    )
    assert any("| 0.750 (0.750 to 0.750) |" in line for line in confucius.verdicts(runs, flows, classes))
    probing = {"scenario": pl.lit("confucius-probing"), "point": pl.lit("Confucius, BBR, 20 ms")}
    (changed,) = confucius.verdicts(runs.clear(), flows.clear(), classes.with_columns(**probing))[2:]
    assert "20 ms: changes of class | at most 0 | 1.000 (1.000 to 1.000) | not held |" in changed
    lines = confucius.verdicts(runs, flows, classes.clear())
    assert "| `confucius-flows` | 60 flows: stall, s | at most 0 | 0.000 (0.000 to 0.000) | held |" in lines
    assert any("gcc: round trip P99, s | at most 0.07 | 0.090" in line for line in lines)
    assert not any("confucius-sizes" in line for line in lines)
    assert confucius.bounds(runs)[2:] == ["| 60 | 361 | 223 | 300 (300 to 300) |"]
    (shared,) = confucius.shares(flows)[2:]
    assert shared.startswith("| `confucius-mix` | Confucius, GCC | 5 | 0.80 (0.80 to 0.80) | 1.0 (1.0 to")
    assert shared.endswith("| 3.0 (3.0 to 3.0) |")
    alone = flows.with_columns(
        scenario=pl.lit("confucius-occupancy"), point=pl.lit("FIFO, BBR, 4G"), occupancy=pl.lit(0.5)
    )
    assert not confucius.shares(alone)[2:]
    assert not confucius.shares(flows.with_columns(scenario=pl.lit("lfq-flows")))[2:]  # has a page of its own
    (bbr,) = (line for line in confucius.occupancies(alone) if "| BBR | 4G | 5 |" in line)
    assert "| 0.500 (0.500 to 0.500) | – |" in bbr
    judged = confucius.verdicts(runs.clear(), alone, classes.clear())
    assert "| `confucius-occupancy` | BBR: part of the buffer | at least 0.2 | 0.500" in "\n".join(judged)
    assert len(confucius.pages(runs)) == 2 + 2
