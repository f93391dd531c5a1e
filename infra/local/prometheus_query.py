"""Prometheus' query interface: the few calls that tests and pictures need."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from infra.local.pages import NO_ANSWER

TIMEOUT_S = 30.0


class QueryError(OSError):
    """Prometheus does not answer, another server does, or it refused a query; the message has its reason."""


def ask(server: str, path: str, *, timeout_s: float = TIMEOUT_S, **parameters: str) -> Any:
    """`data` of Prometheus' answer to `/api/v1/PATH`.

    Args:
        server: address, such as http://127.0.0.1:9090.
        path: below `/api/v1/`.
        timeout_s: how long to wait for it.
        parameters: of the query.

    Raises:
        QueryError: see there.
    """
    url = f"{server}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - the user's own server
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace")[:300]
        raise QueryError(f"{server} refuses {parameters.get('query', path)!r}: {reason}") from error
    except NO_ANSWER as error:
        raise QueryError(f"no Prometheus answers at {server}: {error}") from error
    except (ValueError, TypeError, LookupError) as error:
        raise QueryError(f"what answers at {server} is no Prometheus") from error
