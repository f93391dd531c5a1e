"""Make windows of a packet table, the inputs of this folder's forecasters at a decision.

**Events and time.** A sender's history is its log of SEND and ACK events in time order. At one instant ACKs
come before sends, and never before their own packet's SEND. An event stamped before the one in front of it
takes that one's time. Packets `8k … 8k+7` in send order are batch `k`; its decision time is the send time of
packet `8k`. An ACK is visible at `t` if `acked_ns <= t`. An incomplete last batch is not decided.

**Visibility.** `acked` is the log as it was. `previous` (the paper's offline protocol, never deployed) lets
each packet with a known latency count as acknowledged at its own send instant, and applies the same rules.

**In flight.** A packet is in flight from its SEND to its ACK, but no longer than 2 s: then it is given up,
since a packet that never gets a latency must not count for ever. An ACK that comes later still makes its
latency visible, up to 60 s after the send. An ACK of a retransmitted packet shows no latency (Karn).

**Tokens.** A window x_WF is float32 in raw units. Its last 8 tokens are the candidates, the packets about to
be sent. Before them come up to K = W - 8 packets already sent, in send order, left-padded with tokens of
zeros (`size_bytes` 0 marks padding). Of the packets in flight U and the settled ones A (acknowledged or given
up), the newest `u = min(|U|, max(K/2, K - |A|))` and the newest `a = min(|A|, K - u)` are shown, so that both
kinds are always in view.

**Inputs.** `FEATURES` lists them. Those from `in_flight` on are as of the decision time of the packet's own
batch; they are kept when the packet becomes history, and only `gap_us` becomes the real gap then. So a token
holds the sender's knowledge when it decided, and later only its own age and latency are added. Absolute times
cancel. Scaling is not in a window: it travels with the weights.

Until commit ebbf31e4 C++ (`window.h`) computed the same windows, and its golden vectors test this module bit
for bit. The C++ bounded a live sender's memory at 131,072 packets; here a table is in memory already.

Shapes: N packets, A ACKs in time order, B decisions, H horizon (8 packets), W tokens, K = W - H of history,
F features, M inputs of the event log. A *place* j in the log lies just before the SEND of packet j: the
decision about batch k sees what happened up to place 8k.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.section import near
from swiftqueue.feature_store.events.definition import Feature
from swiftqueue.feature_store.events.event_stream import (
    AS_SENT,
    INPUTS,
    VISIBILITIES,
    event_schema_hash,
    packet_columns,
)
from swiftqueue.feature_store.events.event_window import TOKENS_STEP, check_tokens
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.forecasters.queries import QUERY_INPUTS, replayed
from swiftqueue.models.forecasters.traces import Floats, TracePart

LAYOUT: Final = 1  # version of tokens and rules
GIVE_UP_NS: Final = 2_000_000_000  # twice the initial RTO of RFC 6298
FORGET_NS: Final = 60_000_000_000  # RFC 6298's maximum RTO
HOLE_NS: Final = 5_000_000  # shortest silence called a hole
HOLE_CAP_NS: Final = 1_000_000_000  # longest hole told apart
HOLE_AGE_CAP_NS: Final = 10_000_000_000  # also the value while no hole was seen
HASH_MULTIPLIER: Final = 2654435761  # Knuth, TAOCP 3, section 6.4: 2^32 / phi
FLOW_BITS, RECEIVER_BITS = 4, 2
DELIVERY_BIN_NS: Final = 100_000_000  # the delivery rate is measured in bins this long
NEVER: Final = np.iinfo(np.int64).max

Ints = NDArray[np.int64]


FEATURES: Final = (
    Feature("flow_age_us", "us"),  # send minus the flow's first send; for a candidate, decision minus it
    Feature("age_us", "us"),  # decision minus this packet's send; 0 for candidates
    Feature("latency_us", "us"),  # 0 unless visible
    Feature("latency_visible", "flag"),
    Feature("candidate", "flag"),
    Feature("size_bytes", "bytes"),  # IP length; 0 marks padding
    *(Feature(f"flow_code_{bit}", "sign") for bit in range(FLOW_BITS)),  # highest bits of a hash, -1 or +1
    *(Feature(f"receiver_code_{bit}", "sign") for bit in range(RECEIVER_BITS)),
    Feature("queue_l4s", "flag"),
    # These inputs are as of the decision time of the packet's own batch:
    Feature("in_flight", "packets"),  # packets of the sender in flight
    Feature("in_flight_flow", "packets"),
    Feature("in_flight_queue", "packets"),
    Feature("last_latency_us", "us"),  # visible latency whose ACK came last; 0 without one
    Feature("last_latency_flow_us", "us"),
    Feature("last_latency_queue_us", "us"),
    Feature("gap_us", "us"),  # time since the packet before; unknown for candidates 2 to 8, so 0
    Feature("ack_silence_us", "us"),  # time since the last ACK; before any, since the first packet
    Feature("oldest_unacked_us", "us"),  # age of the oldest packet in flight; 0 if there is none
    Feature("hole_us", "us"),  # last silence of 5 ms or more between two ACKs, capped; 0 if none
    Feature("hole_age_us", "us"),  # time since that silence ended, capped; the cap without one
)
NAMES: Final = tuple(feature.name for feature in FEATURES)
UNITS: Final = {each.name: each.unit for each in QUERY_INPUTS} | {each.name: each.unit for each in FEATURES}


def schema_hash(*, with_events: bool = False) -> str:
    """Return the SHA-256 of the definition of a window model's inputs, with the event log's if it has any."""
    constants = {
        "layout": LAYOUT,
        "horizon": HORIZON,
        "give_up_ns": GIVE_UP_NS,
        "forget_ns": FORGET_NS,
        "hole_ns": HOLE_NS,
        "hole_cap_ns": HOLE_CAP_NS,
        "hole_age_cap_ns": HOLE_AGE_CAP_NS,
        "hash_multiplier": HASH_MULTIPLIER,
    }
    lines = [f"{name} {value}\n" for name, value in constants.items()]
    lines += [f"{feature.name} {feature.unit}\n" for feature in FEATURES]
    own = hashlib.sha256("".join(lines).encode()).hexdigest()
    return hashlib.sha256(f"{own} {event_schema_hash()}".encode()).hexdigest() if with_events else own


# ---- The log before the decisions.


@dataclass(frozen=True)
class PacketAttributes:
    """Attributes of consecutive packets, already sent or about to be."""

    size_bytes: NDArray[Any]
    flow_id: NDArray[Any]
    receiver_id: NDArray[Any]
    queue: NDArray[Any]  # 0 classic, 1 l4s


class VisibleLog:
    """The outcomes of a table's packets, and the sender's knowledge of them at each place."""

    def __init__(self, packets: pl.DataFrame, visibility: str) -> None:
        """Order the events of a trace's packet table, which begins with the trace's first packet.

        Raises:
            ValueError: a visibility or packet is invalid; the message names it.
        """
        if visibility not in VISIBILITIES:
            raise ValueError(f"visibility {visibility!r} is unknown; take one of {', '.join(VISIBILITIES)}")
        columns = packet_columns(packets)
        self.sent = PacketAttributes(
            *(columns[name] for name in ("size_bytes", "flow_id", "receiver_id", "queue"))
        )
        if (bad_N := self.sent.size_bytes < 1).any():
            bad = int(np.argmax(bad_N))
            raise ValueError(f"packet {bad}: size_bytes {self.sent.size_bytes[bad]} must be at least 1")
        self.sent_ns_N = np.maximum.accumulate(columns["sent_ns"])
        latency_us_N, acked_ns_N = columns["latency_us"], columns["acked_ns"]
        known_N = np.isfinite(latency_us_N) & (latency_us_N >= 0)
        heard_ns_N = np.maximum(acked_ns_N, self.sent_ns_N)
        if visibility == "previous":
            heard_ns_N = np.where(known_N, self.sent_ns_N, heard_ns_N)
        heard_N = (acked_ns_N >= 0) & (heard_ns_N - self.sent_ns_N <= FORGET_NS)
        own_N = np.arange(packets.height)
        acked_N = np.maximum(np.searchsorted(self.sent_ns_N, heard_ns_N), own_N + 1)
        self.acked_N: Ints = np.where(heard_N, acked_N, NEVER)  # place of the ACK
        self.shown_N: Ints = np.where(known_N, self.acked_N, NEVER)  # place from which the latency is visible
        self.latency_us_N = np.where(known_N, latency_us_N, np.float32(0))
        given_up_N = np.searchsorted(self.sent_ns_N, self.sent_ns_N + GIVE_UP_NS)
        self.settled_N: Ints = np.minimum(self.acked_N, given_up_N)  # place from which it is not in flight
        packet_A = np.flatnonzero(heard_N)
        self.packet_A = packet_A[np.argsort(heard_ns_N[packet_A], kind="stable")]
        self.ack_ns_A, self.place_A = heard_ns_N[self.packet_A], self.acked_N[self.packet_A]

    def inputs(self, what: PacketAttributes, at: Ints) -> dict[str, Floats]:
        """Return inputs of packets by name, as known to their sender when it decides at their places.

        The packets of a decision follow each other, eight by eight.
        """
        count, now_ns = len(self.sent_ns_N), self.sent_ns_N[at]
        seen = np.searchsorted(self.place_A, at, side="right")  # number of ACKs seen
        flows = np.concatenate([self.sent.flow_id, what.flow_id])
        _, first, flow = np.unique(flows, return_index=True, return_inverse=True)
        began = first[flow[count:]]  # the flow's first packet; not sent yet unless below `at`
        oldest = np.searchsorted(np.maximum.accumulate(self.settled_N), at, side="right")
        is_first = (np.arange(len(at)) % HORIZON == 0) & (at > 0)
        return {
            "flow_age_us": self._since(began, at, began < at),
            "size_bytes": what.size_bytes.astype(np.float32),
            **_code("flow_code", FLOW_BITS, what.flow_id),
            **_code("receiver_code", RECEIVER_BITS, what.receiver_id),
            "queue_l4s": what.queue.astype(np.float32),
            **self._of_scope("", np.zeros(count, np.int64), np.zeros(len(at), np.int64), at, seen),
            **self._of_scope("_flow", flow[:count], flow[count:], at, seen),
            **self._of_scope("_queue", self.sent.queue, what.queue, at, seen),
            "gap_us": self._since(at - 1, at, is_first),
            "oldest_unacked_us": self._since(oldest, at, oldest < at),
            **self._silences(now_ns, seen),
        }

    def _since(self, packet: Ints, at: Ints, there: NDArray[np.bool_]) -> Floats:
        """Return the time from the SENDs of packets to decisions at some places; 0 unless `there`."""
        return _us(self.sent_ns_N[at] - self.sent_ns_N[np.where(there, packet, at)])

    def _of_scope(
        self, name: str, of_N: NDArray[Any], wanted: NDArray[Any], at: Ints, seen: Ints
    ) -> dict[str, Floats]:
        """Return the packets in flight and the last latency of the sender, or of packets' flows or queues.

        Args:
            name: the scope's suffix in the inputs' names.
            of_N: number of each table packet's flow or queue.
            wanted: number of the flow or queue for each place.
            at: places of the decisions.
            seen: number of ACKs before each place.
        """
        places = len(of_N) + 1
        _, sent = _before(of_N, np.arange(len(of_N)), wanted, at, places)
        _, settled = _before(of_N, np.minimum(self.settled_N, len(of_N)), wanted, at + 1, places)
        number = np.flatnonzero(self.shown_N[self.packet_A] < NEVER)  # ACKs that show a latency
        packet = self.packet_A[number]
        last, latencies = _before(of_N[packet], number, wanted, seen, len(self.packet_A) + 1)
        last_us = np.append(self.latency_us_N[packet], np.float32(0))  # index -1 is a 0
        return {
            f"in_flight{name}": (sent - settled).astype(np.float32),
            f"last_latency{name}_us": last_us[np.where(latencies > 0, last, -1)],
        }

    def _silences(self, now_ns: Ints, seen: Ints) -> dict[str, Floats]:
        """Return the inputs about silences of the ACK stream, after so many ACKs."""
        start_ns = self.sent_ns_N[:1].sum()  # time of the first SEND
        gap_ns_A = np.diff(self.ack_ns_A, prepend=self.ack_ns_A[:1])
        is_hole_A = gap_ns_A >= HOLE_NS
        hole_A = np.maximum.accumulate(np.where(is_hole_A, np.arange(len(gap_ns_A)), -1))
        # Index -1 points to the value for no hole.
        last = seen - 1
        hole = np.append(hole_A, -1)[last]
        hole_ns = np.append(np.minimum(gap_ns_A, HOLE_CAP_NS), 0)[hole]
        age_ns = np.minimum(now_ns - np.append(self.ack_ns_A, 0)[hole], HOLE_AGE_CAP_NS)
        return {
            "ack_silence_us": _us(now_ns - np.append(self.ack_ns_A, start_ns)[last]),
            "hole_us": _us(hole_ns),
            "hole_age_us": _us(np.where(hole < 0, HOLE_AGE_CAP_NS, age_ns)),
        }

    def shown(self, at_B: Ints, tokens: int) -> NDArray[np.int32]:
        """Return the packets (B, K) that decisions at some ascending places see; -1 is padding."""
        history = tokens - HORIZON
        shown_BK = np.full((len(at_B), history), -1, np.int32)
        past = np.arange(at_B[0] if len(at_B) else 0)
        flying, settled, done = past[:0], past[:0], 0
        for row, at in enumerate(at_B):
            flying, done = np.concatenate([flying, np.arange(done, at)]), at
            is_over = self.settled_N[flying] <= at
            settled = np.sort(np.concatenate([settled, flying[is_over]]))[-history:]
            flying = flying[~is_over]
            u = min(len(flying), max(history // 2, history - len(settled)))
            a = min(len(settled), history - u)
            if u + a:
                newest = np.concatenate([flying[len(flying) - u :], settled[len(settled) - a :]])
                shown_BK[row, -(u + a) :] = np.sort(newest)
        return shown_BK


def _before(
    scope_E: NDArray[Any], place_E: Ints, scope: NDArray[Any], place: Ints, places: int
) -> tuple[Ints, Ints]:
    """Return the last event, of events E, of a scope before a place, and their number.

    Args:
        scope_E: scopes of events, as numbers from 0 on.
        place_E: their places.
        scope: wanted scopes.
        place: a place for each wanted scope.
        places: number of places, above all of them.
    """
    key_E = scope_E.astype(np.int64) * places + place_E
    order = np.argsort(key_E, kind="stable")
    start = scope.astype(np.int64) * places
    end = np.searchsorted(key_E, start + place, sorter=order)
    number: Ints = end - np.searchsorted(key_E, start, sorter=order)
    return np.append(order, -1)[end - 1], number


def _us(ns: NDArray[Any]) -> Floats:
    """Turn nanoseconds into microseconds: divided as float64, then rounded to float32."""
    return (ns.astype(np.float64) / 1000.0).astype(np.float32)


def _code(name: str, bits: int, identity: NDArray[Any]) -> dict[str, Floats]:
    """Return the highest bits of a multiplicative hash of identities, each -1 or +1."""
    hashed = (identity.astype(np.int64).astype(np.uint64) * np.uint64(HASH_MULTIPLIER)).astype(np.uint32)
    is_set = [(hashed >> np.uint32(31 - bit)) & np.uint32(1) == 1 for bit in range(bits)]
    return {f"{name}_{bit}": np.where(one, 1, -1).astype(np.float32) for bit, one in enumerate(is_set)}


# ---- The windows.


@dataclass(frozen=True)
class ExtraInputs:
    """Further inputs of tokens by name: of each packet of the table, and of each candidate."""

    names: tuple[str, ...]
    sent_NM: Floats
    asked_BHM: Floats


class Windows:
    """Windows of some decisions of a trace, which are made as they are read, by slice or array of numbers."""

    def __init__(
        self,
        packets: pl.DataFrame,
        first_packet_B: Ints,
        tokens: int,
        visibility: str = "acked",
        *,
        inputs: Sequence[str] = NAMES,
        asked: PacketAttributes | None = None,
        more: ExtraInputs | None = None,
    ) -> None:
        """Compute the parts that all windows share.

        Args:
            packets: the packet table of one trace, from its first packet on, in send order. Rows after the
                last decision's packets change nothing.
            first_packet_B: the first packet of each decision, a multiple of 8; ascending.
            tokens: W, a multiple of 8 in 16..4096.
            visibility: `acked` (what a sender can do) or `previous` (the paper's offline protocol).
            inputs: names of a token's inputs.
            asked: the candidates, eight for each decision; None: the packets that were sent.
            more: further inputs behind these.

        Raises:
            ValueError: a visibility, window size, decision or packet is invalid; the message names it.
        """
        check_tokens(tokens)
        at_B = np.asarray(first_packet_B, np.int64)
        end = int(at_B[-1]) + HORIZON if len(at_B) else 0
        if end > packets.height or (at_B % HORIZON).any() or (np.diff(at_B) < 0).any():
            raise ValueError(
                f"decisions must be ascending, each about {HORIZON} of the trace's {packets.height} packets"
            )
        log = VisibleLog(packets.head(end), visibility)
        self._log, self._at_B, self._tokens = log, at_B, tokens
        self._names = [*inputs, *(more.names if more else ())]
        own_N = np.arange(end)
        sent = log.inputs(log.sent, own_N // HORIZON * HORIZON)
        _, first, flow_N = np.unique(log.sent.flow_id, return_index=True, return_inverse=True)
        sent["flow_age_us"] = _us(log.sent_ns_N - log.sent_ns_N[first][flow_N])
        sent["gap_us"] = _us(np.diff(log.sent_ns_N, prepend=log.sent_ns_N[:1]))
        decided_BH = at_B[:, None] + np.arange(HORIZON)
        what = asked or PacketAttributes(*(column[decided_BH.ravel()] for column in vars(log.sent).values()))
        about = log.inputs(what, np.repeat(at_B, HORIZON)) | {
            "candidate": np.ones(decided_BH.size, np.float32)
        }
        self._sent_NF = self._rows(sent, inputs, end)
        self._asked_BHF = self._rows(about, inputs, decided_BH.size)[:-1].reshape(
            *decided_BH.shape, len(inputs)
        )
        if more:
            padded_NM = np.concatenate([more.sent_NM[:end], np.zeros((1, len(more.names)), np.float32)])
            self._sent_NF = np.concatenate([self._sent_NF, padded_NM], axis=1)
            self._asked_BHF = np.concatenate([self._asked_BHF, more.asked_BHM], axis=2)
        self._packet_BK = log.shown(at_B, tokens)

    def __len__(self) -> int:
        return len(self._at_B)

    def __getitem__(self, which: slice | Ints) -> Floats:
        """Make some windows, (B, W, F)."""
        packet_BK, at_B1 = self._packet_BK[which], self._at_B[which][:, None]
        x_BWF = np.empty((len(at_B1), self._tokens, len(self._names)), np.float32)
        x_BWF[:, :-HORIZON] = self._sent_NF[packet_BK]
        x_BWF[:, -HORIZON:] = self._asked_BHF[which]
        log, is_padding_BK = self._log, packet_BK < 0
        is_visible_BK = (log.shown_N[packet_BK] <= at_B1) & ~is_padding_BK
        for name, column_BK in (
            ("age_us", _us(np.where(is_padding_BK, 0, log.sent_ns_N[at_B1] - log.sent_ns_N[packet_BK]))),
            ("latency_us", np.where(is_visible_BK, log.latency_us_N[packet_BK], np.float32(0))),
            ("latency_visible", is_visible_BK.astype(np.float32)),
        ):
            if name in self._names:
                x_BWF[:, :-HORIZON, self._names.index(name)] = column_BK
        return x_BWF

    @staticmethod
    def _rows(columns: dict[str, Floats], inputs: Sequence[str], count: int) -> Floats:
        """Return the named inputs as rows, 0 where a column is missing, and one more row of 0 for padding."""
        rows = np.zeros((count + 1, len(inputs)), np.float32)
        for place, name in enumerate(inputs):
            if name in columns:
                rows[:-1, place] = columns[name]
        return rows


def bdp_packets(packets: pl.DataFrame) -> float:
    """Return the bandwidth-delay product in packets: delivery rate when busy times median latency.

    The rate is the 90th percentile, over 100 ms bins with ACKs, of packets acknowledged per second; the
    latency includes the queue, since packets in flight wait there too.

    Raises:
        ValueError: no packet has a known latency.
    """
    acked = packets.filter(pl.col("acked_ns").is_not_null())
    known = acked.filter(pl.col("latency_us").is_not_null())
    if known.is_empty():
        raise ValueError("no packet has a known latency: the capture holds no ACKs of its data")
    per_bin = acked.group_by(pl.col("acked_ns") // DELIVERY_BIN_NS).len()["len"].quantile(0.9)
    median_us = known["latency_us"].cast(pl.Float64).median()
    # packets = packets/bin · bin/ns · ns
    return float(per_bin or 0) / DELIVERY_BIN_NS * (float(median_us or 0) * 1000)  # type: ignore[arg-type]


def tokens_for(bdp: float, least: int, most: int) -> int:
    """Return the window size for a bandwidth-delay product: 1.5 of it and the 8 candidates, a multiple of 8.

    1.5 products hold all packets in flight and some acknowledged ones.
    """
    tokens = math.ceil((1.5 * bdp + HORIZON) / TOKENS_STEP) * TOKENS_STEP
    return check_tokens(min(max(tokens, least), most))


# ---- The windows of a part of a trace.


def input_names(wanted: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Return a token's inputs by name: all if none is wanted, then `more` of the event log.

    Raises:
        ValueError: a name is unknown, or given twice.
    """
    if wrong := [name for name in wanted if name not in NAMES]:
        raise ValueError(f"inputs names {wrong[0]!r}, which no window has; {near(wrong[0], list(NAMES))}")
    others = [each.name for each in QUERY_INPUTS if each.name not in NAMES]
    if wrong := [name for name in more if name not in others]:
        raise ValueError(f"more_inputs names {wrong[0]!r}, which no query adds; {near(wrong[0], others)}")
    found = [*(wanted or NAMES), *more]
    if twice := [name for place, name in enumerate(found) if name in found[:place]]:
        raise ValueError(f"inputs names {twice[0]!r} twice")
    return found


def windows_of(part: TracePart, tokens: int, names: Sequence[str], queue: int = AS_SENT) -> Windows:
    """Return the windows of a part's decisions with the named inputs, for its packets in a queue."""
    own, other = ([name for name in names if (name in NAMES) is there] for there in (True, False))
    return Windows(
        part.packets,
        part.first_packets,
        tokens,
        part.visibility,
        inputs=own,
        asked=_asked(part, queue),
        more=_more(part, other, queue) if other else None,
    )


def _asked(part: TracePart, queue: int) -> PacketAttributes:
    """Return the candidates as their sender describes them: missing attributes are the first packet's."""
    place_BH = part.first_packets[:, None] + np.arange(HORIZON)
    first_BH = np.broadcast_to(part.first_packets[:, None], place_BH.shape)
    columns = packet_columns(part.packets)
    size = columns["size_bytes"][place_BH if part.told == "all" else first_BH]
    others_BH = first_BH if part.told == "first" else place_BH
    flow, receiver, own = (columns[name][others_BH] for name in ("flow_id", "receiver_id", "queue"))
    l4s = own if queue == AS_SENT else np.full_like(own, queue)
    return PacketAttributes(size.ravel(), flow.ravel(), receiver.ravel(), l4s.ravel())


def _more(part: TracePart, names: Sequence[str], queue: int) -> ExtraInputs:
    """Return inputs of the event log: for a packet sent, its SEND's; for a candidate, its query's."""
    places = [[each.name for each in INPUTS].index(name) for name in names]
    found = replayed(part, queue)
    return ExtraInputs(tuple(names), found.x_EF[~found.ack_E][:, places], found.x_DHF[..., places])
