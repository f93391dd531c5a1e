"""`bench ingest`, made short: every figure stands beside its reference."""

from __future__ import annotations

import pytest

from infra.bench import ingest

pytestmark = pytest.mark.slow


def test_replicas_promise_and_references_stand_beside_the_ingest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "ROUND_EVENTS", 4 * ingest.SENDERS * ingest.BATCH_EVENTS)
    monkeypatch.setattr(ingest, "REFERENCE_EVENTS", 4 * ingest.BATCH_EVENTS)
    promised, bare, parquet, more = ingest.measure(rounds=1)
    assert promised.name == bare.name == parquet.name
    assert "on one core" in promised.name
    assert (promised.reference, promised.reference_name) == (ingest.PROMISED, "promised at least")
    assert "by 2 replicas on " in more.name
    assert more.reference_name == "one replica, likewise"
    for row in (promised, bare, parquet, more):
        assert row.unit == "events/s"
        assert row.ours > 0
        assert row.ratio == pytest.approx(row.ours / row.reference)
