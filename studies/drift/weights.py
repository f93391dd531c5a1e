"""Small sets of weights that a tune may change instead of the whole head; each is merged into the head."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.networks.prediction import HeadInputs
from swiftqueue.models.networks.query_network import QueryHead
from swiftqueue.models.sharp import PAPERS
from swiftqueue.models.training.head import FinetuneParams, train_head

RANK: Final = 4
# Factor of the learning rate of a small set. A few numbers need longer steps than 4,225; chosen beforehand.
FASTER: Final = 10.0
HEAD: Final = "head"


class _Limited(nn.Module, ABC):
    """A head of which only a small set of weights learns; `merged` gives the head with that set applied."""

    def __init__(self, head: QueryHead) -> None:
        super().__init__()
        self.base = head.requires_grad_(requires_grad=False)
        self.width = head.state_dict()["0.weight"].shape[1]

    def forward(self, read_BRD: Tensor) -> Tensor:
        """Return what the merged head would."""
        out: Tensor = torch.func.functional_call(self.base, self.weights(), (read_BRD,))
        return out

    @abstractmethod
    def weights(self) -> dict[str, Tensor]:
        """Return the head's weights with the set applied."""

    def merged(self) -> QueryHead:
        """Return an ordinary head."""
        head = copy.deepcopy(self.base)
        head.load_state_dict(self.weights())
        return head.requires_grad_()


class _Scale(_Limited):
    """A factor and an offset of the correction to the anchor: 2 numbers."""

    def __init__(self, head: QueryHead) -> None:
        super().__init__(head)
        self.factor, self.offset = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))

    def weights(self) -> dict[str, Tensor]:
        own = dict(self.base.state_dict())
        return own | {
            "2.weight": own["2.weight"] * self.factor,
            "2.bias": own["2.bias"] * self.factor + self.offset,
        }


class _Gains(_Limited):
    """Gain and bias of each value that the encoder gives, as its last LayerNorm has them: 128 numbers."""

    def __init__(self, head: QueryHead) -> None:
        super().__init__(head)
        self.gain_D = nn.Parameter(torch.ones(self.width))
        self.bias_D = nn.Parameter(torch.zeros(self.width))

    def weights(self) -> dict[str, Tensor]:
        own = dict(self.base.state_dict())
        bias = own["0.bias"] + own["0.weight"] @ self.bias_D
        return own | {"0.weight": own["0.weight"] * self.gain_D, "0.bias": bias}


class _LowRank(_Limited):
    """A step of rank 4 of the head's first layer: 512 numbers."""

    def __init__(self, head: QueryHead) -> None:
        super().__init__(head)
        drawn = torch.randn(RANK, self.width, generator=torch.Generator().manual_seed(1))
        self.down_RD = nn.Parameter(drawn / self.width**0.5)
        self.up_DR = nn.Parameter(torch.zeros(self.width, RANK))

    def weights(self) -> dict[str, Tensor]:
        own = dict(self.base.state_dict())
        return own | {"0.weight": own["0.weight"] + self.up_DR @ self.down_RD}


class _Last(_Limited):
    """The head's last layer alone: 65 numbers."""

    def __init__(self, head: QueryHead) -> None:
        super().__init__(head)
        own = head.state_dict()
        self.weight, self.bias = (nn.Parameter(own[f"2.{name}"].clone()) for name in ("weight", "bias"))

    def weights(self) -> dict[str, Tensor]:
        return dict(self.base.state_dict()) | {"2.weight": self.weight, "2.bias": self.bias}


SETS: Final[Mapping[str, Callable[[Any], _Limited]]] = {
    "scale and offset": _Scale,
    "LayerNorm gains": _Gains,
    "low rank": _LowRank,
    "last layer": _Last,
}


def tuned(
    found: NetworkForecaster,
    chosen: str,
    encoded: HeadInputs,
    came_BH: NDArray[np.float32],
    how: FinetuneParams,
) -> NetworkForecaster:
    """Return the forecaster with one set of weights tuned: a name of `SETS`, or the whole head.

    Raises:
        ValueError: tuning diverged.
    """
    if chosen == HEAD:
        return found.tuned_on(encoded, came_BH, PAPERS, how)
    limited: Any = copy.deepcopy(found.model)
    limited.head = SETS[chosen](limited.head)
    faster = how.model_copy(update={"learning_rate": how.learning_rate * FASTER})
    model, report = train_head(limited, encoded, came_BH, PAPERS, faster)
    if report is None:
        return found
    other = copy.copy(found)
    other.model, other.tuning = copy.deepcopy(found.model), report
    with torch.no_grad():
        other.model.head = model.head.merged().eval()
    return other
