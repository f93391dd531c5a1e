"""`bench serving`, `swap` and `linerate`, made short: every figure stands beside its reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.bench import linerate, serving, swap

pytestmark = pytest.mark.slow


def test_round_trips_stand_beside_the_identity_model_and_what_went_before(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How long they take is for `swiftqueue bench serving` to say: a test runs beside others."""
    monkeypatch.setattr(serving, "QUESTIONS", 40)
    monkeypatch.setattr(serving, "PYTHON_QUESTIONS", 20)
    monkeypatch.setattr(serving, "WARM_UP", 5)
    rows = serving.measure(rounds=1)
    names = [row.name for row in rows]
    for what in ("every candidate, p50", "every candidate, p99", "last token, p50", "last token, p99"):
        references = {row.reference_name for row in rows if row.name == what}
        figure = what.rpartition(" ")[2]
        assert {"identity, p50", f"ONNX in the Python backend, Python client, {figure}"} <= references
    for what in ("unix socket", "busy polling", "Python client"):
        assert any(what in name for name in names), names
    assert {row.unit for row in rows} == {"us"}
    for row in rows:
        assert 0 < row.ours < 10e6, row
        assert 0 < row.reference < 10e6, row
        assert row.ratio == pytest.approx(row.reference / row.ours)


def test_heads_are_swapped_under_a_client_without_an_unanswered_question(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (swap.Setting(0.5, 1_000, 3), swap.Setting(1.5, 500, 3))
    monkeypatch.setattr(swap, "SETTINGS", settings)
    rows = {row.name: row for row in swap.measure(rounds=2)}
    for setting in settings:
        answered = rows[f"{setting}: answered, worst stretch"]
        assert (answered.ours, answered.reference) == (1, 1)
        seen = rows[f"{setting}: swaps the client saw"].ours
        assert seen >= setting.swaps  # half of them, on a busy machine
    for row in rows.values():
        assert row.ours > 0, row
        assert row.reference > 0, row


def test_batches_in_time_are_measured_through_triton_in_process_and_from_python(
    serving_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many are in time is for `swiftqueue bench linerate` to judge: a test runs beside others."""
    monkeypatch.setattr(linerate, "SECONDS", 0.4)
    monkeypatch.setattr(linerate, "UNHURRIED_S", 0.4)
    monkeypatch.setattr(linerate, "RATE_BPS", 5e6)
    monkeypatch.setattr(linerate, "FLOWS", (4,))
    monkeypatch.setattr(linerate, "AHEAD_US", (50_000, 100_000))
    monkeypatch.setattr(linerate, "LOWEST_BPS", 1e6)
    monkeypatch.setattr(linerate, "HIGHEST_BPS", 2e6)
    monkeypatch.setattr(linerate, "STEP", 1.5)
    rows = linerate.measure(rounds=1)
    in_time = [row for row in rows if row.name.startswith("decided in time")]
    highest = [row for row in rows if row.name.startswith("highest rate")]
    assert len(in_time) == len(highest) == 4
    assert all(0.5 < row.ours <= 1 for row in in_time), in_time  # 5 Mbit/s, asked 50 ms before
    assert all(0 <= row.ours < 2 for row in highest), highest
    for rows_of_a_kind in (in_time, highest):
        assert sum("asked 50 ms ahead" in row.name for row in rows_of_a_kind) == 2
        assert sum("asked 100 ms ahead" in row.name for row in rows_of_a_kind) == 2
    unhurried = [row for row in rows if row.name.startswith("packets decided in a second")]
    assert len(unhurried) == 2
    assert all(row.ours > 0 and row.reference > 0 for row in unhurried), unhurried
    assert {row.unit for row in rows} == {"share", "Mbit/s", "packets/s"}
