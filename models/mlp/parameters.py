"""Define the section of the linear layers: the sizes of the network, and its training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from swiftqueue.common.section import Count
from swiftqueue.models.networks.parameters import ALL, QueryNetworkParams


class MlpParams(QueryNetworkParams):
    """Linear layers on a query's inputs."""

    section: ClassVar = "mlp"
    layers: Annotated[int, Field(ge=1, le=16)]
    """Number of linear layers before the head."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Number of outputs of each layer."""
    batch_size: Count
    """Number of decisions in a step, over all workers."""

    @model_validator(mode="after")
    def _serves_one_level(self) -> Self:
        if self.served_level == ALL:
            raise ValueError(
                f"{self.section}.served_level is {ALL!r}; only the engine gives all levels, and ONNX Runtime "
                "serves this network"
            )
        return self
