"""Kill the store's own code at every step that touches the disk, in processes of their own.

    python telemetry_crash.py append|compact FOLDER [STRIDE]

A step is a call that changes the disk (write, fsync, rename, unlink, ...). The k-th is cut short by SIGKILL:
a write half done, any other call not made. Then the store is opened by a new process, as after a restart.
Each process is forked from one that has imported everything and run nothing, which costs milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pandas  # noqa: F401 - Polars and Arrow import it when first used: once here, not in each process
import polars as pl
import pyarrow.parquet  # noqa: F401
from polars.testing import assert_frame_equal
from telemetry_batches import bodies, log, steady, store

from swiftqueue.feature_store.telemetry.compact import Compactor
from swiftqueue.feature_store.telemetry.log import SegmentWriter, adopt_segments, log_dir, read_segment
from swiftqueue.feature_store.telemetry.manifest import load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.recent import latest_minutes
from swiftqueue.feature_store.telemetry.tables import read_part

CALLS = ("write", "fsync", "fdatasync", "rename", "replace", "unlink", "rmdir", "mkdir", "ftruncate", "open")
PACKETS = 160
STRIDE = int(sys.argv[3]) if len(sys.argv) > 3 else 1  # stride through the steps; 1 tries them all


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def kill_at(step: int) -> None:
    """Make the `step`-th disk call of this process its last."""
    left = [step]

    def counted(real: Callable[..., Any], cut_short: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                cut_short(*args, **options)
                die()
            return real(*args, **options)

        return call

    def half_a_write(file: int, data: memoryview) -> None:
        write(file, data[: len(data) // 2])

    def half_a_table(table: pl.DataFrame, path: Path, **options: Any) -> None:
        parquet(table, path, **options)
        os.truncate(path, path.stat().st_size // 2)

    write, parquet = os.write, pl.DataFrame.write_parquet
    for name in CALLS:
        real = getattr(os, name)
        setattr(os, name, counted(real, half_a_write if name == "write" else lambda *_, **__: None))
    pl.DataFrame.write_parquet = counted(parquet, half_a_table)  # type: ignore[method-assign]


def forked(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; return its status, 0 or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def required(work: Callable[[], None]) -> None:
    if code := forked(work):
        sys.exit(f"{work.__name__} ended with {code}")


def every_step(
    folder: Path, template: Path, work: Callable[[Path], None], look: Callable[[Path], None]
) -> int:
    """Do `work` on copies of the template, killed one step later each time, until it comes to its end."""
    for step in range(0, 1000, STRIDE):
        root = folder / f"step-{step}"
        shutil.copytree(template, root)

        def killed(root: Path = root, step: int = step) -> None:
            kill_at(step)
            work(root)

        def looked(root: Path = root) -> None:
            look(root)

        code = forked(killed)
        if code not in (0, -signal.SIGKILL):
            sys.exit(f"step {step}: ended with {code}")
        try:
            required(looked)
        except SystemExit as error:
            sys.exit(f"after a kill at step {step}: {error}")
        shutil.rmtree(root)
        if code == 0:
            return step
    sys.exit("it did not end")


def compaction(folder: Path) -> int:
    """Kill a round that adds packets, late ACKs and a session, and merges; the table stays whole."""
    template = folder / "template"

    def prepare() -> None:
        packets = bodies(steady(PACKETS, gap_ns=500_000_000, latency_ns=5_000_000_000), 40)  # 80 s
        store(template, packets[:5])
        log(template, packets[5:])
        log(template, bodies(steady(8), 50, session=2))  # session 1 is over: its minutes are merged

    def work(root: Path) -> None:
        Compactor(root).run()

    def look(root: Path) -> None:
        before = load_manifest(root, "a")  # for a reader that comes before the restart
        rows = {session: sum(p.rows for p in before.partitions if p.session == session) for session in (1, 2)}
        assert rows in ({1: first, 2: 0}, {1: PACKETS, 2: 8}), rows
        assert latest_minutes(root, "a", 1e6).packets.height == (rows[2] or rows[1] // 8 * 8)
        report = Compactor(root).run()
        assert not report.damaged
        assert not list(log_dir(root).iterdir())
        assert_frame_equal(stored(root), stored(uninterrupted))
        manifest = load_manifest(root, "a")
        assert manifest.counts == load_manifest(uninterrupted, "a").counts
        there = {str(p.relative_to(sender_dir(root, "a"))) for p in sender_dir(root, "a").glob("*/*")}
        assert there == manifest.files(), there ^ manifest.files()

    def stored(root: Path) -> pl.DataFrame:
        named = load_manifest(root, "a").partitions
        return pl.concat([read_part(sender_dir(root, "a"), name) for p in named for name in p.packets])

    required(prepare)
    first = sum(p.rows for p in load_manifest(template, "a").partitions)
    uninterrupted = folder / "uninterrupted"
    shutil.copytree(template, uninterrupted)
    required(lambda: work(uninterrupted))
    return every_step(folder, template, work, look)


def appending(folder: Path) -> int:
    """Kill appends of one or three batches over several segments: each acknowledged batch is there, once."""
    template, acknowledged = folder / "template", folder / "acknowledged"
    template.mkdir(parents=True)
    batches = [bytes([n]) * (500 + n) for n in range(12)]
    log(template, batches[:1])

    def work(root: Path) -> None:
        acknowledged.write_text("1")
        writer = SegmentWriter(root, segment_bytes=2000)
        for first, last in ((1, 2), (2, 5), (5, 6), (6, 9), (9, 12)):
            writer.append(batches[first:last])
            with acknowledged.open("w") as file:  # not by os.write: it is no step of the store
                file.write(str(last))
        writer.close()

    def look(root: Path) -> None:
        found = [body for path in adopt_segments(root) for body in read_segment(path)]
        whole = [body for body in found if body is not None]
        promised = int(acknowledged.read_text())
        assert whole == batches[: len(whole)], "something is there twice, or out of order"
        assert promised <= len(whole), f"{promised} batches were acknowledged, {len(whole)} are there"

    return every_step(folder, template, work, look)


if __name__ == "__main__":
    print({"append": appending, "compact": compaction}[sys.argv[1]](Path(sys.argv[2])))
