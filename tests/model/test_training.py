"""Pre-training: no label leaks, real sharding, the loss and schedule of the paper, exact resumption."""

# Shapes: B batch, N examples, W window tokens, F features, H horizon.

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import toy_world
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from waiting import LIMIT_S

from models.loop.window import NETWORK, Window
from models.networks import artifact
from models.networks.loop_network import Data
from models.networks.scaling import MIN_LATENCY_US
from models.networks.transformer import Architecture, Predictor
from models.sharp import PAPERS, sharp_changes
from models.training import checkpoint, pretraining
from models.training.examples import epoch_batches, examples_from_arrays, owned, pretraining_split
from models.training.loss import example_weights, weighted_squared_error
from models.training.pretraining import Pretrainer, PretrainParams, fit_scaling, noam_rate
from models.training.protocol import Protocol, Slice
from models.training.ray_job import PROGRESS
from models.training.windows import WindowSet, fingerprint, load_windows

PARAMS = {**toy_world.PRETRAIN, "epochs": 3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_world(tmp_path_factory.mktemp("world"))


def make_world(folder: Path) -> Path:
    """Two traces of 160 windows, half of them to pre-train on; their latency swings, so it can be learned."""
    tables = [toy_world.bottleneck_table(f"t{i}", 1.28, seed=i, swing_ms=60) for i in (0, 1)]
    return toy_world.write_windows(folder, tables, protocol=Protocol("toy", 0.64, 0.16, 0.21))


def opened(folder: Path) -> WindowSet:
    return load_windows(folder / "windows", folder / "split.json")


@pytest.fixture(scope="module")
def windows(folder: Path) -> WindowSet:
    return opened(folder)


def make_trainer(windows: WindowSet, **changes: object) -> Pretrainer:
    params = PretrainParams(**{**PARAMS, **changes})  # type: ignore[arg-type]
    train, validation = pretraining_split(windows)
    features, target = fit_scaling(windows, train, params)
    torch.manual_seed(params.seed)
    model = Predictor(features, target, params.sizes(windows.horizon))
    return Pretrainer(model, pretraining.ScaledPrediction(model), train, validation, params)


# The loss


def test_sharp_changes_need_both_20_ms_and_20_percent_and_cross_batches() -> None:
    y_ms_NH = np.array(
        [[100, 119, 120, 141, 200, np.nan, 100, 10], [31, 31, 10, 30, 5, 200, 219, 240]], dtype=np.float32
    )
    # 119->120 small; 120->141: 21 ms but 17.5 %; 141->200 sharp; over NaN 200->100 sharp; 100->10 sharp;
    # over the batch border 10->31 sharp; 31->10 sharp; 10->30 sharp; 30->5 sharp; 5->200 sharp;
    # 200->219: 19 ms; 219->240: 21 ms but 9.6 %.
    expected = [[0, 0, 0, 0, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 0, 0]]
    assert sharp_changes(y_ms_NH * 1e3).astype(int).tolist() == expected


def test_unknown_labels_have_no_weight_and_no_gradient() -> None:
    y_us_BH = np.array([[1e4, np.nan, 9e4]], dtype=np.float32)
    weight_BH = example_weights(y_us_BH, sharp_changes(y_us_BH), 10)
    assert weight_BH.tolist() == [[1, 0, 10]]
    predicted_BH = torch.zeros(1, 3, requires_grad=True)
    loss = weighted_squared_error(predicted_BH, torch.from_numpy(y_us_BH), torch.from_numpy(weight_BH))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == pytest.approx(1e8 + 10 * 81e8)
    assert predicted_BH.grad is not None
    assert predicted_BH.grad.tolist() == [[-2e4, 0, -180e4]]


def test_a_sharp_change_weighs_alpha_times_as_much() -> None:
    y_us_BH = np.array([[1e4, 9e4]], dtype=np.float32)
    weight_BH = torch.from_numpy(example_weights(y_us_BH, sharp_changes(y_us_BH), 10))
    assert weight_BH.tolist() == [[1, 10]]
    error = weighted_squared_error(torch.tensor([[2.0, 3.0]]), torch.zeros(1, 2), weight_BH)
    assert error.item() == 4 + 10 * 9


def test_noam_rises_to_the_end_of_warm_up_then_falls() -> None:
    rates = [noam_rate(step, 64, 100, 1.0) for step in range(1, 400)]
    assert int(np.argmax(rates)) + 1 == 100
    assert rates[99] == pytest.approx(64**-0.5 * 100**-0.5)
    assert rates[9] == pytest.approx(rates[99] / 10)


# Reading windows, and what may be known


def test_labels_acknowledged_after_their_part_ends_are_not_used(windows: WindowSet) -> None:
    hidden = 0
    train, validation = pretraining_split(windows)
    at = {"train": 0, "validation": 0}
    for trace in windows.traces.values():
        middle = trace.pretrain.hi - round(len(trace.pretrain) * 0.1)
        for name, examples, part in (
            ("train", train, Slice(trace.pretrain.lo, middle)),
            ("validation", validation, Slice(middle, trace.pretrain.hi)),
        ):
            end_ns = trace.decision_ns_B[part.hi]
            y_us_NH = examples.y_us_NH[at[name] : at[name] + len(part)]
            at[name] += len(part)
            late_NH = trace.y_acked_ns_BH[part.lo : part.hi] > end_ns
            assert np.isnan(y_us_NH[late_NH]).all()
            truth_NH = trace.y_us_BH[part.lo : part.hi]
            np.testing.assert_array_equal(y_us_NH[~late_NH], truth_NH[~late_NH])
            hidden += int(np.isfinite(truth_NH[late_NH]).sum())
    assert hidden > 0, "the fixture must have latencies that become known after the cut"
    assert at == {"train": len(train), "validation": len(validation)}


def test_nothing_after_the_pretraining_slice_reaches_training(folder: Path, tmp_path: Path) -> None:
    changed = make_world(tmp_path / "changed")
    for name, trace in opened(folder).traces.items():
        part, end = changed / "windows" / name, trace.pretrain.hi
        for file in ("x_acked", "y_us"):
            array = np.load(part / f"{file}.npy")
            array[end:] = 7e5
            np.save(part / f"{file}.npy", array)
        decision_ns = np.load(part / "decision_ns.npy")
        y_us, acked_ns = np.load(part / "y_us.npy"), np.load(part / "y_acked_ns.npy")
        y_us[acked_ns > decision_ns[end]] = 7e5  # nor what became known later
        np.save(part / "y_us.npy", y_us)
    for ours, theirs in zip(
        pretraining_split(opened(folder)), pretraining_split(opened(changed)), strict=True
    ):
        every = np.arange(len(ours))
        np.testing.assert_array_equal(ours.y_us_NH, theirs.y_us_NH)
        np.testing.assert_array_equal(ours.sharp_NH, theirs.sharp_NH)
        np.testing.assert_array_equal(ours.gather(every), theirs.gather(every))


def test_gather_reads_the_right_windows_across_traces(windows: WindowSet) -> None:
    train, _ = pretraining_split(windows)
    learned = [(t, t.pretrain.hi - max(1, round(len(t.pretrain) * 0.1))) for t in windows.traces.values()]
    expected = np.concatenate([t.x_BWF[t.pretrain.lo : middle] for t, middle in learned])
    order = np.random.default_rng(0).permutation(len(train))
    np.testing.assert_array_equal(train.gather(order), expected[order])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda meta, _: meta.pop("tokens"), "malformed .KeyError: 'tokens'"),
        (
            lambda meta, _: meta["traces"]["t0"].update(windows=9),
            r"shape \(160,\), but meta.json says \(9,\)",
        ),
        (lambda _, split: split["traces"]["t0"].update(pretrain=[0, 999]), r"slice \[0, 999\) of trace t0"),
        (lambda meta, _: meta["traces"].update(t9=meta["traces"]["t0"]), "split.json divides t0, t1, and"),
        (
            lambda *both: [one["traces"].update(t9=one["traces"]["t0"]) for one in both],
            "t9/decision_ns.npy: no such file",
        ),
    ],
)
def test_windows_that_do_not_fit_their_description_are_refused(
    folder: Path, tmp_path: Path, edit: object, message: str
) -> None:
    meta, split = (json.loads((folder / name).read_text()) for name in ("windows/meta.json", "split.json"))
    edit(meta, split)  # type: ignore[operator]
    (tmp_path / "windows").mkdir()
    (tmp_path / "windows/meta.json").write_text(json.dumps(meta))
    (tmp_path / "split.json").write_text(json.dumps(split))
    for name in ("t0", "t1"):
        (tmp_path / "windows" / name).symlink_to(folder / "windows" / name)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        opened(tmp_path)


def test_missing_windows_name_the_stage_to_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run the stage `windows` first"):
        opened(tmp_path)


def test_the_fingerprint_changes_with_data_and_parameters(folder: Path, tmp_path: Path) -> None:
    def of(world: Path, params: object = PARAMS) -> str:
        return fingerprint(world / "windows", world / "split.json", params)

    same = make_world(tmp_path / "same")
    before = of(folder)
    assert before == of(same)
    assert before != of(folder, {**PARAMS, "seed": 2})
    for file in ("y_us", "y_acked_ns", "decision_ns"):
        path = same / "windows" / "t0" / f"{file}.npy"
        kept, array = path.read_bytes(), np.load(path)
        array.flat[0] += 1
        np.save(path, array)
        assert before != of(same), file
        path.write_bytes(kept)
    assert before == of(same)
    split = json.loads((same / "split.json").read_text())
    split["traces"]["t0"]["pretrain"][1] -= 1
    (same / "split.json").write_text(json.dumps(split))
    assert before != of(same)


# Sharding


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 5), st.integers(0, 3))
def test_every_example_is_trained_on_once_an_epoch_by_its_one_owner(
    examples: int, batch_size: int, workers: int, epoch: int
) -> None:
    seen: list[list[int]] = [[] for _ in range(workers)]
    for batch_N in epoch_batches(examples, batch_size, 7, epoch):
        assert len(batch_N) <= batch_size
        for rank in range(workers):
            seen[rank] += owned(batch_N, rank, workers).tolist()
    assert sorted(index for indices in seen for index in indices) == list(range(examples))
    for rank, indices in enumerate(seen):
        assert {i % workers for i in indices} <= {rank}, "ownership must not change from epoch to epoch"


@pytest.mark.slow
def test_a_worker_without_a_window_in_a_batch_adds_nothing(windows: WindowSet) -> None:
    trainer = make_trainer(windows)
    none = np.array([], dtype=np.int64)
    loss = weighted_squared_error(
        trainer.forward(torch.from_numpy(trainer.train.gather(none))),
        torch.from_numpy(trainer.target_NH[none]),
        torch.from_numpy(trainer.weight_NH[none]),
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert all(p.grad is not None and not p.grad.any() for p in trainer.model.parameters())


def test_shards_gradients_sum_to_the_batchs(windows: WindowSet) -> None:
    trainer = make_trainer(windows)
    trainer.forward.eval()  # dropout would differ
    batch_N = next(epoch_batches(len(trainer.train), 32, 1, 1))

    def gradient(indices_N: np.ndarray) -> torch.Tensor:
        trainer.model.zero_grad()
        weighted_squared_error(
            trainer.forward(torch.from_numpy(trainer.train.gather(indices_N))),
            torch.from_numpy(trainer.target_NH[indices_N]),
            torch.from_numpy(trainer.weight_NH[indices_N]),
        ).backward()  # type: ignore[no-untyped-call]
        return torch.cat([p.grad.flatten().clone() for p in trainer.model.parameters() if p.grad is not None])

    whole = gradient(batch_N)
    shards = sum(gradient(owned(batch_N, rank, 3)) for rank in range(3))
    torch.testing.assert_close(shards, whole, rtol=1e-3, atol=1e-3)


# Training


@pytest.mark.slow
def test_training_beats_the_mean_and_its_first_epoch(windows: WindowSet) -> None:
    trainer = make_trainer(windows, epochs=20)

    def logs(y_us_NH: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(y_us_NH[np.isfinite(y_us_NH)], MIN_LATENCY_US))

    mean = logs(trainer.train.y_us_NH).mean()
    of_the_mean = np.square(logs(trainer.validation.y_us_NH) - mean).mean()
    records = [trainer.run_epoch() for _ in range(20)]
    assert min(r["validation_log_mse"] for r in records) < 0.5 * of_the_mean
    assert records[-1]["loss"] < records[0]["loss"]
    assert {r["windows"] for r in records} == {len(trainer.train)}


def test_the_best_epochs_weights_are_kept(windows: WindowSet) -> None:
    trainer = make_trainer(windows)
    while True:
        record = trainer.run_epoch()
        scores = [r["validation_log_mse"] for r in trainer.epochs]
        if scores[-1] > min(scores):
            break
    trainer.model.load_state_dict(trainer.best)
    assert trainer.validate()["validation_log_mse"] == min(scores) != record["validation_log_mse"]


def test_a_resumed_run_ends_with_the_same_bits(windows: WindowSet, tmp_path: Path) -> None:
    straight = make_trainer(windows)
    for _ in range(3):
        straight.run_epoch()
    first = make_trainer(windows)
    first.run_epoch()
    first.save(tmp_path)
    second = make_trainer(windows, seed=1)
    torch.manual_seed(99)
    second.resume(tmp_path)
    for _ in range(2):
        second.run_epoch()
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
        assert torch.equal(straight.best[name], second.best[name]), name


def test_checkpoints_hold_safetensors_and_json_only(windows: WindowSet, tmp_path: Path) -> None:
    trainer = make_trainer(windows)
    trainer.run_epoch()
    trainer.save(tmp_path)
    assert {p.suffix for p in tmp_path.iterdir()} == {".safetensors", ".json"}
    moments = load_file(tmp_path / checkpoint.OPTIMIZER_FILE)
    assert len(moments) == 3 * len(list(trainer.model.parameters()))  # step, exp_avg, exp_avg_sq


def test_diverged_training_is_an_error(windows: WindowSet) -> None:
    trainer = make_trainer(windows)
    with torch.no_grad():
        trainer.model.embedding.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match=r"diverged in epoch 1 .*lower pretrain\.noam_factor"):
        trainer.run_epoch()


def test_slices_without_anything_to_learn_are_refused(windows: WindowSet) -> None:
    from dataclasses import replace

    from models.training.examples import examples_of

    trace = windows.trace("t0")
    with pytest.raises(ValueError, match="trace t0: a training slice holds no window"):
        examples_of([(trace, Slice(5, 5), 0)])
    blank = replace(trace, y_us_BH=np.full_like(trace.y_us_BH, np.nan))
    with pytest.raises(ValueError, match="trace t0: no latency is known"):
        examples_of([(blank, Slice(0, 5), trace.time_ns(len(trace.decision_ns_B)))])
    with pytest.raises(ValueError, match="no windows of trace 't7'"):
        windows.trace("t7")
    assert not examples_from_arrays(trace.x_BWF[:2], np.full((2, 8), 1e4, np.float32)).sharp_NH.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "pretrain.epochs is 0; it must be a whole number from 1"),
        ({"batch_size": "many"}, "pretrain.batch_size is 'many'"),
        ({"workers": True}, "pretrain.workers is True"),
        ({"weight_decay": -1}, "pretrain.weight_decay is -1"),
        ({"layers": 0}, "pretrain.layers is 0; it must be a whole number from 1, at most 16"),
    ],
)
def test_bad_parameters_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PretrainParams(**{**PARAMS, **change})  # type: ignore[arg-type]


def test_layers_width_and_heads_are_parameters(windows: WindowSet, tmp_path: Path) -> None:
    usual = make_trainer(windows).model.sizes
    assert usual == Architecture(horizon=8, readout="candidates", anchor="last_latency_us"), (
        "the paper's sizes"
    )
    trainer = make_trainer(windows, layers=3, width=32, heads=2)
    first, last = [trainer.run_epoch()["loss"] for _ in range(3)][::2]
    assert last < first
    described = artifact.Description(windows.tokens, windows.schema_hash, "acked", windows.protocol)
    artifact.save(tmp_path / "a", trainer.model, described)
    sizes = artifact.load(tmp_path / "a").model.sizes
    assert (sizes.layers, sizes.width, sizes.heads, sizes.feed_forward) == (3, 32, 2, 128)


# As a Ray Train job


def test_checkpoints_are_those_of_the_networks_own_code(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(Window):
        name = NETWORK.name  # type: ignore[assignment]

    Other.__module__ = "laboratory.lfq.learning"  # nothing of pre-training imports that
    stored = []

    def stopped(*_: object, storage: Path, **__: object) -> None:
        stored.append(storage)
        raise InterruptedError

    monkeypatch.setattr(pretraining, "run_job", stopped)
    data = Data(folder / "packets", folder / "windows", folder / "split.json", tmp_path, PAPERS)
    for network in (NETWORK, Window(), Other()):
        with pytest.raises(InterruptedError):
            pretraining.pretrain(data, PretrainParams(**PARAMS), network, print)  # type: ignore[arg-type]
    assert stored[0] == stored[1] != stored[2]


@pytest.mark.long
@pytest.mark.slow
def test_two_ray_workers_share_one_epochs_windows(
    folder: Path, windows: WindowSet, tmp_path: Path, ray_cluster: None
) -> None:
    params = PretrainParams(**{**PARAMS, "workers": 2})  # type: ignore[arg-type]
    said: list[dict[str, object]] = []
    data = Data(folder / "packets", folder / "windows", folder / "split.json", tmp_path, PAPERS)
    pretrained = pretraining.pretrain(data, params, NETWORK, said.append)
    train, _ = pretraining_split(windows)
    assert [r["epoch"] for r in said] == [1, 2, 3]
    assert {r["windows"] for r in said} == {len(train)}  # summed over the workers: each window once
    assert pretrained.epochs == said
    # The validation figure that the two workers computed together is that of the model returned.
    single = make_trainer(windows)
    single.model.load_state_dict(pretrained.model.state_dict())
    best = min(r["validation_log_mse"] for r in pretrained.epochs)
    assert single.validate()["validation_log_mse"] == pytest.approx(best, rel=1e-4)


def run_stage(folder: Path, tmp_path: Path, ray: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "SWIFTQUEUE_STATE": str(tmp_path / "var"), "RAY_ADDRESS": ray}
    command = [sys.executable, "-u", "-m", "pipelines.pretrain"]
    command += ["--params", str(tmp_path / "params.yaml"), "--windows", str(folder / "windows")]
    command += ["--packets", str(folder / "packets")]
    command += ["--split", str(folder / "split.json")]
    command += ["--output", str(tmp_path / "pretrained")]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def logged_epochs(state: Path) -> tuple[list[str], list[list[int]]]:
    """Names of the runs in MLflow, and the epochs of which each has the loss."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{state}/mlflow/mlflow.db")
    experiment = client.get_experiment_by_name("swiftqueue-training")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    steps = [[one.step for one in client.get_metric_history(run.info.run_id, "loss")] for run in runs]
    return [run.info.run_name for run in runs], [sorted(one) for one in steps]


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_job_resumes_and_ends_with_the_weights_it_would_have_had(
    folder: Path, windows: WindowSet, tmp_path: Path, ray_cluster: None
) -> None:
    """Killed with a Ray of its own, which goes with it; resumed on a cluster that is there."""
    import ray

    epochs = 20  # of 0.2 s and more: it is killed before the last one
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"pretrain": {**PARAMS, "epochs": epochs}}))
    killed = run_stage(folder, tmp_path, "")
    # The worker's own record: the job's lines come later. An epoch's may come before its checkpoint, but not
    # before the last one's.
    while not any('"epoch": 4' in path.read_text() for path in tmp_path.glob(f"var/ray/*/{PROGRESS}/*")):
        assert killed.poll() is None
        time.sleep(0.01)
    children = psutil.Process(killed.pid).children(recursive=True)
    agents = [child for child in children if "Agent" in child.name()]
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not (tmp_path / "pretrained").exists()
    others = set(children) - set(agents)
    assert others
    _, alive = psutil.wait_procs(others, timeout=LIMIT_S)
    assert not alive, "Ray's processes must go with the job that started them"

    again = run_stage(folder, tmp_path, ray.get_runtime_context().gcs_address)
    output, _ = again.communicate()
    assert again.returncode == 0, output
    resumed = re.search(r"resumed at epoch (\d+)", output)
    assert resumed, output
    assert 4 <= int(resumed[1]) <= epochs
    assert "epoch 3/" not in output, "it must not start again"
    straight = make_trainer(windows, epochs=epochs)
    for _ in range(epochs):
        straight.run_epoch()
    loaded = artifact.load(tmp_path / "pretrained", windows.schema_hash)
    for name, value in loaded.model.state_dict().items():
        assert torch.equal(value, straight.best[name]), name
    named, epochs_logged = logged_epochs(tmp_path / "var")
    assert named == ["pretrain t0+t1 2x64x4 seed 1"] * 2  # the killed one's, and the other's with all epochs
    assert list(range(1, epochs + 1)) in epochs_logged
    assert list((tmp_path / "var" / "ray").iterdir()) == [], "finished work leaves no checkpoints behind"
    for agent in agents:  # they look for their parent once a minute only and would go by themselves then
        with contextlib.suppress(psutil.NoSuchProcess):
            agent.kill()
