"""The agent's frames from Python: sizes as documented, and a replay file in the order of events."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_world import uneven_table, write_table

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.feature_store.telemetry.events import (
    EVENT,
    MAX_LATENCY_US,
    MAX_PACKET,
    MAX_SIZE_BYTES,
    MAX_TIME_NS,
    SEND_COLUMNS,
    SEND_FIELDS,
)
from swiftqueue.serving.agent.io import frames
from swiftqueue.serving.agent.io.packet_log import PacketLog, open_log
from swiftqueue.serving.agent.predictors.reference_client import AgentDecision
from swiftqueue.serving.agent.replay import decide_all


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


SHAPED = {"classic_us": "classic_us_H", "default_us": "default_us_H"}  # names in C++ that show a shape


def layout_claims() -> list[str]:
    """Conditions on `frames.h` that hold where its structs are the records of `frames.py`, field by field."""
    number = {
        "i": "std::is_signed_v<{0}>",
        "u": "std::is_unsigned_v<{0}>",
        "f": "std::is_floating_point_v<{0}>",
    }
    claims = []

    def compare(kind: np.dtype[Any], struct: str, at: int) -> None:
        assert kind.fields is not None
        ends = 0
        for name, (field, offset, *_) in kind.fields.items():
            assert offset == ends, f"{struct}.{name}: NumPy's record has a hole before it"
            ends = offset + field.itemsize
            if offset < at:  # the header, which is a struct of its own
                continue
            member_name = SHAPED.get(name, name)
            member = f"{struct}::{member_name}"
            claims.append(
                f"offsetof({struct}, {member_name}) == {offset} && sizeof({member}) == {field.itemsize}"
            )
            one = (
                f"std::decay_t<decltype({member})>" if field.ndim == 0 else f"decltype({member})::value_type"
            )
            base = field.base
            if base.kind == "S" or name in ("outcome", "outcomes", "type"):  # characters; an enumeration
                continue
            if base.fields is None:
                claims.append(number[base.kind].format(one) + f" && sizeof({one}) == {base.itemsize}")
        claims.append(f"sizeof({struct}) == {ends}")

    compare(frames.HEADER, "FrameHeader", 0)
    compare(frames._CANDIDATE, "FrameCandidate", 0)
    for type_number, kind in frames.TYPES.items():
        (name,) = [
            name for name, one in vars(frames).items() if one is kind and name not in ("HEADER", "EVENT")
        ]
        struct = f"{name.title()}Frame"
        compare(kind, struct, frames.HEADER.itemsize)
        claims.append(f"static_cast<int>({struct}::kType) == {type_number}")
    return claims


def constant_claims() -> list[str]:
    """The same of the constants."""
    texts = {"kOutcomeNames": frames.OUTCOMES}
    names = [
        f'{array}.size() == {len(texts[array])} && std::string_view({array}[{place}]) == "{text}"'
        for array in texts
        for place, text in enumerate(texts[array])
    ]
    return [
        *names,
        f"kFrameFormat == {frames.FORMAT} && kHorizon == {HORIZON}",
        f'std::string_view(kMagic.data(), kMagic.size()) == "{frames.MAGIC.decode()}"',
        # What the agent takes beyond these would cost a whole batch of telemetry at the ingest.
        f"detail::kMaxPacket == {MAX_PACKET} && detail::kMaxSizeBytes == {MAX_SIZE_BYTES}",
        f"detail::kMaxLatencyUs == {MAX_LATENCY_US:.0f}.0F && kMaxTimeNs - 1 == {MAX_TIME_NS}",
    ]


def compile_claims(project: Path, claims: list[str]) -> str:
    """Let the compiler look at each claim; return the errors, empty if all hold."""
    source = "#include <cstddef>\n#include <string_view>\n#include <type_traits>\n"
    source += (
        '#include "serving/agent/io/frames.h"\n'
        "using namespace swiftqueue::agent;\nusing swiftqueue::kHorizon;\n"
    )
    source += "using swiftqueue::kMaxTimeNs;\n" + "".join(f"static_assert({claim});\n" for claim in claims)
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{project}", "-x", "c++", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False).stderr


@pytest.mark.slow
def test_python_and_cpp_have_one_layout_of_every_frame(project: Path) -> None:
    assert compile_claims(project, layout_claims() + constant_claims()) == ""


@pytest.mark.slow
def test_the_compiler_sees_each_layout_that_has_drifted(project: Path) -> None:
    claims = layout_claims()
    drifted = (
        ("offsetof(SentFrame, ecn) == 45", "44"),
        ("sizeof(SentFrame) == 48", "47"),
        ("AckedFrame::kType) == 3", "4"),
    )
    for claim, other in drifted:
        assert sum(claim in one for one in claims) == 1
        claims = [one.replace(claim, claim[:-2].rstrip() + f" {other}") for one in claims]
    assert compile_claims(project, claims).count("static assertion failed") == len(drifted)


def test_a_sent_frame_says_what_telemetry_carries() -> None:
    """What a SEND says of its packet is one list of fields; a candidate has the first of them."""
    for kind in (frames.SENT, EVENT):
        assert [(name, kind[name].str.replace("|", "")) for name in SEND_COLUMNS] == [*SEND_FIELDS]
    assert frames._CANDIDATE.names == (*SEND_COLUMNS[:4], "zero")
    assert frames.ACKED["latency_us"] == EVENT["latency_us"]


class Events:
    """Notes what a replay tells its agent, in order."""

    def __init__(self, log: PacketLog) -> None:
        self.log = log
        self.noted: list[tuple[Any, ...]] = []

    def sent(self, packet: int, sent_ns: int, *rest: int) -> None:
        self.noted.append(("sent", packet, sent_ns, *rest))

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> None:
        self.noted.append(("acked", packet, acked_ns, latency_us))

    def decide(self, first: int, now_ns: int, *columns: np.ndarray[Any, Any]) -> AgentDecision:
        self.noted.append(("batch", first, now_ns, *(column.tolist() for column in columns)))
        return AgentDecision("no_model", (0,) * 8)


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
