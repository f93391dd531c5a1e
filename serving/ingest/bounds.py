"""Bounds on a sender's requests to a replica, so that it can neither fill the store nor crowd out others.

Each replica counts for itself: with N replicas a sender gets at most N times as much.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from swiftqueue.feature_store.telemetry.events import MINUTE_NS, BatchKey, Events, RefusedError
from swiftqueue.feature_store.telemetry.manifest import load_manifest

IN_FLIGHT: Final = 8  # most requests of one sender; a client sends its batches one after the other
SEQUENCE_JUMP: Final = 1 << 20  # three days of batches of a quarter of a second that never came
PACKET_JUMP: Final = 1 << 32  # six days of packets at 100 Mbit/s
REMEMBERED: Final = 4096  # senders that a replica remembers
BURST_S: Final = 10.0  # seconds of a sender's rate that may come at once


class LaterError(RuntimeError):
    """The sender asks for more than its share at this time: it must come again."""


@dataclass(frozen=True)
class Limits:
    """The limits of one sender; the first two are settings (docs/SETTINGS.md)."""

    senders: int  # most senders in the store
    bytes_s: float  # bytes of batches per second
    minutes_s: float = 1.0  # new minutes per second of a sender's clock, each a file: sixty times real time
    minutes_burst: float = 60.0
    openings_s: float = 0.5
    openings_burst: float = 30.0


class Allowance:
    """An allowance of so much per second, and of so much at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at_s = burst, time.monotonic()

    def take(self, amount: float) -> bool:
        """Take an amount, if it is there; a full burst allows a larger amount."""
        now_s = time.monotonic()
        self._left = min(self._left + (now_s - self._at_s) * self._per_s, self._burst)
        self._at_s = now_s
        if amount and self._left < min(amount, self._burst):
            return False
        self._left -= amount
        return True


@dataclass
class _SenderState:
    bytes: Allowance
    minutes: Allowance
    openings: Allowance
    in_flight: int = 0
    session: int = 0  # session of the following numbers
    sequence: int = -1  # highest stored batch
    packet: int = -1  # highest stored packet; -1: unknown
    minute: int = field(default=-1)  # minute of the last event


class Bounds:
    """The state of a replica's senders, for one event loop."""

    def __init__(self, root: Path, limits: Limits) -> None:
        self._root, self._limits = root, limits
        self._senders: OrderedDict[str, _SenderState] = OrderedDict()

    @contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """Hold one of the sender's places while a request of its is answered.

        Raises:
            LaterError: all places are taken.
        """
        sender = self._of(name)
        if sender.in_flight >= IN_FLIGHT:
            raise LaterError(f"sender {name} has {IN_FLIGHT} requests under way")
        sender.in_flight += 1
        try:
            yield
        finally:
            sender.in_flight -= 1

    def check_opening(self, name: str) -> None:
        """Allow for one more session.

        Raises:
            LaterError: the sender opens too many.
        """
        if not self._of(name).openings.take(1):
            raise LaterError(f"sender {name} opens sessions too fast")

    async def check(self, key: BatchKey, events: Events, size: int) -> None:
        """Allow for a batch, once its session's progress in the store is known.

        Raises:
            RefusedError: `jump`: its numbers are too far above the session's last.
            LaterError: the sender brings too much at this time.
        """
        sender = self._of(key.sender)
        if sender.session != key.session or sender.packet < 0:  # its first may be with another replica
            await self._look_up(sender, key)
        line = self._jump(sender, key, events)
        if line:  # another replica may have stored the batches between
            await self._look_up(sender, key)
            line = self._jump(sender, key, events)
        if line:
            raise RefusedError("jump", f"sender {key.sender}: {line}; to go on from there, open a session")
        minutes = np.unique(events["time_ns"] // MINUTE_NS)
        if not sender.bytes.take(size) or not sender.minutes.take(float((minutes != sender.minute).sum())):
            raise LaterError(f"sender {key.sender} brings too much at once")
        sender.minute = int(minutes[-1])

    def note(self, key: BatchKey, events: Events) -> None:
        """Remember a batch that was stored."""
        sender = self._of(key.sender)
        if sender.session == key.session:
            sender.sequence = max(sender.sequence, key.sequence)
            sender.packet = max(sender.packet, int(events["packet"].max()))

    def _of(self, name: str) -> _SenderState:
        sender = self._senders.get(name)
        if sender is None:
            limits = self._limits
            sender = self._senders[name] = _SenderState(
                Allowance(limits.bytes_s, BURST_S * limits.bytes_s),
                Allowance(limits.minutes_s, limits.minutes_burst),
                Allowance(limits.openings_s, limits.openings_burst),
            )
        self._senders.move_to_end(name)
        if len(self._senders) > REMEMBERED:  # the oldest but those with a request under way, which are few
            idle = (old for old, one in self._senders.items() if not one.in_flight and old != name)
            if (oldest := next(idle, None)) is not None:
                del self._senders[oldest]
        return sender

    async def _look_up(self, sender: _SenderState, key: BatchKey) -> None:
        """Read from the store how far the session has come."""
        stored = None
        with contextlib.suppress(OSError, ValueError):  # the compaction reports what is wrong with the store
            manifest = await asyncio.to_thread(load_manifest, self._root, key.sender)
            stored = manifest.sessions.get(key.session)
        if sender.session != key.session:
            sender.session, sender.sequence, sender.packet = key.session, -1, -1
        if stored is not None:
            sender.sequence = max(sender.sequence, stored.last_sequence)
            sender.packet = max(sender.packet, stored.last_packet)

    @staticmethod
    def _jump(sender: _SenderState, key: BatchKey, events: Events) -> str:
        if key.sequence > sender.sequence + SEQUENCE_JUMP:
            return f"batch {key.sequence} after batch {sender.sequence}"
        packet = int(events["packet"].max())
        if sender.packet >= 0 and packet > sender.packet + PACKET_JUMP:
            return f"packet {packet} after packet {sender.packet}"
        return ""
