"""UDP with a codepoint for each packet, as the agent decides: a thin binding of `marking/marked_udp.h`.

    import time

    from serving.agent.bindings.marked_udp import MarkedUdp

    decided = 0
    with MarkedUdp("var/agent.sock", "video") as udp:
        flow = udp.add_flow("127.0.0.1", 4433)
        for _ in range(100):
            due_ns = time.monotonic_ns() + 5_000_000
            udp.plan([flow] * 8, [1200] * 8, due_ns)  # the next 8 packets
            while (left_ns := due_ns - time.monotonic_ns()) > 0:
                acks = udp.poll(left_ns / 1e9)  # the first ACK ends it
            sent = [udp.send(flow, bytes(1200)) for _ in range(8)]  # ECT(1) if not decided in time
            decided += sum(packet.decided for packet in sent)
    print(f"{decided} of 800 packets were decided in time")

The receiver is `swiftqueue udp echo`, or any program that answers like it. No privilege is needed.
Shapes: H horizon (8 packets).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import feature_store
from common import native
from feature_store.packets.schema import HORIZON

FOLDER: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = FOLDER / "_build" / "libswiftqueue_udp.so"
BINARY: Final = FOLDER / "_build" / "swiftqueue-udp"  # `swiftqueue udp send|echo`
HEADERS: Final = (
    *("marking/marked_udp", "marking/agent_link", "io/agent_socket", "io/clock", "io/frames"),
    *("decision/sender", "decision/controller", "decision/guard", "decision/growth_watch"),
)
SOURCES: Final = (
    FOLDER / "bindings" / "marked_udp_capi.cc",
    *(FOLDER / f"{name}.h" for name in HEADERS),
    *(feature_store.FOLDER / "events" / f"{name}.h" for name in ("sizes", "event_stream", "event_window")),
)
NOT_ECT: Final = 0
ECT1: Final = 1
ECT0: Final = 2
CE: Final = 3
_ERROR_BYTES: Final = 256


class _Ack(ctypes.Structure):
    _fields_ = (
        ("packet", ctypes.c_int64),
        ("acked_ns", ctypes.c_int64),
        ("latency_us", ctypes.c_float),
        ("codepoint", ctypes.c_int32),
    )


class _SendRecord(ctypes.Structure):
    _fields_ = (
        ("packet", ctypes.c_int64),
        ("sent_ns", ctypes.c_int64),
        ("codepoint", ctypes.c_int32),
        ("decided", ctypes.c_int32),
        ("delivered", ctypes.c_int32),
    )


_ON_ACK: Final = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Ack))


@dataclass(frozen=True)
class Ack:
    """A packet's first ACK."""

    packet: int
    acked_ns: int  # CLOCK_MONOTONIC
    latency_us: float
    codepoint: int  # codepoint of the packet on arrival: as sent, or CE


@dataclass(frozen=True)
class SendResult:
    """The result of sending one packet."""

    packet: int
    sent_ns: int  # CLOCK_MONOTONIC
    codepoint: int
    decided: bool  # whether the agent decided; otherwise it has the default
    delivered: bool  # whether the kernel took it


def why_not_built() -> str | None:
    """Build library and program if they are missing; return a line if one still is, else None."""
    if not (LIBRARY.is_file() and BINARY.is_file()):
        native.build_room(FOLDER, "udp")
    for file in (LIBRARY, BINARY):
        if not file.is_file():
            return f"{file} is not built; `make -C {FOLDER} udp` builds it or says what is missing"
    return None


def _load() -> ctypes.CDLL:
    pointer, text, i32, i64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
    signatures: native.Signatures = {
        "sq_udp_new": (pointer, [text, text, text]),
        "sq_udp_free": (None, [pointer]),
        "sq_udp_add_flow": (i32, [pointer, text, i32, i32, text]),
        "sq_udp_plan": (i32, [pointer, pointer, pointer, i64, text]),
        "sq_udp_send": (i32, [pointer, i32, text, ctypes.c_size_t, ctypes.POINTER(_SendRecord), text]),
        "sq_udp_poll": (None, [pointer, i64, _ON_ACK]),
        "sq_udp_connected": (i32, [pointer]),
        "sq_udp_problem": (text, [pointer]),
    }
    return native.load(LIBRARY, map(str, SOURCES), signatures)


class MarkedUdp:
    """One sender with its flows and its connection with the agent. It serves one thread; `close` ends it."""

    def __init__(self, agent: Path | str | None, name: str) -> None:
        """Connect to the agent in the background; nothing waits for it.

        Args:
            agent: path of the agent's socket (docs/AGENT.md); None: every packet keeps its default.
            name: name of the sender, for the agent.

        Raises:
            ValueError: the path cannot be a socket's.
            NotBuiltError: the library is missing.

        """
        self._abi = _load()
        self._error = ctypes.create_string_buffer(_ERROR_BYTES)
        self._handle = self._abi.sq_udp_new(str(agent or "").encode(), name.encode(), self._error)
        if not self._handle:
            raise ValueError(self._said())

    def __enter__(self) -> MarkedUdp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all sockets; do nothing when they are closed."""
        if self._handle:
            self._abi.sq_udp_free(self._handle)
            self._handle = None

    @property
    def connected(self) -> bool:
        """Return whether the agent has greeted us, and has not gone since."""
        return bool(self._abi.sq_udp_connected(self._open()))

    @property
    def problem(self) -> str:
        """Return why there is no agent, in one line; empty while there is one."""
        return str(self._abi.sq_udp_problem(self._open()).decode(errors="replace"))

    def add_flow(self, host: str, port: int, *, l4s: bool = True) -> int:
        """Open a flow to a receiver; return its id.

        Raises:
            ValueError: the host is no numeric address, the port is invalid, or the kernel refuses.

        """
        flow = self._abi.sq_udp_add_flow(self._open(), host.encode(), port, l4s, self._error)
        if flow < 0:
            raise ValueError(self._said())
        return int(flow)

    def plan(self, flows: Sequence[int], payload_bytes: Sequence[int], due_ns: int) -> None:
        """Ask about the next batch that was not planned yet.

        Args:
            flows: flow of each packet, (H,).
            payload_bytes: payload of each packet in bytes, (H,).
            due_ns: CLOCK_MONOTONIC time at which its first packet goes.

        Raises:
            ValueError: the arrays are not those of a batch of 8, or there is no such flow.

        """
        flows_H = np.ascontiguousarray(flows, np.int32)
        bytes_H = np.ascontiguousarray(payload_bytes, np.int32)
        if not flows_H.shape == bytes_H.shape == (HORIZON,):
            raise ValueError(f"flows {flows_H.shape}, sizes {bytes_H.shape}: a batch is {HORIZON} packets")
        pointers = flows_H.ctypes.data, bytes_H.ctypes.data
        if self._abi.sq_udp_plan(self._open(), *pointers, due_ns, self._error):
            raise ValueError(self._said())

    def send(self, flow: int, payload: bytes) -> SendResult:
        """Send one datagram now; its first 16 bytes are overwritten with its flow and number.

        Raises:
            ValueError: there is no such flow, or the size is invalid.

        """
        out = _SendRecord()
        handle = self._open()
        if self._abi.sq_udp_send(handle, flow, payload, len(payload), ctypes.byref(out), self._error):
            raise ValueError(self._said())
        return SendResult(out.packet, out.sent_ns, out.codepoint, bool(out.decided), bool(out.delivered))

    def poll(self, wait_s: float = 0.0) -> list[Ack]:
        """Return the ACKs that have come, after waiting at most `wait_s` seconds for one."""
        acks: list[Ack] = []

        def on_ack(ack: ctypes._Pointer[_Ack]) -> None:
            one = ack.contents
            acks.append(Ack(one.packet, one.acked_ns, one.latency_us, one.codepoint))

        until_ns = time.monotonic_ns() + int(wait_s * 1e9) if wait_s > 0 else 0
        self._abi.sq_udp_poll(self._open(), until_ns, _ON_ACK(on_ack))
        return acks

    def _open(self) -> int:
        if not self._handle:
            raise ValueError("this sender is closed")
        return int(self._handle)

    def _said(self) -> str:
        return self._error.value.decode(errors="replace")
