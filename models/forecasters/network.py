"""Define the base of forecasters that are networks over queries: training, tuning, answers and files.

Their files are an artifact (models/networks/artifact.py), so the trained network is the registered and served
one.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swiftqueue.models.forecasters.forecaster import Forecaster, Say
from swiftqueue.models.forecasters.search import LogRange, Space
from swiftqueue.models.networks.parameters import ALL, Level, QueryNetworkParams

if TYPE_CHECKING:
    from swiftqueue.models.forecasters.spread import Spread
    from swiftqueue.models.forecasters.traces import Floats, TracePart
    from swiftqueue.models.networks.query_network import QueryNetwork
    from swiftqueue.models.sharp import Change
    from swiftqueue.models.training.head import FinetuneParams


class NetworkForecaster(Forecaster):
    """A network over queries; a subclass names its course and encodes decisions."""

    Params: ClassVar[type[QueryNetworkParams]]
    search: ClassVar[Space] = {
        "learning_rate": LogRange(5e-4, 8e-3),
        "weight_decay": LogRange(1e-4, 0.3),
        "dropout": (0.0, 0.05, 0.1, 0.2, 0.3),
        "sharp_weight": LogRange(1, 10),
    }

    def __init__(self, model: QueryNetwork, protocol: Mapping[str, Any] | None = None) -> None:
        """Take a trained network and its protocol, the name and lengths of the training slices."""
        self.model, self.protocol = model.eval(), dict(protocol or {})

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: Any, seed: int, say: Say) -> Self:
        """Train in this process on the earlier part of each slice; the last tenth chooses the epoch."""
        from swiftqueue.models.training.query_training import epoch_line

        course = cls.course()(parts, params, seed)
        course.trainer.run(lambda record: say(epoch_line(record, params.epochs)))
        return cls.of_course(course, params)

    @classmethod
    def of_course(cls, course: Any, params: Any) -> Self:
        """Return the forecaster of a course that has ended."""
        return cls(course.model)

    def taught_by(self, protocol: Mapping[str, Any]) -> Self:
        """Return the same forecaster with its protocol."""
        other = copy.copy(self)
        other.protocol = dict(protocol)
        return other

    def answer(self, encoded: Any) -> Floats:
        """Return latencies in µs (B, H)."""
        from swiftqueue.models.networks.prediction import latencies

        return latencies(self.model, encoded)

    def spread(self, encoded: Any) -> Spread | None:
        """Return quantiles, if the network has levels."""
        from swiftqueue.models.forecasters.spread import spread_of

        return spread_of(self.model, encoded)

    def tuned_on(
        self, encoded: Any, came_BH: Floats, change: Change, how: FinetuneParams, starts: Sequence[int] = ()
    ) -> Self:
        """Train the head alone on what the frozen network gives, computed once."""
        from swiftqueue.models.training.head import with_tuned_head

        return with_tuned_head(self, encoded, came_BH, change, how, starts)

    def same_but_head(self, other: Forecaster) -> bool:
        """Return whether the two have one encoder, one scaling and one form."""
        from swiftqueue.models.networks.artifact import same_but_head

        return isinstance(other, type(self)) and same_but_head(self.model, other.model)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the network as an artifact, with all its quantiles."""
        from swiftqueue.models.networks import artifact

        artifact.write(folder, self.model, self.protocol)
        return {}

    def export(self, folder: Path, level: Level = None) -> None:
        """Write the network for serving: with one of its quantiles, or all."""
        from swiftqueue.models.networks import artifact

        model = self.model if level == ALL else artifact.of_level(self.model, level)
        artifact.write(folder, model, self.protocol)

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the artifact."""
        from swiftqueue.models.networks import artifact

        found = artifact.load(folder)
        return cls(found.model, found.description.protocol)
