"""Make the event stream a forecaster (docs/EVENTS.md): each event is computed once, a decision asks queries.

Shapes: B decisions, L levels of quantiles.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.models.event_stream.parameters import EventStreamParams
from swiftqueue.models.forecasters.network import NetworkForecaster

if TYPE_CHECKING:
    from swiftqueue.models.event_stream.network import EventPredictor
    from swiftqueue.models.forecasters.spread import Spread
    from swiftqueue.models.forecasters.traces import Floats, TracePart
    from swiftqueue.models.networks.parameters import Level
    from swiftqueue.models.training.calibration import Doubles
    from swiftqueue.models.training.head import FinetuneParams

PAST_FILE: Final = "past.safetensors"
SPLIT_SHARE: Final = 0.2  # share of a slice that calibrates instead of tuning the head


class EventStreamForecaster(NetworkForecaster):
    """A network over events; with `calibration` its quantiles are moved to their levels."""

    model: EventPredictor
    encoder: Callable[[TracePart, int], Any] | None = None  # another program that has the same weights
    Params = EventStreamParams

    def __init__(
        self,
        model: EventPredictor,
        protocol: Mapping[str, Any] | None = None,
        calibration: str | None = None,
        past: Sequence[Doubles] = (),
    ) -> None:
        """Take a trained network, and the errors of its levels on slices that it had not learned from."""
        from swiftqueue.models.training.calibration import newest

        super().__init__(model, protocol)
        self.calibration, self.past = calibration, newest(past)

    @classmethod
    def course(cls) -> Any:
        """Return the class that trains the network."""
        from swiftqueue.models.event_stream.training import EventStreamCourse

        return EventStreamCourse

    @classmethod
    def of_course(cls, course: Any, params: EventStreamParams) -> Self:
        """Return the forecaster of a course that has ended."""
        return cls(course.model, None, params.calibration, course.past())

    def encode(self, part: TracePart, queue: int = AS_SENT) -> Any:
        """Return the head's inputs for a part's decisions; each event is computed once."""
        if self.encoder is not None:
            return self.encoder(part, queue)
        from swiftqueue.models.event_stream.log import encode_log
        from swiftqueue.models.event_stream.training import log_of
        from swiftqueue.models.forecasters.queries import Inputs

        events = Inputs.named([each.name for each in self.model.event_inputs])
        queries = Inputs.named([each.name for each in self.model.query_inputs])
        return encode_log(self.model, log_of(part, events, queries, queue))

    def answer(self, encoded: Any) -> Floats:
        """Return latencies in µs (B, H)."""
        from swiftqueue.models.networks.prediction import latencies

        return latencies(self._calibrated(), encoded)

    def spread(self, encoded: Any) -> Spread | None:
        """Return quantiles, if the network has levels."""
        from swiftqueue.models.forecasters.spread import spread_of

        return spread_of(self._calibrated(), encoded)

    def tuned(self, part: TracePart, how: FinetuneParams) -> Self:
        """Tune the head and, with `calibration`, measure the levels' errors."""
        from swiftqueue.models.training.calibration import missed

        if not self.calibration:
            return super().tuned(part, how)
        learnt, held_out = part.held_out(SPLIT_SHARE) if self.calibration == "split" else (part, None)
        encoded, came_BH = self.encode(learnt), learnt.latencies_us()
        other = self.tuned_on(encoded, came_BH, part.change, how)
        if held_out is None:
            past = (*self.past, missed(self.model, encoded, came_BH))
        else:
            past = (missed(other.model, other.encode(held_out), held_out.latencies_us()),)
        tuned = type(self)(other.model, self.protocol, self.calibration, past)
        tuned.encoder = self.encoder
        return tuned

    def multiply_adds(self) -> int:
        """Return the multiply-adds of a batch of 16 events and 16 queries."""
        sizes, d = self.model.sizes, self.model.sizes.width
        seen = 2 * d * (sizes.band + 1)  # the band and the sink: scores, then their sum
        after = 2 * d * d + 2 * d * sizes.feed_forward + seen  # query, output, two linear layers
        event = d * len(self.model.event_inputs) + sizes.layers * 2 * d * d + (sizes.layers - 1) * after
        query = d * len(self.model.query_inputs) + sizes.layers * after + d * d + d * self.model.head.levels
        return 2 * int(self.model.horizon) * int(event + query)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the artifact without the levels' shifts, and the errors that determine the shifts."""
        described = super().write(folder)
        if not self.calibration:
            return described
        import torch
        from safetensors.torch import save_file

        past = {str(n): torch.from_numpy(each) for n, each in enumerate(self.past)}
        save_file(past, folder / PAST_FILE)
        return {**described, "calibration": self.calibration}

    def export(self, folder: Path, level: Level = None) -> None:
        """Write the artifact for serving, with calibrated levels."""
        calibrated = copy.copy(self)
        calibrated.model, calibrated.past = self._calibrated(), ()
        super(EventStreamForecaster, calibrated).export(folder, level)

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the artifact and the errors of its levels."""
        from swiftqueue.models.networks import artifact

        found = artifact.load(folder)
        model: Any = found.model
        calibration = described.get("calibration")
        past = _read_past(folder / PAST_FILE, len(model.quantiles)) if calibration else ()
        return cls(model, found.description.protocol, calibration, past)

    def _calibrated(self) -> EventPredictor:
        from swiftqueue.models.training.calibration import calibrated

        model: EventPredictor = calibrated(self.model, self.past)
        return model


def _read_past(path: Path, levels: int) -> list[Doubles]:
    import numpy as np

    from swiftqueue.models.networks.files import read_tensors

    kept = read_tensors(path)
    past = [kept[str(n)].numpy() for n in range(len(kept))]
    if not all(each.shape == (len(each), levels) and np.isfinite(each).all() for each in past):
        raise ValueError(f"{path}: not the errors of {levels} levels")
    return past


FORECASTERS: Final = {"event-stream": EventStreamForecaster}
