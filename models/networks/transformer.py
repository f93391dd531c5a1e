"""The predictor: SwiftQueue's Transformer (arXiv 2410.06112, section 4), from raw window to microseconds.

There is no positional encoding: the time inputs (age, gap) carry the order of the packets sent before.

Two readouts. `last` is the paper's: all H latencies from the last token. Nothing then tells the first H - 1
candidates apart, so no latency can be tied to its own packet; harmless with one flow, wrong with several.
`candidates` (ours, docs/MODEL.md) reads latency h from candidate h's own token, with the same two linear
layers. An `anchor` is an input of the candidate, a latency already visible, to which the network adds a
correction: it then starts from that forecast instead of having to learn to copy it.

Shapes: B batch, W window tokens, F features, D model width, H horizon (8 packets), N heads,
R tokens read (1 or H).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.networks.scaling import ScaledFeature, Target
from models.networks.window_network import WindowNetwork

Readout = Literal["last", "candidates"]


@dataclass(frozen=True)
class Architecture:
    """Form and sizes of the network; the defaults are the paper's (105,096 parameters with 6 inputs)."""

    width: int = 64
    heads: int = 4
    feed_forward: int = 256
    layers: int = 2
    dropout: float = 0.2
    horizon: int = 8
    readout: Readout = "last"
    anchor: str | None = None  # name of a latency input, or none

    def __post_init__(self) -> None:
        if self.readout not in get_args(Readout):
            raise ValueError(
                f"readout {self.readout!r} is unknown; take one of {', '.join(get_args(Readout))}"
            )
        sizes = (self.width, self.heads, self.feed_forward, self.layers, self.horizon)
        if min(sizes) < 1 or self.width % self.heads or not 0 <= self.dropout < 1:
            raise ValueError(f"architecture {self} is not possible: the heads must divide the width")


class Head(nn.Sequential):
    """The two last linear layers, on the tokens that are read (B, R, D), giving (B, H)."""

    def __init__(self, width: int, horizon: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, horizon))

    def forward(self, features_BRD: Tensor) -> Tensor:
        """Read latency h from token h, or all of them from the only one (then the two are the same)."""
        inner, relu, outer = self
        hidden_BRD = relu(inner(features_BRD))
        return (hidden_BRD * outer.weight).sum(-1) + outer.bias  # type: ignore[no-any-return]


class Predictor(WindowNetwork):
    """SwiftQueue's Transformer over a window.

    Parameter names and layouts are those of `torch.nn.TransformerEncoderLayer`, whose modules hold the
    weights; the computation is ours because only the last token of the last layer is ever used.
    """

    sizes: Architecture
    head: Head

    def __init__(
        self, features: Sequence[ScaledFeature], target: Target, sizes: Architecture | None = None
    ) -> None:
        sizes = sizes or Architecture()
        super().__init__(features, target, sizes.horizon, sizes.anchor)
        self.sizes = sizes
        d = self.sizes.width
        self.embedding = nn.Linear(len(self.features), d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, self.sizes.heads, self.sizes.feed_forward, self.sizes.dropout, batch_first=True
            )
            for _ in range(self.sizes.layers)
        )
        self.head = Head(d, self.sizes.horizon)
        if self.anchor_index is not None:
            for parameter in self.head[2].parameters():  # the untrained network forecasts its anchor
                nn.init.zeros_(parameter)

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Compute the encoder's output for the tokens that are read (B, R, D), all that the head sees."""
        h_BWD = self.embedding(self.scale(x_BWF))
        attended_B1W = self.attended(x_BWF)
        for layer in self.layers[:-1]:
            h_BWD = _encoder_layer(layer, h_BWD, h_BWD, attended_B1W)
        # Exact, not an approximation: keys and values of every token, queries of those read only.
        read = self.sizes.horizon if self.sizes.readout == "candidates" else 1
        return _encoder_layer(self.layers[-1], h_BWD[:, -read:], h_BWD, attended_B1W)

    def attended(self, x_BWF: Tensor) -> Tensor:
        """Which tokens may be attended to (B, 1, 1, W): all but padding.

        The packets about to be sent always may, so even an empty history gives finite latencies.
        """
        real_BW = x_BWF[..., self.size_index] > 0
        candidates_BH = torch.ones_like(real_BW[:, -self.sizes.horizon :])
        return torch.cat([real_BW[:, : -self.sizes.horizon], candidates_BH], dim=1)[:, None, None]


def _encoder_layer(layer: nn.Module, query_BQD: Tensor, h_BWD: Tensor, attended: Tensor) -> Tensor:
    """One post-norm encoder layer for the tokens `query_BQD` attending to all of `h_BWD`.

    Dropout stands where Vaswani et al. (2017, section 5.4) put it, on the output of each sub-layer; the
    dropout of attention weights that torch's own layer adds would bar the fused attention kernel.
    """
    assert isinstance(layer, nn.TransformerEncoderLayer)  # noqa: S101 - narrows ModuleList's element type
    drop = layer.dropout1
    attention_BQD = _attention(layer.self_attn, query_BQD, h_BWD, attended)
    mid_BQD = layer.norm1(query_BQD + drop(attention_BQD))
    ff_BQD = layer.linear2(functional.relu(layer.linear1(mid_BQD)))
    return layer.norm2(mid_BQD + drop(ff_BQD))  # type: ignore[no-any-return]


def _attention(mha: nn.MultiheadAttention, query_BQD: Tensor, h_BWD: Tensor, attended: Tensor) -> Tensor:
    """Multi-head attention with the weights of `mha`; `attended` (B, 1, 1, W) is False at padding."""
    d = mha.embed_dim
    weight, bias = mha.in_proj_weight, mha.in_proj_bias
    if query_BQD is h_BWD:
        q_BQD, k_BWD, v_BWD = functional.linear(h_BWD, weight, bias).chunk(3, dim=-1)
    else:
        q_BQD = functional.linear(query_BQD, weight[:d], bias[:d])
        k_BWD, v_BWD = functional.linear(h_BWD, weight[d:], bias[d:]).chunk(2, dim=-1)

    def by_head(t: Tensor) -> Tensor:
        return t.reshape(t.shape[0], t.shape[1], mha.num_heads, d // mha.num_heads).transpose(1, 2)

    out_BNQ = functional.scaled_dot_product_attention(
        by_head(q_BQD), by_head(k_BWD), by_head(v_BWD), attn_mask=attended
    )
    return functional.linear(out_BNQ.transpose(1, 2).flatten(2), mha.out_proj.weight, mha.out_proj.bias)
