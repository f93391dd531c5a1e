"""Prometheus' query interface: the few calls that tests and pictures need."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Final

from swiftqueue.common.state import secret, stranger_listens
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.pages import NO_ANSWER
from swiftqueue.infra.local.parts import PROMETHEUS
from swiftqueue.serving.triton.endpoint import LOOPBACK

TIMEOUT_S: Final = 30.0
USER: Final = "swiftqueue"
PASSWORD: Final = "prometheus"  # noqa: S105 - the name of the password's file under `var/secrets`


class QueryError(OSError):
    """Prometheus does not answer, another server does, or it refused a query; the message says which."""


def own_request(url: str) -> urllib.request.Request:
    """Return a request that carries the password only if it goes to the Prometheus that we started."""
    request = urllib.request.Request(url)  # noqa: S310 - http, to the user's own server
    server, where = processes.running(PROMETHEUS), urllib.parse.urlsplit(url)
    ours = server is not None and (where.hostname, where.port) == (LOOPBACK, server.ports.get("http"))
    if ours and not stranger_listens(where.port):
        word = base64.b64encode(f"{USER}:{secret(PASSWORD)}".encode()).decode()
        request.add_header("Authorization", f"Basic {word}")
    return request


def ask(server: str, path: str, *, timeout_s: float = TIMEOUT_S, **parameters: str) -> Any:
    """Return `data` of Prometheus' answer to `/api/v1/PATH`.

    Args:
        server: address, such as http://127.0.0.1:9090.
        path: below `/api/v1/`.
        timeout_s: longest wait for the answer, in seconds.
        parameters: the query's parameters by name.

    Raises:
        QueryError: Prometheus did not answer or refused the query.
    """
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(own_request(url), timeout=timeout_s) as response:  # noqa: S310 - the user's own
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace")[:300]
        raise QueryError(f"{server} refuses {parameters.get('query', path)!r}: {reason}") from error
    except NO_ANSWER as error:
        raise QueryError(f"no Prometheus answers at {server}: {error}") from error
    except (ValueError, TypeError, LookupError) as error:
        raise QueryError(f"the server at {server} is no Prometheus") from error
