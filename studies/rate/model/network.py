"""Share between the networks that forecast a TCP connection's rate: scaling, and the path's own estimate.

Shapes: B flows, S samples in order (35 or fewer), F fields of a sample (28), H horizons (6).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftqueue.models.networks.scaling import SCALE_FLOOR, ScaledFeature
from swiftqueue.studies.rate.samples.definition import FIELDS, HORIZONS, NAMES

HEAVY_TAILED: Final = ("us", "ms", "bytes", "packets", "bytes_per_s")
US_PER_S: Final = 1e6
_AT: Final = {name: place for place, name in enumerate(NAMES)}


def fit_scaling(x_NF: NDArray[np.float32]) -> tuple[ScaledFeature, ...]:
    """Scaling of each field, fitted on the samples of the flows to learn from; codes stay as they are.

    Raises:
        ValueError: there is no sample, or a value is not finite.
    """
    if x_NF.ndim != 2 or x_NF.shape[1] != len(FIELDS) or not len(x_NF) or not np.isfinite(x_NF).all():
        raise ValueError(f"cannot fit the scaling to samples of shape {x_NF.shape}: none, or not finite")
    fitted = []
    for f, field in enumerate(FIELDS):
        if field.unit not in HEAVY_TAILED:
            fitted.append(ScaledFeature(field.name, field.unit))
            continue
        logs = np.log1p(np.maximum(x_NF[:, f], 0), dtype=np.float64)
        scale = max(float(logs.std()), SCALE_FLOOR)
        fitted.append(
            ScaledFeature(field.name, field.unit, "log1p", round(float(logs.mean()), 6), round(scale, 6))
        )
    return tuple(fitted)


def path_guess(x_BSF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the path's own estimates from the samples so far, as log bytes/s (B, S) each; causal.

    First the train's dispersion: the median of what an ACK delivered over the time since the ACK before (the
    bottleneck's rate, where packets left closer together). Then a packet a least round trip: what a window
    of n packets brings is n times it. Where no ACK has shown a gap yet, the first is BBR's own estimate.
    """
    batch, steps, _ = x_BSF.shape
    x_BSF = x_BSF.double()
    sent = x_BSF[..., _AT["bytes_sent"]].cumsum(1)
    packets = x_BSF[..., _AT["segs_out"]].cumsum(1).clamp(min=1)
    size = (sent / packets).clamp(min=1)  # bytes
    gap_us, delivered = x_BSF[..., _AT["ts"]], x_BSF[..., _AT["delivered"]]
    seen = (gap_us > 0) & (delivered > 0)
    # bytes/s = packets · bytes/packet · us/s / us
    rate = torch.where(seen, delivered * size * US_PER_S / gap_us.clamp(min=1), torch.inf)
    so_far = torch.ones(steps, steps, dtype=torch.bool, device=x_BSF.device).tril()
    ordered = torch.where(so_far, rate[:, None, :].expand(batch, steps, steps), torch.inf).sort(-1).values
    count = (seen[:, None, :] & so_far).sum(-1)
    median = ordered.gather(-1, ((count - 1).clamp(min=0) // 2)[..., None])[..., 0]
    bbr = x_BSF[..., _AT["bbr_bw"]].clamp(min=1)
    dispersion = torch.where(count > 0, median, bbr)
    per_trip = size * US_PER_S / x_BSF[..., _AT["min_rtt"]].clamp(min=1)
    return dispersion.log().float(), per_trip.log().float()


class RateNetwork(nn.Module, ABC):
    """Scaling travels with the weights; a subclass gives the log of the rates from the scaled fields."""

    shift_F: Tensor
    scale_F: Tensor
    log_F: Tensor

    def __init__(self, features: Sequence[ScaledFeature]) -> None:
        super().__init__()
        if tuple(feature.name for feature in features) != NAMES:
            raise ValueError("the fields of the network are not those of a TCP sample, in their order")
        self.features = tuple(features)
        self.register_buffer("shift_F", torch.tensor([f.shift for f in features]), persistent=False)
        self.register_buffer("scale_F", torch.tensor([f.scale for f in features]), persistent=False)
        self.register_buffer(
            "log_F", torch.tensor([f.transform == "log1p" for f in features]), persistent=False
        )
        self.horizons = len(HORIZONS)

    def scaled(self, x_BSF: Tensor) -> Tensor:
        """Scale fields in raw units."""
        logs = torch.log1p(x_BSF.clamp(min=0))
        return (torch.where(self.log_F, logs, x_BSF) - self.shift_F) / self.scale_F

    @abstractmethod
    def sizes(self) -> dict[str, float]:
        """Arguments that make such a network again."""
