"""`import swiftqueue` from a folder that is nobody's project: the lines of the documents, word for word."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import toy_world
from registered import add_version

import swiftqueue
from swiftqueue.feature_store.events.event_stream import INPUTS
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.prediction import predict
from swiftqueue.models.registry.lineage import DataSet
from swiftqueue.models.registry.registry import GateDecision, Registry
from swiftqueue.pipelines.live.encoding import event_windows

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def champion(serving_state: Path, make_artifact: Callable[..., Path]) -> int:
    version = add_version(make_artifact(3, onnx=True))
    Registry("swiftqueue").set_alias("champion", version)
    return version


def test_the_lines_of_the_page_run_from_an_empty_folder(
    project: Path, champion: int, serving_state: Path, tmp_path: Path
) -> None:
    block = re.search(r"```python\n(.*?)```", (project / "docs" / "EXPERIMENTS.md").read_text(), re.S)
    assert block is not None
    assert len(block[1].splitlines()) <= 10
    (capture,) = re.findall(r'read_capture\("(.*?)"\)', block[1])
    shutil.copyfile(project / "tests/data/captures/ethernet_us_le.pcap", tmp_path / capture)
    before = sorted(path for path in serving_state.rglob("*") if path.is_dir())
    environment = os.environ | {"PYTHONPATH": str(project), "SWIFTQUEUE_STATE": str(serving_state)}
    ran = subprocess.run(
        [sys.executable, "-c", block[1]],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "predicted_us" in ran.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([capture, "forecasts.png"])
    assert sorted(path for path in serving_state.rglob("*") if path.is_dir()) == before


def test_forecasts_are_the_models_own(make_artifact: Callable[..., Path], champion: int) -> None:
    packets = toy_world.bottleneck_table("toy", 1.0).head(803)
    folder = make_artifact(3, onnx=True)
    forecasts = swiftqueue.load_model(folder).predict(packets)
    assert forecasts.drop("predicted_us").equals(packets)
    assert forecasts.schema["predicted_us"] == pl.Float32
    assert forecasts["predicted_us"].is_null().to_list() == [False] * 800 + [True] * 3
    found = artifact.load(folder)
    (x_BWF,) = event_windows(packets, found.description.tokens)
    expected_BH = predict(found.model, x_BWF)
    np.testing.assert_allclose(forecasts["predicted_us"].head(800).to_numpy(), expected_BH.ravel(), rtol=1e-5)
    for which in (champion, "champion"):
        again = swiftqueue.load_model(which).predict(packets)
        assert again["predicted_us"].equals(forecasts["predicted_us"])
    shown = swiftqueue.plot(forecasts, start_s=0.2, seconds=0.5).axes[0]
    true, predicted = shown.get_lines()
    assert 0.2 <= min(predicted.get_xdata()) < max(predicted.get_xdata()) <= 0.7
    assert max(true.get_ydata()) < 1_000, "milliseconds"


def test_events_are_the_rows_of_the_log_and_a_later_packet_changes_none() -> None:
    packets = toy_world.bottleneck_table("toy", 1.0).head(400)
    log = swiftqueue.events(packets)
    assert log.columns[:3] == ["time_ns", "kind", "packet"]
    assert log.columns[3:] == [one.name for one in INPUTS]
    assert log["time_ns"].is_sorted()
    assert log.filter(pl.col("kind") == "send")["packet"].to_list() == list(range(400))
    assert log.filter(pl.col("kind") == "ack").height == packets["acked_ns"].count()
    cut_ns = int(packets["sent_ns"][200])
    acked = pl.col("acked_ns") < cut_ns
    before = packets.head(200).with_columns(
        acked_ns=pl.when(acked).then("acked_ns"), latency_us=pl.when(acked).then("latency_us")
    )
    assert swiftqueue.events(before).equals(log.filter(pl.col("time_ns") < cut_ns))


def test_scores_are_those_of_the_evaluation() -> None:
    even = toy_world.bottleneck_table("toy", 4.0)
    added_ns = pl.when(pl.col("packet") % 50 == 49).then(60_000_000).otherwise(0)
    packets = even.with_columns(
        acked_ns=pl.col("acked_ns") + added_ns,
        latency_us=(pl.col("latency_us") + added_ns / 1e3).cast(pl.Float32),
    )
    exact = packets.with_columns(predicted_us=pl.col("latency_us").fill_null(20_000.0))
    found = swiftqueue.scores(exact)
    assert found["packets"] == packets["latency_us"].head(packets.height // 8 * 8).count()
    assert found["mae_ms"] == 0.0
    assert found["late"], "the table has late packets"
    assert found["average_precision"] == found["recall_at_1_percent"] == 1.0
    flat = swiftqueue.scores(packets.with_columns(predicted_us=pl.lit(1.0)))
    assert flat["mae_ms"] == pytest.approx(packets["latency_us"].mean() / 1e3, rel=0.02)
    assert flat["average_precision"] < 0.5
    with pytest.raises(ValueError, match="no column predicted_us"):
        swiftqueue.scores(packets)


def test_a_versions_card_has_its_data_scores_and_lineage(
    make_artifact: Callable[..., Path], champion: int
) -> None:
    data = [DataSet("dumbbell-1", "data/packets/trace=dumbbell-1", "0" * 32, "training", 9, {})]
    folder = make_artifact(5, onnx=True)
    judged = GateDecision(True, "it is better", None)
    tags = {"git_commit": "0123abc", "source": "dumbbell-1", "schema_hash": "x"}
    version = Registry("swiftqueue").add(
        folder,
        judged=judged,
        tags=tags,
        params={"event-stream.seed": "3", "event-stream.epochs": "16", "event-stream.layers": "2"},
        metrics=(figures := {"mae_ms": 2.5, "n": 29281.0, "gate.champion.log_mae": 0.0723519}),
        data=data,
    )
    card = swiftqueue.model_card(version)
    assert card.title == f"swiftqueue, version {version}"
    assert [(one["name"], one["source"], one["use"]) for one in card.data] == [
        ("dumbbell-1", "data/packets/trace=dumbbell-1", "training")
    ]
    assert card.scores == figures
    assert card.training == {"event-stream.seed": "3", "event-stream.epochs": "16"}
    assert card.lineage["git_commit"] == "0123abc"
    assert card.lineage["gate_reason"] == "it is better"
    assert card.network["layers"] == 2
    text = card._repr_markdown_()
    for said in ("| dumbbell-1 | training |", "| mae_ms | 2.5 |", "| gate_reason | it is better |"):
        assert said in text
    for said in ("| n | 29,281 |", "| gate.champion.log_mae | 0.07235 |", "| event-stream.seed | 3 |"):
        assert said in text
    assert "judged this version when it was registered" in text
    assert "(champion)" in swiftqueue.model_card("champion").title
    bare = swiftqueue.model_card(folder)
    assert (bare.data, bare.scores) == ([], {})
    assert bare.network == card.network
    assert "{" not in bare.lineage["protocol"]
    with pytest.raises(ValueError, match="has no version 999"):
        swiftqueue.model_card(999)


def test_a_notebook_shows_the_picture() -> None:
    packets = toy_world.bottleneck_table("toy", 1.0)
    figure = swiftqueue.plot(packets.with_columns(predicted_us=pl.lit(9_000.0)), seconds=0.5)
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_champion_that_the_gate_refused_is_not_loaded(
    make_artifact: Callable[..., Path], champion: int
) -> None:
    refused = add_version(make_artifact(4, onnx=True), gate="failed")
    registry = Registry("swiftqueue")
    registry.set_alias("champion", refused)
    try:
        with pytest.raises(
            ValueError, match=f"version {refused} and is not followed .*did not pass the gate"
        ):
            swiftqueue.load_model("champion")
        swiftqueue.load_model(refused)  # by its number, whatever the gate said
    finally:
        registry.set_alias("champion", champion)


def test_what_is_not_there_is_named_and_nothing_is_made(
    champion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="has no alias 'chempion'; its versions: "):
        swiftqueue.load_model("chempion")
    with pytest.raises(ValueError, match="has no version 999; its versions: "):
        swiftqueue.load_model(999)
    with pytest.raises(ValueError, match="no column predicted_us"):
        swiftqueue.plot(toy_world.bottleneck_table("toy", 0.1))
    monkeypatch.delenv("SWIFTQUEUE_STATE")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"'champion' is no artifact's folder, and .*other/var holds no registry"
    ):
        swiftqueue.load_model("champion", project=tmp_path / "other")
    monkeypatch.setenv(
        "MLFLOW_TRACKING_URI", "http://127.0.0.1:9"
    )  # without a key nothing there can be believed
    with pytest.raises(ValueError, match="holds no registry with a key"):
        swiftqueue.load_model(1, project=tmp_path / "other")
    assert list(tmp_path.iterdir()) == []
