"""Asks the agent for forecasts of TCP connections' rates: SAMPLE and FORECAST frames.

Shapes: F fields of a sample (28), H horizons (6).
"""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swiftqueue.serving.agent.io import frames
from swiftqueue.studies.rate.frames import RATE_OUTCOMES, SAMPLE, TYPES, blank


@dataclass(frozen=True)
class Forecast:
    """The agent's answer."""

    connection: int
    sample: int
    """The one that it was asked with, counted from 0."""
    outcome: str
    """One of `frames.RATE_OUTCOMES`; only `forecast` has rates."""
    version: int
    """Of the model; -1 without a forecast."""
    rate_H: NDArray[np.float32]
    """Bytes/s at each horizon; NaN without a forecast."""


class RateClient:
    """A connection to the agent's socket; its methods raise OSError where that is gone or stands still."""

    def __init__(self, path: Path | str, name: str = "rates", patience_s: float = 5.0) -> None:
        """Connect, and say HELLO.

        Args:
            path: the agent's socket.
            name: to be known by.
            patience_s: seconds that the agent may take to answer, and later to take a sample.

        Raises:
            OSError: nobody listens at `path`, or does not answer within `patience_s`.
        """
        self._buffer = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        try:
            self._socket.settimeout(patience_s)
            self._socket.connect(str(path))
            self._socket.sendall(frames.hello(name).tobytes())
            if self._next(patience_s) is None:
                raise TimeoutError(f"{path}: the agent says no HELLO")
        except OSError:
            self._socket.close()
            raise

    def __enter__(self) -> RateClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave; the agent forgets the connections."""
        self._socket.close()

    def tell(
        self, connection: int, sample: int, raw_F: NDArray[np.int64], *, ask: bool = False, last: bool = False
    ) -> None:
        """Tell of a sample.

        Args:
            connection: the caller's number of it.
            sample: counted from 0, which begins the connection anew.
            raw_F: as `swiftqueue.studies.rate.samples.definition` names them.
            ask: whether a forecast is wanted, which `take` then gives.
            last: nothing more comes of this connection.
        """
        frame = blank(SAMPLE)
        frame["connection"], frame["sample"], frame["fields"] = connection, sample, raw_F
        frame["asked"], frame["last"] = ask, last
        self._socket.sendall(frame.tobytes())

    def take(self, within_s: float) -> Forecast | None:
        """The next answer; None if none came in time. With 0 s, one that is there.

        Raises:
            ConnectionError: the agent has refused the connection, whose line is said, or has gone.
        """
        frame = self._next(within_s)
        if frame is None:
            return None
        return Forecast(
            int(frame["connection"]),
            int(frame["sample"]),
            RATE_OUTCOMES[frame["outcome"]],
            int(frame["version"]),
            np.array(frame["rates"]),
        )

    def _next(self, within_s: float) -> Any:
        """The next HELLO or FORECAST; None if there is none in time."""
        end_s = time.monotonic() + within_s
        while True:
            size = int.from_bytes(self._buffer[:2], "little")
            if len(self._buffer) >= frames.HEADER.itemsize and len(self._buffer) >= size:
                data, self._buffer = self._buffer[:size], self._buffer[size:]
                frame = np.frombuffer(data, TYPES[data[2]])[0]
                if frame.dtype == frames.REFUSED:
                    raise ConnectionError(f"the agent refused: {frame['line'].decode()}")
                return frame
            if not self._readable.poll(1000 * max(end_s - time.monotonic(), 0.0)):
                return None
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the agent has gone")
            self._buffer += more
