"""The Triton servers of this project: their addresses, and the few calls that deploy and status need."""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from swiftqueue.common.json_file import read_object
from swiftqueue.common.settings import settings, variable
from swiftqueue.common.state import secret_file, state_dir, stranger_listens
from swiftqueue.serving.triton.repository import MODEL

LOOPBACK: Final = "127.0.0.1"
SERVERS: Final = variable("triton_servers")
START_IT: Final = "start it: swiftqueue up"
DEFAULT_PORTS: Final = {"grpc": 8001, "metrics": 8002}
CALL_TIMEOUT_S: Final = 5.0
TLS_CA, TLS_CERT, TLS_KEY = map(variable, ("tls_ca", "tls_cert", "tls_key"))
CONTROL_SECRET: Final = variable("triton_secret")
CONTROL_KEY: Final = "swiftqueue"  # header of Triton's restricted protocols
LOAD_TIMEOUT_S: Final = 60.0  # a version's interpreter and ONNX Runtime need 1-2 s, 10 s on a busy machine


# Answers are small, and none is compressed: gRPC would inflate one before it looks at its size.
_CHANNEL: Final = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.compression_enabled_algorithms_bitset", 1),
)


class TritonError(OSError):
    """Triton does not answer, or refused; the message says which, and what to do."""


def port(kind: str) -> int:
    """Return the port of `grpc` or `metrics`: SWIFTQUEUE_TRITON_<KIND>, the running one's or the default."""
    chosen = {"grpc": settings().triton_grpc, "metrics": settings().triton_metrics}[kind]
    if chosen is not None:
        return chosen
    try:
        number = read_object(state_dir() / "triton" / "server.json")["ports"][kind]
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_PORTS[kind]
    return number if type(number) is int and 0 < number < 65536 else DEFAULT_PORTS[kind]


def elsewhere() -> bool:
    """Return whether SWIFTQUEUE_TRITON_SERVERS names the servers, so that none is started here."""
    return bool(settings().triton_servers.strip())


def grpc_addresses() -> list[str]:
    """Return `host:port` of each server's gRPC service: those of SWIFTQUEUE_TRITON_SERVERS, or the local one.

    Raises:
        ValueError: the variable is no list of addresses.
    """
    if not elsewhere():
        return [f"{LOOPBACK}:{port('grpc')}"]
    addresses = [address.strip() for address in settings().triton_servers.split(",")]
    for address in addresses:
        found = _ADDRESS.fullmatch(address)
        if not found or not 0 < int(found["port"]) < 65536:
            raise ValueError(f"{SERVERS}: {address!r} is not HOST:PORT; several are parted by commas")
    if twice := [address for address in addresses if addresses.count(address) > 1]:
        raise ValueError(f"{SERVERS} names {twice[0]} twice")
    return addresses


def grpc_address() -> str:
    """Return the address of the first server, for calls that need only one."""
    return grpc_addresses()[0]


def pem_file(name: str) -> str | None:
    """Return the file that a setting names, None if it is not set.

    Raises:
        OSError: there is no such file.
    """
    path: Path | None = getattr(settings(), name)
    if path is not None and not path.is_file():
        raise OSError(f"{variable(name)}={path}: no such file")
    return None if path is None else str(path)


def control_secret_file() -> Path:
    """Return the file of the secret that controls a server: that of SWIFTQUEUE_TRITON_SECRET, or ours.

    Raises:
        OSError: it is missing, or every user may read it.
    """
    path = settings().triton_secret
    if path is None:
        return secret_file("triton")
    if not path.is_file():
        raise OSError(f"{CONTROL_SECRET}={path}: no such file")
    if path.stat().st_mode & stat.S_IRWXO:
        raise OSError(f"{CONTROL_SECRET}={path}: every user may read this secret; chmod o= {path}")
    return path


def control_headers(address: str = "") -> dict[str, str]:
    """Return the metadata of the calls that control a server: load, unload, statistics and more.

    A server of SWIFTQUEUE_TRITON_SERVERS gets no secret but that of SWIFTQUEUE_TRITON_SECRET.

    Raises:
        OSError: the secret cannot be read, or every user may; or another user has taken the server's port.
    """
    if elsewhere() and address in grpc_addresses() and settings().triton_secret is None:
        return {}
    host, _, number = address.rpartition(":")
    if host in (LOOPBACK, "localhost", "[::1]") and not elsewhere() and stranger_listens(int(number)):
        raise PermissionError(
            f"another user listens at {address}, so it is not told the secret of our Triton"
        )
    return {f"triton-grpc-protocol-{CONTROL_KEY}": control_secret_file().read_text().strip()}


def connect(address: str, channel_args: Sequence[tuple[str, str | int]] = ()) -> triton.InferenceServerClient:
    """Return a client of a Triton, with TLS where SWIFTQUEUE_TLS_CA names the authority of its certificate.

    SWIFTQUEUE_TLS_CERT and SWIFTQUEUE_TLS_KEY are our certificate for a server that wants to know us.

    Raises:
        ValueError: the three variables do not go together.
        OSError: a file is missing.
    """
    authority, certificate, key = map(pem_file, ("tls_ca", "tls_cert", "tls_key"))
    if (certificate is None) != (key is None) or (certificate and not authority):
        raise ValueError(f"TLS: {TLS_CERT} and {TLS_KEY} go together, and need {TLS_CA}")
    return triton.InferenceServerClient(
        address,
        ssl=authority is not None,
        root_certificates=authority,
        private_key=key,
        certificate_chain=certificate,
        channel_args=[*_CHANNEL, *channel_args],
    )


@dataclass(frozen=True)
class InferenceResult:
    """The output of an inference and the version that computed it."""

    y_BH: NDArray[np.float32]  # latencies in µs, or what another model answers
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
        """Return whether a Triton answers at the address."""
        try:
            return bool(self._client.is_server_live(client_timeout=self._call_timeout_s))
        except Exception:  # the client raises its own and gRPC's errors here; all mean no
            return False

    def require_live(self) -> None:
        """Raise TritonError unless the server answers."""
        if not self.live():
            named = f"nothing is deployed while {SERVERS} names it"
            what = named if elsewhere() else START_IT
            raise TritonError(f"no Triton server answers at {self.address}; {what}")

    def load(self, model: str) -> None:
        """Load or reload a model from the repository; the versions served before stay until it is ready."""
        self._control(f"load of {model}", self._client.load_model, model, LOAD_TIMEOUT_S)

    def unload(self, model: str, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Unload a model; do nothing when it is not loaded."""
        self._control(f"unload of {model}", self._client.unload_model, model, timeout_s)

    def infer(self, x_BWF: NDArray[np.float32], model: str = MODEL) -> InferenceResult:
        """Ask the served version about raw windows."""
        tensor = triton.InferInput("window", list(x_BWF.shape), "FP32").set_data_from_numpy(x_BWF)
        result = self._call(
            f"inference with {model}",
            self._client.infer,
            model,
            [tensor],
            client_timeout=self._call_timeout_s,
        )
        response = result.get_response()
        return InferenceResult(result.as_numpy(response.outputs[0].name), int(response.model_version))

    def served_version(self, model: str = MODEL) -> int | None:
        """Return the version that answers a real inference; None when none does."""
        try:
            return self.infer(np.zeros((1, *self.config(model).input[0].dims), np.float32), model).version
        except TritonError:
            return None

    def config(self, model: str = MODEL) -> Any:
        """Return the `ModelConfig` of the loaded model."""
        call = self._client.get_model_config
        return self._call(f"config of {model}", call, model, client_timeout=self._call_timeout_s).config

    def _control(self, what: str, call: Any, model: str, timeout_s: float) -> None:
        try:
            headers = control_headers(self.address)
        except OSError as error:
            raise TritonError(f"{what} at {self.address} failed: {error}") from error
        self._call(what, call, model, headers=headers, client_timeout=timeout_s)

    def _call(self, what: str, call: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except triton.InferenceServerException as error:
            line = first_line(error.message())
            if _RESTRICTED in line:
                line = f"it wants another control secret; {CONTROL_SECRET} names the file of it"
            raise TritonError(f"{what} at {self.address} failed: {line}") from error


_RESTRICTED: Final = "This protocol is restricted"  # Triton's words
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")


def first_line(text: str | None) -> str:
    """Return an error in one line: Triton's carry tracebacks, whose first lines say it."""
    line = " ".join((text or "no reason given").split())
    if "failed to connect" in line:
        line = next((hint for sign, hint in _CONNECTION_HINTS if sign in line), line)
    return line[:400]


# gRPC's words about TLS say too little. The same lines stand in serving/agent/predictors/triton_channel.cc.
_CONNECTION_HINTS: Final = (
    (
        "Hostname Verification Check failed",
        "TLS: the server's certificate is not for the name in its address",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "TLS: the server's certificate is not signed by the authority we trust, or has expired",
    ),
    ("WRONG_VERSION_NUMBER", "TLS: the server does not speak it"),
    (
        "Socket closed",
        "closed by the server on connecting: does it want TLS and a certificate of its authority "
        "that has not expired?",
    ),
)
