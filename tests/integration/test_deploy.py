"""Deploy and rollback against a real Triton and a real registry, with clients asking all the while."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registered import add_version, served
from typer.testing import CliRunner

pytestmark = pytest.mark.slow
names = itertools.count()


class Clients:
    """A thread that asks a server without pause; what it saw."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.versions: list[int] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        from swiftqueue.serving.triton.endpoint import Triton

        with Triton(self.address) as triton:
            tokens, features = triton.config().input[0].dims
            x_BWF = np.zeros((2, tokens, features), dtype=np.float32)
            while not self._stop.is_set():
                try:
                    self.versions.append(triton.infer(x_BWF).version)
                except OSError as error:
                    self.errors.append(str(error))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """They ask when the block begins, and they still ask when it ends."""
        self._thread.start()
        try:
            while self._thread.is_alive() and not (self.versions or self.errors):
                time.sleep(0.001)
            yield
        finally:
            alive = self._thread.is_alive()
            self._stop.set()
            self._thread.join()
        assert alive
        assert self.versions


@pytest.fixture
def register(triton: Path, registry, make_artifact: Callable[..., Path], tmp_path: Path):  # type: ignore[no-untyped-def]
    """Register an untrained artifact and make it the challenger."""
    import mlflow

    from swiftqueue.models.registry import decision

    def add(
        number: int,
        gate: str = "passed",
        spoil: Callable[[Path], None] | None = None,
        spoil_stored: Callable[[Path], None] | None = None,
        sign_spoilt: Callable[[Path], None] | None = None,
        width: int = 64,
    ) -> int:
        # Exporting a network takes seconds: two networks, told apart further by a word in the description.
        folder = make_artifact(1 + number % 2, onnx=True, width=width)
        copy = tmp_path / "registered"
        shutil.copytree(folder, copy)
        described = json.loads((copy / "model.json").read_text())
        described["protocol"]["name"] = f"test-{next(names)}"
        (copy / "model.json").write_text(json.dumps(described))
        if spoil:
            spoil(copy)
        version = add_version(copy, gate=gate, metrics={"mae_ms": 1.0})
        registry.set_alias("challenger", version)
        shutil.rmtree(copy)
        if spoil_stored or sign_spoilt:
            source = mlflow.MlflowClient().get_model_version("swiftqueue", str(version)).source
            model_id = source.removeprefix("models:/")
            stored = triton / "mlflow" / "artifacts" / "models" / model_id / "artifacts"
            (spoil_stored or sign_spoilt or print)(stored)
        if sign_spoilt:  # as whoever has the key could
            tags = registry.tags(version)
            files = {
                name: hashlib.sha256((stored / name).read_bytes()).hexdigest()
                for name in json.loads(tags[decision.FILES_TAG])
            }
            tags[decision.FILES_TAG] = json.dumps(files)
            tags[decision.SIGNATURE_TAG] = decision.signature("swiftqueue", version, tags)
            registry.set_tags(version, tags)
        return int(version)

    return add


def test_deploys_a_challenger_and_rolls_back(triton: Path, registry, register, capsys) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion

    first = register(1)
    deploy_version(None)
    assert served() == first == registry.alias("champion")
    assert registry.alias("challenger") is None
    clients = Clients()
    with clients.asking():
        begun = time.time()
        second = register(2)
        deploy_version(None)
        assert served() == second == registry.alias("champion")
        assert registry.tags(second)["replaced_version"] == str(first)
        rollback_champion()
        assert served() == first == registry.alias("champion")
    assert clients.errors == []
    assert set(clients.versions) == {first, second}
    last = next(deploy_log.newest_first())
    assert (last["action"], last["version"], last["outcome"]) == ("rollback", first, "served")
    assert last["registered"] < begun < (deploy_log.last_served(second) or {})["registered"]


def test_ctrl_c_leaves_no_push_halfway(
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.repository import ModelRepository

    promote = ModelRepository.promote

    def interrupted(self: ModelRepository, version: int) -> None:
        promote(self, version)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    monkeypatch.setattr(ModelRepository, "promote", interrupted)
    version = register(1)
    # It is ignored where tests were started in the background.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        deploy_version(None)
    finally:
        signal.signal(signal.SIGINT, before)
    assert served() == version == registry.alias("champion")
    last = next(deploy_log.newest_first())
    assert (last["version"], last["outcome"]) == (version, "served")
    assert f"the push of version {version} has begun, and ends first" in capsys.readouterr().out


def test_where_the_name_is_not_taken_the_content_of_its_number_is_served_again(
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    make_artifact: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A registry made anew counts from 1 again."""
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy.deployment import deploy_version, serve_champion
    from swiftqueue.serving.deploy.push import push
    from swiftqueue.serving.triton.endpoint import Triton
    from swiftqueue.serving.triton.repository import ModelRepository

    def refuse(self: Registry, name: str, version: int) -> None:
        raise OSError("the disk is full")

    version = register(1)
    with Triton() as server:
        push(make_artifact(1, onnx=True), version, [server], ModelRepository(), None)
        x_BWF = np.zeros((1, *server.config().input[0].dims), np.float32)
        before = server.infer(x_BWF)
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "set_alias", refuse)
            with pytest.raises(RuntimeError, match=f"^version {version} is not deployed: the disk is full$"):
                deploy_version(version)
        after = server.infer(x_BWF)
    assert after.version == before.version == version
    np.testing.assert_array_equal(after.y_BH, before.y_BH)
    serve_champion()


@pytest.mark.parametrize("put_back", [True, False])
def test_a_held_version_is_replaced_by_nothing_until_it_is_released(
    put_back: bool,
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.cli.running import running_app
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.pipelines.live.rounds import RoundParams, Rounds
    from swiftqueue.serving.deploy import hold
    from swiftqueue.serving.deploy.deployment import deploy_version

    first, second = register(1), register(2)
    for version in (first, second)[: 1 + put_back]:
        deploy_version(version)
    done = CliRunner().invoke(running_app, ["rollback", "--hold"] if put_back else ["hold"])
    try:
        assert f"version {first} is held" in done.output
        finetune = FinetuneParams(
            seed=1, workers=1, epochs=2, batch_size=64, learning_rate=1e-3, sharp_weight=1
        )
        rounds = Rounds(pytest.fail, RoundParams(6, 2, 1, 50, 4, 0.5, 10), finetune, "swiftqueue")
        record = rounds.run()  # of a scheduler that has just been started: the hold is on the disk
        assert (record.outcome, record.version) == ("declined", None), record.reason
        assert record.reason.startswith(f"version {first} is held, and no other takes its place until")
        with pytest.raises(ValueError, match=f"version {first} is held"):
            deploy_version(second, judged_against=first)  # of a round that was under way
        registry.set_alias("challenger", second)
        deploy_version(None)
        assert served() == first == registry.alias("champion")
        print_status()
        assert f"hold: version {first} is held" in capsys.readouterr().out
    finally:
        assert hold.release()
    deploy_version(second)
    assert served() == second


@pytest.mark.long
def test_versions_of_both_backends_follow_each_other_without_a_failed_request(
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.infra.local.main_job import what_served_it
    from swiftqueue.infra.local.servers import served_backend
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion

    native = register(12)
    deploy_version(native)
    assert served_backend() == "swiftqueue"
    clients = Clients()
    with clients.asking():
        unknown = register(13, width=16)
        capsys.readouterr()
        deploy_version(unknown)
        said = capsys.readouterr().out
        assert (served(), served_backend()) == (unknown, "python")
        rollback_champion()
        assert (served(), served_backend()) == (native, "swiftqueue")
        assert f"Version {native} was served by the native backend and asked by" in what_served_it()
        deploy_version(unknown)
        assert (served(), served_backend()) == (unknown, "python")
    assert (
        len(re.findall("goes to the Python backend .*model.json: .*width is 16, the engine knows", said)) == 1
    )
    assert clients.errors == []
    assert clients.versions[0] == native
    assert clients.versions[-1] == unknown
    assert next(deploy_log.newest_first())["backend"] == "python"
    assert re.search(r"served by the Python backend .* \(.*width is 16.*\) and asked by", what_served_it())


def test_a_version_is_deployed_once(triton: Path, registry, register) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version

    version = register(3)
    deploy_version(version)
    entries = len(list(deploy_log.newest_first()))
    deploy_version(version)
    deploy_version(None)
    assert served() == version == registry.alias("champion")
    assert len(list(deploy_log.newest_first())) == entries


def truncated_onnx(folder: Path) -> None:
    (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-5000])


def truncated_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-5000])


def corrupt_weights(folder: Path) -> None:
    """As long as it should be, of the right shapes, and not finite."""
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-400:] = np.full(100, np.inf, np.float32).tobytes()
    (folder / "model.safetensors").write_bytes(weights)


def other_weights(folder: Path) -> None:
    """Whole and finite, but not what was exported: the GPU container would serve another network."""
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-400:] = np.full(100, 0.25, np.float32).tobytes()
    (folder / "model.safetensors").write_bytes(weights)


def other_schema(folder: Path) -> None:
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(described | {"schema_hash": "f" * 64}))


def old_form(folder: Path) -> None:
    described = json.loads((folder / "model.json").read_text())
    described["architecture"]["name"] = "transformer-encoder"
    (folder / "model.json").write_text(json.dumps(described))


def other_scaling(folder: Path) -> None:
    """The description no longer fits the network: outputs differ, nothing fails to load."""
    described = json.loads((folder / "model.json").read_text())
    described["target"]["shift"] += 0.001
    (folder / "model.json").write_text(json.dumps(described))


@pytest.mark.parametrize(
    ("spoiled", "line"),
    [
        ({"spoil": truncated_weights}, r"model\.safetensors: truncated or not a safetensors file"),
        ({"spoil": corrupt_weights}, r"model\.safetensors: weight .* holds NaN or infinity"),
        ({"spoil": other_weights}, r"model\.onnx: its answers differ from the local ones by"),
        ({"sign_spoilt": truncated_onnx}, r"is not deployed: model\.onnx: "),
        ({"spoil_stored": truncated_onnx}, r"model\.onnx is not the file that was registered"),
        ({"spoil_stored": other_weights}, r"model\.safetensors is not the file that was registered"),
        ({"spoil": other_schema}, "made for features ffff"),
        (
            {"spoil": old_form},
            r"model\.json is of the old form, a network over windows of packets; commit ebbf31e4",
        ),
        ({"spoil": other_scaling}, "answers differ from the local ones by 0.001"),
    ],
    ids=[
        "truncated-weights",
        "corrupt-weights",
        "other-weights",
        "truncated-onnx",
        "swapped-onnx",
        "swapped-weights",
        "other-schema",
        "old-form",
        "other-scaling",
    ],
)
def test_a_bad_version_never_reaches_a_client(triton: Path, registry, register, spoiled, line) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import Triton
    from swiftqueue.serving.triton.repository import ModelRepository

    good = register(4)
    deploy_version(good)
    clients = Clients()
    with clients.asking():
        bad = register(5, **spoiled)
        with pytest.raises((OSError, RuntimeError), match=line):
            deploy_version(bad)
        time.sleep(0.2)
    assert clients.errors == []
    assert set(clients.versions) == {good}
    assert registry.alias("champion") == good == served()
    repository = ModelRepository()
    assert bad not in repository.versions()
    assert not (repository.embedded / repository.candidate).exists()
    last = next(deploy_log.newest_first())
    assert (last["version"], last["outcome"], last["previous"]) == (bad, "failed", good)
    with Triton() as connection:
        assert connection.infer(np.zeros((1, 136, len(registry_features())), np.float32)).version == good


def registry_features() -> tuple[Any, ...]:
    from swiftqueue.feature_store.events.definition import EVENTS

    return EVENTS.features


def test_a_server_with_another_version_than_the_last_deployed_is_named(
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import Triton, grpc_address
    from swiftqueue.serving.triton.repository import MODEL, ModelRepository

    older, newer = register(14), register(15)
    deploy_version(older)
    deploy_version(newer)
    assert print_status() == 0
    assert "not up to date" not in capsys.readouterr().out
    with Triton() as connection:  # behind the deploy log's back, as a replica that missed the deploy
        ModelRepository().serve(older)
        connection.load(MODEL)
    assert print_status() == 0
    said = capsys.readouterr().out
    assert f"serves version {older} " in said
    assert f"version {newer} was deployed last, so {grpc_address()} is not up to date" in said
    deploy_version(newer)
    assert served() == newer


def test_what_failed_the_gate_is_not_deployed(triton: Path, registry, register, capsys) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy.deployment import deploy_version

    good = register(6)
    deploy_version(good)
    failed = register(7, gate="failed")
    deploy_version(None)
    assert f"version {failed} did not pass the gate" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did not pass the gate: set by a test"):
        deploy_version(failed)
    assert registry.alias("champion") == good == served()
    registry.remove_alias("challenger")
    with pytest.raises(ValueError, match="no version 999"):
        deploy_version(999)


def test_old_versions_are_retired_but_not_the_one_to_go_back_to(registry, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy.deployment import _Deployment
    from swiftqueue.serving.triton.repository import ModelRepository

    repository = ModelRepository(tmp_path / "retire")
    for version in range(1, 8):
        repository.folder(version).mkdir(parents=True)
    _Deployment(registry, [], repository, keep=4).retire(champion=7, previous=2)
    assert repository.versions() == [2, 5, 6, 7]


def test_bad_requests_fail_alone(triton: Path, registry, register) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import Triton

    deploy_version(register(8))
    features = len(registry_features())
    rows = 2 * 64 + 8  # of a question to two layers
    good = np.zeros((1, rows, features), np.float32)
    size = [feature.name for feature in registry_features()].index("size_bytes")
    clients = Clients()
    with clients.asking(), Triton() as connection:
        for value in (np.nan, np.inf, -1e9, 1e30):
            bad = good.copy()
            bad[0, 5, size] = value
            with pytest.raises(OSError, match="size_bytes is NaN or outside"):
                connection.infer(bad)
        shapes = ((1, rows - 1, features), (1, rows, features - 1), (65, rows, features), (rows, features))
        for shape in shapes:
            with pytest.raises(OSError, match=r"shape|batch-size"):
                connection.infer(np.zeros(shape, np.float32))
        assert np.isfinite(connection.infer(good).y_BH).all()
    assert clients.errors == []


def test_a_restarted_server_serves_the_champion_again(triton: Path, registry, register, capsys) -> None:  # type: ignore[no-untyped-def]
    from swiftqueue.infra.local.loop import stop_stack
    from swiftqueue.infra.local.servers import start_stack
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.serving.deploy.deployment import deploy_version

    version = register(9)
    deploy_version(version)
    stop_stack()
    assert served() is None
    assert print_status() == 1
    with pytest.raises(OSError, match="start it: swiftqueue up"):
        deploy_version(version)
    start_stack()
    start_stack()  # harmless
    assert served() == version
    assert "without the native backend" not in capsys.readouterr().out
    assert print_status() == 0
    assert f"serves version {version} by the native backend" in capsys.readouterr().out


def test_without_the_native_backend_the_python_one_serves_and_one_line_says_why(
    triton: Path,
    registry,  # type: ignore[no-untyped-def]
    register,  # type: ignore[no-untyped-def]
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    from swiftqueue.infra.local.loop import stop_stack
    from swiftqueue.infra.local.servers import served_backend, start_stack
    from swiftqueue.serving.deploy.deployment import deploy_version

    version = register(11)
    deploy_version(version)
    assert served_backend() == "swiftqueue"
    stop_stack()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr("swiftqueue.infra.local.native_backend.LIBRARY", tmp_path / "libtriton_swiftqueue.so")
        start_stack()
    assert (served(), served_backend()) == (version, "python")
    lines = capsys.readouterr().out.splitlines()
    assert re.search(r"the native backend is not built; run `make -C .*`$", lines[0])
    assert f"version {version} goes to the Python backend with ONNX Runtime: the server runs" in lines[2]
    start_stack()
    assert "it was started without the native backend; `swiftqueue down`" in capsys.readouterr().out
    stop_stack()
    start_stack()
    assert (served(), served_backend()) == (version, "swiftqueue")


def test_the_container_repository_holds_the_same_network(triton: Path, registry, register) -> None:  # type: ignore[no-untyped-def]
    import onnx

    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.repository import MODEL, ModelRepository

    version = register(10)
    deploy_version(version)
    repository = ModelRepository()
    network = (repository.gpu / MODEL / str(version) / "model.onnx").read_bytes()
    assert network == (repository.folder(version) / "model.onnx").read_bytes()
    # Limits of the ONNX Runtime in the container named in docs/how-to/serve.md (Triton 24.10, 1.19).
    model = onnx.load_from_string(network)
    assert model.ir_version <= 10
    assert model.opset_import[0].version <= 21
    config = (repository.gpu / MODEL / "config.pbtxt").read_text()
    assert 'platform: "onnxruntime_onnx"' in config
    assert "KIND_GPU" in config
    assert f"versions: [ {version} ]" in config
