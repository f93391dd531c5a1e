"""The calls of `swiftqueue.h` for Python: a sender asks about its next packets and says what it sent.

`examples/sender.py` is a whole program; docs/how-to/mark-packets.md explains it. No call waits, except
`next` where it is told how long. Times are time.monotonic_ns().
"""

from __future__ import annotations

import ctypes
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftqueue import feature_store
from swiftqueue.common import native
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.serving.agent.io.frames import OUTCOMES

FOLDER: Final = Path(__file__).resolve().parents[1]
LIBRARY: Final = FOLDER / "_build" / "libswiftqueue.so"
HEADERS: Final = (
    *("bindings/swiftqueue", "marking/agent_link", "marking/dscp"),
    *("io/agent_socket", "io/clock", "io/frames"),
    *(
        "decision/sender",
        "decision/event_rows",
        "decision/controller",
        "decision/guard",
        "decision/growth_watch",
    ),
)
EVENT_HEADERS: Final = ("sizes", "event_stream", "event_window", "virtual_queue")
SOURCES: Final = (
    FOLDER / "bindings" / "swiftqueue.cc",
    *(FOLDER / f"{name}.h" for name in HEADERS),
    *(feature_store.FOLDER / "events" / f"{name}.h" for name in EVENT_HEADERS),
)
CLASSIC: Final = 0
L4S: Final = 1
NOT_ECT: Final = 0
ECT1: Final = 1
ECT0: Final = 2


class _Packet(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("size_bytes", "flow_id", "receiver_id")),
        *((name, ctypes.c_uint8) for name in ("queue", "ecn", "retransmitted", "zero")),
    )


class _Decision(ctypes.Structure):
    _fields_ = (
        ("first_packet", ctypes.c_int64),
        ("version", ctypes.c_int64),
        ("round_trip_us", ctypes.c_float),
        ("outcome", ctypes.c_uint8),
        ("zero", ctypes.c_uint8 * 3),
        ("queue", ctypes.c_uint8 * HORIZON),
        ("classic_us", ctypes.c_float * HORIZON),
        ("default_us", ctypes.c_float * HORIZON),
    )


@dataclass(frozen=True)
class LinkPacket:
    """A packet that will be sent, or was; the defaults are those of an L4S sender with one flow."""

    size_bytes: int  # IP length
    flow_id: int = 0
    receiver_id: int = 0
    queue: int = L4S  # in a question its default, in `sent` the one it is marked for
    ecn: int = ECT1  # codepoint as sent
    retransmitted: bool = False  # whether its data was sent before


@dataclass(frozen=True)
class LinkDecision:
    """The agent's answer about a batch."""

    first_packet: int
    outcome: str  # decided | late | error | no_model
    queues: tuple[int, ...]  # queue for each packet; unless decided its default
    version: int  # version of the model; -1 unless decided
    round_trip_us: float  # time that the agent waited for the model; NaN unless decided
    classic_us: tuple[float, ...]  # predicted latency in the classic queue; NaN unless decided
    default_us: tuple[float, ...]  # the same in its default queue


def _load() -> ctypes.CDLL:
    pointer, text, i32, i64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int64
    packet = ctypes.POINTER(_Packet)
    signatures: native.Signatures = {
        "swiftqueue_version": (text, []),
        "swiftqueue_open": (pointer, [text, text]),
        "swiftqueue_close": (None, [pointer]),
        "swiftqueue_ask": (i32, [pointer, i64, packet, i64]),
        "swiftqueue_next": (i32, [pointer, ctypes.POINTER(_Decision)]),
        "swiftqueue_sent": (i32, [pointer, i64, i64, packet]),
        "swiftqueue_acked": (i32, [pointer, i64, i64, ctypes.c_float]),
        "swiftqueue_set_dscp": (i32, [pointer, i32, i32]),
        "swiftqueue_ds_field": (i32, [pointer, ctypes.c_uint8, ctypes.c_uint8]),
        "swiftqueue_fd": (i32, [pointer]),
        "swiftqueue_error": (text, [pointer]),
        "swiftqueue_now_ns": (i64, []),
    }
    return native.load(LIBRARY, map(str, SOURCES), signatures)


class AgentLink:
    """A connection with the agent: one sender. It serves one thread; `close` ends it."""

    def __init__(self, agent: Path | str, name: str) -> None:
        """Connect to the agent; without one the connection is made when it comes.

        Args:
            agent: path of the agent's socket.
            name: name of the sender, for the agent.

        Raises:
            ValueError: the path or the name cannot be one.
            NotBuiltError: the library is missing.

        """
        self._handle: int | None = None
        self._abi = _load()
        self._handle = self._abi.swiftqueue_open(str(agent).encode(), name.encode())
        if not self._handle:
            raise ValueError(self._abi.swiftqueue_error(None).decode(errors="replace"))

    def __enter__(self) -> AgentLink:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; do nothing when it has ended."""
        if self._handle:
            self._abi.swiftqueue_close(self._handle)
            self._handle = None

    def ask(self, first_packet: int, packets: Sequence[LinkPacket], due_ns: int) -> bool:
        """Ask about a batch; return whether there is an agent.

        Args:
            first_packet: number of its first packet, a multiple of 8.
            packets: its packets, (H,).
            due_ns: time at which its first packet goes.

        Raises:
            ValueError: a value or the order is wrong; nothing was asked.

        """
        if len(packets) != HORIZON:
            raise ValueError(f"{len(packets)} packets: a batch is {HORIZON}")
        batch_H = (_Packet * HORIZON)(*map(_packet, packets))
        return bool(self._right(self._abi.swiftqueue_ask(self._open(), first_packet, batch_H, due_ns)))

    def next(self, wait_s: float = 0.0) -> LinkDecision | None:
        """Return the next answer, after waiting at most `wait_s` seconds for one; None if none came."""
        until_s = time.monotonic() + wait_s
        out = _Decision()
        while not self._right(self._abi.swiftqueue_next(self._open(), ctypes.byref(out))):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            select.select([self], [], [], left_s)
        return LinkDecision(
            out.first_packet,
            OUTCOMES[out.outcome],
            tuple(out.queue),
            out.version,
            out.round_trip_us,
            tuple(out.classic_us),
            tuple(out.default_us),
        )

    def sent(self, packet: int, sent_ns: int, what: LinkPacket) -> None:
        """Say that a packet was sent; packets are numbered in send order.

        Raises:
            ValueError: a value or the order is wrong.

        """
        said = ctypes.byref(_packet(what))
        self._right(self._abi.swiftqueue_sent(self._open(), packet, sent_ns, said))

    def acked(self, packet: int, acked_ns: int, latency_us: float) -> None:
        """Say that the first ACK that covers a packet came; the latency is NaN where it is unknown.

        Raises:
            ValueError: a value is wrong, or the packet was not sent.

        """
        self._right(self._abi.swiftqueue_acked(self._open(), packet, acked_ns, latency_us))

    def set_dscp(self, classic: int, l4s: int) -> None:
        """Have `ds_field` give packets of alternative 0 and of alternative 1 these DSCPs.

        Args:
            classic: DSCP of alternative 0.
            l4s: DSCP of alternative 1.

        Raises:
            ValueError: one is not 0 to 63, or both are the same.

        """
        self._right(self._abi.swiftqueue_set_dscp(self._open(), classic, l4s))

    def ds_field(self, queue: int, ecn: int) -> int:
        """Return the DS field (IP_TOS, IPV6_TCLASS) of a packet in this queue with this codepoint."""
        return int(self._abi.swiftqueue_ds_field(self._open(), queue, ecn))

    def fileno(self) -> int:
        """Return a descriptor, the same until the end, that is readable when the agent has said something."""
        return int(self._abi.swiftqueue_fd(self._open()))

    @property
    def problem(self) -> str:
        """Return why there is no agent, in one line; empty while there is one."""
        return str(self._abi.swiftqueue_error(self._open()).decode(errors="replace"))

    def _right(self, result: int) -> int:
        if result < 0:
            raise ValueError(self.problem)
        return result

    def _open(self) -> int:
        if not self._handle:
            raise ValueError("this connection is closed")
        return self._handle


def version() -> str:
    """Return the library's version."""
    return str(_load().swiftqueue_version().decode())


def _packet(what: LinkPacket) -> _Packet:
    """Return the packet as C has it.

    Raises:
        ValueError: a value does not fit into its field, which would be cut without a word.

    """
    out = _Packet()
    for field in ("size_bytes", "flow_id", "receiver_id", "queue", "ecn", "retransmitted"):
        setattr(out, field, getattr(what, field))
        if getattr(out, field) != getattr(what, field):
            raise ValueError(f"{field} {getattr(what, field)}: does not fit")
    return out
