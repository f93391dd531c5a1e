"""The C++ agent replaying a packet table: decisions, timing, telemetry."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import toy_world
from agent_program import AgentProgram, EngineSender, LiveSender, needs_agent, split_frames
from waiting import wait_until

from swiftqueue.serving.agent.bindings.controller import ControllerParams
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.io.packet_log import PacketLog, open_log
from swiftqueue.serving.agent.replay import decide_all, replay_trace

pytestmark = [pytest.mark.slow, needs_agent]


@pytest.fixture
def log(tmp_path: Path) -> PacketLog:
    toy_world.write_table(tmp_path / "packets", toy_world.uneven_table(1_600, 500_000))
    return open_log(str(tmp_path / "packets"), 0, None)


def test_a_replay_decides_as_the_python_parts_do(
    log: PacketLog, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Events, engine and controller are the same code: the same predictions and choices, bit for bit."""
    artifact, file, record = make_artifact(2), tmp_path / "frames", tmp_path / "record"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--record", record, "--speed", 0, "--deadline-us", 10_000_000)
    margins = ("--margin-us", 0, "--margin-share", 0, "--max-moved-unacked", 40, "--max-moved-share", 0.5)
    with AgentProgram(*arguments, *margins, "--local", artifact) as agent:
        assert agent.end(None)["decided"] == 200
    decisions = frames.read_decisions(record)
    assert np.array_equal(decisions["first_packet"], np.arange(0, 1600, 8))
    python = EngineSender(artifact, ControllerParams(0, 0, 40, 0.5))
    moved = 0
    for (batch, expected, _), decision in zip(decide_all(log, python, speed=0), decisions, strict=True):  # type: ignore[arg-type]
        assert expected.predicted_us is not None
        assert np.array_equal(decision["classic_us"], expected.predicted_us[0])
        assert np.array_equal(decision["default_us"], expected.predicted_us[1])
        assert tuple(decision["queues"]) == expected.queues
        moved += sum(expected.queues[i] != log.queue[batch * 8 + i] for i in range(8))
    assert moved > 100


def test_products_of_bfloat16_predict_nearly_the_same(
    log: PacketLog, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    file = tmp_path / "frames"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    predicted = []
    for arithmetic in ("fp32", "bf16"):
        record = tmp_path / arithmetic
        arguments = ("--replay", file, "--record", record, "--speed", 0, "--deadline-us", 10_000_000)
        with AgentProgram(*arguments, "--local", make_artifact(2), "--arithmetic", arithmetic) as agent:
            assert agent.end(None)["decided"] == 200
        predicted.append(frames.read_decisions(record)["classic_us"])
    np.testing.assert_allclose(predicted[1], predicted[0], rtol=1e-2)


def test_swiftqueue_replay_in_local_mode(
    log: PacketLog,
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
        local=make_artifact(1),
    )
    assert code == 0
    assert "decided in time" in capsys.readouterr().out
    recorded = pl.read_parquet(tmp_path / "state" / "replay" / "uneven.parquet")
    assert recorded["packet"].to_list() == list(range(1_600))
    assert set(recorded["outcome"]) == {"decided"}
    assert [path.name for path in (tmp_path / "state" / "replay").iterdir()] == ["uneven.parquet"]


def test_telemetry_is_what_happened(
    log: PacketLog, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    file, telemetry = tmp_path / "frames", tmp_path / "telemetry"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--speed", 0, "--telemetry", telemetry)
    with AgentProgram(*arguments, "--local", make_artifact(1, layers=1)) as agent:
        assert agent.end(None)["telemetry_dropped"] == 0
    said = split_frames(file.read_bytes())
    heard = split_frames(telemetry.read_bytes())
    told = [frame for frame in said if frame["type"] in (1, 2, 3)]
    assert {int(frame["sender"]) for frame in heard} == {1}
    assert [int(frame["type"]) for frame in (heard[0], heard[-1])] == [1, 7]  # HELLO, BYE
    assert [frame["sequence"] for frame in heard] == [0, *range(len(told) - 1), len(told) - 1]
    assert [frame.tobytes()[16:] for frame in heard[:-1]] == [frame.tobytes()[16:] for frame in told]


@pytest.mark.parametrize("telemetry_reader", ["there", "comes later"])
def test_telemetry_to_a_socket(
    log: PacketLog, make_artifact: Callable[..., Path], tmp_path: Path, telemetry_reader: str
) -> None:
    path, file = tmp_path / "telemetry.sock", tmp_path / "frames"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.settimeout(20)
        if telemetry_reader == "there":
            server.listen()
        arguments = ("--replay", file, "--speed", 0.2, "--telemetry", f"unix:{path}")
        with AgentProgram(*arguments, "--local", make_artifact(1, layers=1)) as agent:
            time.sleep(0.2)
            server.listen()
            reader, _ = server.accept()
            with reader:
                data = b"".join(iter(lambda: reader.recv(1 << 16), b""))
            assert agent.end(None)["telemetry_dropped"] == 0
    heard = split_frames(data)
    assert heard[0]["name"] == b"uneven"
    assert [frame["sequence"] for frame in heard] == [0, *range(len(heard) - 2), len(heard) - 2]
    assert sum(int(frame["type"]) == 2 for frame in heard) == 1_600


def test_telemetry_that_is_not_read_is_dropped_and_counted(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """The reader stops: the buffer fills, decisions go on, and the count is that of the gap."""
    path, feed = tmp_path / "telemetry.sock", tmp_path / "agent.sock"
    arguments = ("--listen", feed, "--telemetry", f"unix:{path}", "--metrics-port", 0)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.settimeout(20)
        server.listen()
        with (
            AgentProgram(*arguments, "--local", make_artifact(1, layers=1)) as agent,
            LiveSender(feed, deadline_us=1_000_000) as sender,
            server.accept()[0] as reader,
        ):
            sender.until_decided()
            assert agent.metrics()["telemetry_dropped_frames_total"] == 0
            sent = frames.blank(frames.SENT, 120_000)  # 5.8 MB; the buffer holds 4 MiB
            sent["packet"] = sender.packet + np.arange(len(sent))
            sent["sent_ns"], sent["size_bytes"] = sender.now_ns, 1500
            sender.send(sent)
            sender.packet += len(sent)
            wait_until(lambda: agent.metrics()["telemetry_dropped_frames_total"] > 0, "none is dropped")
            sender.until_decided()
            data = read_until_quiet(reader)  # the agent counts after it has answered: by now it has
            dropped = agent.metrics()["telemetry_dropped_frames_total"]
            sender.until_decided()
            assert agent.metrics()["telemetry_dropped_frames_total"] == dropped
            agent.process.terminate()
            data += b"".join(iter(lambda: reader.recv(1 << 16), b""))
            assert agent.end(None)["telemetry_dropped"] == dropped
    heard = split_frames(data)
    sequence = np.array([frame["sequence"] for frame in heard if frame["type"] in (2, 3)])
    assert np.all(np.diff(sequence) > 0)
    assert heard[-1]["type"] == 7
    assert heard[-1]["sequence"] - len(sequence) == dropped


def read_until_quiet(reader: socket.socket) -> bytes:
    """What comes until nothing has come for half a second."""
    data = b""
    reader.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        while more := reader.recv(1 << 16):
            data += more
    reader.settimeout(20)
    return data


def test_real_time_asks_a_deadline_ahead(
    log: PacketLog, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    file, record = tmp_path / "frames", tmp_path / "record"
    file.write_bytes(b"".join(frames.replay_frames(log)))
    arguments = ("--replay", file, "--record", record, "--speed", 2, "--deadline-us", 300_000)
    with AgentProgram(*arguments, "--local", make_artifact(1, layers=1)) as agent:
        summary = agent.end(None)
    length_s = (log.sent_ns[1592] - log.sent_ns[0]) / 1e9
    assert summary["decided"] >= 0.9 * summary["batches"] == 180
    assert length_s / 2 <= summary["seconds"] < length_s / 2 + 3
    decisions = frames.read_decisions(record)
    decisions = decisions[np.argsort(decisions["first_packet"])]
    assert np.array_equal(decisions["first_packet"], np.arange(0, 1600, 8))
    assert np.array_equal(decisions["now_ns"], log.sent_ns[::8] - 2 * 300_000_000)
