"""How the report opens: question, answer, one figure, seven rows; what is not settled looks like it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from lab_rows import NO_NOISE, run_row, runs_of, table

from swiftqueue.laboratory.report.opening import QUESTION, Opening, opening
from swiftqueue.laboratory.report.page import make_report
from swiftqueue.laboratory.runs.results import merge

LIMITED = ["P99", "P99.9", "the longest wait", "RTT P99", "S1's goodput"]
LIMITED += ["cross traffic's goodput", "the classic flows' share"]


def opened(rows: list[dict[str, Any]]) -> Opening:
    found = opening(table(rows))
    assert found is not None
    return found


def test_seven_rows_and_a_sentence_for_each_place() -> None:
    rows = runs_of({"default": 1, "model": 0.6}) + runs_of({"default": 1, "model": 1.2}, profile="rfc9332")
    found = opened(rows)
    assert [row.measure for row in found.rows] == LIMITED
    assert (found.control, found.places) == ("model", ("rfc9332", "uncoupled"))
    assert found.answer == (
        "rfc9332: the model harms: P99 +20.0 % (by 20.0 or more).",
        "uncoupled: the model helps; P99 of the wait -40.0 % (-40.0…-40.0).",
    )
    assert [change.kind for change in found.rows[0].changes] == ["harms", "helps"]
    assert {change.kind for change in found.rows[3].changes} == {"no-harm"}
    took = [row | {"s1_message_us": 4e6, "cross_message_us": 2e6} for row in rows]
    assert len(opened(took).rows) == len(LIMITED) + 2


def test_what_is_not_settled_is_grey_and_says_what_would_settle_it() -> None:
    rows = [run_row("default", seed) for seed in range(1, 6)]
    rows += [run_row("model", s, 10_000 * p99) for s, p99 in enumerate((1.08, 1.4, 0.8, 1.02, 1.1), 1)]
    found = opened(rows)
    assert found.answer[0].startswith(
        "uncoupled: what the model does is not settled (93 seeds might); P99 of"
    )
    p99 = found.rows[0].changes[0]
    assert p99.kind == "open"
    assert p99.text.endswith(", not settled (93 seeds might)")
    few = opened([row for row in rows if row["seed"] < 4])
    assert {change.kind for row in few.rows for change in row.changes} == {"open"}


def test_a_tail_of_few_packets_is_not_judged() -> None:
    rows = runs_of({"default": 1, "model": 0.6}, queueing_packets=3_000.0)
    assert opened(rows).rows[0].changes[0] == ("rests on fewer than 100 packets", "open")
    what = "uncoupled: what the model does is not settled; P99 of the wait -40.0 % (-40.0…-40.0)"
    few = "rests on fewer than 100 packets of a run, and runs about 4 times as long would have them."
    assert opened(rows).answer == (f"{what} {few}",)
    assert opened(rows).rows[1].changes[0] == ("not measured", "open")  # older rows have no P99.9


def test_the_limit_is_the_one_that_is_used() -> None:
    """A packet's time at 100 Mbit/s is 120 us, 4.2 % of 2.86 ms."""
    link = {"parameters": '{"bottlenecks": [{"rate_bps": 100000000}]}'}
    quick = [row | link | {"profile": "rfc9332"} for row in runs_of({"default": 1, "model": 0.6})]
    quick = [row | {"queueing_p99_us": 2_857.0} for row in quick]
    assert opened(quick).rows[0].limit == "4.2 % more"
    both = opened([*quick, *runs_of({"default": 1, "model": 0.6})])
    assert [row.limit for row in both.rows[:1]] == ["4.2 % more (rfc9332), 2 % more (uncoupled)"]
    assert [row.limit for row in both.rows[3:]] == ["5 % more", "2 % less", "2 % less", "10 % less"]


def test_a_sweep_is_counted_and_its_ends_are_shown() -> None:
    rows = [
        row
        for at in (10, 20, 30)
        for profile, p99 in (("rfc9332", 1.0), ("uncoupled", 0.5))
        for row in runs_of({"default": 1, "oracle": p99}, point=f"{at}", at=float(at), profile=profile)
    ]
    found = opened(rows)
    assert found.answer == ("Of 6 places the oracle helps at 3, does no harm at 3.",)
    assert found.places == ("rfc9332, 10", "rfc9332, 30", "uncoupled, 10", "uncoupled, 30")


def test_figure_8_comes_first_then_a_model_then_an_oracle() -> None:
    def rows(name: str, control: str) -> list[dict[str, Any]]:
        return runs_of({"default": 1, control: 0.5}, scenario=name)

    by_oracle, mine = rows("a", "oracle"), rows("b", "model")
    assert opened(by_oracle).scenario == "a"
    assert opened(by_oracle + mine).scenario == "b"
    assert opened(by_oracle + mine + rows("figure8", "oracle")).scenario == "figure8"
    assert opening(table(runs_of({"default": 1}))) is None


@pytest.mark.slow
def test_the_page_opens_with_it(tmp_path: Path) -> None:
    noisy = zip(("default", "model"), (1.0, 0.9), strict=True)
    rows = [run_row(c, s, 10_000 * p * n) for c, p in noisy for s, n in enumerate(NO_NOISE[:3], 1)]
    merge(tmp_path, [*rows, *runs_of({"default": 1, "model": 0.6}, scenario="other")])
    page, answer = make_report(tmp_path, ["mine"])
    text = page.read_text()
    order = [QUESTION, answer[0].replace("'", "&#39;"), "<figure>", "the classic flows&#39; share", "<nav>"]
    places = [text.index(part) for part in order]
    assert places == sorted(places)
    assert re.search(
        r'<td class="open">-10\.0 % \(-10\.0…-10\.0\), not settled \(3 seeds; 5 seeds might\)', text
    )
    assert "other" not in re.findall(r'<h2 id="([^"]+)"', text)  # only what was asked for
    first = (page.parent / "table.md").read_text()
    assert first.startswith(f"**{QUESTION}**\n\n- {answer[0]}\n")
    with pytest.raises(ValueError, match=r"has no results of figure9, but of mine, other"):
        make_report(tmp_path, ["figure9"])
