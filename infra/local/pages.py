"""Requests to our own servers. An absent or foreign server is an ordinary result, not an error."""

from __future__ import annotations

import http.client
import urllib.request

# Errors of a request to a port without a server, a server without HTTP, or a server that refuses.
NO_ANSWER = (OSError, http.client.HTTPException)


def page(request: str | urllib.request.Request, timeout_s: float = 10) -> str | None:
    """Return the text of an answer with status 200; None for any other or incomplete answer."""
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - loopback http only
            text = response.read().decode(errors="replace")
            return text if response.status == 200 else None
    except NO_ANSWER:
        return None


def answers(request: str | urllib.request.Request, timeout_s: float = 10) -> bool:
    """Return whether a request is answered with status 200."""
    return page(request, timeout_s) is not None
