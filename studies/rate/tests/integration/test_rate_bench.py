"""`swiftqueue rate bench` at a small size: every row has its figure and its reference."""

from __future__ import annotations

import math

import pytest

from swiftqueue.studies.rate import benchmark

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_every_figure_has_its_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CALLS": 20, "FLOWS": 8, "AGENT_CALLS": 10}.items():
        monkeypatch.setattr(benchmark, name, value)
    found = benchmark.measure(rounds=1)
    assert all(0 < one < math.inf for row in found for one in (row.ours, row.reference, row.ratio))
    assert found[0].ours <= benchmark.LARGEST * 1e6
    wanted = {"wanted at most", "wanted at least"}
    names = {"PyTorch in float64", "PyTorch in float32", "PyTorch", "ONNX Runtime"} | wanted
    assert {row.reference_name for row in found} <= names
    assert sum(row.reference_name in wanted for row in found) >= 2 * len(benchmark.DOORS)
