"""Run weeks of the live loop as fast as the machine goes, and sample what retention leaves in each store.

    swiftqueue bench soak --weeks 6        # goes on where it was stopped: var/soak/weeks.jsonl

Real: each round runs as in `swiftqueue schedule` (`pipelines/live/rounds.py`). It checks that the champion is
served, reads its telemetry from the store, fetches the artifact, registers a version in MLflow's store,
pushes it to Triton and makes it champion; then it prunes registry and Triton's repository, and writes both
logs. The telemetry's log, compaction and retention are real, too.

Compressed: rounds follow each other at once, and the sender's clock goes on by five minutes from one to the
next. It sends 20 packets a second, so five minutes of it are 6,000 packets. A head is not trained and judged:
it is the champion's, moved a little, and passes. So there is no Ray, no judging slice, no shadow and no
watch. The telemetry is validated once in twelve rounds, which takes longer than all else. Ingest, agent,
keeper and Prometheus do not run: `swiftqueue bench soak --minutes` has all of this, uncompressed.

A slope is that of twelve stretches' means over simulated weeks, as in `benchmarks/soak.py`, without the first
rounds, in which the stores fill up to what they keep.
"""

from __future__ import annotations

import contextlib
import gc
import io
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch

from benchmarks.live import TelemetryStore, first_champion, own_state
from benchmarks.rows import Row
from benchmarks.slopes import BEST, MIB, STRETCHES, line, read, tree
from common import json_lines
from common.section import read as read_section
from common.section import read_all
from common.settings import settings
from common.state import private_dir, state_dir
from feature_store.telemetry.compact import KEEP_MINUTES, Compactor
from feature_store.telemetry.events import SEND_COLUMNS, BatchKey, encode, event_batch
from feature_store.telemetry.log import SegmentWriter
from feature_store.telemetry.recent import RecentPackets
from feature_store.telemetry.sessions import open_session
from infra.local import processes
from models.networks import artifact
from models.registry import gate
from models.registry.bars import Verdict
from models.registry.retention import collect_garbage
from models.training.head import FinetuneParams
from pipelines.live.command import round_params
from pipelines.live.minute import TuningResult
from pipelines.live.rounds import Rounds
from pipelines.live.rounds_log import RoundRecord

PARAMS_FILE: Final = Path("params.yaml")
ROUND_S: Final = 300
ROUNDS_A_WEEK: Final = 7 * 24 * 3600 // ROUND_S
ROUNDS_A_SAMPLE: Final = 12  # rounds in an hour
BEGIN_NS: Final = 1_700_000_040 * 10**9  # the start of a full minute
PACKETS_PER_S: Final = 20
LEARN_S, JUDGE_S = 60.0, 10.0
SENDER: Final = "soak"
MOVED: Final = 1e-3  # share by which a head is moved from one version to the next
# Allowed growth of a store in a week: 2 % of its size, or 5 MiB where that is more; 5 files.
ALLOWED_SHARE, ALLOWED_MIB, ALLOWED_COUNT = 0.02, 5.0, 5.0
KEPT_BY_MLFLOW: Final = ("model_versions", "inputs")  # tables that keep a row for each version
PREDICTORS: Final = ("challenger", "champion", "reference", "last_sender", "last_flow", "last_queue")


class ClockedSender:
    """A sender whose clock advances by five minutes at a time, and the store of its telemetry."""

    def __init__(self, root: Path, rounds: int) -> None:
        """Open its next session after `rounds` rounds."""
        self._root = root
        self._session = open_session(root, SENDER, most=1)
        self._sequence = self._packet = 0
        self._now_ns = BEGIN_NS + rounds * ROUND_S * 10**9
        self._rng = np.random.default_rng(rounds)
        self._writer = SegmentWriter(root)
        self._compactor = Compactor(root)
        self.store = TelemetryStore(root, SENDER)

    def close(self) -> None:
        """Release the store for another process."""
        self._writer.close()
        self._compactor.close()

    def five_minutes(self) -> None:
        """Send five minutes of packets and take them into the store.

        Raises:
            RuntimeError: a batch was refused.
        """
        count = ROUND_S * PACKETS_PER_S
        gaps_ns = self._rng.exponential(1e9 / PACKETS_PER_S, count)
        sent_ns = self._now_ns + np.cumsum(gaps_ns * (ROUND_S * 1e9 - 1e9) / gaps_ns.sum()).astype(np.int64)
        latency_us = (20_000 + self._rng.exponential(10_000, count)).astype(np.float32)
        packet = self._packet + np.arange(count)
        time_ns = np.concatenate([sent_ns, sent_ns + np.ceil(latency_us).astype(np.int64) * 1000 + 1000])
        send = {name: np.zeros(2 * count, np.int32) for name in SEND_COLUMNS}
        send["size_bytes"][:count] = 1500
        send["flow_id"][:count] = packet % 3
        send["queue"][:count] = packet % 3 > 0
        send["ecn"][:count] = np.where(packet % 3 > 0, 1, 2)  # ECT(1) to the L4S queue, ECT(0) to the other
        kind = np.repeat(np.array([0, 1], np.uint8), count)
        events = event_batch(kind, time_ns, np.tile(packet, 2), send, np.tile(latency_us, 2))
        events = events[np.argsort(time_ns, kind="stable")]
        for part in np.array_split(events, ROUND_S // 60):
            self._writer.append([encode(BatchKey(SENDER, self._session, self._sequence), part)])
            self._sequence += 1
        self._writer.close()
        self._packet += count
        self._now_ns += ROUND_S * 10**9
        report = self._compactor.run()
        if report.damaged or report.counts.batches != ROUND_S // 60:
            raise RuntimeError(f"bench soak: telemetry was not stored: {report}")


class QuickRounds(Rounds):
    """Rounds whose head is the champion's, moved a little, and passes."""

    def _validate(self, latest: RecentPackets, record: RoundRecord) -> RecentPackets:
        if self.number % ROUNDS_A_SAMPLE == 0:
            return super()._validate(latest, record)
        record.sender = SENDER
        return latest

    def _tune(self, latest: RecentPackets, parent: Path, *_: object) -> TuningResult:
        found = artifact.load(parent)
        torch.manual_seed(self.number)
        with torch.no_grad():
            for parameter in found.model.head.parameters():
                parameter.add_(torch.randn_like(parameter) * MOVED)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "artifact"
            artifact.save(folder, found.model, found.description.protocol)
            files = artifact.read_files(folder)
        figures = asdict(gate.Figures(0.5, 0.08, 4.0, 10_000, 100, 120, 30))
        return TuningResult(
            files=files,
            verdict=Verdict(True, "a head of the soak is not judged", ()),
            figures=dict.fromkeys(PREDICTORS, figures),
            loss_before=1.0,
            loss_after=1.0,
            psi={"size_bytes": 0.0},
            trained_on=np.zeros((2_000, len(found.model.features)), np.float32),
            slices=(),
            remembered=0,
            reservoir=None,
            seconds={},
        )


def samples_file() -> Path:
    """Return the file of the samples."""
    return state_dir() / "soak" / "weeks.jsonl"


def measure(weeks: float) -> list[Row]:
    """Run `weeks` simulated weeks, or resume a run that was stopped; return a row for each quantity judged.

    Raises:
        OSError, RuntimeError: a part did not start, or a round did not end in a served version.
    """
    path, wanted = samples_file(), round(weeks * ROUNDS_A_WEEK)
    private_dir(path.parent)
    with contextlib.redirect_stdout(sys.stderr):  # `--json` owns the standard output
        before = read(path)
        if not before or before[-1]["values"]["rounds"] < wanted:
            # No shadow: the sender sends nothing while a round runs.
            with own_state(path.parent / "weeks", shadow_batches="0"):
                run(path, wanted)
    return rows(read(path))


def run(path: Path, wanted: int) -> None:
    """Add samples to a file until there are enough for so many rounds."""
    from infra.local.loop import stop_stack
    from infra.local.servers import start_stack
    from models.registry.store import registry_exists

    params = read_all(PARAMS_FILE)
    model = params["register"]["model_name"]
    judged = round_params(params["validate"], learn_s=LEARN_S, judge_s=JUDGE_S, least_windows=1)
    start_stack()
    sender = None
    try:
        if not registry_exists():
            with tempfile.TemporaryDirectory() as temporary:
                first_champion(Path(temporary) / "champion", model)
        telemetry = state_dir() / "telemetry"
        finetune = read_section(PARAMS_FILE, FinetuneParams)
        rounds = QuickRounds(lambda *asked: sender_of(sender).store.latest(*asked), judged, finetune, model)
        sender = ClockedSender(telemetry, rounds.number)
        while rounds.number < wanted:
            count = min(ROUNDS_A_SAMPLE, wanted - rounds.number)
            records = [one_round(rounds, sender) for _ in range(count)]
            values = sample(records, state_dir())
            json_lines.append(path, {"time": time.time(), "values": values}, sync=True)
            print(f"{values['rounds']:.0f} rounds, a round {values['round s']:.2f} s", flush=True)
    finally:
        if sender is not None:
            sender.close()
        stop_stack()


def sender_of(sender: ClockedSender | None) -> ClockedSender:
    """Return the sender, which is there once rounds run."""
    if sender is None:
        raise RuntimeError("bench soak: a round before there is a sender")
    return sender


def one_round(rounds: Rounds, sender: ClockedSender) -> RoundRecord:
    """Run five minutes of telemetry and a round.

    Raises:
        RuntimeError: it did not end in a served version.
    """
    sender.five_minutes()
    with contextlib.redirect_stdout(io.StringIO()):  # hides the lines of each push
        record = rounds.run()
    if record.outcome != "pushed":
        raise RuntimeError(f"bench soak: round {record.number} {record.outcome}: {record.reason}")
    return record


def sample(records: list[RoundRecord], state: Path) -> dict[str, float]:
    """Sample the size of the stores and the duration of the last rounds."""
    gc.collect()
    collect_garbage("0s")  # as an hour and a day later
    found: dict[str, float] = {"rounds": records[-1].number}
    steps = {"round s": "total", "push s": "push", "register s": "register"}
    for name, step in steps.items():
        found[name] = statistics.median(one.seconds[step] for one in records)
    triton = processes.running("triton")
    first = triton.process() if triton else None
    for name, process in (("scheduler", psutil.Process()), ("triton", first)):
        if process is not None:
            memory = process.memory_info()
            found[f"{name} memory MiB"] = (memory.rss - memory.shared) / MIB
            found[f"{name} open files"] = process.num_fds()
            found[f"{name} threads"] = process.num_threads()
    for name in ("mlflow", "telemetry", "triton"):
        size, files = tree(state / name)
        found |= {f"{name} disk MiB": size / MIB, f"{name} files": files}
    whole, _ = tree(state)
    found["other disk MiB"] = whole / MIB - sum(
        found[f"{name} disk MiB"] for name in ("mlflow", "telemetry", "triton")
    )
    rows = mlflow_rows(state / "mlflow" / "mlflow.db")
    found["MLflow rows"] = sum(count for table, count in rows.items() if table not in KEPT_BY_MLFLOW)
    return found


def mlflow_rows(store: Path) -> Mapping[str, int]:
    """Return the number of rows by table."""
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        names = [one for (one,) in connection.execute("select name from sqlite_master where type = 'table'")]
        count = "select count(*) from "
        return {name: int(connection.execute(f'{count}"{name}"').fetchone()[0]) for name in names}


def kept_rounds() -> int:
    """Return the number of rounds after which the stores are full."""
    return max(settings().keep_versions, KEEP_MINUTES * 60 // ROUND_S) + 2 * ROUNDS_A_SAMPLE


def rows(samples: list[dict[str, Any]]) -> list[Row]:
    """Return each quantity's growth in a simulated week, beside the allowed growth.

    Raises:
        ValueError: there are too few samples.
    """
    late = [one["values"] for one in samples if one["values"]["rounds"] >= kept_rounds()]
    if len(late) < 2 * STRETCHES:
        raise ValueError(
            f"{len(late)} samples after the stores are full; {2 * STRETCHES} are needed for slopes"
        )
    weeks = np.array([one["rounds"] for one in late]) / ROUNDS_A_WEEK
    ran = f"{late[-1]['rounds']:.0f} rounds"
    found = []
    for name in late[0]:
        if name == "rounds":
            continue
        values = np.array([one[name] for one in late], dtype=float)
        mean, (slope, low, high) = float(values.mean()), line(weeks, values)
        allowed, unit = allowed_of(name, mean)
        ratio = BEST if low <= 0 else min(BEST, allowed / low)
        said = f"{name}, change a week ({low:+.2f} to {high:+.2f}) of {mean:,.2f}, {ran}"
        found.append(Row(said, slope, allowed, "allowed", ratio, unit, len(late)))
    return found


def allowed_of(name: str, mean: float) -> tuple[float, str]:
    """Return a quantity's allowed growth in a week, and its unit."""
    if name.endswith("MiB"):
        return max(ALLOWED_MIB, ALLOWED_SHARE * mean), "MiB/week"
    if name.endswith(" s"):
        return ALLOWED_SHARE * mean, "s/week"
    return max(ALLOWED_COUNT, ALLOWED_SHARE * mean), "1/week"
