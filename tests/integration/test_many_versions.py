"""Ten thousand versions in the registry: lists are whole, and a deployment costs what it costs with ten."""

from __future__ import annotations

import json
import shutil
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from mutants import ALL
from registered import add_version

MANY = 10_500  # more than MLflow gives in one answer
FEW = 10
BLOCKS, PUSHES = (5, 4) if ALL else (1, 2)
TOLERANCE = 0.1

pytestmark = pytest.mark.slow


class Crowd:
    """Versions beside the real ones, written into the store's tables as copies of one of them."""

    def __init__(self, store: Path, model: int) -> None:
        self._rows = sqlite3.connect(store, timeout=60, isolation_level=None)
        self._model = str(model)

    def become(self, count: int) -> None:
        """Have so many."""
        run = self._rows.execute
        run("begin immediate")
        for table in ("model_version_tags", "model_versions"):
            run(f"delete from {table} where version > 1000000")  # noqa: S608 - names of this test
        for table, key in (("model_versions", ""), ("model_version_tags", ", key")):
            names = [row[1] for row in run(f"pragma table_info({table})")]
            others = ", ".join(name for name in names if name != "version")
            run(
                f"with recursive n(i) as (select 1 union all select i + 1 from n where i < {count}) "  # noqa: S608
                f"insert into {table} (version, {others}) "
                f"select 1000000 + i, {others} from {table}, n where version = ? order by i{key}",
                (self._model,),
            )
        run("commit")


@pytest.fixture
def two(champion: int, make_artifact: Callable[..., Path], tmp_path: Path) -> list[int]:
    """Versions that take turns in serving."""
    found = []
    for name in ("one", "other"):
        folder = shutil.copytree(make_artifact(1, onnx=True), tmp_path / name)
        described = json.loads((folder / "model.json").read_text())
        described["protocol"]["name"] = f"turn-{name}"
        (folder / "model.json").write_text(json.dumps(described))
        found.append(add_version(folder))
    return found


@contextmanager
def counted() -> Iterator[list[str]]:
    """Statements that the registry's store is asked in the block."""
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield statements
    event.remove(Engine, "before_cursor_execute", note)


@contextmanager
def asked_meanwhile() -> Iterator[list[float]]:
    """Seconds that each of a client's questions takes during the block."""
    from swiftqueue.serving.triton.endpoint import Triton

    took_s: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with Triton() as triton:
            tokens, features = triton.config().input[0].dims
            x_BWF = np.zeros((1, tokens, features), dtype=np.float32)
            while not stop.wait(0.002):
                begin = time.perf_counter()
                triton.infer(x_BWF)
                took_s.append(time.perf_counter() - begin)

    thread = threading.Thread(target=ask)
    thread.start()
    yield took_s
    stop.set()
    thread.join()


def test_a_deployment_costs_the_same_among_ten_thousand_versions(
    triton: Path, two: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy.deployment import deploy_version

    crowd = Crowd(triton / "mlflow" / "mlflow.db", two[0])
    registry = Registry("swiftqueue")
    deploy_version(two[1])
    statements: dict[int, set[int]] = {FEW: set(), MANY: set()}
    pushes_s: dict[int, list[float]] = {FEW: [], MANY: []}
    cpu_s: dict[int, list[float]] = {FEW: [], MANY: []}  # of the push, which other work hardly changes
    p50_s: dict[int, list[float]] = {FEW: [], MANY: []}
    try:
        for count in [FEW, MANY] * BLOCKS:
            crowd.become(count)
            assert len(registry.versions()) >= count, "the list is whole"
            for version in two * (PUSHES // 2):
                with asked_meanwhile() as asked, counted() as said:
                    begin, begin_cpu = time.perf_counter(), time.thread_time()
                    deploy_version(version)
                    cpu_s[count].append(time.thread_time() - begin_cpu)
                    pushes_s[count].append(time.perf_counter() - begin)
                statements[count].add(len(said))
                p50_s[count].append(statistics.median(asked))
    finally:
        crowd.become(0)
    assert max(statements[MANY]) <= max(statements[FEW]), "no more questions to the registry"
    with capsys.disabled():
        for name, figures, of in (
            ("a push", pushes_s, statistics.median),
            ("CPU of a push", cpu_s, statistics.median),
            ("p50 of an answer, quietest push", p50_s, min),
        ):
            few, many = (of(figures[count]) * 1e3 for count in (FEW, MANY))
            print(f"\n{name}: {few:.2f} ms with {FEW} versions, {many:.2f} ms with {MANY}", end="")
            if ALL and figures is not pushes_s:  # two pushes of each say nothing of times
                assert many < (1 + TOLERANCE) * few, name
