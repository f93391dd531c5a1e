"""The Triton servers this project talks to: where they listen, and the few calls deploy and status need."""

from __future__ import annotations

import ipaddress
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from models.state import state_dir
from serving.triton_repository import MODEL

LOOPBACK: Final = "127.0.0.1"
SERVERS: Final = "SWIFTQUEUE_TRITON_SERVERS"
METRICS_ADDRESS: Final = "SWIFTQUEUE_METRICS_ADDRESS"
DEFAULT_PORTS: Final = {"http": 8000, "grpc": 8001, "metrics": 8002}
CALL_TIMEOUT_S: Final = 5.0
TLS_CA: Final = "SWIFTQUEUE_TLS_CA"
TLS_CERT: Final = "SWIFTQUEUE_TLS_CERT"
TLS_KEY: Final = "SWIFTQUEUE_TLS_KEY"
LOAD_TIMEOUT_S: Final = 60.0  # a version's interpreter and ONNX Runtime need 1-2 s, 10 s on a busy machine


class TritonError(OSError):
    """Triton does not answer, or refused; the message says which and what to do."""


def port(kind: str) -> int:
    """Port of `http`, `grpc` or `metrics`: from SWIFTQUEUE_TRITON_<KIND>, the running server, or the default.

    Raises:
        ValueError: the variable is not a port number.
    """
    variable = f"SWIFTQUEUE_TRITON_{kind.upper()}"
    if text := os.environ.get(variable):
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise ValueError(f"{variable}={text!r} is not a port number")
        return int(text)
    try:
        return int(json.loads((state_dir() / "triton" / "server.json").read_text())["ports"][kind])
    except (OSError, ValueError, KeyError):
        return DEFAULT_PORTS[kind]


def elsewhere() -> bool:
    """Whether SWIFTQUEUE_TRITON_SERVERS names the servers, so that none is started here."""
    return bool(os.environ.get(SERVERS, "").strip())


def grpc_addresses() -> list[str]:
    """`host:port` of each server's gRPC service: those of SWIFTQUEUE_TRITON_SERVERS, or the local one.

    Raises:
        ValueError: the variable, or that of the local port, is not what it ought to be.
    """
    if not elsewhere():
        return [f"{LOOPBACK}:{port('grpc')}"]
    addresses = [address.strip() for address in os.environ[SERVERS].split(",")]
    for address in addresses:
        found = _ADDRESS.fullmatch(address)
        if not found or not 0 < int(found["port"]) < 65536:
            raise ValueError(f"{SERVERS}: {address!r} is not HOST:PORT; several are parted by commas")
    if twice := [address for address in addresses if addresses.count(address) > 1]:
        raise ValueError(f"{SERVERS} names {twice[0]} twice")
    return addresses


def grpc_address() -> str:
    """Address of the server to ask where one is enough: the first."""
    return grpc_addresses()[0]


def metrics_address() -> str:
    """Address at which agent and scheduler answer scrapes: SWIFTQUEUE_METRICS_ADDRESS, by default loopback.

    Raises:
        ValueError: the variable is not an IPv4 address.
    """
    text = os.environ.get(METRICS_ADDRESS) or LOOPBACK
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError as error:
        raise ValueError(
            f"{METRICS_ADDRESS}={text!r} is not an IPv4 address of this machine; 0.0.0.0 is every one"
        ) from error


def pem_file(variable: str) -> str | None:
    """File named by an environment variable, None if it is not set.

    Raises:
        OSError: there is no such file.
    """
    path = os.environ.get(variable)
    if path and not os.path.isfile(path):
        raise OSError(f"{variable}={path}: no such file")
    return path or None


def connect(address: str, channel_args: Sequence[tuple[str, str | int]] = ()) -> triton.InferenceServerClient:
    """Make a client of a Triton; with TLS where SWIFTQUEUE_TLS_CA names the authority of its certificate.

    SWIFTQUEUE_TLS_CERT and SWIFTQUEUE_TLS_KEY are what we show to a server that wants to know us.

    Raises:
        ValueError: the three variables do not go together.
        OSError: a file is missing.
    """
    authority, certificate, key = (pem_file(variable) for variable in (TLS_CA, TLS_CERT, TLS_KEY))
    if (certificate is None) != (key is None) or (certificate and not authority):
        raise ValueError(f"TLS: {TLS_CERT} and {TLS_KEY} go together, and need {TLS_CA}")
    return triton.InferenceServerClient(
        address,
        ssl=authority is not None,
        root_certificates=authority,
        private_key=key,
        certificate_chain=certificate,
        channel_args=list(channel_args) or None,
    )


@dataclass(frozen=True)
class Answer:
    """Latencies of an inference and the version that computed them."""

    latency_us: NDArray[np.float32]  # (B, H)
    version: int


class Triton:
    """Control and inference over one gRPC channel; every failure is a TritonError with a clear line."""

    def __init__(self, address: str | None = None, call_timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Connect in the background; `call_timeout_s` bounds every call but load and unload."""
        self.address = address or grpc_address()
        self._call_timeout_s = call_timeout_s
        self._client = connect(self.address)

    def __enter__(self) -> Triton:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, and every call that waits for an answer."""
        self._client.close()

    def live(self) -> bool:
        """Whether a Triton answers at the address."""
        try:
            return bool(self._client.is_server_live(client_timeout=self._call_timeout_s))
        except Exception:  # the client raises its own and gRPC's errors here; all mean no
            return False

    def require_live(self) -> None:
        """Raise TritonError unless the server answers."""
        if not self.live():
            named = f"nothing is deployed while {SERVERS} names it"
            what = named if elsewhere() else "start it: swiftqueue up"
            raise TritonError(f"no Triton server answers at {self.address}; {what}")

    def load(self, model: str) -> None:
        """Load or reload a model from the repository; the versions served before stay until it is ready."""
        self._call(f"load of {model}", self._client.load_model, model, client_timeout=LOAD_TIMEOUT_S)

    def unload(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Unload a model; harmless when it is not loaded."""
        self._call(f"unload of {model}", self._client.unload_model, model, client_timeout=timeout_s)

    def infer(self, x_BWF: NDArray[np.float32], model: str = MODEL, version: str = "") -> Answer:
        """Latencies of raw windows by the served version (or a given one)."""
        tensor = triton.InferInput("window", list(x_BWF.shape), "FP32").set_data_from_numpy(x_BWF)
        result = self._call(
            f"inference with {model}",
            self._client.infer,
            model,
            [tensor],
            model_version=version,
            client_timeout=self._call_timeout_s,
        )
        return Answer(result.as_numpy("latency_us"), int(result.get_response().model_version))

    def config(self, model: str = MODEL) -> Any:
        """`ModelConfig` of the loaded model."""
        call = self._client.get_model_config
        return self._call(f"config of {model}", call, model, client_timeout=self._call_timeout_s).config

    def _call(self, what: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except triton.InferenceServerException as error:
            raise TritonError(f"{what} at {self.address} failed: {first_line(error.message())}") from error


_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def first_line(text: str | None) -> str:
    """Make one line of an error: Triton's carry tracebacks, of which the first lines say it."""
    line = " ".join((text or "no reason given").split())
    if "failed to connect" in line:
        line = next((hint for sign, hint in _CONNECTION_HINTS if sign in line), line)
    return line[:400]


# What gRPC says about TLS says too little. As in serving/agent/triton_channel.cc.
_CONNECTION_HINTS: Final = (
    ("CERTIFICATE_VERIFY_FAILED", "TLS: the server's certificate is not signed by the authority we trust"),
    ("WRONG_VERSION_NUMBER", "TLS: the server does not speak it"),
    (
        "Socket closed",
        "closed by the server on connecting: does it want TLS and a certificate of its authority?",
    ),
)
