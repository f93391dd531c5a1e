"""Remove credentials from text that is printed, logged or raised."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote, quote_plus, unquote, urlsplit

HIDDEN: Final = "***"
# The match ends at the last @ of the word, since a password may hold one, though it should be quoted.
_USERINFO: Final = re.compile(r"(?<=://)[^\s'\"<>]*@")
_QUERY: Final = re.compile(
    r"(?<=[?&;])([^=&;\s'\"]*(?:pass|pwd|token|secret|key|sig|cred|auth)[^=&;\s'\"]*=)[^&;\s'\"<>]*",
    re.IGNORECASE,
)
_HEADER: Final = re.compile(r"\b(Basic|Bearer) +[A-Za-z0-9._~+/=-]{8,}")
_SECRETS: Final = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
_ADDRESSES: Final = ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "MLFLOW_BACKEND_STORE_URI")
_SHORTEST: Final = 4  # characters; a shorter secret is part of ordinary words


def redacted(text: str) -> str:
    """Return a text without user names, passwords, tokens and keys."""
    for secret in _known():
        text = text.replace(secret, HIDDEN)
    text = _USERINFO.sub(f"{HIDDEN}@", text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _HEADER.sub(rf"\1 {HIDDEN}", text)


def _known() -> list[str]:
    """Return the secrets in our environment, plain and as addresses quote them, longest first."""
    found = {os.environ.get(name, "") for name in _SECRETS}
    for name in _ADDRESSES:
        try:
            found.add(urlsplit(os.environ.get(name, "")).password or "")
        except ValueError:  # not an address: only the form of its content hides it
            continue
    plain = {one for secret in found for one in (secret, unquote(secret))}
    forms = {form for secret in plain for form in (secret, quote(secret, safe=""), quote_plus(secret))}
    return sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True)
