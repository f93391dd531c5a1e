"""Who picks: the tables, the verdicts, and the worst cheat."""

from __future__ import annotations

import polars as pl
import pytest

from swiftqueue.laboratory.runs import experience
from swiftqueue.studies.who_picks import judges as who_picks
from swiftqueue.studies.who_picks import tables as queues


def noticed(scenario: str, point: str, seed: int, **columns: float) -> dict[str, object]:
    """A row of what users noticed, of which the other columns are null."""
    key = {"scenario": scenario, "point": point, "profile": "rfc9332", "control": "default", "seed": seed}
    return {**dict.fromkeys(experience.SCHEMA), **key, **columns}


def test_who_picks_has_a_row_for_each_rule_profile_and_control() -> None:
    rows = [
        noticed(
            who_picks.WHO, "nobody: FIFO", seed, stall_per_page_s=seed / 1000, frame_p99_s=0.1, call_mbps=9.0
        )
        for seed in (1, 3)
    ]
    rows.append(
        {**noticed(who_picks.WHO, who_picks.BY_SENDER, 1, web_mbps=3.0, call_mbps=9.0), "control": "oracle"}
    )
    rows.append(noticed(who_picks.WHO, "nobody: FIFO; GCC calls", 1, frame_p99_s=0.1))
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    *_, nobody, sender = queues.who(runs)
    assert nobody == "| nobody: FIFO | 2 | 2.0 | 100 | – | – | 9.0 |"
    assert sender == "| sender: oracle | 1 | – | – | – | – | 9.0 |"
    assert queues.who_else(runs)[2:] == ["| nobody: FIFO; GCC calls | 1 | – | 100 | – | – | – |"]
    assert (
        queues.who_shares(runs)[-1] == "| sender: oracle | 1 | – | 3.00 | 0.80 | – |"
    )  # (9 + 3)² / 2(9² + 3²)
    assert queues.who_waits(runs)[-1] == "| sender: oracle | 1 | – | not enough packets | – | – |"


def test_a_rule_is_judged_beside_nobody_and_a_sender_beside_its_queue() -> None:
    """FqCoDel's frames come in half the time; the sender changes nothing that could be told from chance."""
    rows = []
    for seed in range(1, 6):
        wide = 1 + seed / 100
        rows += [
            noticed(who_picks.WHO, "nobody: FIFO", seed, frame_p99_s=0.1 * wide, load_mean_s=0.2),
            noticed(who_picks.WHO, "flow: FqCoDel", seed, frame_p99_s=0.05, load_mean_s=0.2 * wide**2),
            noticed(who_picks.WHO, who_picks.BY_SENDER, seed, frame_p99_s=0.02, load_mean_s=0.1),
            noticed(
                who_picks.WHO, who_picks.BY_SENDER, seed, frame_p99_s=0.02 * (0.5 + seed / 5), load_mean_s=0.1
            )
            | {"control": "oracle"},
        ]
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    found = {v.figure: v for v in who_picks.who_picks(runs)}
    assert found["flow: FqCoDel: frame P99 over nobody: FIFO"].verdict == "held"
    assert found["flow: FqCoDel: page load time over nobody: FIFO"].verdict == "not held"
    assert found["label: DualPI2: frame P99 over nobody: FIFO"].measured == pytest.approx(0.19, abs=0.01)
    own = found["sender: oracle: frame P99 over label: DualPI2"]
    assert (own.verdict, own.measured) == ("not settled", pytest.approx(1.1))
    assert not any(figure.startswith("nobody") for figure in found)


def test_the_worst_cheat_is_named() -> None:
    rows = [
        noticed(who_picks.CHEATS, f"label: priority, {cheat}", seed, call_mbps=10.0, web_mbps=web)
        for cheat, web in (("honest", 40.0), ("churn", 30.0), ("mislabelled", 10.0))
        for seed in range(1, 6)
    ]
    rows += [row | {"control": "random", "web_mbps": 1.0} for row in rows]  # rows without a rule
    runs = pl.DataFrame(rows, schema=experience.SCHEMA)
    line = "| label: priority | 5 | 80 (80 to 80) | 75 (75 to 75) | 50 (50 to 50) | churn, 75 |"
    assert queues.cheats(runs)[-1] == line
    (verdict,) = who_picks.who_picks_cheats(runs)
    assert (verdict.measured, verdict.verdict) == (pytest.approx(0.75), "not held")
