"""The C++ agent in local mode: its decisions, its socket, its artifact, its memory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import polars as pl
import psutil
import pytest
from agent_program import DEFAULTS, FLOWS, AgentProgram, LiveSender, wait_until

from feature_store.schema import PACKET_SCHEMA
from feature_store.windows import SenderWindow
from serving import agent_process, frames
from serving.client import Decision
from serving.controller import CLASSIC, ControllerParams, QueueController
from serving.engine import Engine
from serving.packet_log import Log, open_log
from serving.replay import decide_all, replay_trace

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built())),
]
MEMORY_PACKETS = int(os.environ.get("SWIFTQUEUE_TEST_MEMORY_PACKETS", "10_000_000"))


@pytest.fixture
def published(tmp_path: Path, make_artifact: Callable[..., Path]) -> Callable[..., Path]:
    """Put an artifact in service as `swiftqueue agent --local` does: a folder, and a link moved to it."""
    link = tmp_path / "champion"

    def publish(version: int, seed: int, tokens: int = 16, shift: float = 9.0) -> Path:
        folder = tmp_path / str(version)
        shutil.copytree(make_artifact(seed, tokens=tokens, shift=shift), folder)
        partial = tmp_path / ".partial"
        partial.symlink_to(folder.name)
        partial.replace(link)
        return link

    return publish


@pytest.fixture
def feed(published: Callable[..., Path], tmp_path: Path) -> Iterator[tuple[AgentProgram, Path]]:
    path = tmp_path / "agent.sock"
    arguments = ("--listen", path, "--local", published(1, 1), "--metrics-port", 0)
    with AgentProgram(*arguments) as agent:
        yield agent, path


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """1,600 packets of three flows at an uneven pace, with ACKs late, missing and without a latency."""
    rng = np.random.default_rng(3)
    packets = 1_600
    sent_ns = 10**9 + np.cumsum(rng.integers(0, 500_000, packets))
    latency_us = rng.integers(5_000, 60_000, packets).astype(np.float32)
    flow = rng.integers(0, 3, packets)
    table = pl.DataFrame(
        {
            "trace": "uneven",
            "packet": range(packets),
            "sent_ns": sent_ns,
            "flow_id": flow,
            "receiver_id": flow % 2,
            "size_bytes": rng.integers(40, 1500, packets),
            "ecn": np.where(flow == 0, 0, 1),
            "queue": np.where(flow == 0, "classic", "l4s"),
            "acked_ns": sent_ns + (latency_us * 1000).astype(np.int64),
            "latency_us": latency_us,
            "retransmitted": rng.random(packets) < 0.05,
            "lost": False,
        }
    ).select(pl.col(name).cast(kind) for name, kind in PACKET_SCHEMA.items())
    gone = pl.Series(rng.random(packets) < 0.02)
    table = table.with_columns(
        acked_ns=pl.when(gone).then(None).otherwise("acked_ns"),
        latency_us=pl.when(gone | pl.col("retransmitted")).then(None).otherwise("latency_us"),
    )
    part = tmp_path / "packets" / "trace=uneven" / "minute=0"
    part.mkdir(parents=True)
    table.write_parquet(part / "part-0.parquet")
    return open_log(str(tmp_path / "packets"), 0, None)


class EngineSender:
    """The Python side of a decision: window, engine and controller, without any deadline."""

    def __init__(self, artifact: Path, params: ControllerParams | None = None) -> None:
        self.engine = Engine(artifact)
        self.window = SenderWindow(self.engine.shape[0])
        self.controller = QueueController(params)
        self.sent = self.window.sent

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> None:
        self.window.acked(packet, acked_ns, latency_us)
        self.controller.acked(packet)

    def decide(self, first: int, now_ns: int, *columns: np.ndarray) -> Decision:
        *same, defaults = columns
        windows = [self.window.window(now_ns, *same, queues)[0] for queues in ([CLASSIC] * 8, defaults)]
        y_2H = self.engine.forward(np.stack(windows))
        return Decision(
            "decided", tuple(self.controller.choose(first, now_ns, columns[1], defaults, y_2H)), y_2H
        )


def test_a_replay_decides_as_the_python_parts_do(
    log: Log, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Windows, engine and controller are the same code: the same predictions and choices, bit for bit."""
    artifact, file, record = make_artifact(1, tokens=64), tmp_path / "frames", tmp_path / "record"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--record", record, "--speed", 0, "--deadline-us", 10_000_000)
    margins = ("--margin-us", 0, "--margin-share", 0, "--max-moved-unacked", 40)
    with AgentProgram(*arguments, *margins, "--local", artifact) as agent:
        assert agent.end(None)["decided"] == 200
    decisions = frames.read_decisions(record)
    assert np.array_equal(decisions["first_packet"], np.arange(0, 1600, 8))
    python = EngineSender(artifact, ControllerParams(0, 0, 40))
    moved = 0
    for (batch, expected, _), decision in zip(decide_all(log, python, speed=0), decisions, strict=True):  # type: ignore[arg-type]
        assert expected.predicted_us is not None
        assert np.array_equal(decision["classic_us"], expected.predicted_us[0])
        assert np.array_equal(decision["default_us"], expected.predicted_us[1])
        assert tuple(decision["queues"]) == expected.queues
        moved += sum(expected.queues[i] != log.queue[batch * 8 + i] for i in range(8))
    assert moved > 100


def test_swiftqueue_replay_in_local_mode(
    log: Log,
    make_artifact: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path / "state"))
    code = replay_trace(
        str(tmp_path / "packets"),
        speed=0,
        deadline_us=10_000_000,
        seconds=None,
        as_json=False,
        local=make_artifact(1, tokens=64),
    )
    assert code == 0
    assert "decided in time" in capsys.readouterr().out
    recorded = pl.read_parquet(tmp_path / "state" / "replay" / "uneven.parquet")
    assert recorded["packet"].to_list() == list(range(1_600))
    assert set(recorded["outcome"]) == {"decided"}
    assert [path.name for path in (tmp_path / "state" / "replay").iterdir()] == ["uneven.parquet"]


def test_telemetry_is_what_happened(log: Log, make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    file, telemetry = tmp_path / "frames", tmp_path / "telemetry"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--speed", 0, "--telemetry", telemetry)
    with AgentProgram(*arguments, "--local", make_artifact(1, tokens=16)) as agent:
        assert agent.end(None)["telemetry_dropped"] == 0
    said = split_frames(file.read_bytes())
    heard = split_frames(telemetry.read_bytes())
    told = [frame for frame in said if frame["type"] in (1, 2, 3)]
    assert [frame["sequence"] for frame in heard] == list(range(len(told)))
    assert {int(frame["sender"]) for frame in heard} == {1}
    assert [frame.tobytes()[16:] for frame in heard] == [frame.tobytes()[16:] for frame in told]


def split_frames(data: bytes) -> list[np.void]:
    out, at = [], 0
    while at < len(data):
        out.append(np.frombuffer(data, frames.TYPES[data[at + 2]], 1, at)[0])
        at += int(out[-1]["bytes"])
    return out


@pytest.mark.parametrize("telemetry_reader", ["there", "comes later"])
def test_telemetry_to_a_socket(
    log: Log, make_artifact: Callable[..., Path], tmp_path: Path, telemetry_reader: str
) -> None:
    path, file = tmp_path / "telemetry.sock", tmp_path / "frames"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.settimeout(20)
        if telemetry_reader == "there":
            server.listen()
        arguments = ("--replay", file, "--speed", 0.2, "--telemetry", path)
        with AgentProgram(*arguments, "--local", make_artifact(1, tokens=16)) as agent:
            time.sleep(0.2)
            server.listen()
            reader, _ = server.accept()
            with reader:
                data = b"".join(iter(lambda: reader.recv(1 << 16), b""))
            assert agent.end(None)["telemetry_dropped"] == 0
    heard = split_frames(data)
    assert heard[0]["name"] == b"uneven"
    assert [frame["sequence"] for frame in heard] == list(range(len(heard)))
    assert sum(int(frame["type"]) == 2 for frame in heard) == 1_600


def test_real_time_asks_a_deadline_ahead(
    log: Log, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    file, record = tmp_path / "frames", tmp_path / "record"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--record", record, "--speed", 2, "--deadline-us", 300_000)
    with AgentProgram(*arguments, "--local", make_artifact(1, tokens=16)) as agent:
        summary = agent.end(None)
    length_s = (log.sent_ns[1592] - log.sent_ns[0]) / 1e9
    assert summary["decided"] >= 0.9 * summary["batches"] == 180
    assert length_s / 2 <= summary["seconds"] < length_s / 2 + 3
    decisions = frames.read_decisions(record)
    decisions = decisions[np.argsort(decisions["first_packet"])]
    assert np.array_equal(decisions["first_packet"], np.arange(0, 1600, 8))
    assert np.array_equal(decisions["now_ns"], log.sent_ns[::8] - 2 * 300_000_000)


def test_a_sender_gets_the_engines_decisions(
    feed: tuple[AgentProgram, Path], make_artifact: Callable[..., Path]
) -> None:
    agent, path = feed
    python = EngineSender(make_artifact(1, tokens=16))
    with LiveSender(path, deadline_us=5_000_000) as sender, LiveSender(path, "other") as other:
        for _ in range(50):
            first, now_ns = sender.packet, sender.now_ns
            expected = python.decide(first, now_ns, [1500] * 8, FLOWS, [0] * 8, DEFAULTS)
            decision = sender.batch()
            assert decision is not None
            assert sender.outcomes[-1] == "decided"
            assert np.array_equal(decision["classic_us"], expected.predicted_us[0])
            assert np.array_equal(decision["default_us"], expected.predicted_us[1])
            assert tuple(decision["queues"]) == expected.queues
            assert decision["version"] == 1
            for i, queue in enumerate(expected.queues):
                python.sent(first + i, now_ns + i * 250_000, 1500, FLOWS[i], 0, queue)
            for packet in range(max(first - 80, 0), max(first - 72, 0)):
                python.acked(packet, sender.now_ns, 20_000.0)
            other.batch()
        metrics = agent.metrics()
        assert metrics["senders"] == 2
        assert metrics['connected{server="local"}'] == 1
        assert metrics['server_version{server="local"}'] == 1
        assert metrics["prediction_error_seconds_count"] > 0
        by_outcome = sum(metrics[f'batches_total{{outcome="{outcome}"}}'] for outcome in frames.OUTCOMES)
        assert (
            by_outcome * 8
            == metrics['packets_total{queue="classic"}'] + metrics['packets_total{queue="l4s"}']
        )
    wait_until(lambda: agent.metrics()["senders"] == 0, 5, "senders that went are still counted")
    assert agent.end()["batches"] == 100
    assert not path.exists()


def bad_frames() -> dict[str, tuple[str, list[np.ndarray]]]:
    """What a hostile or mistaken sender says after its HELLO, and the line it is refused with."""

    def one(kind: np.dtype, **fields: object) -> np.ndarray:
        frame = frames.blank(kind)
        for name, value in ({"size_bytes": 1500} if "size_bytes" in kind.names else {}).items():
            frame[name] = value
        if kind is frames.BATCH:
            frame["packets"]["size_bytes"] = 1500
        for name, value in fields.items():
            frame[name] = value
        return frame

    return {
        "format": ("its format is not 1", [one(frames.SENT, format=2)]),
        "type": ("its type is unknown", [one(frames.SENT, type=9)]),
        "size": ("its size is not that of its type", [one(frames.SENT, bytes=47)]),
        "queue": ("its queue is neither", [one(frames.SENT, queue=2)]),
        "time": ("its time is negative", [one(frames.SENT, sent_ns=-1)]),
        "order": ("numbered in send order", [one(frames.SENT, packet=5), one(frames.SENT, packet=5)]),
        "latency": ("its latency is negative", [one(frames.ACKED, latency_us=-1.0)]),
        "batch": ("not a multiple of 8", [one(frames.BATCH, first_packet=3)]),
        "sent already": ("before its first packet is sent", [one(frames.SENT), one(frames.BATCH)]),
        "twice": ("asked about once", [one(frames.BATCH), one(frames.BATCH)]),
        "decision": ("a sender sends one HELLO", [one(frames.DECISION)]),
        "hello again": ("a sender sends one HELLO", [frames.hello("again")]),
    }


def test_what_cannot_be_is_refused_in_one_line_and_others_go_on(feed: tuple[AgentProgram, Path]) -> None:
    agent, path = feed
    with LiveSender(path, "good") as good:
        for line, bad in bad_frames().values():
            with LiveSender(path, "bad") as sender:
                sender.send(*bad)
                while (answer := sender.receive(time.monotonic_ns() + 5 * 10**9)) is not None:
                    refusal = answer
                assert refusal["type"] == 6
                assert line in refusal["line"].decode()
                assert not sender.alive
            agent.complained(line)
            good.batch()
            assert good.outcomes[-1] in ("decided", "late")
        for rubbish in (b"\0" * 4096, os.urandom(1 << 20), b"GET / HTTP/1.1\r\n\r\n"):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(5)
                raw.connect(str(path))
                try:
                    raw.sendall(rubbish)
                    while raw.recv(1 << 16):
                        pass
                except ConnectionError:
                    pass
        good.until("decided", 5)
    assert len(agent.complaints) == len(bad_frames()) + 3


def test_a_sender_that_does_not_read_holds_up_nobody(feed: tuple[AgentProgram, Path]) -> None:
    agent, path = feed
    with LiveSender(path, "deaf") as deaf, LiveSender(path) as good:
        batch = frames.blank(frames.BATCH, 4_000)
        batch["first_packet"] = np.arange(4_000) * 8
        batch["packets"]["size_bytes"] = 100
        deaf.send(batch)
        good.until("decided", 10)
        wait_until(lambda: agent.metrics()["undelivered_decisions_total"] > 0, 20, "all were delivered")
        good.until("decided", 10)


def test_when_the_agent_is_killed_its_sender_knows_at_once(feed: tuple[AgentProgram, Path]) -> None:
    agent, path = feed
    with LiveSender(path) as sender:
        sender.until("decided", 10)
        agent.process.kill()
        sender.waits_us.clear()
        for _ in range(5):
            assert sender.batch() is None
        assert not sender.alive
        assert max(sender.waits_us) < 1e6


def test_the_artifact_is_refreshed_and_a_broken_one_refused(
    feed: tuple[AgentProgram, Path], published: Callable[..., Path], tmp_path: Path
) -> None:
    agent, path = feed
    with LiveSender(path, deadline_us=1_000_000) as sender:

        def until_version(version: int) -> None:
            end = time.monotonic() + 10
            while sender.until("decided", 10)["version"] != version:
                assert time.monotonic() < end, f"version {version} was not taken up"

        until_version(1)
        head = tmp_path / "head"
        shutil.copytree(tmp_path / "1", head)
        change_head(head)
        head.rename(tmp_path / "2")
        move_link(tmp_path, 2)
        until_version(2)  # the head alone
        published(3, seed=2, tokens=24)
        until_version(3)  # another model, of another window
        whole = (tmp_path / "3" / "model.safetensors").read_bytes()
        for version, broken in ((4, whole[: len(whole) // 2]), (5, b"\xff" * 64 + whole[64:])):
            shutil.copytree(tmp_path / "3", tmp_path / str(version))
            (tmp_path / str(version) / "model.safetensors").write_bytes(broken)
            move_link(tmp_path, version)
            wait_until(lambda n=version - 3: len(agent.complaints) == n, 10, "nothing was said of it")
            assert "version 3 goes on" in agent.complaints[-1]
            until_version(3)
        (tmp_path / "champion").unlink()
        agent.complained("is gone")
        until_version(3)
        published(6, seed=1)
        until_version(6)
        assert agent.metrics()['server_version{server="local"}'] == 6
    summary = agent.end()
    assert summary["error"] == summary["no_model"] == 0


def move_link(folder: Path, version: int) -> None:
    partial = folder / ".partial"
    partial.symlink_to(str(version))
    partial.replace(folder / "champion")


def change_head(folder: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.startswith("head")]:
        weights[name] = weights[name] * np.float32(0.5)
    save_file(weights, folder / "model.safetensors")


def test_steps_of_the_wall_clock_change_nothing(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    shim = build_stepping_clock(tmp_path)
    arguments = ("--synthetic-bps", 2e7, "--seconds", 2, "--deadline-us", 500_000)
    with AgentProgram(*arguments, "--local", make_artifact(1, tokens=16), preload=shim) as agent:
        summary = agent.end(None)
    assert summary["decided"] >= 0.95 * summary["batches"]
    assert 1.9 < summary["seconds"] < 4


def build_stepping_clock(folder: Path) -> Path:
    """A library that makes the wall clock of a program step by an hour, back and forth, at each look."""
    source, library = folder / "step.c", folder / "step.so"
    source.write_text(
        """
        #define _GNU_SOURCE
        #include <sys/syscall.h>
        #include <sys/time.h>
        #include <time.h>
        #include <unistd.h>
        static int looks;
        int clock_gettime(clockid_t clock, struct timespec* now) {
          int result = syscall(SYS_clock_gettime, clock, now);
          if (clock == CLOCK_REALTIME) now->tv_sec += __sync_fetch_and_add(&looks, 1) % 2 ? 3600 : -3600;
          return result;
        }
        int gettimeofday(struct timeval* now, void* zone) {
          struct timespec at;
          clock_gettime(CLOCK_REALTIME, &at);
          now->tv_sec = at.tv_sec;
          now->tv_usec = at.tv_nsec / 1000;
          return 0;
        }
        time_t time(time_t* out) {
          struct timespec at;
          clock_gettime(CLOCK_REALTIME, &at);
          if (out) *out = at.tv_sec;
          return at.tv_sec;
        }
        """
    )
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def test_memory_is_flat_over_ten_million_packets(make_artifact: Callable[..., Path]) -> None:
    """10 million packets decided; what the process holds must not grow after the first tenth."""
    seconds = MEMORY_PACKETS * 1500 * 8 / 1e9
    arguments = ("--synthetic-bps", 1e9, "--seconds", seconds, "--speed", 0, "--deadline-us", 1_000_000)
    with AgentProgram(*arguments, "--local", make_artifact(1, tokens=16)) as agent:
        process = psutil.Process(agent.process.pid)
        held: list[tuple[int, int]] = []
        assert agent.process.stdout is not None
        for line in agent.process.stdout:
            if '"summary"' in line:
                break
            progress = batches_in(line)
            held.append((progress, process.memory_info().rss))
        assert agent.process.wait(10) == 0
    assert batches_in(line) == MEMORY_PACKETS // 8
    settled = [rss for batches, rss in held if batches > MEMORY_PACKETS // 80]
    assert len(settled) > 10
    assert max(settled) - settled[0] < 1 << 20, f"{settled[0]} to {max(settled)} bytes"


def batches_in(line: str) -> int:
    said = json.loads(line)
    assert said["batches"] == said["decided"] + said["late"] + said["error"] + said["no_model"]
    return int(said["batches"])


def test_bad_files_and_options_are_one_line(make_artifact: Callable[..., Path], tmp_path: Path) -> None:
    local = ["--local", str(make_artifact(1, tokens=16))]
    broken = tmp_path / "broken"
    broken.write_bytes(frames.hello("x").tobytes() + b"\2" * 40)
    cut = tmp_path / "cut"
    cut.write_bytes(frames.hello("x").tobytes() + frames.blank(frames.SENT).tobytes()[:20])
    empty = tmp_path / "empty"
    empty.touch()
    for arguments, line in (
        (["--replay", str(broken), *local], "frame at byte 80: its format is not 1"),
        (["--replay", str(cut), *local], "frame at byte 80: the file ends inside it"),
        (["--replay", str(empty), *local], "empty"),
        (["--replay", str(cut), "--local", str(tmp_path)], "model.json"),
        (["--listen", str(broken), *local], "is no socket"),
        (["--listen", "/" + "x" * 200, *local], "no path for a socket"),
        (["--synthetic-bps", "1e6", *local], "needs --seconds"),
        ([*local], "is required"),
    ):
        ran = subprocess.run(
            [str(agent_process.BINARY), *arguments], capture_output=True, text=True, check=False, timeout=30
        )
        assert ran.returncode != 0, arguments
        assert line in ran.stderr, (arguments, ran.stderr)
        assert len(ran.stderr.strip().splitlines()) <= 2


def test_under_sanitizers(make_artifact: Callable[..., Path]) -> None:
    ran = subprocess.run(
        ["make", "-j2", "sanitize", f"ARTIFACT={make_artifact(1, tokens=16)}", "ROUNDS=10000"],
        cwd=agent_process.BINARY.parent.parent,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"},
    )
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    for line in (
        "live: 10000 batches",
        "without an allocation",
        "streams refused",
        "good ones answered",
        "swapped under questions",
    ):
        assert ran.stdout.count(line) == 2, ran.stdout
