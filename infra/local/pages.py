"""Pages of our own servers. That nobody is there, or a stranger, is an ordinary answer to whoever looks."""

from __future__ import annotations

import http.client
import urllib.request

# What a request raises where nobody answers, something that is no HTTP server, or a server that refuses.
NO_ANSWER = (OSError, http.client.HTTPException)


def page(request: str | urllib.request.Request, timeout_s: float = 10) -> str | None:
    """Text that a request is answered with, status 200; None if it is not, or not to its end."""
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - loopback http only
            text = response.read().decode(errors="replace")
            return text if response.status == 200 else None
    except NO_ANSWER:
        return None


def answers(request: str | urllib.request.Request, timeout_s: float = 10) -> bool:
    """Whether a request is answered with 200."""
    return page(request, timeout_s) is not None
