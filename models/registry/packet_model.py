"""Predict from a packet table with a trained model, for `import swiftqueue` and MLflow's `pyfunc`.

Importing this module loads none of the libraries behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import polars as pl
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Predicted = Callable[[pl.DataFrame], Floats]  # latencies in µs of whole batches, in send order

PREDICTED: Final = "predicted_us"  # the column that `Model.predict` adds
EXAMPLE_PACKETS: Final = 32
EXAMPLE_RTT_NS: Final = 20_000_000
NULLABLE: Final = ("acked_ns", "latency_us")  # columns that are null for packets without an acknowledgement


class Model:
    """A trained predictor, as `swiftqueue.load_model` returns it."""

    def __init__(self, description: dict[str, Any], predicted: Predicted) -> None:
        self._description, self._predicted = description, predicted

    @property
    def description(self) -> dict[str, Any]:
        """Return the model files' description: form, inputs and training."""
        return dict(self._description)

    def predict(self, packets: pl.DataFrame) -> pl.DataFrame:
        """Predict the latency of each packet of a trace from its sender's knowledge before it was sent.

        Eight packets are decided at once, at the send time of the first.

        Args:
            packets: one whole trace, N rows in send order, as `read_capture` returns it.

        Returns:
            The same N rows with one more column, `predicted_us` (microseconds, float32); null in an
            incomplete last batch.

        Raises:
            TypeError: the table is not a Polars one.
            ValueError: the rows are not one whole trace in send order.
        """
        import polars as pl

        _check_polars(packets)
        predicted_N = pl.Series(PREDICTED, self._predicted(packets))
        return packets.with_columns(predicted_N.extend_constant(None, packets.height - len(predicted_N)))


def _check_polars(packets: object) -> None:
    import polars as pl

    if not isinstance(packets, pl.DataFrame):
        kind = f"{type(packets).__module__.partition('.')[0]} {type(packets).__name__}"
        raise TypeError(f"packets are a Polars DataFrame, not a {kind}; `polars.from_pandas` makes one")


def read_model(folder: Path) -> Model:
    """Return the model of an artifact's folder, or of a forecaster's.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or of another format; the line says which.
    """
    from swiftqueue.common.json_file import read_object
    from swiftqueue.models.forecasters import forecaster
    from swiftqueue.models.networks.files import DESCRIPTION_FILE

    fitted = forecaster.load(folder)
    described: dict[str, Any] = {}
    for name in (DESCRIPTION_FILE, forecaster.DESCRIPTION_FILE):
        if (folder / name).is_file():
            described |= read_object(folder / name)
    knows = {name: described[name] for name in ("visibility", "told") if name in described}

    def predicted(packets: pl.DataFrame) -> Floats:
        import numpy as np

        from swiftqueue.feature_store.packets.schema import HORIZON
        from swiftqueue.models.forecasters.traces import TracePart
        from swiftqueue.models.training.protocol import Slice

        part = TracePart("trace", packets, Slice(0, packets.height // HORIZON), **knows)
        return fitted.predict(part).ravel() if len(part) else np.empty(0, np.float32)

    return Model(described, predicted)


class PacketTableModel:
    """A model as MLflow's `pyfunc`, which takes a packet table as a pandas frame and gives latencies."""

    def __init__(self, folder: Path) -> None:
        self._model = read_model(folder)

    def predict(self, packets: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return `predicted_us` (microseconds) of each of the N packets of one whole trace in send order.

        Args:
            packets: the columns of a packet table (docs/PACKETS.md); `acked_ns` and `latency_us` may be null.
            params: required by MLflow's interface; unused.

        Raises:
            ValueError: the rows are not one whole trace in send order, or a column has another type.
        """
        import polars as pl

        from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA

        try:
            table = (
                pl.from_pandas(packets, nan_to_null=True).select(PACKET_SCHEMA.names()).cast(PACKET_SCHEMA)
            )
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"not a packet table: {str(error).splitlines()[0][:200]}") from None
        return self._model.predict(table).select(PREDICTED).to_pandas()


def _load_pyfunc(path: str) -> PacketTableModel:
    """Load a version's files; MLflow calls it by this name (`loader_module`)."""
    return PacketTableModel(Path(path))


def example() -> pd.DataFrame:
    """Return a small packet table as MLflow's input example: one flow, a packet per millisecond."""
    import pandas as pd
    import polars as pl

    from swiftqueue.feature_store.packets.schema import PACKET_SCHEMA, QUEUES

    sent_ns = [1_000_000 * packet for packet in range(EXAMPLE_PACKETS)]
    acked_ns = [one + EXAMPLE_RTT_NS for one in sent_ns]
    frame = pd.DataFrame(
        {
            "trace": "example",
            "packet": range(EXAMPLE_PACKETS),
            "sent_ns": sent_ns,
            "flow_id": 0,
            "receiver_id": 0,
            "size_bytes": 1500,
            "ecn": 1,
            "queue": QUEUES[1],
            "acked_ns": acked_ns,
            "latency_us": EXAMPLE_RTT_NS / 1e3,
            "retransmitted": False,
            "lost": False,
        }
    )
    table = pl.from_pandas(frame).cast(PACKET_SCHEMA)
    return table.with_columns(pl.col("queue").cast(pl.String)).to_pandas()


def signature() -> Any:
    """Return MLflow's signature: the columns of a packet table, and `predicted_us`."""
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema
    from mlflow.types.schema import AnyType

    kinds = {
        "int64": DataType.long,
        "int32": DataType.integer,
        "uint8": DataType.integer,
        "bool": DataType.boolean,
    }
    columns = [
        ColSpec(AnyType() if name in NULLABLE else kinds.get(str(kind), DataType.string), name)
        for name, kind in example().dtypes.items()
    ]
    return ModelSignature(inputs=Schema(columns), outputs=Schema([ColSpec(DataType.float, PREDICTED)]))
