"""The agent's frames from Python: sizes as documented, and a replay file in the order of events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_world import uneven_table, write_table

from feature_store.telemetry.events import MAX_LATENCY_US, MAX_PACKET, MAX_SIZE_BYTES
from serving.agent import frames
from serving.agent.packet_log import Log, open_log
from serving.agent.reference_client import Decision
from serving.agent.replay import decide_all


def test_frames_are_as_documented(project: Path) -> None:
    rows = re.findall(
        r"^\| (\d) \| ([A-Z]+) \| (\d+) \|(.*)\|$", (project / "docs/AGENT.md").read_text(), re.M
    )
    assert [int(number) for number, *_ in rows] == list(frames.TYPES)
    for number, name, size, text in rows:
        kind = frames.TYPES[int(number)]
        assert kind is getattr(frames, name)
        assert kind.itemsize == int(size)
        fields = [
            field for field in kind.names or () if field not in dict(frames._HEADER) and field != "zero"
        ]
        candidate = [field for field in frames._CANDIDATE.names or () if field != "zero"]
        expected = [part for field in fields for part in (candidate if field == "packets" else [field])]
        assert [word for word in re.findall(r"`([a-z_]+)`", text) if word != "packets"] == expected


def test_ranges_are_those_of_the_ingest(project: Path) -> None:
    """What the agent takes beyond them would cost a whole batch of telemetry."""
    text = (project / "serving/agent/frames.h").read_text()
    assert f"kMaxPacket = std::int64_t{{1}} << {MAX_PACKET.bit_length() - 1};" in text
    assert f"kMaxSizeBytes = 1 << {MAX_SIZE_BYTES.bit_length() - 1};" in text
    assert f"kMaxLatencyUs = {MAX_LATENCY_US / 1e6:.0f}e6F;" in text


class Events:
    """Notes what a replay tells its agent, in order."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.noted: list[tuple[Any, ...]] = []

    def sent(self, packet: int, sent_ns: int, *rest: int) -> None:
        self.noted.append(("sent", packet, sent_ns, *rest))

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> None:
        self.noted.append(("acked", packet, acked_ns, latency_us))

    def decide(self, first: int, now_ns: int, *columns: np.ndarray[Any, Any]) -> Decision:
        self.noted.append(("batch", first, now_ns, *(column.tolist() for column in columns)))
        return Decision("no_model", (0,) * 8)


def read(data: bytes) -> list[tuple[Any, ...]]:
    """The same, of a replay file."""
    out: list[tuple[Any, ...]] = []
    at = 0
    while at < len(data):
        frame = np.frombuffer(data, frames.TYPES[data[at + 2]], 1, at)[0]
        at += int(frame["bytes"])
        if frame["type"] == 2:
            fields = ("packet", "sent_ns", "size_bytes", "flow_id", "receiver_id", "queue")
            out.append(("sent", *(int(frame[field]) for field in fields)))
        elif frame["type"] == 3:
            us = float(frame["latency_us"])
            out.append(("acked", int(frame["packet"]), int(frame["acked_ns"]), None if us != us else us))
        elif frame["type"] == 4:
            packets = frame["packets"]
            columns = ("size_bytes", "flow_id", "receiver_id", "queue")
            what = (packets[column].tolist() for column in columns)
            out.append(("batch", int(frame["first_packet"]), int(frame["now_ns"]), *what))
    return out


@pytest.mark.parametrize("start", [0.0, 0.3])
@pytest.mark.parametrize("chunk", [64, 100, 1 << 16])
def test_a_replay_file_is_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: float, chunk: int
) -> None:
    """Frame by frame what the Python client is told, then the ACKs that come after the last packet."""
    monkeypatch.setattr(frames, "_CHUNK_PACKETS", chunk)
    write_table(tmp_path, uneven_table(1_203, 2_000_000))
    log = open_log(str(tmp_path), start, None)
    told = Events(log)
    for _ in decide_all(log, told, speed=0):  # type: ignore[arg-type]
        pass
    written = read(b"".join(frames.replay_frames(log)))
    assert written[: len(told.noted)] == told.noted
    rest = written[len(told.noted) :]
    assert {event[0] for event in rest} <= {"sent", "acked"}
    assert sum(event[0] == "sent" for event in written) == 1_203
    assert sum(event[0] == "acked" for event in written) == len(log.acked_ns)


def test_names_are_printable_ascii() -> None:
    assert frames.hello("Büro\n" + "x" * 80)["name"][0] == b"B?ro?" + b"x" * 50
