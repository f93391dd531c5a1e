"""SwiftQueue as a library: from a capture to packets, forecasts and a picture, from any folder.

    packets = swiftqueue.read_capture("office.pcap")
    forecasts = swiftqueue.load_model("champion").predict(packets)
    swiftqueue.plot(forecasts, seconds=2).savefig("forecasts.png")

Importing the package loads none of the libraries behind it; nothing here makes a folder or starts a server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftqueue.models.registry.packet_model import PREDICTED, Model, read_model

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

__all__ = ["Model", "load_model", "plot", "read_capture"]

CHECKOUT: Final = Path(__file__).resolve().parent.parent
NS_PER_S: Final = 1e9


def read_capture(path: str | Path, *, sender: str | None = None, latency: str = "acks") -> pl.DataFrame:
    """Read a capture's packet table: a row per data packet that the sender sent, in send order.

    The columns are those of docs/PACKETS.md, among them `sent_ns` (since the epoch), `size_bytes`, `flow_id`,
    `queue` (`classic` or `l4s`), `acked_ns` and `latency_us`; the last two are null where unknown.

    Args:
        path: a pcap or pcapng file, plain or gzip.
        sender: the sender's address; None takes the one that sent most TCP payload.
        latency: `acks`, or `timestamps` for a capture made at the receiver.

    Raises:
        ValueError: the file is no capture, or no latency can come from it.
        OSError: the file cannot be read.

    """
    import tempfile

    from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
    from swiftqueue.feature_store.packets.schema import scan_packets

    trace = "capture"
    with tempfile.TemporaryDirectory(prefix="swiftqueue-") as folder:
        extract_trace(ExtractJob(Path(path), trace, sender, latency), Path(folder))
        return scan_packets(Path(folder), trace).collect()


def load_model(
    which: int | str | Path, *, name: str = "swiftqueue", project: str | Path | None = None
) -> Model:
    """Load a model: a version of a project's registry, an artifact's folder, or a forecaster's.

    Args:
        which: a version's number, `champion`, `challenger`, a folder that holds `model.json`, or one that
            `swiftqueue forecasts` kept (`forecaster.json`: any network, trees, a repeated latency).
        name: name of the model in the registry.
        project: folder of the project whose registry is asked; None takes the working folder if it has one,
            else the checkout that this library lies in. MLFLOW_TRACKING_URI and SWIFTQUEUE_STATE override it,
            as everywhere.

    Raises:
        ValueError: there is no such registry, version or folder, the model takes other features, or
            `champion` is a version that may not be served.
        OSError: the registry does not answer, or its answer is not what we signed.

    """
    import tempfile

    from swiftqueue.models.forecasters import forecaster
    from swiftqueue.models.networks.files import DESCRIPTION_FILE

    files = (DESCRIPTION_FILE, forecaster.DESCRIPTION_FILE)
    if not isinstance(which, int) and any((Path(which) / name).is_file() for name in files):
        return read_model(Path(which))
    from swiftqueue.common.state import state_at, state_dir
    from swiftqueue.models.registry import decision, registry, store

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
            return read_model(versions.fetch(version, Path(folder)))


def plot(forecasts: pl.DataFrame, *, start_s: float = 0.0, seconds: float = 2.0) -> Figure:
    """Draw true and predicted latency (ms) of the packets sent in some seconds of a trace.

    Args:
        forecasts: result of `Model.predict`.
        start_s: seconds from the trace's first packet to the beginning of the plot.
        seconds: length of the plot in seconds.

    Raises:
        ValueError: there is no forecast, or no packet was sent in that time.

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
    """Return the folder of a project's run-time state."""
    if project is not None:
        return Path(project) / "var"
    here = Path.cwd() / "var"
    return here if here.is_dir() else CHECKOUT / "var"
