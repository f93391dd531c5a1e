"""A registry in which others write: whatever they write there, nothing is served that the gate did not pass.

Everything is real: a Triton, a registry, the loop's rounds, and an MLflow server that a stranger asks.
"""

from __future__ import annotations

import base64
import http.server
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import bombs
import mutants
import numpy as np
import pytest
from registered import add_version, served
from sampled import some
from strangers import as_nobody, crowd, stranger_at
from test_registry import check_round_trip
from waiting import wait_until

from swiftqueue.common.door import MOST_OF_ONE
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.parts import MLFLOW, PARTS
from swiftqueue.infra.local.processes import free_ports

pytestmark = pytest.mark.slow
CONNECTIONS = 10_000 if mutants.ALL else 1_000


@pytest.fixture(scope="module")
def good(champion: int) -> int:
    return champion


@pytest.fixture(autouse=True)
def _set_right(good: int, registry) -> Iterator[None]:  # type: ignore[no-untyped-def]
    yield
    registry.set_alias("champion", good)
    assert served() == good


def version_of(make_artifact: Callable[..., Path], folder: Path, name: str) -> int:
    """A version that the gate refused: the same network, told apart by a word in the description."""
    copy = folder / name
    shutil.copytree(make_artifact(2, onnx=True), copy)
    described = json.loads((copy / "model.json").read_text())
    described["protocol"]["name"] = name
    (copy / "model.json").write_text(json.dumps(described))
    return add_version(copy, gate="failed")


def stored(version: int, name: str) -> Path:
    """A version's file in the store of the registry."""
    import mlflow

    source = mlflow.MlflowClient().get_model_version("swiftqueue", str(version)).source
    model = source.removeprefix("models:/")
    return Path(os.environ["SWIFTQUEUE_STATE"]) / "mlflow/artifacts/models" / model / "artifacts" / name


def raw_tags(version: int, tags: dict[str, str]) -> None:
    """Write tags as anybody may who can write in the registry."""
    import mlflow

    for name, value in tags.items():
        mlflow.MlflowClient().set_model_version_tag("swiftqueue", str(version), name, value)


# A refused version stays refused, whatever its tags say ------------------------------------------------


def nothing(version: int, good: int) -> None:
    pass


def says_passed(version: int, good: int) -> None:
    raw_tags(version, {"gate": "passed", "gate_reason": "not worse than the champion"})


def copies_the_signature(version: int, good: int) -> None:
    import mlflow

    tags = mlflow.MlflowClient().get_model_version("swiftqueue", str(good)).tags
    raw_tags(version, {"gate": "passed", "gate_signature": tags["gate_signature"]})


def copies_every_tag(version: int, good: int) -> None:
    import mlflow

    raw_tags(version, dict(mlflow.MlflowClient().get_model_version("swiftqueue", str(good)).tags))


def guesses_a_signature(version: int, good: int) -> None:
    raw_tags(version, {"gate": "passed", "gate_signature": "\x1b[2J" + "0" * 64})


def takes_the_signature_away(version: int, good: int) -> None:
    import mlflow

    raw_tags(version, {"gate": "passed"})
    mlflow.MlflowClient().delete_model_version_tag("swiftqueue", str(version), "gate_signature")


@pytest.mark.parametrize(
    ("forge", "why"),
    [
        (nothing, "did not pass the gate: set by a test"),
        (says_passed, "do not fit the gate's signature"),
        (copies_the_signature, "do not fit the gate's signature"),
        (copies_every_tag, "do not fit the gate's signature"),
        (guesses_a_signature, "do not fit the gate's signature"),
        (takes_the_signature_away, "has no signed decision of the gate; `dvc repro --force register`"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_alias_on_a_refused_version_is_not_followed(  # type: ignore[no-untyped-def]
    good: int,
    registry,
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    forge: Callable[[int, int], None],
    why: str,
) -> None:
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.serving.agent.command import LocalChampion
    from swiftqueue.serving.deploy.champion import find_champion
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion, serve_champion

    assert print_status() == 0
    bad = version_of(make_artifact, tmp_path, forge.__name__)
    forge(bad, good)
    registry.set_alias("champion", bad)
    capsys.readouterr()

    assert serve_champion() == good == served()
    said = capsys.readouterr().out
    assert f"the alias champion points to version {bad} and is not followed" in said
    assert why in said
    assert f"version {good} stays champion; `swiftqueue deploy --version {good}` sets it right" in said
    assert print_status() == 1
    assert f"registry: the alias champion points to version {bad}" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"did not pass the gate|gate's signature|no signed decision"):
        deploy_version(bad)
    registry.set_alias("challenger", bad)
    deploy_version(None)
    registry.remove_alias("challenger")
    assert served() == good
    raw_tags(good, {"replaced_version": str(bad)})
    with pytest.raises(ValueError, match=r"did not pass the gate|gate's signature|no signed decision"):
        rollback_champion()
    raw_tags(good, {"replaced_version": "none"})
    assert served() == good
    local = LocalChampion(registry, tmp_path / "agent")
    assert local.refresh() == good == find_champion(registry).version
    deploy_version(good)
    assert registry.alias("champion") == good
    assert print_status() == 0


def test_a_version_whose_files_were_swapped_is_neither_served_nor_read(  # type: ignore[no-untyped-def]
    good: int, registry, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    from swiftqueue.models.registry.saving import INPUTS_FILE
    from swiftqueue.models.registry.store import RegistryError
    from swiftqueue.serving.deploy.deployment import deploy_version

    folder = tmp_path / "with-inputs"
    shutil.copytree(make_artifact(2, onnx=True), folder)
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(described | {"protocol": {"name": "with inputs"}}))
    np.save(folder / INPUTS_FILE, np.zeros((3, len(EVENTS.features)), np.float32))
    version = add_version(folder)
    registry.fetch(version, tmp_path / "whole")
    for name in ("model.safetensors", "model.json", "model.onnx", INPUTS_FILE):
        file = stored(version, name)
        content = file.read_bytes()
        for other in (content[:-1], bytes([content[0] ^ 1]) + content[1:], b""):
            file.write_bytes(other)
            with pytest.raises(RegistryError, match=f"{name} is not the file that was registered") as raised:
                registry.fetch(version, tmp_path / "fetched")
            assert "\n" not in str(raised.value)
            assert not (tmp_path / "fetched" / name).exists()
        with pytest.raises(RegistryError, match=f"{name} is not the file that was registered"):
            deploy_version(version)
        file.unlink()
        with pytest.raises(RegistryError, match=f"download of {name} of version {version} failed"):
            registry.fetch(version, tmp_path / "fetched")
        file.write_bytes(content)
    # Another version's files, each of them sound, with the tags that say so
    other = registry.tags(good)
    raw_tags(version, {name: other[name] for name in ("content_sha256", "files_sha256")})
    with pytest.raises(RegistryError, match="do not fit the gate's signature"):
        registry.fetch(version, tmp_path / "fetched")
    assert served() == good


def test_the_next_head_does_not_descend_from_a_refused_version(  # type: ignore[no-untyped-def]
    good: int,
    registry,
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.pipelines.live.rounds import RoundParams, Rounds

    bad = version_of(make_artifact, tmp_path, "parent")
    says_passed(bad, good)
    registry.set_alias("champion", bad)
    begun: list[str] = []

    def no_telemetry(*_: object):  # type: ignore[no-untyped-def]
        begun.append("telemetry")
        raise FileNotFoundError("no telemetry in this test")

    params = RoundParams(5, 2, 1, 10, 10, 0.5, 60)
    finetune = FinetuneParams(seed=1, workers=1, epochs=2, batch_size=64, learning_rate=1e-3, sharp_weight=1)
    record = Rounds(no_telemetry, params, finetune, "swiftqueue").run()
    assert (record.parent, begun, record.outcome) == (good, ["telemetry"], "declined")
    assert f"points to version {bad} and is not followed" in capsys.readouterr().out
    assert served() == good


def test_a_stage_run_does_not_make_a_refused_version_champion(  # type: ignore[no-untyped-def]
    good: int, registry, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """`it is the champion already` is no reason where only the alias says so."""
    from swiftqueue.models.registry.bars import NO_CHAMPION
    from swiftqueue.models.registry.entering import champion_to_beat

    bad = version_of(make_artifact, tmp_path, "stage")
    registry.set_alias("champion", bad)
    version, why = champion_to_beat(registry)
    assert version is None
    assert why != NO_CHAMPION
    assert f"version {bad} did not pass the gate" in why
    registry.set_alias("champion", good)
    assert champion_to_beat(registry) == (good, "")


def test_a_key_of_several_machines_is_a_file_that_others_do_not_read(
    registry,  # type: ignore[no-untyped-def]
    good: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = tmp_path / "gate.key"
    monkeypatch.setenv("SWIFTQUEUE_GATE_KEY", str(key))
    with pytest.raises(OSError, match=r"SWIFTQUEUE_GATE_KEY=.*gate\.key: no such file"):
        registry.refusal(good)
    key.write_text("k" * 64)
    key.chmod(0o644)
    with pytest.raises(OSError, match="others may read this key"):
        registry.refusal(good)
    key.chmod(0o400)
    assert "signed with another key" in registry.refusal(good)
    key.chmod(0o600)
    key.write_text("short")
    with pytest.raises(OSError, match="shorter than 32 bytes"):
        registry.refusal(good)
    shutil.copyfile(Path(os.environ["SWIFTQUEUE_STATE"]) / "secrets" / "gate", key)
    assert registry.refusal(good) == ""


# MLflow's server --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(good: int) -> Iterator[str]:
    """The MLflow server of this state folder, started with a umask that would let everybody in."""
    from swiftqueue.infra.local import servers as stack

    before = os.umask(0)
    try:
        stack.start_mlflow()
    finally:
        os.umask(before)
    record = processes.running("mlflow")
    assert record is not None
    yield f"http://127.0.0.1:{record.ports['http']}"
    processes.stop("mlflow")


def ask(url: str, body: dict[str, object] | None = None, password: str | None = None, **headers: str) -> int:
    """HTTP status of a request."""
    request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None)  # noqa: S310
    request.add_header("Content-Type", "application/json")
    if password is not None:
        word = base64.b64encode(f"swiftqueue:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {word}")
    for name, value in headers.items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


API = "/api/2.0/mlflow"


def test_who_does_not_know_the_password_neither_reads_nor_writes(
    server: str,
    registry,  # type: ignore[no-untyped-def]
    good: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.common.state import secret
    from swiftqueue.infra.local.status import print_status

    alias = {"name": "swiftqueue", "alias": "champion", "version": "1"}
    for password in (None, "", "wrong", secret("gate")):
        assert ask(f"{server}{API}/registered-models/search?max_results=1", password=password) == 401
        assert ask(f"{server}{API}/registered-models/alias", alias, password) == 401
        for path in (
            "/",
            "/version",
            "/graphql",
            "/metrics",
            "/static-files/index.html",
            "/api/3.0/mlflow/server-info",
            "/ajax-api/3.0/mlflow/assistant/config",
            "/v1/traces",
            "//health",
            "/health/../version",
        ):
            assert ask(f"{server}{path}", password=password) == 401, path
        assert ask(f"{server}/health", {}, password) == 401  # a POST is no question for its health
    assert ask(f"{server}{API}/registered-models/search", Authorization="Basic swiftqueue") == 401
    assert ask(f"{server}/health") == 200
    assert ask(f"{server}{API}/registered-models/search?max_results=1", password=secret("mlflow")) == 200
    assert registry.alias("champion") == good
    assert print_status() == 0
    said = capsys.readouterr().out
    assert "mlflow: a registry read in" in said
    assert f"(user swiftqueue, password in {os.environ['SWIFTQUEUE_STATE']}/secrets/mlflow)" in said
    assert secret("mlflow") not in said


def test_status_asks_the_server_without_importing_mlflow(server: str, good: int, project: Path) -> None:
    """It takes five seconds of a core to import."""
    program = (
        "import sys; from swiftqueue.infra.local.status import print_status; "
        "sys.exit(print_status() or 9 * ('mlflow' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"serves version {good} by" in done.stdout


def test_our_own_programs_know_it_by_themselves(
    server: str, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import RegistryError

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    assert Registry("swiftqueue").alias("champion") == good
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "swiftqueue")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "of the user")  # what somebody set is not replaced
    with pytest.raises(RegistryError, match="401"):
        Registry("swiftqueue").alias("champion")
    assert os.environ["MLFLOW_TRACKING_PASSWORD"] == "of the user"  # noqa: S105


def test_versions_go_through_the_server_as_they_do_in_sqlite(
    server: str, make_artifact: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    check_round_trip("through-a-server", make_artifact(1, onnx=True), tmp_path)


def test_our_password_stays_here(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No program that is started later finds it in the environment, and no line about a failure shows it."""
    from swiftqueue.common.state import secret
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import RegistryError

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    registry = Registry("swiftqueue")
    with pytest.raises(RegistryError) as raised:
        registry.tags(99_999)
    for said in (*os.environ.values(), str(raised.value)):
        assert secret("mlflow") not in said


def test_another_user_sets_no_alias(
    server: str,
    registry,  # type: ignore[no-untyped-def]
    good: int,
    make_artifact: Callable[..., Path],
    tmp_path: Path,
) -> None:
    bad = version_of(make_artifact, tmp_path, "nobody")
    body = {"name": "swiftqueue", "alias": "champion", "version": str(bad)}
    assert as_nobody(lambda: ask(f"{server}{API}/registered-models/alias", body)) == 401
    assert registry.alias("champion") == good


def test_what_another_user_sends_costs_only_its_bounds(server: str) -> None:
    """Connections that say nothing, and a body that would inflate to 1 GiB, of who has no password."""
    running = processes.running(MLFLOW)
    assert running is not None
    process = running.process()
    assert process is not None
    files, before = process.num_fds(), bombs.peak_bytes(process.pid)
    kept = crowd(running.ports["http"], CONNECTIONS, MOST_OF_ONE, slow=b"POST / HTTP/1.1\r\nHost: x\r\n")
    assert 0 < kept <= MOST_OF_ONE
    request = urllib.request.Request(  # noqa: S310
        f"{server}{API}/runs/create", bombs.bomb(), {"Content-Encoding": "gzip"}, method="POST"
    )
    with pytest.raises((urllib.error.HTTPError, OSError)) as refused:  # it may hang up while the body comes
        urllib.request.urlopen(request, timeout=60)  # noqa: S310
    assert getattr(refused.value, "code", 401) == 401
    assert bombs.peak_bytes(process.pid) - before < 200 << 20
    wait_until(lambda: process.num_fds() < files + 50)


def test_what_others_may_enter_holds_nothing(server: str) -> None:
    """The server above was started, and wrote, under umask 0."""
    state = Path(os.environ["SWIFTQUEUE_STATE"])
    assert {"mlflow", "secrets", "triton"} <= {path.name for path in state.iterdir()}
    ours = {*PARTS, "secrets", "live", "replay", "validation"}  # other tests leave folders of their own
    for path in sorted(path for path in state.iterdir() if path.name in ours or path.is_file()):
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode & 0o077 == 0 if path.is_dir() else mode & 0o022 == 0, f"{path}: {mode:o}"


@pytest.mark.parametrize("at", ["127.0.0.1", "::"])
def test_another_user_who_took_the_port_does_not_get_the_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """As where our server died and somebody waited for its port."""
    from swiftqueue.models.registry.store import _with_password

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    (port,) = free_ports(1)
    (tmp_path / "mlflow").mkdir()
    (tmp_path / "mlflow" / "server.json").write_text(json.dumps({"ports": {"http": port}}))
    uri = f"http://127.0.0.1:{port}"
    assert _with_password(uri).startswith("http://swiftqueue:")
    with stranger_at(port, at):
        assert _with_password(uri) == uri


# What it answers --------------------------------------------------------------------------------------

ODD = (
    None,
    True,
    0,
    -1,
    1e300,
    "",
    "0",
    "-1",
    "9" * 40,
    "\ud800\x00\x1b[2J",
    "../..",
    [],
    {},
    [[]],
    {"a": {}},
)


def answers_of(url: str, password: str, version: int) -> dict[str, bytes]:
    """Real answers by the last word of their path, as `replay` gives them."""
    import mlflow

    model = (
        mlflow.MlflowClient().get_model_version("swiftqueue", str(version)).source.removeprefix("models:/")
    )
    named = f"name=swiftqueue&version={version}"
    queries = {
        "alias": "registered-models/alias?name=swiftqueue&alias=champion",
        "get": f"model-versions/get?{named}",
        "search": "model-versions/search?filter=name%3D%27swiftqueue%27",
        "get-download-uri": f"model-versions/get-download-uri?{named}",
        model: f"logged-models/{model}",
    }
    word = base64.b64encode(f"swiftqueue:{password}".encode()).decode()
    found = {}
    for name, query in queries.items():
        request = urllib.request.Request(f"{url}{API}/{query}", headers={"Authorization": f"Basic {word}"})  # noqa: S310
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310
            found[name] = response.read()
    return found


class Replay:
    """A server that gives recorded answers, one of them changed."""

    def __init__(self, recorded: dict[str, bytes]) -> None:
        self.changed, self.answer = "", b""
        replay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = 1 << 16  # head and body in one piece: else the other side's kernel waits 40 ms

            def do_GET(self) -> None:
                name = self.path.partition("?")[0].rpartition("/")[2]
                body = replay.answer if name == replay.changed else recorded.get(name, b"{}")
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        os.environ["MLFLOW_TRACKING_URI"] = f"http://127.0.0.1:{self._server.server_port}"
        os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
        from swiftqueue.models.registry.registry import Registry

        self.registry = Registry("swiftqueue")

    def ask(self, name: str, answer: bytes, folder: Path) -> None:
        """Ask what leads to this answer; OSError is how it may be refused."""
        from swiftqueue.models.registry.store import RegistryError

        self.changed, self.answer = name, answer
        version = int(os.environ["REPLAY_VERSION"])
        calls: dict[str, Callable[[], object]] = {
            "alias": lambda: self.registry.alias("champion"),
            "get": lambda: (self.registry.refusal(version), self.registry.registered(version)),
            "search": lambda: (self.registry.versions(), self.registry.find("a" * 64)),
        }
        try:
            calls.get(name, lambda: self.registry.fetch(version, folder))()
        except RegistryError as refusal:
            if not str(refusal).isprintable():  # a line feed is not, either
                raise AssertionError(f"not one clear line: {refusal!r}") from refusal
            raise


_replay: list[Replay] = []  # of a child process of `mutants.survive`


def read_an_answer(data: bytes) -> None:
    """For the mutants: the first byte chooses which answer the rest is."""
    recorded = {k: v.encode() for k, v in json.loads(Path(os.environ["REPLAY"]).read_text()).items()}
    if not _replay:
        _replay.append(Replay(recorded))
    name = list(recorded)[(data[0] if data else 0) % len(recorded)]
    _replay[0].ask(name, data[1:], Path(os.environ["REPLAY"]).with_name("fetched"))


def odd_ones(value: object) -> Iterator[object]:
    """The same JSON with each part of it in turn replaced by something odd, or left out."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {k: v for k, v in value.items() if k != key}
            for odd in (*ODD, *odd_ones(inner)):
                yield value | {key: odd}
    if isinstance(value, list):
        for place, inner in enumerate(value):
            for odd in (*ODD, *odd_ones(inner)):
                yield [*value[:place], odd, *value[place + 1 :]]


@pytest.mark.long
def test_an_answer_that_makes_no_sense_is_a_clear_line(
    server: str, good: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftqueue.common.state import secret

    recorded = answers_of(server, secret("mlflow"), good)
    (tmp_path / "answers.json").write_text(json.dumps({k: v.decode() for k, v in recorded.items()}))
    for name, value in (
        ("REPLAY", str(tmp_path / "answers.json")),
        ("REPLAY_VERSION", str(good)),
        ("MLFLOW_TRACKING_URI", ""),
        ("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0"),
    ):
        monkeypatch.setenv(name, value)
    corpus = [bytes([place]) + answer for place, answer in enumerate(recorded.values())]
    for data in corpus:
        read_an_answer(data)  # as they were recorded they are all taken
    assert (tmp_path / "fetched" / "model.json").is_file()
    refused = 0
    odd = [(place, o) for place, answer in enumerate(recorded.values()) for o in odd_ones(json.loads(answer))]
    tried = some(odd, 200)
    for place, value in tried:
        try:
            read_an_answer(bytes([place]) + json.dumps(value).encode())
        except OSError:
            refused += 1
    assert refused > len(tried) / 10
    _replay.clear()
    count = mutants.COUNT // (10 if mutants.ALL else 40)
    taken, refused = mutants.survive(f"{__name__}:read_an_answer", corpus, count)
    assert min(taken, refused) > count / 20


# Credentials ------------------------------------------------------------------------------------------

PASSWORD = "pa55:w0rd-of-this-test"  # noqa: S105
QUOTED = "pa55%3Aw0rd-of-this-test"


def hides(said: str) -> bool:
    """Whether a text names the address, and none of its secrets."""
    return "***@127.0.0.1" in said and PASSWORD not in said and QUOTED not in said


def test_no_command_prints_a_password(good: int) -> None:
    """Commands whose registry does not answer; all they print and log, and the arguments of all processes."""
    (port,) = free_ports(1)
    environment = os.environ | {
        "MLFLOW_TRACKING_URI": f"http://somebody:{QUOTED}@127.0.0.1:{port}/mlflow?token={QUOTED}",
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "AWS_SECRET_ACCESS_KEY": PASSWORD,
    }
    program = [sys.executable, "-c", "from swiftqueue.cli.app import main; main()"]
    running = [
        subprocess.Popen(
            [*program, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for words in (["up", "--mlflow"], ["status"], ["deploy"])
    ]
    said = [process.communicate(timeout=200)[0] for process in running]
    assert "MLFLOW_TRACKING_URI is set, so no local MLflow server is started" in said[0]
    assert said[1].count("no answer at http://***@127.0.0.1") == 1
    assert all(map(hides, said)), said
    state = Path(os.environ["SWIFTQUEUE_STATE"])
    logged = (state / "deploy.log.jsonl").read_text()
    logged += "".join(path.read_text(errors="replace") for path in state.glob("*/server.log"))
    assert PASSWORD not in logged
    assert QUOTED not in logged
    assert not processes_that_name(PASSWORD, QUOTED)


def processes_that_name(*words: str) -> list[str]:
    """Command lines of this machine, which every user can read, that hold one of the words."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_text(errors="replace")
        except OSError:
            continue
        found += [line] if any(word in line for word in words) else []
    return found


@pytest.mark.parametrize("scheme", ["postgresql+psycopg2", "postgresql+nothing", "mysql+nothing", "ftp"])
def test_no_error_of_a_database_holds_a_password(
    serving_state: Path,
    scheme: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import RegistryError

    monkeypatch.setattr("mlflow.store.db.utils.MAX_RETRY_COUNT", 1)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{scheme}://somebody:{QUOTED}@127.0.0.1:1/mlflow")
    with pytest.raises(RegistryError) as raised:
        Registry("swiftqueue").alias("champion")
    assert hides(str(raised.value))
    assert "\n" not in str(raised.value)
    said = "".join(capfd.readouterr())
    assert PASSWORD not in said
    assert QUOTED not in said
