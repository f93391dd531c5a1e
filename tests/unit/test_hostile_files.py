"""Files that others wrote or a disk damaged: each reader takes them or refuses them, and never dies of them.

Each reader gets mutants of a good file. Those of JSON also get good files in which some values are others: a
mutant of bytes seldom stays JSON, and what the JSON parser refuses tests nothing behind it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import polars as pl
import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
TINY = PROJECT / "tests/data/artifacts/some-features"
PLACED = b"values "  # an input that begins so has other values at places it chooses by its bytes

# What no reader may stumble over, wherever it stands.
VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.5, float("inf"), float("nan"),
    "", "x", "1", "\ud800", "../../etc/passwd", "a\0b", [], [[]], [None] * 3, {}, {"": {}}, {"x": [1]},
)  # fmt: skip
DEEP = 100_000  # brackets: a parser that calls itself has no stack for so many


@cache
def folder() -> Path:
    """A folder of this process, in memory where there is such."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of mkdtemp in it
    path = tempfile.mkdtemp(prefix="hostile-", dir=memory if memory.is_dir() else None)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return Path(path)


@cache
def state() -> Path:
    """The run-time state that a child process reads."""
    os.environ["SWIFTQUEUE_STATE"] = str(folder())
    return folder()


def place(document: Any, dice: random.Random) -> Any:
    """Return a copy of a document in which one value is another, or a key is gone, new or renamed."""
    copy = json.loads(json.dumps(document))
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            spots.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if not isinstance(copy, dict | list) or dice.random() < 0.02:
        return dice.choice(VALUES)
    walk(copy)
    node, key = dice.choice(spots) if spots else (copy, "x")
    what = dice.randrange(8)
    if what == 0 and isinstance(node, dict):
        node.pop(key, None)
    elif what == 1 and isinstance(node, dict):
        node[dice.choice(("", "x", "__class__", "name"))] = node.get(key)
    elif isinstance(node, dict) or spots:
        node[key] = dice.choice(VALUES)
    return copy


def placed(document: Any, data: bytes) -> bytes:
    """Bytes of a file: the given ones, or the document with some other values where they ask for it."""
    if not data.startswith(PLACED):
        return data
    dice = random.Random(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        document = place(document, dice)
    return json.dumps(document).encode(errors="surrogatepass")


def good(content: bytes) -> list[bytes]:
    """Inputs to make mutants of: a good file's bytes, and as often a choice of other values in it."""
    return [content] * 2 + [PLACED + bytes(8), PLACED + bytes(range(8))]


def written(name: str, content: bytes) -> Path:
    path = state() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


# The readers ----------------------------------------------------------------------------------------


def artifact_folder(described: bytes, weights: bytes) -> Path:
    written("artifact/model.json", described)
    return written("artifact/model.safetensors", weights).parent


@cache
def small_artifact() -> tuple[bytes, bytes]:
    return (TINY / "model.json").read_bytes(), (TINY / "model.safetensors").read_bytes()


def read_description(data: bytes) -> None:
    from swiftqueue.models.networks import artifact

    described, weights = small_artifact()
    artifact.load(artifact_folder(placed(json.loads(described), data), weights))


def read_weights(data: bytes) -> None:
    """A safetensors file of which the header was changed, or the end is missing."""
    from swiftqueue.models.networks import artifact

    artifact.load(artifact_folder(small_artifact()[0], data))


def read_signature(data: bytes) -> None:
    from swiftqueue.serving.triton.config import Signature

    described, weights = small_artifact()
    Signature.read(artifact_folder(placed(json.loads(described), data), weights))


@cache
def engine_artifact() -> tuple[bytes, bytes]:
    """Of the width that the engine computes, one layer, no larger than it must be."""
    from test_engine import write_artifact

    made = write_artifact(folder() / "wide")
    return (made / "model.json").read_bytes(), (made / "model.safetensors").read_bytes()


def read_description_in_engine(data: bytes) -> None:
    from swiftqueue.serving.engine import Engine

    described, weights = engine_artifact()
    Engine(artifact_folder(placed(json.loads(described), data), weights))


def read_weights_in_engine(data: bytes) -> None:
    from swiftqueue.serving.engine import Engine

    described, weights = engine_artifact()
    (length,) = np.frombuffer(weights[:8], "<u8")
    whole = len(data) > 100_000
    Engine(artifact_folder(described, data if whole else data + weights[8 + int(length) :]))


def read_scenario(data: bytes) -> None:
    from swiftqueue.laboratory.scenarios import files as scenario_file

    document = yaml.safe_load((PROJECT / "simulation/scenarios/default.yaml").read_text())
    scenario_file.load(written("mine.yaml", placed(document, data)))


def read_params(data: bytes) -> None:
    from swiftqueue.common.section import read
    from swiftqueue.pipelines.validate import ValidateParams

    document = yaml.safe_load((PROJECT / "params.yaml").read_text())
    read(written("params.yaml", placed(document, data)), ValidateParams)


def packet_tables(data: bytes) -> Path:
    written("tables/trace=t/minute=0/part-0.parquet", data)
    return state() / "tables"


def read_replayed_table(data: bytes) -> None:
    from swiftqueue.laboratory.scenarios.replay import replayed
    from swiftqueue.laboratory.scenarios.traffic import Replay

    replayed(Replay(kind="replay", packets=str(packet_tables(data)), trace="t"), f"key {len(data)}")


def read_log_to_replay(data: bytes) -> None:
    from swiftqueue.serving.agent.io.packet_log import open_log

    open_log(str(packet_tables(data) / "trace=t"), 0.0, None)


def read_results(data: bytes) -> None:
    from swiftqueue.laboratory.runs import results

    results.load(written("lab/results.parquet", data).parent)


SERVER = {
    "name": "triton",
    "pid": 2**22 + 1,
    "created": 1.0,
    "ports": {"http": 8000, "grpc": 8001, "metrics": 8002},
    "boot": "b",
    "ticks": 12,
}


def read_server_record(data: bytes) -> None:
    from swiftqueue.infra.local import processes
    from swiftqueue.serving.triton import endpoint

    written("triton/server.json", placed(SERVER, data))
    assert 0 < endpoint.port("grpc") < 65536
    server = processes.read_record(processes.record_path("triton"))
    if server.process():
        assert server.age_s > -1e30
        assert 0 < server.ports["grpc"] < 65536


LIVE = {"trace": "t", "speed": 1.0, "every_s": 300.0, "learn_s": 60.0, "judge_s": 60.0, "drift": 1.5}


def read_asked(data: bytes) -> None:
    from swiftqueue.infra.local import live_options

    written("live/up.json", placed(LIVE, data))
    live = live_options.read()
    assert live is None or live.every_s + live.speed + live.learn_s + live.judge_s + live.drift > 0


DEPLOYED = {
    "time": 1.0,
    "action": "deploy",
    "version": 3,
    "outcome": "served",
    "registered": 0.5,
    "reason": "",
}


def lines(entry: Any, data: bytes) -> bytes:
    """A log of which the last but one line, or any bytes, were changed."""
    if not data.startswith(PLACED):
        return data
    line = json.dumps(entry).encode()
    return b"\n".join((line, placed(entry, data), line, b""))


def read_deploy_log(data: bytes) -> None:
    from swiftqueue.serving.deploy import log as deploy_log

    written("deploy.log.jsonl", lines(DEPLOYED, data))
    for entry in deploy_log.newest_first():
        assert isinstance(entry["version"], int)
    if last := deploy_log.last_served():
        age_s = deploy_log.age_s(last["version"])
        assert age_s is not None
        assert age_s > -1e30
        assert isinstance(last.get("reason", ""), str)


def round_entry() -> dict[str, Any]:
    from dataclasses import asdict

    from swiftqueue.pipelines.live.rounds_log import RoundRecord

    return asdict(RoundRecord(3, 1.0, "pushed", "better", 4, 3, 100, ended_boot_s=5.0, psi={"x": 0.1}))


def read_rounds(data: bytes) -> None:
    from swiftqueue.infra.local import status
    from swiftqueue.pipelines.live import rounds_log as record

    log = written("live/rounds.jsonl", lines(round_entry(), data))
    for entry in record.read(log):
        assert entry["outcome"] in record.OUTCOMES
    for last in status.last_rounds():
        assert last["ended_boot_s"] is None or last["ended_boot_s"] > -1e30
        assert isinstance(last["number"], int)
        assert isinstance(last["reason"], str)


METRICS = {"traces": {"t": {"model": {"f1": 0.5, "interval": [0.4, 0.6]}}}, "pooled": {"mae_us": 12.5}}


def read_metrics(data: bytes) -> None:
    from swiftqueue.pipelines.register import headline_figures

    written("evaluation/metrics.json", placed(METRICS, data))
    assert all(np.isfinite(value) for value in headline_figures(state() / "evaluation").values())


LENGTHS = {"name": "small", "pretrain_s": 30, "finetune_s": 6, "test_s": 10}
ROUNDS = [{"finetune": [0, 1], "test": [1, 3]}]
SLICES = {"protocol": LENGTHS, "duration_s": 1.0, "pretrain": [0, 1], "rounds": ROUNDS}
SPLIT = {"traces": {"t": SLICES}}


def read_split(data: bytes) -> None:
    from swiftqueue.models.forecasters.traces import read_traces
    from swiftqueue.models.sharp import PAPERS

    read_traces(packet_tables(packets()), written("split.json", placed(SPLIT, data)), PAPERS)


def read_forecaster(data: bytes) -> None:
    """A saved forecaster whose description, or whose trees, are damaged."""
    from swiftqueue.models.forecasters import forecaster

    described = json.loads(forecaster_files()["forecaster.json"])
    for name, content in forecaster_files().items():
        written(f"forecaster/{name}", content)
    if data[:1] == b"{":
        forecaster.load(written("forecaster/forecaster.json", placed(described, data)).parent)
    else:
        forecaster.load(written("forecaster/trees.ubj", data).parent)


@cache
def forecaster_files() -> dict[str, bytes]:
    from swiftqueue.models.forecasters import forecaster
    from swiftqueue.models.forecasters.queries import QUERY_INPUTS, Inputs
    from swiftqueue.models.trees.boosting import BoostedTrees
    from swiftqueue.models.trees.forecaster import Trees, TreesParams

    rng = np.random.default_rng(1)
    params = TreesParams(rounds=2)
    inputs = Inputs.without(QUERY_INPUTS, params.left_out).names
    trees = BoostedTrees.fit(rng.random((50, len(inputs)), np.float32), rng.random(50) + 1, rounds=2, seed=1)
    made = folder() / "trees"
    if not made.exists():
        forecaster.save(made, Trees.of(trees, params))
    return {path.name: path.read_bytes() for path in made.iterdir()}


def read_origin(data: bytes) -> None:
    from swiftqueue.laboratory.learning.judged_models import said_acks

    said_acks(written("origin.json", placed({"acks": "selective"}, data)))


LOCK = {"schema": "2.0", "stages": {"s": {"outs": [{"path": "p", "md5": "m"}]}}}


def read_dvc_lock(data: bytes) -> None:
    from swiftqueue.models.registry.lineage import dvc_hashes

    hashes = dvc_hashes(written("dvc.lock", placed(LOCK, data)))
    assert all(isinstance(text, str) for pair in hashes.items() for text in pair)


# The good files -------------------------------------------------------------------------------------


def parquet(table: pl.DataFrame) -> bytes:
    import io

    buffer = io.BytesIO()
    table.write_parquet(buffer)
    return buffer.getvalue()


def packets() -> bytes:
    from toy_world import uneven_table

    return parquet(uneven_table(40, 2_000_000).with_columns(trace=pl.lit("t")))


def results_table() -> bytes:
    from swiftqueue.laboratory.runs.results import SCHEMA

    return parquet(pl.DataFrame(schema=SCHEMA))


def header(weights: bytes) -> bytes:
    (length,) = np.frombuffer(weights[:8], "<u8")
    return weights[: 8 + int(length)]


def log_of(entry: Any) -> bytes:
    return (json.dumps(entry) + "\n").encode() * 3


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


# Reader, its good inputs, and the part of the mutants that it gets (one of so many), for the time it takes: a
# network is built for each description, the engine copies its weights, YAML is parsed by Python (30 ms), a
# Parquet file is opened and queried (3 ms), PyTorch alone takes seconds to import.
CASES: dict[Callable[[bytes], None], tuple[Callable[[], list[bytes]], int]] = {
    read_description: (lambda: good(small_artifact()[0]), 20),
    read_weights: (lambda: [small_artifact()[1], header(small_artifact()[1])], 20),
    read_signature: (lambda: good(small_artifact()[0]), 4),
    read_description_in_engine: (lambda: good(engine_artifact()[0]), 10),
    read_weights_in_engine: (lambda: [engine_artifact()[1], header(engine_artifact()[1])], 20),
    read_scenario: (
        lambda: good((PROJECT / "simulation/scenarios/default.yaml").read_bytes()),
        200,
    ),
    read_params: (lambda: good((PROJECT / "params.yaml").read_bytes()), 200),
    read_replayed_table: (lambda: [packets()], 20),
    read_log_to_replay: (lambda: [packets()], 20),
    read_results: (lambda: [results_table()], 10),
    read_server_record: (lambda: good(dumped(SERVER)), 4),
    read_asked: (lambda: good(dumped(LIVE)), 4),
    read_deploy_log: (lambda: good(log_of(DEPLOYED)), 4),
    read_rounds: (lambda: good(log_of(round_entry())), 4),
    read_metrics: (lambda: good(dumped(METRICS)), 10),
    read_split: (lambda: good(dumped(SPLIT)), 20),
    read_forecaster: (
        lambda: [*good(forecaster_files()["forecaster.json"]), forecaster_files()["trees.ubj"]],
        20,
    ),
    read_origin: (lambda: good(dumped({"acks": "selective"})), 10),
    read_dvc_lock: (lambda: good(dumped(LOCK)), 10),
}


@pytest.fixture(autouse=True)
def _own_folder() -> Any:
    yield
    shutil.rmtree(folder(), ignore_errors=True)
    folder.cache_clear(), state.cache_clear()
    os.environ.pop("SWIFTQUEUE_STATE", None)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("reader", CASES, ids=lambda reader: reader.__name__)
def test_a_reader_survives_damaged_files(reader: Callable[[bytes], None]) -> None:
    inputs, one_of = CASES[reader]
    taken, refused = mutants.survive(f"{__name__}:{reader.__name__}", inputs(), mutants.COUNT // one_of)
    assert refused > 0 or reader in (read_deploy_log, read_rounds)  # they leave out what is no entry
    assert taken > 0, "nothing got past the first check"


def test_a_page_that_ends_polars_is_refused(tmp_path: Path) -> None:
    """Of -39 rows: one byte of a good table, which ended the process before PyArrow read it."""
    table, rows_of_a_page = packets(), b"\x2c\x15\x50\x15"
    assert rows_of_a_page in table
    (tmp_path / "table.parquet").write_bytes(table.replace(rows_of_a_page, b"\x2c\x15\x4d\x15", 1))
    code = (
        "import pathlib, sys; from swiftqueue.common.parquet import read_parquet;"
        " read_parquet([pathlib.Path(sys.argv[1])])"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "table.parquet")]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr.splitlines()[-1]
    assert said.startswith("ValueError: ")
    assert "table.parquet cannot be read: " in said


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("reader", CASES, ids=lambda reader: reader.__name__)
def test_a_reader_survives_what_no_mutant_is(reader: Callable[[bytes], None]) -> None:
    """Nested deeper than a parser's stack, of another kind, empty, no text."""
    deep = [b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b"- " * DEEP]
    for data in (b"", b"\0", b"\xff\xfe", b"null", b"[]", b"{}", b"3", b'"x"', b"1" * 5000, b"1e999", *deep):
        with contextlib.suppress(ValueError, OSError):
            reader(data)


def test_parts_are_one_table_by_the_names_of_their_columns(tmp_path: Path) -> None:
    """A part whose columns stand in another order must not swap them; one that has others is named."""
    from swiftqueue.common.parquet import read_parquet

    files = [tmp_path / f"part-{n}.parquet" for n in range(2)]
    pl.DataFrame({"sent_ns": [1], "acked_ns": [2]}).write_parquet(files[0])
    pl.DataFrame({"acked_ns": [4], "sent_ns": [3]}).write_parquet(files[1])
    assert read_parquet(files).rows() == [(1, 2), (3, 4)]
    for other in ({"sent_ns": [3], "lost_ns": [4]}, {"sent_ns": [3]}, {"sent_ns": ["3"], "acked_ns": [4]}):
        pl.DataFrame(other).write_parquet(files[1])
        with pytest.raises(
            ValueError, match=r"part-1\.parquet has other columns or types than .*part-0\.parquet$"
        ):
            read_parquet(files)
