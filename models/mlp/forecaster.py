"""Make the linear layers on a query's inputs a forecaster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.models.forecasters.network import NetworkForecaster
from swiftqueue.models.forecasters.traces import TracePart
from swiftqueue.models.mlp.parameters import MlpParams

if TYPE_CHECKING:
    from swiftqueue.models.mlp.network import QueryMlp


class Mlp(NetworkForecaster):
    """Linear layers on the inputs of a decision's queries."""

    model: QueryMlp
    Params = MlpParams

    @classmethod
    def course(cls) -> Any:
        """Return the class that trains the network."""
        from swiftqueue.models.mlp.training import MlpCourse

        return MlpCourse

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Any:
        """Return the head's inputs for a part's decisions."""
        from swiftqueue.models.forecasters.queries import Inputs
        from swiftqueue.models.mlp.training import encode_queries, queries

        inputs = Inputs.named([each.name for each in self.model.query_inputs])
        return encode_queries(self.model, queries(part, inputs, queue))

    def multiply_adds(self) -> int:
        """Return the multiply-adds of a batch of 16 queries."""
        weights = (weight.numel() for weight in self.model.parameters() if weight.dim() == 2)
        return 2 * int(self.model.horizon) * sum(weights)


FORECASTERS: Final = {"mlp": Mlp}
