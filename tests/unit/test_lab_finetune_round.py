"""A round of fine-tuning within a simulation: the forecaster that answers is tuned on the packets so far."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import toy_world
from safetensors.numpy import load_file

from swiftqueue.feature_store.packets.truth import TRUTH
from swiftqueue.laboratory.learning import finetune_round
from swiftqueue.laboratory.learning.packet_table import packets_of
from swiftqueue.laboratory.runs.execution import TRACE_METADATA
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.traces import TracePart, decision_times
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.files import WEIGHTS_FILE
from swiftqueue.models.training.protocol import Slice
from swiftqueue.pipelines.live.encoding import event_windows
from swiftqueue.serving.engine import Engine

SECONDS = 3.0


def run_so_far(folder: Path, table: pl.DataFrame, until_ns: int) -> Path:
    """Write a simulation's log of S1 as it is at a time: nothing sent or acknowledged later."""
    sent = table.filter(pl.col("sent_ns") < until_ns)
    acked_ns = sent["acked_ns"].fill_null(-1).to_numpy()
    l4s = (sent["queue"] == "l4s").to_numpy()
    log = {
        "packet": (sent["packet"].to_numpy(), "<u4"),
        "sent_ns": (sent["sent_ns"].to_numpy(), "<i8"),
        "acked_ns": (np.where(acked_ns <= until_ns, acked_ns, -1), "<i8"),
        "flow": (sent["flow_id"].to_numpy(), "<u2"),
        "size_bytes": (sent["size_bytes"].to_numpy(), "<u2"),
        "queue": (l4s, "|u1"),
        "default_queue": (l4s, "|u1"),
        "retransmitted": (sent["retransmitted"].to_numpy(), "|u1"),
        "dropped": (sent["lost"].to_numpy(), "|u1"),
        "ambiguous": (sent["latency_us"].is_null().to_numpy(), "|u1"),
    }
    truth_N = np.zeros(sent.height, [(name, kind) for name, (_, kind) in log.items()])
    for name, (column_N, _) in log.items():
        truth_N[name] = column_N
    folder.mkdir()
    np.save(folder / TRUTH, truth_N)
    flows = [
        {"number": flow, "address": f"10.1.0.{flow // 2}", "ecn": "ect1" if flow % 2 == 0 else "ect0"}
        for flow in sorted(set(sent["flow_id"]))
    ]
    (folder / TRACE_METADATA).write_text(json.dumps({"flows": flows, "run": {"moved_ecn": "ect0"}}))
    return folder


def a_run(folder: Path, seconds: float = SECONDS) -> tuple[Path, int]:
    """A run so far, and the time of its end."""
    table = toy_world.bottleneck_table("s1", SECONDS, seed=3, swing_ms=40, episodes=True)
    until_ns = int(table["sent_ns"][0]) + round(seconds * 1e9)
    return run_so_far(folder, table, until_ns), until_ns


@pytest.fixture
def event_stream(make_artifact: Callable[..., Path]) -> Callable[..., Path]:
    """Artifacts of untrained event streams."""

    def make(levels: tuple[float, ...] = ()) -> Path:
        return make_artifact(1, levels=levels)

    return make


@pytest.mark.parametrize("levels", [(), (0.25, 0.5, 0.9)])
def test_the_forecaster_answers_as_its_artifact_is_served(
    levels: tuple[float, ...], event_stream: Callable[..., Path], tmp_path: Path
) -> None:
    run, _ = a_run(tmp_path / "run")
    packets, folder = packets_of(run, "s1"), event_stream(levels)
    tokens = artifact.load(folder).description.tokens
    x_BWF = np.concatenate(list(event_windows(packets, tokens)))
    came_BH = Engine(folder).forward(x_BWF)  # of levels the median
    part = TracePart("s1", packets, Slice(0, len(x_BWF)))
    said_BH = door.load(folder).predict(part)
    np.testing.assert_allclose(said_BH, came_BH, rtol=1e-3)


@pytest.mark.slow
def test_a_round_tunes_the_head_alone_and_forecasts_the_span_better(
    event_stream: Callable[..., Path], tmp_path: Path
) -> None:
    run, until_ns = a_run(tmp_path / "run")
    parent, tuned, span_ns = event_stream(), tmp_path / "tuned", (until_ns - 2 * 10**9, until_ns)
    said = finetune_round.finetune_round(run, span_ns, parent, tuned)
    packets = packets_of(run, "s1")
    decided_ns = decision_times(packets)
    first = int(np.searchsorted(decided_ns, span_ns[0]))
    part = TracePart("s1", packets, Slice(first, len(decided_ns))).to_learn()
    came_BH = part.latencies_us()
    assert said == f"{len(part)} decisions, {np.isfinite(came_BH).sum()} latencies"
    before, after = (load_file(folder / WEIGHTS_FILE) for folder in (parent, tuned))
    assert before.keys() == after.keys()
    changed = {name for name in before if before[name].tobytes() != after[name].tobytes()}
    assert changed == {name for name in before if name.startswith("head.")}
    wrong = []
    for folder in (parent, tuned):
        said_BH = door.load(folder).predict(part)
        wrong.append(np.nanmean(np.log(said_BH / came_BH) ** 2))
    assert wrong[1] < 0.95 * wrong[0]
    assert artifact.load(tuned).description == artifact.load(parent).description


def test_a_round_without_a_known_latency_keeps_the_head(
    event_stream: Callable[..., Path], tmp_path: Path
) -> None:
    run, until_ns = a_run(tmp_path / "run", seconds=0.02)  # the way there and back takes as long
    parent, kept = event_stream(), tmp_path / "kept"
    said = finetune_round.finetune_round(run, (until_ns - 10**9, until_ns), parent, kept)
    assert said == "no latency is known: the head is kept"
    assert (parent / WEIGHTS_FILE).read_bytes() == (kept / WEIGHTS_FILE).read_bytes()
