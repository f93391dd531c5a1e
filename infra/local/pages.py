"""Requests to our own servers, and their metrics. An absent or foreign server is no error."""

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


def samples(text: str) -> dict[str, float]:
    """Return the samples of a metrics page by name and labels, as `name{label="value"}`.

    Raises:
        ValueError: the text is no page of metrics.
    """
    # Imported here: the parser brings an HTTP server, and most commands read no metrics.
    from prometheus_client.parser import text_string_to_metric_families

    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = float(sample.value)
    return found


def metrics(url: str, timeout_s: float = 10) -> dict[str, float] | None:
    """Return the samples of the metrics page at an address; None where no such page answers."""
    text = page(url, timeout_s)
    try:
        return None if text is None else samples(text)
    except ValueError:  # another program's page
        return None


def sample(found: dict[str, float], name: str) -> float | None:
    """Return a sample by its name and labels, or the first one of a name without labels."""
    if name in found or "{" in name:
        return found.get(name)
    return next((value for key, value in found.items() if key.startswith(f"{name}{{")), None)
