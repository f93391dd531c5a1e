"""Fine-tuning: the head only, on cached encoder outputs, sharded, round after round, resumable."""

# Shapes: B batch, N examples, W window tokens, D model width, H horizon.

import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import toy_world
import yaml

from models.networks import artifact
from models.networks.artifact import Description
from models.networks.scaling import fit_features, fit_target
from models.networks.transformer import Predictor
from models.sharp import PAPERS
from models.training import finetuning
from models.training.examples import Examples, epoch_batches, examples_from_arrays, finetuning_examples
from models.training.finetuning import ENCODE_BATCH, FinetuneParams, encode_examples, finetune_head
from models.training.loss import example_weights, weighted_squared_error
from models.training.pretraining import ADAM_BETAS, ADAM_EPSILON
from models.training.protocol import Protocol
from models.training.windows import WindowSet, load_windows

PARAMS = {
    "seed": 1,
    "workers": 1,
    "epochs": 3,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "sharp_weight": 10,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = [toy_world.bottleneck_table(f"t{i}", 1.92, seed=i, swing_ms=60) for i in (0, 1)]
    protocol = Protocol("toy", 0.96, 0.24, 0.32)
    return toy_world.write_windows(tmp_path_factory.mktemp("world"), tables, protocol=protocol)


@pytest.fixture(scope="module")
def windows(folder: Path) -> WindowSet:
    return load_windows(folder / "windows", folder / "split.json")


@pytest.fixture(scope="module")
def model(windows: WindowSet) -> Predictor:
    trace = windows.trace("t0")
    torch.manual_seed(0)
    features = fit_features(trace.x_BWF[:100], windows.feature_names, windows.feature_units)
    return Predictor(features, fit_target(trace.y_us_BH[:100], "log"))


@pytest.fixture(scope="module")
def pretrained(model: Predictor, windows: WindowSet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "pretrained"
    artifact.save(folder, model, Description(windows.tokens, windows.schema_hash, "acked"))
    return folder


def some_examples(windows: WindowSet) -> Examples:
    examples = finetuning_examples(windows.trace("t0"), 0)
    assert examples is not None
    return examples


def params(**changes: object) -> FinetuneParams:
    return FinetuneParams(**{**PARAMS, **changes})  # type: ignore[arg-type]


def head_bytes(model: Predictor) -> bytes:
    return b"".join(value.numpy().tobytes() for value in model.head.state_dict().values())


def encoder_bytes(model: Predictor) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.encoder_state().items()}


def test_the_encoder_stays_bit_identical_and_the_head_changes(model: Predictor, windows: WindowSet) -> None:
    before, head = encoder_bytes(model), head_bytes(model)
    tuned = finetune_head(model, some_examples(windows), params()).model
    assert encoder_bytes(tuned) == before
    assert encoder_bytes(model) == before
    assert head_bytes(tuned) != head
    assert head_bytes(model) == head, "the model given is not touched"
    changed = [
        name for name, value in tuned.state_dict().items() if not torch.equal(value, model.state_dict()[name])
    ]
    assert changed == ["head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"]


def test_fine_tuning_lowers_the_loss_on_its_slice(model: Predictor, windows: WindowSet) -> None:
    tuned = finetune_head(model, some_examples(windows), params(epochs=20))
    assert tuned.loss[-1] < 0.8 * tuned.loss[0]
    assert len(tuned.loss) == 21


@pytest.mark.parametrize("training", [True, False])
def test_cached_outputs_are_exactly_the_encoders(
    model: Predictor, windows: WindowSet, training: bool
) -> None:
    trace = windows.trace("t0")
    examples = examples_from_arrays(trace.x_BWF[:], trace.y_us_BH)
    many = np.random.default_rng(0).integers(0, len(examples), 2 * ENCODE_BATCH + 7)
    model.train(training)  # even if the caller left dropout on
    cached = encode_examples(model, examples, many)
    assert not model.training
    for start in range(0, len(many), ENCODE_BATCH):
        chosen = many[start : start + ENCODE_BATCH]
        part = slice(start, start + ENCODE_BATCH)
        x_BWF = torch.from_numpy(trace.x_BWF[chosen])
        with torch.no_grad():
            assert torch.equal(cached.read_BRD[part], model.encode(x_BWF))
            assert torch.equal(cached.anchor_BH[part], model.anchor(x_BWF))


def test_fine_tuning_on_the_cache_is_training_through_the_frozen_encoder(
    model: Predictor, windows: WindowSet
) -> None:
    examples, wanted = some_examples(windows), params()
    slow = replace_head(model)
    optimizer = torch.optim.Adam(
        slow.head.parameters(), lr=wanted.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON
    )
    target_NH = torch.from_numpy(model.target.apply(examples.y_us_NH))
    weight_NH = torch.from_numpy(example_weights(examples.y_us_NH, examples.sharp_NH, 10))
    for epoch in range(wanted.epochs):
        for batch_N in epoch_batches(len(examples), wanted.batch_size, wanted.seed, epoch):
            with torch.no_grad():
                x_BWF = torch.from_numpy(examples.gather(batch_N))
                features_BRD, anchor_BH = slow.eval().encode(x_BWF), slow.anchor(x_BWF)
            optimizer.zero_grad()
            predicted_BH = slow.head(features_BRD) + anchor_BH
            loss = weighted_squared_error(predicted_BH, target_NH[batch_N], weight_NH[batch_N])
            (loss / (weight_NH[batch_N] > 0).sum()).backward()
            optimizer.step()
    fast = finetune_head(model, examples, wanted).model
    for name, value in slow.head.state_dict().items():
        torch.testing.assert_close(fast.head.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def replace_head(model: Predictor) -> Predictor:
    twin = Predictor(model.features, model.target, model.sizes)
    twin.load_state_dict(model.state_dict())
    return twin


def test_a_round_knows_no_label_acknowledged_after_it(windows: WindowSet) -> None:
    hidden = 0
    for trace in windows.traces.values():
        for index, part in enumerate(trace.rounds):
            examples = finetuning_examples(trace, index)
            assert examples is not None
            lo, hi = part.finetune.lo, part.finetune.hi
            late_NH = trace.y_acked_ns_BH[lo:hi] > trace.decision_ns_B[part.test.lo]
            assert np.isnan(examples.y_us_NH[late_NH]).all()
            np.testing.assert_array_equal(examples.y_us_NH[~late_NH], trace.y_us_BH[lo:hi][~late_NH])
            hidden += int(np.isfinite(trace.y_us_BH[lo:hi][late_NH]).sum())
    assert hidden > 0


def test_a_slice_with_no_known_latency_keeps_the_head(windows: WindowSet) -> None:
    trace = windows.trace("t0")
    blank = replace(trace, y_us_BH=np.full_like(trace.y_us_BH, np.nan))
    assert finetuning_examples(blank, 0) is None


def test_diverged_fine_tuning_is_an_error(model: Predictor, windows: WindowSet) -> None:
    with pytest.raises(ValueError, match=r"diverged .*lower finetune\.learning_rate"):
        finetune_head(model, some_examples(windows), params(learning_rate=1e30))


@pytest.mark.parametrize("name", ["epochs", "batch_size", "learning_rate", "workers", "sharp_weight"])
def test_bad_parameters_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"finetune.{name} is 0; it must be "):
        params(**{name: 0})


@pytest.mark.parametrize("name", ["seed", "workers", "epochs", "batch_size"])
def test_a_fraction_of_a_whole_number_is_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"finetune.{name} is 1.5; it must be a whole number from"):
        params(**{name: 1.5})


def test_a_model_of_other_features_is_refused_before_anything_starts(
    folder: Path, model: Predictor, tmp_path: Path
) -> None:
    artifact.save(tmp_path / "other", model, Description(16, "0" * 64, "acked"))
    with pytest.raises(ValueError, match="made for features 000"):
        finetuning.finetune(
            folder / "windows",
            folder / "split.json",
            tmp_path / "other",
            params(),
            PAPERS,
            tmp_path,
            say=print,
        )
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


# As a Ray Train job


@pytest.mark.long
@pytest.mark.slow
def test_two_ray_workers_give_the_heads_of_one(
    folder: Path, windows: WindowSet, pretrained: Path, tmp_path: Path, ray_cluster: None
) -> None:
    said: list[dict[str, object]] = []
    rounds_dir = finetuning.finetune(
        folder / "windows",
        folder / "split.json",
        pretrained,
        params(workers=2),
        PAPERS,
        tmp_path,
        said.append,
    )
    assert stat.S_IMODE((tmp_path / "ray").stat().st_mode) == 0o700  # whoever made it first
    assert [(r["trace"], r["round"]) for r in said] == [(t, k) for t in ("t0", "t1") for k in range(3)]
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} >= {".safetensors", ".json"}
    start = artifact.load(pretrained)
    for name, trace in windows.traces.items():
        current = start.model
        for index in range(3):  # each round starts from the one before it
            loaded = artifact.load(rounds_dir / name / f"round-{index}", windows.schema_hash)
            assert loaded.description == start.description
            assert encoder_bytes(loaded.model) == encoder_bytes(start.model)
            examples = finetuning_examples(trace, index)
            assert examples is not None
            current = finetune_head(current, examples, params()).model
            for key, value in current.head.state_dict().items():
                torch.testing.assert_close(loaded.model.head.state_dict()[key], value, rtol=1e-3, atol=1e-5)


@contextlib.contextmanager
def cluster_of_its_own() -> Iterator[str]:
    """The address of a Ray for one test.

    Ray Train, told of a worker's death before its own, reserves a core again; only a Ray with a dashboard
    frees it when the job was killed. The next test would wait for that core for ever.
    """
    program = (
        "import ray; from feature_store.local_ray import ray_cluster\n"
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
def test_a_killed_stage_keeps_its_finished_rounds(
    folder: Path, windows: WindowSet, pretrained: Path, tmp_path: Path
) -> None:
    """Also the path over `RAY_ADDRESS`: the stage joins the cluster that is already there."""
    with cluster_of_its_own() as address:
        kill_and_resume(folder, windows, pretrained, tmp_path, address)


def kill_and_resume(folder: Path, windows: WindowSet, pretrained: Path, tmp_path: Path, address: str) -> None:
    environment = {**os.environ, "SWIFTQUEUE_STATE": str(tmp_path / "var"), "RAY_ADDRESS": address}
    wanted = {**PARAMS, "epochs": 300}  # about a second a round
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"finetune": wanted}))
    command = [sys.executable, "-u", "-m", "pipelines.finetune", "--params", str(tmp_path / "params.yaml")]
    command += ["--windows", str(folder / "windows"), "--split", str(folder / "split.json")]
    command += ["--pretrained", str(pretrained)]
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
    for trace in windows.traces:
        for index in range(3):
            artifact.load(tmp_path / "finetuned" / trace / f"round-{index}", windows.schema_hash)
    described = json.loads((tmp_path / "finetuned" / "t1" / "round-2" / "model.json").read_text())
    assert described["schema_hash"] == windows.schema_hash
    assert list((tmp_path / "var" / "ray").iterdir()) == []
