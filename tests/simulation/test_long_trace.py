"""The long traces: a capture, and beside it what each packet would have waited in either queue."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from infra.forecasts import waits_of
from laboratory.learning import long_trace
from pipelines import extract


def test_a_long_trace_and_its_truth_are_of_the_same_packets(project: Path, tmp_path: Path) -> None:
    made = tmp_path / "long"
    long_trace.main(project / "simulation/scenarios/long-video.yaml", made, seconds=6)
    assert sorted(path.name for path in made.iterdir()) == ["s1.pcap", "trace.json", "truth.parquet"]
    truth = pl.read_parquet(made / "truth.parquet")
    extract.main(
        project / "params.yaml",
        tmp_path / "packets",
        trace="long-video",
        file=str(made / "s1.pcap"),
        sender="None",
        latency="acks",
    )
    packets = pl.read_parquet(tmp_path / "packets/trace=long-video/**/*.parquet").sort("packet")
    assert packets["sent_ns"].equals(truth["sent_ns"])
    assert packets["queue"].cast(pl.String).equals(truth["queue"].cast(pl.String))
    waits = waits_of(packets, made / "truth.parquet")
    chosen_us = np.where(truth["queue"] == "classic", waits.classic_us_N, waits.l4s_us_N)
    arrived = truth["queueing_us"].is_not_null().to_numpy()
    waited_us = truth["queueing_us"].to_numpy()[arrived]
    assert np.corrcoef(chosen_us[arrived], waited_us)[0, 1] > 0.9
    moved = (truth["default_queue"] == "l4s") & (truth["queue"] == "classic")
    assert 0 < moved.mean() < 0.2
    with pytest.raises(ValueError, match="are not the 10 of the trace"):
        waits_of(packets.head(10), made / "truth.parquet")
    other = tmp_path / "other.parquet"
    truth.drop("l4s_wait_us").write_parquet(other)
    with pytest.raises(ValueError, match="column l4s_wait_us is missing"):
        waits_of(packets, other)
    other.write_bytes(b"no table")
    with pytest.raises(ValueError, match=r"other\.parquet cannot be read"):
        waits_of(packets, other)
