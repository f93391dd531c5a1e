"""SwiftQueue's Transformer over a window of packets (docs/MODEL.md); what any network over windows takes.

Shapes: F features, H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from feature_store.events.definition import WINDOW
from models.networks.loop_network import Data, LoopNetwork, Pretrained
from models.section import Section

if TYPE_CHECKING:
    from models.networks.scaling import ScaledFeature, Target
    from models.networks.window_network import WindowNetwork
    from models.training.pretraining import PretrainParams


class Window(LoopNetwork):
    """The Transformer. Another network over windows differs in `stored`, `params` and `network`."""

    stored = "transformer-encoder"
    definition: ClassVar = WINDOW

    def params(self) -> type[Section]:
        """Section `pretrain`."""
        from models.training.pretraining import PretrainParams

        return PretrainParams

    def sizes(self) -> type[Any]:
        """Form and sizes."""
        from models.networks.transformer import Architecture

        return Architecture

    def network(self) -> type[WindowNetwork]:
        """Class of the network."""
        from models.networks.transformer import Predictor

        return Predictor

    def make(
        self, features: Sequence[ScaledFeature], target: Target, params: PretrainParams, horizon: int
    ) -> WindowNetwork:
        """Make an untrained network of the sizes in its section."""
        kind: Any = self.network()
        return kind(features, target, params.sizes(horizon))  # type: ignore[no-any-return]

    def how(self, params: PretrainParams) -> str:
        """As a Ray Train job."""
        return f"starting Ray Train with {params.workers} worker(s)"

    def pretrain(
        self,
        data: Data,
        params: PretrainParams,
        say: Callable[[str], None],
        epoch: Callable[[dict[str, Any]], None],
    ) -> Pretrained:
        """Train it as a Ray Train job, or go on with one that was stopped."""
        from models.training.pretraining import epoch_line, pretrain

        def told(record: dict[str, Any]) -> None:
            say(epoch_line(record))
            if "epoch" in record:
                epoch(record)

        return pretrain(data, params, self, told)


NETWORK: Final = Window()
