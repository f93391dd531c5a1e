"""SwiftQueue as a library: from a capture to packets, forecasts and a picture, from any folder.

    packets = swiftqueue.read_capture("office.pcap")
    forecasts = swiftqueue.load_model("champion").predict(packets)
    swiftqueue.plot(forecasts, seconds=2).savefig("forecasts.png")

Importing it loads none of the libraries behind it, and nothing here makes a folder or starts a server.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Predicted = Callable[[pl.DataFrame], Floats]  # µs of the packets of whole batches, in send order

__all__ = ["Model", "load_model", "plot", "read_capture"]

PREDICTED: Final = "predicted_us"  # the column that `Model.predict` adds
CHECKOUT: Final = Path(__file__).resolve().parent.parent
NS_PER_S: Final = 1e9


def read_capture(path: str | Path, *, sender: str | None = None, latency: str = "acks") -> pl.DataFrame:
    """Read a capture's packet table: a row per data packet that the sender sent, in send order.

    Columns as in docs/PACKETS.md, among them `sent_ns` (since the epoch), `size_bytes`, `flow_id`, `queue`
    (`classic` or `l4s`), `acked_ns` and `latency_us`; the last two are null where unknown.

    Args:
        path: pcap or pcapng, gzip too.
        sender: the sender's address; None is who sent most TCP payload.
        latency: `acks`, or `timestamps` for a capture made at the receiver.

    Raises:
        ValueError: it is no capture, or no latency can come from it.
        OSError: it cannot be read.

    """
    import tempfile

    from feature_store.packets.extract import Job, extract_trace
    from feature_store.packets.schema import scan_packets

    trace = "capture"
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as folder:
        extract_trace(Job(Path(path), trace, sender, latency), Path(folder))
        return scan_packets(Path(folder), trace).collect()


def load_model(
    which: int | str | Path, *, name: str = "swiftqueue", project: str | Path | None = None
) -> Model:
    """Load a model: a version of a project's registry, an artifact's folder, or a forecaster's.

    Args:
        which: a version's number, `champion`, `challenger`, a folder that holds `model.json`, or one that
            `swiftqueue forecasts` kept (`forecaster.json`: any network, trees, a repeated latency).
        name: of the model in the registry.
        project: folder of the project whose registry is asked; None is the working folder if it has one,
            else the checkout that this library lies in. MLFLOW_TRACKING_URI and SWIFTQUEUE_STATE have the
            last word, as everywhere.

    Raises:
        ValueError: there is no such registry, version or folder, the model takes other features, or
            `champion` is a version that may not be served.
        OSError: the registry does not answer, or its answer is not what we signed.

    """
    import tempfile

    from models.forecasters import forecaster
    from models.networks.files import DESCRIPTION_FILE

    files = (DESCRIPTION_FILE, forecaster.DESCRIPTION_FILE)
    if not isinstance(which, int) and any((Path(which) / name).is_file() for name in files):
        return _of_folder(Path(which))
    from common.state import state_at, state_dir
    from models.registry import decision, registry, store

    state = _state_of(project)
    with state_at(state):
        if not store.registry_exists() or not decision.key_exists():
            raise ValueError(
                f"{str(which)!r} is no artifact's folder, and {state_dir()} holds no registry with a key; "
                "name a project in which `make run` has ended: load_model(..., project=FOLDER)"
            )
        versions = registry.Registry(name)
        version = which if isinstance(which, int) else versions.alias(str(which))
        if version not in (known := versions.versions()):
            what = f"version {which}" if version is not None else f"alias {str(which)!r}"
            text = ", ".join(map(str, known)) or "none"
            raise ValueError(f"model {name!r} has no {what}; its versions: {text}")
        if which == registry.CHAMPION and (why := versions.refusal(version)):
            raise ValueError(f"the alias {which} points to version {version} and is not followed ({why})")
        with tempfile.TemporaryDirectory(prefix="swiftqueue-") as folder:
            return _of_folder(versions.fetch(version, Path(folder)))


class Model:
    """A trained predictor; `load_model` gives one."""

    def __init__(self, description: dict[str, Any], predicted: Predicted) -> None:
        self._description, self._predicted = description, predicted

    @property
    def description(self) -> dict[str, Any]:
        """What the files of the model say beside its weights: its form, inputs, and how it was taught."""
        return dict(self._description)

    def predict(self, packets: pl.DataFrame) -> pl.DataFrame:
        """Forecast the latency of each packet of a trace from what its sender knew before it was sent.

        Eight packets are decided at once, at the send time of the first.

        Args:
            packets: one whole trace, N rows in send order, as `read_capture` gives it.

        Returns:
            The same N rows with one more column, `predicted_us` (microseconds, float32); null in an
            incomplete last batch.

        Raises:
            ValueError: the rows are not one whole trace in send order.

        """
        import polars as pl

        predicted_N = pl.Series(PREDICTED, self._predicted(packets))
        return packets.with_columns(predicted_N.extend_constant(None, packets.height - len(predicted_N)))


def _of_folder(folder: Path) -> Model:
    from common.json_file import read_object
    from models.forecasters import forecaster

    fitted = forecaster.load(folder)
    described: dict[str, Any] = {}
    for name in ("model.json", forecaster.DESCRIPTION_FILE):
        if (folder / name).is_file():
            described |= read_object(folder / name)
    knows = {name: described[name] for name in ("visibility", "told") if name in described}

    def predicted(packets: pl.DataFrame) -> Floats:
        import numpy as np

        from feature_store.packets.schema import HORIZON
        from models.forecasters.traces import Part
        from models.training.protocol import Slice

        part = Part("trace", packets, Slice(0, packets.height // HORIZON), **knows)
        return fitted.predict(part).ravel() if len(part) else np.empty(0, np.float32)

    return Model(described, predicted)


def plot(forecasts: pl.DataFrame, *, start_s: float = 0.0, seconds: float = 2.0) -> Figure:
    """Draw true and predicted latency (ms) of the packets sent in some seconds of a trace.

    Args:
        forecasts: what `Model.predict` gives.
        start_s: from so long after the trace's first packet.
        seconds: so long.

    Raises:
        ValueError: it holds no forecast, or no packet was sent then.

    """
    import polars as pl
    from matplotlib.figure import Figure

    if PREDICTED not in forecasts.columns:
        raise ValueError(f"there is no column {PREDICTED}; Model.predict adds it")
    sent_s = ((pl.col("sent_ns") - pl.col("sent_ns").min()) / NS_PER_S).alias("sent_s")
    shown = forecasts.with_columns(sent_s).filter(pl.col("sent_s").is_between(start_s, start_s + seconds))
    if shown.is_empty():
        raise ValueError(f"no packet was sent between {start_s:g} s and {start_s + seconds:g} s")
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, label, style in (("latency_us", "true", "."), (PREDICTED, "predicted", "-")):
        axes.plot(shown["sent_s"], shown[column] / 1e3, style, label=label, markersize=3, linewidth=1)
    axes.set(xlabel="time in the trace, s", ylabel="latency, ms")
    axes.legend()
    return figure


def _state_of(project: str | Path | None) -> Path:
    """Run-time state of a project."""
    if project is not None:
        return Path(project) / "var"
    here = Path.cwd() / "var"
    return here if here.is_dir() else CHECKOUT / "var"
