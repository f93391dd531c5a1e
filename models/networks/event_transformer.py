"""A Transformer over a sender's events: each is computed once, and a decision costs its queries only.

Events (docs/EVENTS.md) pass a causal banded mask: one sees itself and the `band - 1` before it. A query about
a packet that may be sent sees the `band` events before the decision and no other query; nobody sees a query.
Keys and values of an event never change, so a live sender could keep those of the last `band` and add its new
events at each decision; the answers are those of the whole log at once (tests/event_memory.py).

Each layer also has a key and a value of its own, the sink, that is always seen: an empty log has an answer.
Pre-norm layers; no positional code, for the time inputs carry the order.

Shapes: G segments of N events, K the band, D model width, A heads, Q decisions, H horizon (8 packets),
F inputs of an event, P inputs of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.architecture import BLOCK
from models.networks.query_predictor import QueryPredictor
from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import Scaling


@dataclass(frozen=True)
class EventArchitecture:
    """Sizes of the network."""

    layers: int = 2
    band: int = 64
    width: int = 64
    heads: int = 4
    feed_forward: int = 128
    dropout: float = 0.1
    anchor: str | None = "last_latency_flow_us"  # a query's input that the network corrects, or none

    def __post_init__(self) -> None:
        sizes = (self.layers, self.band, self.width, self.heads, self.feed_forward)
        if min(sizes) < 1 or self.width % self.heads or self.band % BLOCK or not 0 <= self.dropout < 1:
            raise ValueError(
                f"architecture {self} is not possible: the heads must divide the width, {BLOCK} the band"
            )

    @property
    def reach(self) -> int:
        """Events that a decision sees in all: a band for each layer."""
        return self.layers * self.band


def in_band(place: Tensor, own: Tensor, band: int) -> Tensor:
    """Whether an event at `own` sees the one at `place`: itself and the `band - 1` before it."""
    return (place <= own) & (place > own - band)


@dataclass
class Memory:
    """Keys and values (K or fewer, D) of the last events, by layer: all that a decision sees."""

    keys: list[Tensor]
    values: list[Tensor]


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
        self.drop = nn.Dropout(sizes.dropout)

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of events (…, D)."""
        keys, values = self.key_value(self.norm1(x)).chunk(2, -1)
        return keys, values

    def forward(self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
        """Rows x (…, R, D) after attending to (…, S, D) where `seen` (…, R or 1, S), and to the sink."""
        lead = keys.shape[:-2]
        sink_key, sink_value = (part.expand(*lead, 1, -1) for part in self.sink)
        seen = torch.cat([seen.new_ones(*seen.shape[:-1], 1), seen], -1).unsqueeze(-3)
        attended = functional.scaled_dot_product_attention(
            self._by_head(self.query(self.norm1(x))),
            self._by_head(torch.cat([sink_key, keys], -2)),
            self._by_head(torch.cat([sink_value, values], -2)),
            attn_mask=seen,
        )
        x = x + self.drop(self.out(attended.transpose(-3, -2).flatten(-2)))
        return x + self.drop(self.linear2(functional.relu(self.linear1(self.norm2(x)))))  # type: ignore[no-any-return]

    def _by_head(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:-1], self.heads, x.shape[-1] // self.heads).transpose(-3, -2)


class EventPredictor(QueryPredictor):
    """Latencies of the next H packets from a sender's events and the queries about those packets.

    `scaled` is the form for training, of whole segments; that of a live sender is served (event_window.py).
    """

    def __init__(
        self,
        event_inputs: Sequence[ScaledFeature],
        query_inputs: Sequence[ScaledFeature],
        target: Target,
        sizes: EventArchitecture | None = None,
        quantiles: Sequence[float] = (),
    ) -> None:
        sizes = sizes or EventArchitecture()
        d = sizes.width
        super().__init__(query_inputs, target, d, sizes.anchor, quantiles)
        self.sizes = sizes
        self.event_inputs = tuple(event_inputs)
        self.event_scaling = Scaling(event_inputs)
        self.send, self.ack = nn.Linear(len(event_inputs), d), nn.Linear(len(event_inputs), d)
        self.ask_about = nn.Linear(len(query_inputs), d)
        self.layers = nn.ModuleList(EventLayer(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
        """Latencies in µs (Q, H); arguments as of `scaled`."""
        return self.to_us(self.scaled(x_GNF, ack_GN, cut_Q, x_QHP))

    def scaled(self, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
        """Latencies (Q, H) in scaled target space.

        Args:
            x_GNF: raw inputs of the events of segments, N a multiple of 64; none is before a segment's first.
            ack_GN: True for an ACK, False for a SEND.
            cut_Q: of each decision, g · N + the number of events of segment g before it, at least 1.
            x_QHP: raw inputs of its queries.
        """
        return self.answer(self.encode(x_GNF, ack_GN, cut_Q, x_QHP), x_QHP)

    def encode(self, x_GNF: Tensor, ack_GN: Tensor, cut_Q: Tensor, x_QHP: Tensor) -> Tensor:
        """Compute what the head reads (Q, H, D); arguments as of `scaled`."""
        events = ack_GN.shape[1]
        band = self.sizes.band
        x_GND, u_QHD = self._embed(x_GNF, ack_GN), self.ask_about(self.query_scaling(x_QHP))
        segment_Q = (cut_Q - 1) // events
        place_QK = cut_Q[:, None] + torch.arange(-band, 0, device=cut_Q.device)
        seen_QK = place_QK >= (segment_Q * events)[:, None]
        place_QK = place_QK.clamp(min=0)
        first = int((cut_Q - segment_Q * events).min())
        for after, layer in zip(reversed(range(len(self.layers))), self.layers, strict=True):
            k_GND, v_GND = layer.keys_and_values(x_GND)  # type: ignore[operator]
            if after:  # of the last layer, events need keys and values only
                unseen = max(0, first - after * band) // BLOCK  # blocks whose outcome no decision sees
                x_GND = self._banded(layer, x_GND, k_GND, v_GND, unseen)
            # `embedding`, whose gradient is a sum by rows: several times faster than that of an index
            k_QKD, v_QKD = (functional.embedding(place_QK, each.flatten(0, 1)) for each in (k_GND, v_GND))
            u_QHD = layer(u_QHD, k_QKD, v_QKD, seen_QK[:, None])
        return self.norm(u_QHD)  # type: ignore[no-any-return]

    def empty(self) -> Memory:
        """The memory of a sender without events."""
        nothing = [self.send.weight.new_zeros(0, self.sizes.width) for _ in self.layers]
        return Memory(list(nothing), list(nothing))

    def read(self, memory: Memory, x_HP: Tensor) -> Tensor:
        """Compute what the head reads (…, H, D) of queries (…, H, P), raw inputs."""
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

    def _banded(self, layer: nn.Module, x_GND: Tensor, k_GND: Tensor, v_GND: Tensor, unseen: int) -> Tensor:
        """The layer of all events but the first `unseen` blocks, which stay as they are.

        By blocks: each needs its own keys and those of a band before.
        """
        band, blocks = self.sizes.band, x_GND.shape[1] // BLOCK
        place_BS = torch.arange(unseen, blocks)[:, None] * BLOCK + torch.arange(-band, BLOCK)
        own_B1 = place_BS[:, band:, None]
        seen_BRS = in_band(place_BS[:, None], own_B1, band) & (place_BS[:, None] >= 0)

        def around(each_GND: Tensor) -> Tensor:
            """Of each block (G · B, S, D): a band before it, and itself; slices, not an index."""
            blocks_GBRD = functional.pad(each_GND, (0, 0, band, 0)).reshape(
                len(each_GND), -1, BLOCK, each_GND.shape[-1]
            )
            before = [blocks_GBRD[:, n + unseen : n + blocks] for n in range(band // BLOCK + 1)]
            return torch.cat(before, 2).flatten(0, 1)

        # One batch dimension: with two, attention takes a path that is several times slower.
        kept_GND, rows_GND = x_GND[:, : unseen * BLOCK], x_GND[:, unseen * BLOCK :]
        rows_CRD = rows_GND.reshape(-1, BLOCK, x_GND.shape[-1])
        seen_CRS = seen_BRS.repeat(len(x_GND), 1, 1)
        rows_CRD = layer(rows_CRD, around(k_GND), around(v_GND), seen_CRS)
        return torch.cat([kept_GND, rows_CRD.view_as(rows_GND)], 1)
