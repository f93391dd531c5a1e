"""Linear layers on what a decision's queries say (docs/EVENTS.md): trained as the event stream is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from models.architecture import MlpLoop
from models.loop.event_stream import EventStream
from models.networks.loop_network import LoopNetwork

if TYPE_CHECKING:
    from models.networks.window_network import WindowNetwork


class Mlp(EventStream):
    """Of an event window, the smallest that there is, it reads the queries alone."""

    stored = "query-mlp"
    row_keys = ()
    scalings = ()
    several = False

    def params(self) -> type[MlpLoop]:
        """Section `mlp`."""
        return MlpLoop

    def sizes(self) -> type[Any]:
        """Form and sizes."""
        from models.networks.query_predictor import MlpArchitecture

        return MlpArchitecture

    def network(self) -> type[WindowNetwork]:
        """Class of the network."""
        from models.networks.query_predictor import QueryMlp

        return QueryMlp

    def course(self) -> type[Any]:
        """What is trained, and how; with a forecaster's."""
        from models.forecasters.query_mlp import Course

        return Course

    build = LoopNetwork.build  # any window that has its queries will do


NETWORK: Final = Mlp()
