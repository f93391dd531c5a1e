"""Define SwiftQueue's Transformer over a window (arXiv 2410.06112, section 4), and the papers' BiLSTM.

Scaling is the first and last operation, so whoever holds the weights cannot scale differently. There is no
positional encoding, because the time inputs (age, gap) carry the order.

There are two readouts. The paper's, `last`, takes all H latencies from the last token. Nothing then tells the
first H - 1 candidates apart, so no latency belongs to its own packet, which is harmless with one flow and
wrong with several. Ours, `candidates` (docs/MODEL.md), takes latency h from candidate h's own token, with the
same two linear layers. An `anchor` is an input of the candidate, a latency that is visible already. The
network adds a correction to it, so it starts from that forecast instead of learning to copy it.

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

from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.networks.parameters import ANCHOR_FALLBACK, NEEDED
from swiftqueue.models.networks.scaling import ScaledFeature, TargetScaling
from swiftqueue.models.networks.torch_scaling import Scaling, anchored, scaled_latency, to_us

Readout = Literal["last", "candidates"]


@dataclass(frozen=True)
class Architecture:
    """Form and sizes of the network; the defaults are the paper's (105,096 parameters with 6 inputs)."""

    width: int = 64
    heads: int = 4
    feed_forward: int = 256
    layers: int = 2
    dropout: float = 0.2
    head_dropout: float = 0.0
    horizon: int = HORIZON
    readout: Readout = "last"
    anchor: str | None = None  # name of a latency input; None: no anchor

    def __post_init__(self) -> None:
        if self.readout not in get_args(Readout):
            raise ValueError(
                f"readout {self.readout!r} is unknown; take one of {', '.join(get_args(Readout))}"
            )
        sizes = (self.width, self.heads, self.feed_forward, self.layers, self.horizon)
        if min(sizes) < 1 or self.width % self.heads or not 0 <= self.dropout < 1:
            raise ValueError(f"architecture {self} is not possible: the heads must divide the width")


class Head(nn.Sequential):
    """The two last linear layers on the tokens that are read (B, R, D), giving (B, H)."""

    def __init__(self, width: int, horizon: int, dropout: float) -> None:
        between = nn.Sequential(nn.ReLU(), nn.Dropout(dropout))
        super().__init__(nn.Linear(width, width), between, nn.Linear(width, horizon))

    def forward(self, features_BRD: Tensor) -> Tensor:
        """Return latency h from token h, or all of them from the only token (then the two are the same)."""
        inner, between, outer = self
        hidden_BRD = between(inner(features_BRD))
        return (hidden_BRD * outer.weight).sum(-1) + outer.bias  # type: ignore[no-any-return]


class Transformer(nn.Module):
    """A network of the next H latencies from one window of raw features.

    `forward(x_BWF)` gives microseconds. Training uses its steps separately: `encode`, `head` (the two last
    linear layers), `anchor` (which the head's output corrects, in scaled target space) and `to_us`.

    Modules of `torch.nn.TransformerEncoderLayer` hold the weights. The computation is ours, because only the
    last tokens of the last layer are ever used.
    """

    quantiles: tuple[float, ...] = ()  # empty: its outputs are means
    head: nn.Module

    def __init__(
        self, features: Sequence[ScaledFeature], target: TargetScaling, sizes: Architecture | None = None
    ) -> None:
        super().__init__()
        self.features, self.target, self.sizes = tuple(features), target, sizes or Architecture()
        names = [feature.name for feature in self.features]
        if NEEDED not in names or len(set(names)) != len(names):
            raise ValueError(f"features {names} must be distinct and hold {NEEDED}")
        self.size_index = names.index(NEEDED)
        anchor = self.sizes.anchor
        self.anchor_index = None if anchor is None else _latency_index(names, anchor)
        self.fallback_index = -1 if anchor is None else _latency_index(names, ANCHOR_FALLBACK)
        self.scale = Scaling(self.features)
        d = self.sizes.width
        self.embedding = nn.Linear(len(self.features), d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, self.sizes.heads, self.sizes.feed_forward, self.sizes.dropout, batch_first=True
            )
            for _ in range(self.sizes.layers)
        )
        self.head = head = Head(d, self.sizes.horizon, self.sizes.head_dropout)
        if anchor is not None:
            for parameter in head[2].parameters():  # the untrained network forecasts its anchor
                nn.init.zeros_(parameter)

    @property
    def read(self) -> int:
        """Return the tokens at the window's end that the head reads."""
        return self.sizes.horizon if self.sizes.readout == "candidates" else 1

    def forward(self, x_BWF: Tensor) -> Tensor:
        """Return latencies in µs (B, H) of the last H tokens of raw windows (B, W, F)."""
        return self.to_us(self.scaled(x_BWF))

    def scaled(self, x_BWF: Tensor) -> Tensor:
        """Return latencies (B, H) in scaled target space, as the loss sees them."""
        return anchored(self.head(self.encode(x_BWF)), self.anchor(x_BWF))

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the head's inputs (B, R, D), the encoder's output for the tokens that are read."""
        h_BWD = self.embedding(self.scale(x_BWF))
        attended_B1W = self.attended(x_BWF)
        for layer in self.layers[:-1]:
            h_BWD = _encoder_layer(layer, h_BWD, h_BWD, attended_B1W)
        # This is exact: the last layer needs keys and values of every token, but queries only of those read.
        return _encoder_layer(self.layers[-1], h_BWD[:, -self.read :], h_BWD, attended_B1W)

    def anchor(self, x_BWF: Tensor) -> Tensor:
        """Return the anchors (B, H) in scaled target space; 0, the mean, where nothing is visible yet."""
        candidates_BHF = x_BWF[:, -self.sizes.horizon :]
        if self.anchor_index is None:
            return torch.zeros_like(candidates_BHF[..., 0])
        own_BH = candidates_BHF[..., self.anchor_index]
        latency_BH = torch.where(own_BH > 0, own_BH, candidates_BHF[..., self.fallback_index])
        return scaled_latency(latency_BH, self.target)

    def to_us(self, scaled_BH: Tensor) -> Tensor:
        """Return latencies in µs of the head's output in scaled target space."""
        return to_us(scaled_BH, self.target)

    def attended(self, x_BWF: Tensor) -> Tensor:
        """Return which tokens may be attended to (B, 1, 1, W): all but padding.

        They include the packets about to be sent, so even an empty history gives finite latencies.
        """
        real_BW = x_BWF[..., self.size_index] > 0
        candidates_BH = torch.ones_like(real_BW[:, -self.sizes.horizon :])
        return torch.cat([real_BW[:, : -self.sizes.horizon], candidates_BH], dim=1)[:, None, None]


class BiLstm(Transformer):
    """Bidirectional layers in place of the Transformer's encoder, with half the width in each direction."""

    def __init__(
        self, features: Sequence[ScaledFeature], target: TargetScaling, sizes: Architecture | None = None
    ) -> None:
        super().__init__(features, target, sizes)
        width = self.sizes.width
        if width % 2:
            raise ValueError(f"width is {width}; of a BiLSTM it must be even")
        self.layers = nn.ModuleList(
            nn.LSTM(width, width // 2, batch_first=True, bidirectional=True) for _ in range(self.sizes.layers)
        )

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the head's inputs (B, R, D); padding is zeros."""
        h_BWD = self.embedding(self.scale(x_BWF)) * self.attended(x_BWF)[:, 0, 0, :, None]
        for layer in self.layers:
            h_BWD, _ = layer(h_BWD)
        return h_BWD[:, -self.read :]  # type: ignore[no-any-return]


def _latency_index(names: list[str], name: str) -> int:
    if name not in names:
        raise ValueError(f"the anchor needs the input {name}, which is not among {names}")
    return names.index(name)


def _encoder_layer(layer: nn.Module, query_BQD: Tensor, h_BWD: Tensor, attended: Tensor) -> Tensor:
    """Apply one post-norm encoder layer to the tokens `query_BQD`, which attend to all of `h_BWD`.

    Dropout acts on the output of each sub-layer, as in Vaswani et al. (2017, section 5.4). Dropout of
    attention weights, as in torch's own layer, would rule out the fused attention kernel.
    """
    assert isinstance(layer, nn.TransformerEncoderLayer)  # noqa: S101 - narrows ModuleList's element type
    drop = layer.dropout1
    attention_BQD = _attention(layer.self_attn, query_BQD, h_BWD, attended)
    mid_BQD = layer.norm1(query_BQD + drop(attention_BQD))
    ff_BQD = layer.linear2(functional.relu(layer.linear1(mid_BQD)))
    return layer.norm2(mid_BQD + drop(ff_BQD))  # type: ignore[no-any-return]


def _attention(mha: nn.MultiheadAttention, query_BQD: Tensor, h_BWD: Tensor, attended: Tensor) -> Tensor:
    """Apply multi-head attention with `mha`'s weights; `attended` (B, 1, 1, W) is False at padding."""
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
