"""Keep the manifest of one sender's packets: the files of each minute, and the batches in them.

A file belongs to the store only if the manifest names it, and readers open no others. A crash before the
manifest is replaced leaves files that nobody reads; the next compaction removes them.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from swiftqueue.common.atomic import write_durably
from swiftqueue.feature_store.events.beginning import FORGET_NS, HOLE_NS, LEAD_IN_NS, SCOPES, Beginning, Hole
from swiftqueue.feature_store.telemetry.sessions import SessionOpening

FILE: Final = "manifest.json"
MAX_FLOWS: Final = 4096  # flows of a session whose start is remembered, those that sent last
MAX_RANGES: Final = 1000  # ranges of a session; further gaps are counted but not told apart
MAX_STEPS: Final = 16  # steps of a least latency that are remembered: the newest ones
HOLE_EVERY_NS: Final = 1_000_000_000  # the last hole of each second is remembered
MAX_HOLES: Final = 300  # five minutes of one hole each second
FORMAT: Final = 2  # packets of version 1 had no ECN codepoint as sent
_STRICT: Final = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
Whole = Annotated[int, Field(ge=0, lt=2**63)]
WholeOrNone = Annotated[int, Field(ge=-1, lt=2**63)]  # -1 before the first
Id = Annotated[str, StringConstraints(pattern=r"\A\d{1,10}\z")]
FileName = Annotated[
    str, StringConstraints(pattern=r"\A(minute=\d{1,12}|acks)/[A-Za-z0-9][A-Za-z0-9-]{0,80}\.parquet\z")
]


@dataclass
class Partition:
    """The packets that one session sent in one minute, in files relative to the sender's folder."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    session: Whole
    minute: Whole  # sent_ns / 60 s
    first_packet: Whole
    last_packet: Whole
    rows: Whole
    packets: list[FileName] = field(default_factory=list)  # packet tables, oldest first
    acks: list[FileName] = field(default_factory=list)  # ACKs that came in a later compaction
    intake: Whole = 0  # number of the compaction that began it; 0: an earlier version began it


@dataclass
class Session:
    """The state of a session: the batches taken in, and the position of its packets and its clock."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    ranges: list[Annotated[list[Whole], Field(min_length=2, max_length=2)]] = field(
        default_factory=list
    )  # [first, last] sequence numbers taken in
    last_packet: WholeOrNone = -1
    newest_ns: WholeOrNone = -1  # time of its newest event
    shift_ns: Whole = 0  # nanoseconds added to the sender's clock since it was set back
    flow_starts_ns: dict[Id, Whole] = field(default_factory=dict)  # first SEND by flow, ordered by last SEND
    # Time and value of each new least latency, by scope and id: each later and lower than the one before.
    least_us: dict[Literal["flow", "queue", "receiver"], dict[Id, list[tuple[Whole, float]]]] = field(
        default_factory=lambda: {scope: {} for scope in SCOPES}
    )
    holes: list[tuple[Whole, Whole]] = field(default_factory=list)  # end and length of a second's last hole
    last_ack_ns: WholeOrNone = -1
    checked: Whole = 0  # sequence numbers below it were checked for gaps
    mark: Whole = 0  # sequence numbers below it are checked next
    mark_s: float = 0.0  # Unix time of the mark
    events: Whole = 0  # events of its batches
    events_before: Whole = 0  # events that the sender produced earlier in the same life
    life: Whole = 0  # first session since the sender connected to the agent; 0 if unknown
    missing_before: Whole | None = 0  # events of `events_before` that no session has; None until counted
    seen_s: float = 0.0  # Unix time of its first batch

    @classmethod
    def of(cls, opening: SessionOpening, now_s: float) -> Session:
        """Return a session whose first batch comes now."""
        before = opening.events_before
        return cls(
            events_before=before, life=opening.life, missing_before=None if before else 0, seen_s=now_s
        )

    def take(self, sequence: int) -> bool:
        """Note a batch, and return False if it was noted before."""
        at = bisect.bisect_right(self.ranges, [sequence, 2**63])  # the first range that begins after it
        if at and sequence <= self.ranges[at - 1][1]:
            return False
        joins_before = at > 0 and self.ranges[at - 1][1] == sequence - 1
        joins_after = at < len(self.ranges) and self.ranges[at][0] == sequence + 1
        if joins_before and joins_after:
            self.ranges[at - 1][1] = self.ranges.pop(at)[1]
        elif joins_before:
            self.ranges[at - 1][1] = sequence
        elif joins_after:
            self.ranges[at][0] = sequence
        else:
            self.ranges.insert(at, [sequence, sequence])
        return True

    @property
    def last_sequence(self) -> int:
        """Return the highest sequence number taken in; -1 before the first."""
        return self.ranges[-1][1] if self.ranges else -1

    def note_flows(self, first_sent_ns: dict[str, int]) -> None:
        """Remember when flows began, since a minute of packets does not show a flow's age."""
        for flow, sent_ns in first_sent_ns.items():
            self.flow_starts_ns[flow] = min(self.flow_starts_ns.pop(flow, sent_ns), sent_ns)
        for flow in list(self.flow_starts_ns)[:-MAX_FLOWS]:
            del self.flow_starts_ns[flow]

    def note_latencies(self, acked_ns: NDArray[np.int64], columns: Mapping[str, NDArray[Any]]) -> None:
        """Remember the least latencies of newly acknowledged packets, and when each was seen.

        Args:
            acked_ns: times of the ACKs in ns.
            columns: `sent_ns` and `latency_us` of the packets, and the ids of their scopes.
        """
        seen = acked_ns - columns["sent_ns"] <= FORGET_NS
        acked_ns, us = acked_ns[seen], columns["latency_us"][seen]
        for scope in SCOPES if len(us) else ():
            of_scope, id_of_N = self.least_us[scope], columns[scope][seen]
            ids = np.unique(id_of_N)
            id_N = np.searchsorted(ids, id_of_N)
            names = [str(one) for one in ids.tolist()]
            for one in names:  # the last seen comes last
                of_scope[one] = of_scope.pop(one, [])
            # Only rows below the least so far, or earlier than it, matter: there are few.
            last = np.array([(of_scope[one] or [(-1, np.inf)])[-1] for one in names])
            is_step = (us < last[id_N, 1]) | (acked_ns <= last[id_N, 0])
            step_N = np.flatnonzero(is_step)
            for row in step_N[_new_minima(id_N[step_N], acked_ns[step_N], us[step_N])].tolist():
                _note_step(of_scope[names[id_N[row]]], int(acked_ns[row]), float(us[row]))
            for one in list(of_scope)[:-MAX_FLOWS]:
                del of_scope[one]

    def may_note(self, latencies_us: NDArray[np.float32]) -> bool:
        """Return whether one of these latencies (NaN: unknown) may be the least of its scope."""
        known_us = latencies_us[np.isfinite(latencies_us)]
        lowest = known_us.min() if len(known_us) else None
        steps = (steps for of_scope in self.least_us.values() for steps in of_scope.values())
        return lowest is not None and any(lowest < known[-1][1] for known in steps if known)

    def note_acks(self, acked_ns: NDArray[np.int64]) -> None:
        """Remember the holes between the times of ACKs, which come in order."""
        if not len(acked_ns):
            return
        times_ns = np.append(self.last_ack_ns, acked_ns) if self.last_ack_ns >= 0 else acked_ns
        self.last_ack_ns = int(acked_ns[-1])
        gaps_ns = np.diff(times_ns)
        for row in np.flatnonzero(gaps_ns >= HOLE_NS).tolist():
            end_ns = int(times_ns[row + 1])
            if self.holes and self.holes[-1][0] // HOLE_EVERY_NS == end_ns // HOLE_EVERY_NS:
                self.holes.pop()
            self.holes.append((end_ns, int(gaps_ns[row])))
        del self.holes[:-MAX_HOLES]

    def beginning(self, from_ns: int) -> Beginning:
        """Return the beginning of a log of this session whose first packet was sent at `from_ns`."""
        until_ns = from_ns + LEAD_IN_NS
        starts = {int(flow): ns for flow, ns in self.flow_starts_ns.items() if ns <= from_ns}
        least = {
            scope: {
                int(one): steps[at - 1][1]
                for one, steps in self.least_us[scope].items()
                if (at := bisect.bisect_right(steps, (until_ns, math.inf)))
            }
            for scope in SCOPES
        }
        at = bisect.bisect_right(self.holes, (until_ns, 2**63))
        return Beginning(starts, least, Hole(*self.holes[at - 1]) if at else None, until_ns)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the first and last sequence number of each gap before a later batch."""
        ends = [-1, *(last for _, last in self.ranges)]
        return [
            (end + 1, first - 1)
            for end, (first, _) in zip(ends, self.ranges, strict=False)
            if first > end + 1
        ]

    def newly_missing(self, now_s: float, after_s: float) -> int:
        """Count, once each, the batches still missing `after_s` seconds after a later one was stored.

        A sender's batches are stored in order, but with several replicas an earlier one may still lie in an
        open segment.
        """
        if 0 <= now_s - self.mark_s < after_s:
            return 0
        missing = [(max(first, self.checked), min(last, self.mark - 1)) for first, last in self.gaps()]
        self.checked = self.mark
        self.mark, self.mark_s = self.last_sequence + 1, now_s
        return sum(last - first + 1 for first, last in missing if last >= first)

    def forget_old_gaps(self) -> None:
        """Treat the oldest gaps as closed if there are too many to remember."""
        if len(self.ranges) > MAX_RANGES:
            self.ranges[: -MAX_RANGES // 2] = [[0, self.ranges[-MAX_RANGES // 2 - 1][1]]]


@dataclass
class TelemetryCounts:
    """Counts of everything in the log; sends and acks count events of unique batches."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    batches: Whole = 0
    duplicate_batches: Whole = 0
    gaps: Whole = 0  # batches found missing
    missing_events: Whole = 0  # events that a forwarder held when it was killed
    sends: Whole = 0
    acks: Whole = 0
    repeated_sends: int = 0  # SENDs of a packet number that was there before
    repeated_acks: int = 0  # ACKs of a packet that was acknowledged before
    unmatched_acks: int = 0  # ACKs of a packet that no SEND ever named
    dropped_rows: Whole = 0  # rows of minutes beyond those kept, and beyond the limit of a minute


@dataclass
class Manifest:
    """The stored packets of one sender."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT
    sender: str
    format: Literal[2] = FORMAT
    generation: Whole = 0  # number of changes so far; names the files that the next one adds
    sessions: dict[Whole, Session] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    orphans: list[FileName] = field(default_factory=list)  # files of ACKs whose packets have not come yet
    segments: list[str] = field(default_factory=list)  # segments of the log taken in but not removed yet
    counts: TelemetryCounts = field(default_factory=TelemetryCounts)

    def files(self) -> set[str]:
        """Return every file that the manifest names."""
        return {name for p in self.partitions for name in (*p.packets, *p.acks)} | set(self.orphans)

    def newest(self) -> tuple[int, Session] | None:
        """Return the last session that sent packets, and its number."""
        numbers = {p.session for p in self.partitions}
        return (number := max(numbers), self.sessions[number]) if numbers else None

    def newly_missing_events(self, now_s: float, after_s: float) -> int:
        """Count, once a session, the earlier events of its life that no session has.

        It waits `after_s` seconds: the earlier session's last batches may still lie in an open segment.
        """
        found = 0
        for number, session in sorted(self.sessions.items()):
            if session.missing_before is None and not 0 <= now_s - session.seen_s < after_s:
                earlier = (s for n, s in self.sessions.items() if n < number and s.life == session.life)
                known = max((s.events_before + s.events for s in earlier), default=0)
                session.missing_before = max(session.events_before - known, 0)
                found += session.missing_before
        return found

    def copy(self) -> Manifest:
        """Return a copy that may be changed."""
        return _STORED.validate_json(_STORED.dump_json(self))

    def check(self) -> None:
        """Check what the fields' types cannot express.

        Raises:
            ValueError: a session is missing, or its sequence numbers are out of order.
        """
        if not {p.session for p in self.partitions} <= self.sessions.keys():
            raise ValueError("a minute belongs to no session")
        for session in self.sessions.values():
            ends = [number for both in session.ranges for number in both]
            if ends != sorted(ends):
                raise ValueError("sequence numbers out of order")
            in_order: list[list[Any]] = [session.holes]
            in_order += [steps for of_scope in session.least_us.values() for steps in of_scope.values()]
            if any(a[0] >= b[0] for steps in in_order for a, b in pairwise(steps)):
                raise ValueError("least latencies or holes out of order")
            if session.least_us.keys() != set(SCOPES):
                raise ValueError("least latencies of too few scopes")


_STORED: Final = TypeAdapter(Manifest)


class OlderFormatError(ValueError):
    """The error for a manifest that an earlier version of this program wrote."""


def _is_older(content: bytes) -> bool:
    """Return whether invalid bytes claim to be a manifest of an earlier version."""
    try:
        told = json.loads(content)
    except (ValueError, RecursionError):
        return False
    number = told.get("format") if isinstance(told, dict) else None
    return isinstance(number, int) and 0 < number < FORMAT


def _new_minima(
    id_N: NDArray[np.int64], ns_N: NDArray[np.int64], us_N: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the rows that, in time order, are below all earlier ones of their id."""
    count = len(us_N)
    order_N = np.lexsort((ns_N, id_N))
    rank_N = np.empty(count, np.int64)
    rank_N[np.argsort(us_N[order_N], kind="stable")] = np.arange(count)
    key_N = rank_N - id_N[order_N] * count  # each id's keys are below those of earlier ids
    before_N = np.concatenate([[count], np.minimum.accumulate(key_N)])[:-1]
    return order_N[key_N < before_N]


def _note_step(steps: list[tuple[int, float]], ns: int, us: float) -> None:
    """Note a latency seen at a time, in any order, if it was the least until then."""
    at = bisect.bisect_right(steps, (ns, math.inf))
    if at and steps[at - 1][1] <= us:
        return
    end = at
    while end < len(steps) and steps[end][1] >= us:
        end += 1
    steps[at - (at > 0 and steps[at - 1][0] == ns) : end] = [(ns, us)]
    del steps[:-MAX_STEPS]


def sender_dir(root: Path, sender: str) -> Path:
    """Return the folder of a sender's packets, laid out like a trace of the stage `extract`."""
    return root / "packets" / f"trace={sender}"


def load_manifest(root: Path, sender: str) -> Manifest:
    """Return a sender's manifest, an empty one if it has none.

    Raises:
        ValueError: the file is not a manifest.
    """
    path = sender_dir(root, sender) / FILE
    try:
        manifest = read_manifest(path.read_bytes())
        if manifest.sender != sender:
            raise ValueError("it belongs to another sender")
    except FileNotFoundError:
        return Manifest(sender)
    except OlderFormatError as error:
        raise OlderFormatError(
            f"{path}: {error}; the ingest puts its minutes aside when it starts, and the sender begins anew"
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path}: not a telemetry manifest ({error}); the log still holds what came since"
        ) from None
    return manifest


def read_manifest(content: bytes) -> Manifest:
    """Return the manifest of some bytes.

    Raises:
        ValueError: the bytes are not a manifest.
    """
    try:
        stored = _STORED.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if _is_older(content):
            raise OlderFormatError(f"a telemetry manifest of an older format than {FORMAT}") from None
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where[:80]}: {first['msg'][:120]}") from None
    stored.check()
    return stored


def save_manifest(root: Path, manifest: Manifest) -> None:
    """Replace the current manifest durably and atomically."""
    write_durably(
        sender_dir(root, manifest.sender) / FILE, json.dumps(_STORED.dump_python(manifest)).encode()
    )
