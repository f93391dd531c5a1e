"""TLS of the local Triton's gRPC port: it takes only clients with a certificate of the same authority."""

from __future__ import annotations

from swiftqueue.common.settings import settings, variable
from swiftqueue.serving.triton.endpoint import TLS_CA, pem_file

SERVER_CERT, SERVER_KEY = map(variable, ("tls_server_cert", "tls_server_key"))


def tls_flags() -> list[str]:
    """Return Triton's flags for mutual TLS; no flags if no server certificate is named.

    Raises:
        ValueError: only some of authority, certificate and key are named.
        OSError: a file is missing.
    """
    if settings().tls_server_cert is None and settings().tls_server_key is None:
        return []
    for name in ("tls_server_cert", "tls_server_key", "tls_ca"):
        if getattr(settings(), name) is None:
            raise ValueError(f"{variable(name)} is not set; TLS needs {SERVER_CERT}, {SERVER_KEY}, {TLS_CA}")
    return [
        "--grpc-use-ssl-mutual=true",
        f"--grpc-server-cert={pem_file('tls_server_cert')}",
        f"--grpc-server-key={pem_file('tls_server_key')}",
        f"--grpc-root-cert={pem_file('tls_ca')}",
    ]
