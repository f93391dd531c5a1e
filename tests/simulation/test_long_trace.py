"""The long traces: a capture, and beside it what each packet would have waited in either queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from swiftqueue.feature_store.packets.truth import read_waits
from swiftqueue.laboratory.learning import long_trace
from swiftqueue.pipelines import extract


@pytest.mark.slow
def test_a_long_trace_and_its_truth_are_of_the_same_packets(project: Path, tmp_path: Path) -> None:
    made = tmp_path / "long"
    long_trace.main(project / "simulation/scenarios/long-video.yaml", made, seconds=6)
    assert sorted(path.name for path in made.iterdir()) == ["s1.pcap", "trace.json", "truth.parquet"]
    truth = pl.read_parquet(made / "truth.parquet")
    extract.main(
        tmp_path / "packets",
        trace="long-video",
        file=str(made / "s1.pcap"),
        sender="None",
        latency="acks",
    )
    packets = pl.read_parquet(tmp_path / "packets/trace=long-video/**/*.parquet").sort("packet")
    assert packets["sent_ns"].equals(truth["sent_ns"])
    assert packets["queue"].cast(pl.String).equals(truth["queue"].cast(pl.String))
    waits = read_waits(made / "truth.parquet", packets)
    chosen_us = np.where(truth["queue"] == "classic", waits.classic_us_N, waits.l4s_us_N)
    arrived = truth["queueing_us"].is_not_null().to_numpy()
    waited_us = truth["queueing_us"].to_numpy()[arrived]
    assert np.corrcoef(chosen_us[arrived], waited_us)[0, 1] > 0.9
    moved = (truth["default_queue"] == "l4s") & (truth["queue"] == "classic")
    assert 0 < moved.mean() < 0.2
    some = read_waits(made / "truth.parquet", packets.filter(flow_id=3))  # as where a connection is left out
    np.testing.assert_array_equal(some.l4s_us_N, waits.l4s_us_N[packets["flow_id"] == 3])
    with pytest.raises(ValueError, match="are not the 10 of the trace"):
        read_waits(made / "truth.parquet", packets.head(10).with_columns(pl.col("sent_ns") + 1))
    other = tmp_path / "other.parquet"
    truth.drop("l4s_wait_us").write_parquet(other)
    with pytest.raises(ValueError, match="column l4s_wait_us is missing"):
        read_waits(other, packets)
    other.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"other\.parquet cannot be read"):
        read_waits(other, packets)
