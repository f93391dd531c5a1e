"""`swiftqueue part mlflow`: MLflow's server behind a password.

MLflow's server lets every local user read, write and, through its assistant, run commands. So every request
except the health check needs user `swiftqueue` and the password in `var/secrets/mlflow`; a browser asks for
both. MLflow's own basic-auth app is no replacement: it keeps accounts in one more database, whose password
stays when that file is made anew, computes a slow hash for each request, and leaves some routes open.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Any, Final

from swiftqueue.common.state import secret
from swiftqueue.infra.local.ports import LoopbackPort
from swiftqueue.models.registry.store import PASSWORD, USER, local_store
from swiftqueue.serving.triton.endpoint import LOOPBACK

HEALTH: Final = "/health"  # answers OK to anybody


class Guard:
    """An ASGI application that lets only requests with the password through to another application."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._wanted = b"Basic " + base64.b64encode(f"{USER}:{secret(PASSWORD)}".encode())

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request (ASGI)."""
        if scope["type"] == "lifespan" or self._knows(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            asks = (b"www-authenticate", f'Basic realm="{USER}"'.encode())
            headers = [(b"content-type", b"text/plain"), asks]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            body = f"user {USER}, password in var/secrets/{PASSWORD} of the user who started this server\n"
            await send({"type": "http.response.body", "body": body.encode()})
        else:
            await send({"type": "websocket.close", "code": 1008})  # RFC 6455: against the policy

    def _knows(self, scope: Any) -> bool:
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == HEALTH:
            return True
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)


def main(port: LoopbackPort) -> None:
    """Serve the local registry by MLflow's server, behind a password, until SIGTERM.

    Example: swiftqueue part mlflow --port 5001
    """
    import uvicorn
    from mlflow.server import constants

    store, artifacts = local_store()
    os.environ[constants.BACKEND_STORE_URI_ENV_VAR] = store
    # Artifacts are stored by path, not through the server: versions registered either way can be read.
    os.environ[constants.ARTIFACT_ROOT_ENV_VAR] = artifacts.as_uri()
    os.environ["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] = "false"  # we start no jobs in MLflow
    from mlflow.server.fastapi_app import app
    from mlflow.server.handlers import initialize_backend_stores

    initialize_backend_stores(store, None, artifacts.as_uri())
    uvicorn.run(Guard(app), host=LOOPBACK, port=port, log_level="warning", access_log=False)
