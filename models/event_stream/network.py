"""Define a Transformer over a sender's events: each is computed once, and a decision costs only its queries.

Events (docs/EVENTS.md) pass a causal banded mask: an event sees itself and the `band - 1` before it. A query
about a packet that may be sent sees the `band` events before the decision, and nothing sees a query. Keys and
values of an event never change, so a live sender could keep those of the last `band` and add its new events
at each decision; the answers are those of the whole log at once (tests/event_memory.py).

The trained network is the served one. `encode_log` is its form for whole segments of a log, and `encode` its
form for one decision, which sees a band of events for each layer and nothing else.

Each layer also has a key and a value of its own, the sink, which every row sees, so an empty log has an
answer. The layers are pre-norm. There is no positional code, because the time inputs carry the order.

Shapes: G segments of N events, K the band, D model width, A heads, Q decisions, H horizon (8 packets),
F inputs of an event, P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.event_stream.parameters import BLOCK
from swiftqueue.models.networks.band_attention import BandSpans, attend
from swiftqueue.models.networks.query_network import ROW, QueryNetwork
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling

ACK: Final = ROW.index("ack")  # marks ACKs in an event's row
SIZE: Final = ROW.index("size_bytes")


@dataclass(frozen=True)
class EventArchitecture:
    """Sizes of the network."""

    layers: int = 2
    band: int = 64
    width: int = 64
    heads: int = 4
    feed_forward: int = 128
    dropout: float = 0.1
    anchor: str | None = "last_latency_flow_us"  # input of a query that the network corrects; None: no anchor

    def __post_init__(self) -> None:
        sizes = (self.layers, self.band, self.width, self.heads, self.feed_forward)
        if min(sizes) < 1 or self.width % self.heads or self.band % BLOCK or not 0 <= self.dropout < 1:
            raise ValueError(
                f"architecture {self} is not possible: the heads must divide the width, {BLOCK} the band"
            )

    @property
    def reach(self) -> int:
        """Return the number of events that a decision sees: a band for each layer."""
        return self.layers * self.band


def in_band(place: Tensor, own: Tensor, band: int) -> Tensor:
    """Return whether an event at `own` sees the one at `place`: itself or one of the `band - 1` before it."""
    return (place <= own) & (place > own - band)


@dataclass
class Memory:
    """Keys and values (at most K, D) of the last events by layer, which are all that a decision sees."""

    keys: list[Tensor]
    values: list[Tensor]


class _Dropout(nn.Dropout):
    """Dropout that draws 16 bits for each number; floats would take a twelfth of a training step."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not self.p:
            return x
        bits = x.new_empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
        kept = bits[: x.numel()].view_as(x) >= round(self.p * 2**16) - 2**15
        return x * (kept / (1 - self.p))


class EventLayer(nn.Module):
    """One layer: attention to a band and the sink, then two linear layers."""

    def __init__(self, sizes: EventArchitecture) -> None:
        super().__init__()
        d = sizes.width
        self.heads = sizes.heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.query, self.key_value, self.out = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.linear1, self.linear2 = nn.Linear(d, sizes.feed_forward), nn.Linear(sizes.feed_forward, d)
        self.sink = nn.Parameter(torch.randn(2, 1, d) * 0.02)
        self.drop = _Dropout(sizes.dropout)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of events (…, D)."""
        keys, values = self.key_value(self.norm1(x)).chunk(2, -1)
        return keys, values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Return rows x (…, R, D) after attending to (…, S, D) where `seen` (…, R or 1, S) and the sink."""
        lead = keys.shape[:-2]
        sink_key, sink_value = (part.expand(*lead, 1, -1) for part in self.sink)
        seen = torch.cat([seen.new_ones(*seen.shape[:-1], 1), seen], -1).unsqueeze(-3)
        attended = functional.scaled_dot_product_attention(
            self._by_head(self.query(self.norm1(x))),
            self._by_head(torch.cat([sink_key, keys], -2)),
            self._by_head(torch.cat([sink_value, values], -2)),
            attn_mask=seen,
        )
        return self._after(x, attended.transpose(-3, -2).flatten(-2))

    def of_runs(self, x_RD: Tensor, keys_ED: Tensor, values_ED: Tensor, runs: BandSpans) -> Tensor:
        """Return the same as `forward`, for rows that each see consecutive keys."""
        query_RD = self.query(self.norm1(x_RD))
        return self._after(x_RD, attend(query_RD, keys_ED, values_ED, self.sink.squeeze(1), runs))

    def _after(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.drop(self.out(attended))
        return x + self.drop(self.linear2(functional.relu(self.linear1(self.norm2(x)))))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(-3, -2)


class EventPredictor(QueryNetwork):
    """A network of the next H latencies from a sender's events and the queries about those packets."""

    sizes: EventArchitecture

    def __init__(
        self,
        event_inputs: Sequence[ScaledFeature],
        query_inputs: Sequence[ScaledFeature],
        target: TargetScaling,
        sizes: EventArchitecture | None = None,
        quantiles: Sequence[float] = (),
    ) -> None:
        sizes = sizes or EventArchitecture()
        d = sizes.width
        super().__init__(event_inputs, query_inputs, target, d, sizes.anchor, quantiles)
        self.sizes, self.events = sizes, sizes.reach
        self.send, self.ack = nn.Linear(len(event_inputs), d), nn.Linear(len(event_inputs), d)
        self.ask_about = nn.Linear(len(query_inputs), d)
        self.layers = nn.ModuleList(EventLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(d)

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the head's inputs (B, H, D) for raw rows (B, W, F): the last events, then the queries.

        A row of size 0 is padding, where the log has fewer events.
        """
        events_BKF, queries_BHF = x_BWF[:, : -self.horizon], x_BWF[:, -self.horizon :]
        is_ack_BK = events_BKF[..., ACK] > 0
        there_BK = events_BKF[..., SIZE] > 0
        x_BKD = self._embed(events_BKF[..., self.event_columns], is_ack_BK)
        asked_BHD = self.ask_about(self.query_scaling(queries_BHF[..., self.query_columns]))
        band = self.sizes.band
        for after, layer in zip(reversed(range(self.sizes.layers)), self.layers, strict=True):
            keys_BKD, values_BKD = layer.keys_and_values(x_BKD)  # type: ignore[operator]
            asked_BHD = layer(
                asked_BHD, keys_BKD[:, -band:], values_BKD[:, -band:], there_BK[:, None, -band:]
            )
            if after:  # later layers each need a band of its events
                place_K = torch.arange(x_BKD.shape[1], device=x_BKD.device)
                seen_BRK = in_band(place_K, place_K[-after * band :, None], band) & there_BK[:, None]
                x_BKD = layer(x_BKD[:, -after * band :], keys_BKD, values_BKD, seen_BRK)
                there_BK = there_BK[:, -after * band :]
        return self.norm(asked_BHD)  # type: ignore[no-any-return]

    def scaled(self, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
        """Return latencies (Q, H) in scaled target space; the arguments are those of `encode_log`."""
        return self.answer(self.encode_log(x_GNF, ack_GN, cut_Q, x_QHP), x_QHP)

    def encode_log(self, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
        """Return the head's inputs (Q, H, D) for decisions in segments of a log.

        Args:
            x_GNF: raw inputs of the segments' events; a segment has no earlier ones.
            ack_GN: True for an ACK, False for a SEND.
            cut_Q: for each decision, g · N + the number of events of segment g before it, at least 1.
            x_QHP: raw inputs of each decision's queries.
        """
        segments, events = ack_GN.shape
        x_GND = self._embed(x_GNF, ack_GN)
        u_RD = self.ask_about(self.query_scaling(x_QHP)).flatten(0, 1)
        before_Q = (cut_Q - 1) % events + 1  # events before it in the decision's segment
        asked = self._runs(cut_Q.repeat_interleave(HORIZON), before_Q.repeat_interleave(HORIZON))
        first = int(before_Q.min())
        for after, layer in zip(reversed(range(len(self.layers))), self.layers, strict=True):
            keys_GND, values_GND = layer.keys_and_values(x_GND)  # type: ignore[operator]
            keys_ED, values_ED = keys_GND.flatten(0, 1), values_GND.flatten(0, 1)
            u_RD = layer.of_runs(u_RD, keys_ED, values_ED, asked)  # type: ignore[operator]
            if after:  # in the last layer, events need only keys and values
                unseen = max(0, first - after * self.sizes.band)  # events whose outcome no decision sees
                end_GN = torch.arange(1, segments * events + 1).view(segments, events)[:, unseen:]
                runs = self._runs(end_GN.flatten(), torch.arange(unseen + 1, events + 1).repeat(segments))
                x_RD = layer.of_runs(x_GND[:, unseen:].flatten(0, 1), keys_ED, values_ED, runs)  # type: ignore[operator]
                x_GND = torch.cat([x_GND[:, :unseen], x_RD.view(segments, -1, x_RD.shape[1])], 1)
        return self.norm(u_RD).view(*x_QHP.shape[:2], -1)  # type: ignore[no-any-return]

    def empty(self) -> Memory:
        """Return the memory of a sender without events."""
        nothing = [self.send.weight.new_zeros(0, self.sizes.width) for _ in self.layers]
        return Memory(list(nothing), list(nothing))

    def read(self, memory: Memory, x_HP: Tensor) -> Tensor:
        """Return the head's inputs (…, H, D) for raw queries (…, H, P), from the memory."""
        u_HD = self.ask_about(self.query_scaling(x_HP))
        for number, layer in enumerate(self.layers):
            lead = u_HD.shape[:-2]
            keys, values = (
                each.expand(*lead, -1, -1) for each in (memory.keys[number], memory.values[number])
            )
            u_HD = layer(u_HD, keys, values, torch.ones(*lead, 1, keys.shape[-2], dtype=torch.bool))
        return self.norm(u_HD)  # type: ignore[no-any-return]

    def _embed(self, x_GNF: Tensor, ack_GN: Tensor) -> Tensor:
        scaled_GNF = self.event_scaling(x_GNF)
        return torch.where(ack_GN[..., None], self.ack(scaled_GNF), self.send(scaled_GNF))

    def _runs(self, end_R: Tensor, before_R: Tensor) -> BandSpans:
        """Return the spans of rows that end at an event: a band of the `before_R` events of their segment."""
        return BandSpans(end_R, before_R.clamp(max=self.sizes.band), self.sizes.band, self.sizes.heads)


NETWORK: Final = (EventArchitecture, EventPredictor)
