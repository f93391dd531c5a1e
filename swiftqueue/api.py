"""SwiftQueue as a library: from a capture to packets, events, forecasts, scores and a picture.

    packets = swiftqueue.read_capture("office.pcap")
    forecasts = swiftqueue.load_model("champion").predict(packets)
    swiftqueue.scores(forecasts)
    swiftqueue.plot(forecasts, seconds=2).savefig("forecasts.png")

Tables are Polars data frames; `to_pandas()` makes pandas ones of them. Everything works from any folder.
Importing the package loads none of the libraries behind it; nothing here makes a folder or starts a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from swiftqueue.models.registry.packet_model import PREDICTED, Model, read_model

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from swiftqueue.card import ModelCard
    from swiftqueue.models.registry.registry import Registry

__all__ = ["Model", "events", "load_model", "model_card", "plot", "read_capture", "scores"]

CHECKOUT: Final = Path(__file__).resolve().parent.parent
NS_PER_S: Final = 1e9


def read_capture(path: str | Path, *, sender: str | None = None, latency: str = "acks") -> pl.DataFrame:
    """Read a capture's packet table: a row per data packet that the sender sent, in send order.

    The columns are those of docs/PACKETS.md, among them `sent_ns` (since the epoch), `size_bytes`, `flow_id`,
    `queue` (`classic` or `l4s`), `acked_ns` and `latency_us`; the last two are null where unknown.

    Args:
        path: a pcap or pcapng file, plain or gzip.
        sender: the sender's address; None takes the one that sent most TCP payload.
        latency: `acks`; `selective`, which counts selective acknowledgements too; or `timestamps`, for a
            capture made at the receiver.

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

    if (folder := _artifact(which)) is not None:
        return read_model(folder)
    with _registered(which, name, project) as (versions, version), tempfile.TemporaryDirectory() as copy:
        return read_model(versions.fetch(version, Path(copy)))


def model_card(
    which: int | str | Path, *, name: str = "swiftqueue", project: str | Path | None = None
) -> ModelCard:
    """Describe a model: its network, the data that taught it, its scores, and what it descends from.

    Print the card for Markdown; a notebook shows it as a page. Its fields are plain dictionaries. The folder
    of an artifact holds no scores and no data sets, so those parts of its card are empty.

    Args:
        which: a version's number, `champion`, `challenger`, or a folder, as for `load_model`.
        name: name of the model in the registry.
        project: folder of the project whose registry is asked, as for `load_model`.

    Raises:
        ValueError: there is no such registry, version or folder.
        OSError: the registry does not answer, or its answer is not what we signed.

    """
    import tempfile

    from swiftqueue.card import ModelCard

    if (folder := _artifact(which)) is not None:
        return ModelCard.of_folder(folder)
    with _registered(which, name, project) as (versions, version), tempfile.TemporaryDirectory() as copy:
        return ModelCard.of_version(versions, version, versions.fetch(version, Path(copy)))


def events(packets: pl.DataFrame) -> pl.DataFrame:
    """Return the sender's log of events: a row for each SEND and ACK, in time order, with a network's inputs.

    The first columns are `time_ns` (since the epoch), `kind` (`send` or `ack`) and `packet`. The others are
    the inputs of docs/EVENTS.md in raw units, fixed when the event happened: no row depends on a later one.

    Args:
        packets: one whole trace in send order, as `read_capture` returns it.

    Raises:
        ValueError: the rows are not one whole trace in send order.

    """
    import numpy as np
    import polars as pl

    from swiftqueue.feature_store.events.event_stream import INPUTS, replay_events

    log = replay_events(packets, np.empty(0, np.int64))
    kinds = pl.Series("kind", np.where(log.ack_E, "ack", "send"))
    known = pl.DataFrame({"time_ns": log.time_ns_E, "kind": kinds, "packet": log.packet_E})
    return known.hstack(pl.DataFrame(log.x_EF, [one.name for one in INPUTS], orient="row"))


def scores(forecasts: pl.DataFrame) -> dict[str, float | int | None]:
    """Score forecasts against the latencies that came: late packets, and the error.

    A packet is late if its latency is 20 ms and 20 % above the last one that its flow had shown before it was
    decided. The result holds `packets` (scored ones), `late`, `average_precision` (how well late packets are
    ranked), `chance` (the average precision of guessing: the share of late packets), `recall_at_1_percent`
    (share of late packets found, with false alarms on 1 % of the others), `mae_ms`, `p50_ms`, `p90_ms` and
    `p99_ms` (absolute errors). A score is None where no packet allows it.

    Args:
        forecasts: result of `Model.predict`.

    Raises:
        ValueError: there is no forecast, or the rows are not one whole trace in send order.

    """
    import polars as pl

    from swiftqueue.feature_store.events.event_stream import INPUTS, batches_in, replay_events
    from swiftqueue.feature_store.packets.schema import HORIZON
    from swiftqueue.models.scoring.metrics import score_predictions

    _check_forecast(forecasts)
    decided = forecasts.head(batches_in(forecasts) * HORIZON)
    pred_BH, y_BH = (
        decided[column].cast(pl.Float64).fill_null(float("nan")).to_numpy().reshape(-1, HORIZON)
        for column in (PREDICTED, "latency_us")
    )
    last = [one.name for one in INPUTS].index("last_latency_flow_us")
    found = score_predictions(pred_BH, y_BH, replay_events(forecasts).x_DHF[..., last])
    late, error = found["late"], found["error"]
    ranked = {
        "average_precision": late["average_precision"],
        "chance": late["base_rate"],
        "recall_at_1_percent": late["recall_at_false_alarms"],
    }
    errors = {name: error[name] for name in ("mae_ms", "p50_ms", "p90_ms", "p99_ms")}
    return {"packets": found["n"], "late": late["n_late"], **ranked, **errors}


def plot(forecasts: pl.DataFrame, *, start_s: float = 0.0, seconds: float = 2.0) -> Figure:
    """Draw true and predicted latency (ms) of the packets sent in some seconds of a trace.

    A notebook shows the figure; `savefig` writes it as PNG, SVG or PDF, by the file's name.

    Args:
        forecasts: result of `Model.predict`.
        start_s: seconds from the trace's first packet to the beginning of the plot.
        seconds: length of the plot in seconds.

    Raises:
        ValueError: there is no forecast, or no packet was sent in that time.

    """
    import polars as pl

    from swiftqueue.picture import Picture

    _check_forecast(forecasts)
    sent_s = ((pl.col("sent_ns") - pl.col("sent_ns").min()) / NS_PER_S).alias("sent_s")
    shown = forecasts.with_columns(sent_s).filter(pl.col("sent_s").is_between(start_s, start_s + seconds))
    if shown.is_empty():
        raise ValueError(f"no packet was sent between {start_s:g} s and {start_s + seconds:g} s")
    figure = Picture(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    for column, label, style in (("latency_us", "true", "."), (PREDICTED, "predicted", "-")):
        axes.plot(shown["sent_s"], shown[column] / 1e3, style, label=label, markersize=3, linewidth=1)
    axes.set(xlabel="time in the trace, s", ylabel="latency, ms")
    axes.legend()
    return figure


def _check_forecast(forecasts: pl.DataFrame) -> None:
    """Raise a ValueError if a table has no predictions."""
    if PREDICTED not in forecasts.columns:
        raise ValueError(f"there is no column {PREDICTED}; Model.predict adds it")


def _artifact(which: int | str | Path) -> Path | None:
    """Return the folder that `which` names, if it holds a model."""
    from swiftqueue.models.forecasters import forecaster
    from swiftqueue.models.networks.files import DESCRIPTION_FILE

    if isinstance(which, int):
        return None
    files = (DESCRIPTION_FILE, forecaster.DESCRIPTION_FILE)
    return Path(which) if any((Path(which) / name).is_file() for name in files) else None


@contextlib.contextmanager
def _registered(
    which: int | str | Path, name: str, project: str | Path | None
) -> Iterator[tuple[Registry, int]]:
    """Yield a project's registry and the version that `which` names, while that registry is the one asked."""
    from swiftqueue.common.state import state_at, state_dir
    from swiftqueue.models.registry import decision, registry, store

    with state_at(_state_of(project)):
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
        yield versions, version


def _state_of(project: str | Path | None) -> Path:
    """Return the folder of a project's run-time state."""
    if project is not None:
        return Path(project) / "var"
    here = Path.cwd() / "var"
    return here if here.is_dir() else CHECKOUT / "var"
