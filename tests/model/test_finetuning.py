"""Fine-tuning changes the head only, on outputs of the encoder computed once, and resumes by rounds."""

# Shapes: B decisions, H horizon (8 packets).

import contextlib
import copy
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy_world
import yaml

from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
from swiftqueue.models.forecasters import forecaster as door
from swiftqueue.models.forecasters.jobs import StageData, finetune
from swiftqueue.models.forecasters.traces import Trace, TracePart, read_traces
from swiftqueue.models.forecasters.walk import tune_heads
from swiftqueue.models.sharp import PAPERS, sharp_changes
from swiftqueue.models.training.head import ADAM_BETAS, ADAM_EPSILON, FinetuneParams, train_head
from swiftqueue.models.training.loss import example_weights, weighted_squared_error
from swiftqueue.models.training.protocol import EvaluationProtocol

PARAMS = {
    "seed": 1,
    "workers": 1,
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "sharp_weight": 10,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = [toy_world.bottleneck_table(f"t{i}", 1.92, seed=i, swing_ms=60) for i in (0, 1)]
    protocol = EvaluationProtocol("toy", 0.96, 0.24, 0.32)
    folder = toy_world.write_traces(tmp_path_factory.mktemp("world"), tables, protocol=protocol)
    toy_world.write_models(folder)
    return folder


@pytest.fixture(scope="module")
def traces(world: Path) -> dict[str, Trace]:
    return read_traces(world / "packets", world / "split.json", PAPERS)


@pytest.fixture(scope="module")
def model(world: Path) -> EventStreamForecaster:
    found = door.load(world / "pretrained")
    assert isinstance(found, EventStreamForecaster)
    return found


@pytest.fixture(scope="module")
def part(traces: dict[str, Trace]) -> TracePart:
    trace = traces["t0"]
    return trace.to_learn(trace.slices.rounds[0].finetune)


def params(**changes: object) -> FinetuneParams:
    return FinetuneParams(**{**PARAMS, **changes})


def test_the_encoder_stays_bit_identical_and_the_head_changes(
    model: EventStreamForecaster, part: TracePart
) -> None:
    before = copy.deepcopy(model.model.state_dict())
    tuned = model.tuned(part, params())
    for name, value in model.model.state_dict().items():
        assert torch.equal(value, before[name]), "the model given is not touched"
    changed = [
        name for name, value in tuned.model.state_dict().items() if not torch.equal(value, before[name])
    ]
    assert changed == ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"]


def test_fine_tuning_lowers_the_loss_on_its_slice(model: EventStreamForecaster, part: TracePart) -> None:
    tuning = model.tuned(part, params(epochs=20)).tuning
    assert tuning is not None
    assert tuning.loss[-1] < 0.9 * tuning.loss[0]
    assert len(tuning.loss) == 21
    assert tuning.decisions == len(part)


def test_the_seed_orders_the_decisions(model: EventStreamForecaster, part: TracePart) -> None:
    one, same, other = (model.tuned(part, params(seed=seed)).model.head[2].bias for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_training_on_the_cache_is_training_through_the_frozen_encoder(
    model: EventStreamForecaster, part: TracePart
) -> None:
    wanted, slow, came_BH = params(), copy.deepcopy(model.model), part.latencies_us()
    optimizer = torch.optim.Adam(
        slow.head.parameters(), lr=wanted.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    target_BH = torch.from_numpy(slow.target.apply(came_BH))
    weight_BH = torch.from_numpy(example_weights(came_BH, sharp_changes(came_BH, PAPERS), 10))
    for epoch in range(wanted.epochs):
        order_B = np.random.default_rng([wanted.seed, epoch]).permutation(len(came_BH))
        for first in range(0, len(order_B), wanted.batch_size):
            batch_B = order_B[first : first + wanted.batch_size]
            with torch.no_grad():
                encoded: Any = EventStreamForecaster(slow).encode(part)  # the encoder runs in each step
            optimizer.zero_grad()
            predicted_BH = slow.head(encoded.read_BRD[batch_B]) + encoded.anchor_BH[batch_B]
            loss = weighted_squared_error(predicted_BH, target_BH[batch_B], weight_BH[batch_B])
            (loss / (weight_BH[batch_B] > 0).sum()).backward()
            optimizer.step()
    fast = model.tuned(part, wanted).model
    for name, value in slow.head.state_dict().items():
        torch.testing.assert_close(fast.head.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_a_slice_with_no_known_latency_keeps_the_head(model: EventStreamForecaster, part: TracePart) -> None:
    unknown_BH = np.full((len(part), 8), np.nan, np.float32)
    assert train_head(model.model, model.encode(part), unknown_BH, PAPERS, params()) == (model.model, None)


def test_diverged_fine_tuning_is_an_error(model: EventStreamForecaster, part: TracePart) -> None:
    with pytest.raises(ValueError, match=r"diverged .*lower finetune\.learning_rate"):
        model.tuned(part, params(learning_rate=1e30))


@pytest.mark.parametrize(
    ("value", "names", "line"),
    [
        (0, ("epochs", "batch_size", "learning_rate", "workers", "sharp_weight"), "it must be "),
        (1.5, ("seed", "workers", "epochs", "batch_size"), "it must be a whole number from"),
    ],
)
def test_bad_parameters_are_named(value: float, names: tuple[str, ...], line: str) -> None:
    for name in names:
        with pytest.raises(ValueError, match=f"finetune.{name} is {value}; {line}"):
            params(**{name: value})


def test_what_cannot_be_loaded_is_refused_before_anything_starts(world: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    data = StageData(world / "packets", world / "split.json", tmp_path, PAPERS)
    with pytest.raises(FileNotFoundError, match="not a forecaster, or incomplete"):
        finetune(data, tmp_path / "other", params(), print)
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


# As a Ray Train job


@pytest.mark.long
@pytest.mark.slow
def test_two_ray_workers_share_the_traces_and_give_the_heads_of_one(
    world: Path, traces: dict[str, Trace], model: EventStreamForecaster, tmp_path: Path, ray_cluster: None
) -> None:
    said: list[dict[str, object]] = []
    data = StageData(world / "packets", world / "split.json", tmp_path, PAPERS)
    rounds_dir = finetune(data, world / "pretrained", params(workers=2), said.append)
    assert stat.S_IMODE((tmp_path / "ray").stat().st_mode) == 0o700  # whoever made it first
    assert sorted((r["trace"], r["round"]) for r in said) == [(t, k) for t in ("t0", "t1") for k in range(3)]
    for name, trace in traces.items():
        heads = tune_heads(model, trace, params(workers=2))
        for k in range(3):  # each round starts from the one before it
            loaded: Any = door.load(rounds_dir / name / f"round-{k}")
            wanted: Any = heads[k]
            for key, value in wanted.model.state_dict().items():
                assert torch.equal(loaded.model.state_dict()[key], value), key


@contextlib.contextmanager
def cluster_of_its_own() -> Iterator[str]:
    """Yield the address of a Ray for one test.

    Ray Train, told of a worker's death before its own, reserves a core again; only a Ray with a dashboard
    frees it when the job was killed. The next test would wait for that core for ever.
    """
    program = (
        "import ray; from swiftqueue.common.local_ray import ray_cluster\n"
        "with ray_cluster(2): print(ray.get_runtime_context().gcs_address, flush=True); input()"
    )
    environment = {**os.environ, "RAY_ADDRESS": ""}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate("\n")


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_stage_keeps_its_finished_rounds(world: Path, tmp_path: Path) -> None:
    """Also the path over `RAY_ADDRESS`: the stage joins the cluster that is already there."""
    with cluster_of_its_own() as address:
        kill_and_resume(world, tmp_path, address)


def kill_and_resume(world: Path, tmp_path: Path, address: str) -> None:
    environment = {**os.environ, "SWIFTQUEUE_STATE": str(tmp_path / "var"), "RAY_ADDRESS": address}
    wanted = {**PARAMS, "epochs": 400}  # about a second a round
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"finetune": wanted}))
    command = [
        sys.executable,
        "-u",
        "-m",
        "swiftqueue.pipelines.finetune",
        "--params",
        str(tmp_path / "params.yaml"),
    ]
    command += ["--packets", str(world / "packets"), "--split", str(world / "split.json")]
    command += ["--pretrained", str(world / "pretrained")]
    command += ["--output", str(tmp_path / "finetuned")]
    killed = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    for line in killed.stdout:
        if "t0 round 2/3" in line:
            break
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    assert not (tmp_path / "finetuned").exists()
    (rounds_dir,) = (tmp_path / "var" / "ray").glob("finetune-*/rounds")
    kept = {p: p.stat().st_mtime_ns for p in rounds_dir.glob("t0/round-[01]/model.safetensors")}
    first = {p.parent.name: p.read_bytes() for p in kept}
    assert sorted(first) == ["round-0", "round-1"]

    again = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=300, check=False
    )
    assert again.returncode == 0, again.stdout
    assert "rounds kept from the run that was stopped" in again.stdout
    assert "t0 round 2/3" not in again.stdout
    for name, content in first.items():
        assert (tmp_path / "finetuned" / "t0" / name / "model.safetensors").read_bytes() == content
    for trace in ("t0", "t1"):
        for index in range(3):
            door.load(tmp_path / "finetuned" / trace / f"round-{index}")
    assert list((tmp_path / "var" / "ray").iterdir()) == []
