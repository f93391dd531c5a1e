"""The event stream as the loop has it: trained over whole traces, served without state (docs/EVENTS.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON
from models.architecture import EventStreamLoop, MlpLoop
from models.networks.loop_network import Data, LoopNetwork, Pretrained
from models.section import read

if TYPE_CHECKING:
    from models.networks.scaling import ScaledFeature, Target
    from models.networks.window_network import WindowNetwork


class EventStream(LoopNetwork):
    """A Transformer over the last events and the queries of a decision.

    Another network over these differs in what `models/loop/mlp.py` has.
    """

    stored = "event-stream"
    definition: ClassVar = EVENTS
    row_keys: ClassVar[tuple[str, ...]] = ("layers", "band")
    scalings: ClassVar[tuple[str, ...]] = ("queries",)  # of the packets about to be sent
    several: ClassVar = True

    def params(self) -> type[EventStreamLoop | MlpLoop]:
        """Section `event-stream`."""
        return EventStreamLoop

    def sizes(self) -> type[Any]:
        """Form and sizes."""
        from models.networks.event_transformer import EventArchitecture

        return EventArchitecture

    def network(self) -> type[WindowNetwork]:
        """Class of the network."""
        from models.networks.event_window import EventWindowPredictor

        return EventWindowPredictor

    def course(self) -> type[Any]:
        """What is trained, and how; with a forecaster's."""
        from models.forecasters.event_stream import Course

        return Course

    def tokens(self, params: Path) -> int:
        """The events that a decision sees, and the queries."""
        return read(params, self.params()).reach + HORIZON

    def how(self, params: EventStreamLoop | MlpLoop) -> str:
        """By Ray Train."""
        return f"{self.name}, {params.workers} Ray Train workers"

    def pretrain(
        self,
        data: Data,
        params: EventStreamLoop | MlpLoop,
        say: Callable[[str], None],
        epoch: Callable[[dict[str, Any]], None],
    ) -> Pretrained:
        """Train it from the packet tables as a Ray Train job, or go on with one that was stopped."""
        from models.forecasters.query_job import pretrain
        from models.training.epochs import resumed_line
        from models.training.query_training import epoch_line

        def told(record: dict[str, Any]) -> None:
            if "epoch" not in record:
                say(resumed_line(record))
                return
            say(f"pretrain: {epoch_line(record, params.epochs)}")
            epoch(record)

        return pretrain(data, params, self.course(), told)

    def build(
        self,
        features: Sequence[ScaledFeature],
        target: Target,
        sizes: Mapping[str, Any],
        window: Mapping[str, int],
        scalings: Mapping[str, Sequence[ScaledFeature]],
        levels: Sequence[float] = (),
    ) -> WindowNetwork:
        """Make one of the form that a model.json describes."""
        from models.networks.event_transformer import EventArchitecture
        from models.networks.event_window import EventWindowPredictor

        found = EventArchitecture(**sizes)
        if window != {"tokens": found.reach + HORIZON, "horizon": HORIZON}:
            raise ValueError(
                f"the window must be {found.reach} events (a band for each layer) and {HORIZON} queries"
            )
        return EventWindowPredictor(features, scalings["queries"], target, found, levels)


NETWORK: Final = EventStream()
