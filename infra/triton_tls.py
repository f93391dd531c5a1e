"""TLS of the local Triton's gRPC port: it takes only clients with a certificate of the same authority."""

from __future__ import annotations

import os
from typing import Final

from serving.endpoint import TLS_CA, pem_file

SERVER_CERT: Final = "SWIFTQUEUE_TLS_SERVER_CERT"
SERVER_KEY: Final = "SWIFTQUEUE_TLS_SERVER_KEY"


def tls_flags() -> list[str]:
    """Triton's flags for mutual TLS, none if no certificate of the server is named.

    Raises:
        ValueError: not all three of authority, certificate and key are named.
        OSError: a file is missing.
    """
    if not os.environ.get(SERVER_CERT) and not os.environ.get(SERVER_KEY):
        return []
    for variable in (SERVER_CERT, SERVER_KEY, TLS_CA):
        if not os.environ.get(variable):
            raise ValueError(f"{variable} is not set: TLS needs {SERVER_CERT}, {SERVER_KEY} and {TLS_CA}")
    return [
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={pem_file(SERVER_CERT)}",
        f"--grpc-server-key={pem_file(SERVER_KEY)}",
        f"--grpc-root-cert={pem_file(TLS_CA)}",
    ]
