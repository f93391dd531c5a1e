"""The manifest of one sender's packets: which files make up which minute, which batches are in them.

It is the only thing that makes a file part of the store: readers open what it names, and a crash before it
is replaced leaves files that nobody reads and the next compaction removes.
"""

from __future__ import annotations

import bisect
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from feature_store.telemetry_log import write_durably

FORMAT: Final = 1
FILE: Final = "manifest.json"
MAX_FLOWS: Final = 4096  # of a session whose start is remembered: those that sent last
MAX_RANGES: Final = 1000  # of a session; more gaps than that are counted, but no longer told apart


@dataclass
class Partition:
    """The packets that one session sent in one minute, in files relative to the sender's folder."""

    session: int
    minute: int  # sent_ns / 60 s
    first_packet: int
    last_packet: int
    rows: int
    packets: list[str] = field(default_factory=list)  # packet tables, oldest first
    acks: list[str] = field(default_factory=list)  # ACKs that came in a later compaction than their packets


@dataclass
class Session:
    """What is known of a session: which batches are in, and where its packets and its clock stand."""

    ranges: list[list[int]] = field(default_factory=list)  # [first, last] sequence numbers taken in
    last_packet: int = -1
    newest_ns: int = -1  # of its events
    shift_ns: int = 0  # added to the sender's clock since that was set back
    flow_starts_ns: dict[str, int] = field(default_factory=dict)  # first SEND by flow, the last to send last
    checked: int = 0  # sequence numbers below it were looked at for gaps, once
    mark: int = 0  # those below it are looked at next
    mark_s: float = 0.0  # Unix time of the mark

    def take(self, sequence: int) -> bool:
        """Note a batch; False if it was in before."""
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
        """The highest sequence number taken in; -1 before the first."""
        return self.ranges[-1][1] if self.ranges else -1

    def note_flows(self, first_sent_ns: dict[str, int]) -> None:
        """Remember when flows began: a window knows a flow's age, a minute of packets does not."""
        for flow, sent_ns in first_sent_ns.items():
            self.flow_starts_ns[flow] = min(self.flow_starts_ns.pop(flow, sent_ns), sent_ns)
        for flow in list(self.flow_starts_ns)[:-MAX_FLOWS]:
            del self.flow_starts_ns[flow]

    def gaps(self) -> list[tuple[int, int]]:
        """Sequence numbers that never came although later ones did: first and last of each gap."""
        ends = [-1, *(last for _, last in self.ranges)]
        return [
            (end + 1, first - 1)
            for end, (first, _) in zip(ends, self.ranges, strict=False)
            if first > end + 1
        ]

    def newly_missing(self, now_s: float, after_s: float) -> int:
        """Count, once each, the batches that were still missing `after_s` after a later one was stored.

        A sender's batches are stored in order, but where several replicas write, an earlier one may lie in a
        segment that is open still.
        """
        if 0 <= now_s - self.mark_s < after_s:
            return 0
        missing = [(max(first, self.checked), min(last, self.mark - 1)) for first, last in self.gaps()]
        self.checked = self.mark
        self.mark, self.mark_s = self.last_sequence + 1, now_s
        return sum(last - first + 1 for first, last in missing if last >= first)

    def forget_old_gaps(self) -> None:
        """Take the oldest gaps for closed where there are too many to remember."""
        if len(self.ranges) > MAX_RANGES:
            self.ranges[: -MAX_RANGES // 2] = [[0, self.ranges[-MAX_RANGES // 2 - 1][1]]]


@dataclass
class Counts:
    """What came of everything that was in the log; sends and acks count events of unique batches."""

    batches: int = 0
    duplicate_batches: int = 0
    gaps: int = 0  # batches found missing
    sends: int = 0
    acks: int = 0
    repeated_sends: int = 0  # a packet number that was there before
    repeated_acks: int = 0  # of a packet that was acknowledged before
    unmatched_acks: int = 0  # of a packet that no SEND ever named
    dropped_rows: int = 0  # of minutes beyond those kept


@dataclass
class Manifest:
    """One sender's packets."""

    sender: str
    generation: int = 0  # one more with each change; names the files it adds
    sessions: dict[int, Session] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)  # ACKs whose SEND is not here yet
    segments: list[str] = field(default_factory=list)  # of the log, taken in but not removed yet
    counts: Counts = field(default_factory=Counts)

    def files(self) -> set[str]:
        """Every file that the manifest names."""
        return {name for p in self.partitions for name in (*p.packets, *p.acks)} | set(self.orphans)

    def newest(self) -> tuple[int, Session] | None:
        """The last session from which packets came, and its number."""
        numbers = {p.session for p in self.partitions}
        return (number := max(numbers), self.sessions[number]) if numbers else None


def sender_dir(root: Path, sender: str) -> Path:
    """Folder of a sender's packets, laid out as the stage `extract` lays out a trace."""
    return root / "packets" / f"trace={sender}"


def load_manifest(root: Path, sender: str) -> Manifest:
    """Read a sender's manifest; an empty one if it has none.

    Raises:
        ValueError: the file is none of ours.
    """
    path = sender_dir(root, sender) / FILE
    try:
        content: dict[str, Any] = json.loads(path.read_text())
        if content.pop("format") != FORMAT:
            raise ValueError("of another format")
        return Manifest(
            **{
                **content,
                "sessions": {int(n): Session(**s) for n, s in content["sessions"].items()},
                "partitions": [Partition(**p) for p in content["partitions"]],
                "counts": Counts(**content["counts"]),
            }
        )
    except FileNotFoundError:
        return Manifest(sender)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path}: not a telemetry manifest ({error}); the log still holds what came since"
        ) from error


def save_manifest(root: Path, manifest: Manifest) -> None:
    """Make a manifest the current one, durably and at once."""
    content = {"format": FORMAT, **asdict(manifest)}
    write_durably(sender_dir(root, manifest.sender) / FILE, json.dumps(content).encode())
