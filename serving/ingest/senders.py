"""The tokens of senders: a sender's token speaks for it, and the store keeps only its SHA-256.

`tokens/NAME` in the telemetry store has the hash of sender NAME's token. The installation's token speaks for
every name without a token of its own (the secret `ingest` of the state); this machine's forwarder has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import Final

from swiftqueue.common.atomic import sync_dir, write_durably
from swiftqueue.common.state import private_dir
from swiftqueue.feature_store.telemetry.events import SENDER_NAME, check_sender

INSTALLATION: Final = "ingest"  # name of the secret
_SCHEME: Final = "Bearer "


def hashed(token: str) -> str:
    """Return the stored hash of a token: 256 random bits need no salt and no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def tokens_dir(root: Path) -> Path:
    """Return the folder that has a file for each sender with a token of its own."""
    return root / "tokens"


def may_speak(root: Path, installation: str, sender: str, authorization: str) -> bool:
    """Return whether a request may speak for a sender; every wrong token takes the same time.

    Args:
        root: folder of the store.
        installation: hash of the installation's token.
        sender: id of the sender, or anything that a stranger takes for one.
        authorization: the request's header.

    Raises:
        OSError: the sender's hash cannot be read.
    """
    expected = installation
    if SENDER_NAME.fullmatch(sender):
        with contextlib.suppress(FileNotFoundError):
            expected = (tokens_dir(root) / sender).read_text().strip()
    given = hashed(authorization.removeprefix(_SCHEME))
    return hmac.compare_digest(given.encode(), expected.encode()) and authorization.startswith(_SCHEME)


def add(root: Path, sender: str, out: Path | None = None) -> str:
    """Make a sender's token and return it; it can never be read again.

    Args:
        root: folder of the store.
        sender: id of the sender.
        out: new file of mode 0600 for the token.

    Raises:
        ValueError: the id is invalid.
        OSError: the sender has a token already, or a file cannot be written; nothing was changed.
    """
    check_sender(sender)
    token = secrets.token_hex(32)
    path = private_dir(tokens_dir(private_dir(root))) / sender
    if path.exists():
        raise FileExistsError(f"sender {sender} has a token already: swiftqueue sender remove {sender}")
    if out is not None:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{token}\n")
    try:
        write_durably(path, f"{hashed(token)}\n".encode(), mode=0o600)
    except OSError:
        if out is not None:
            out.unlink()
        raise
    return token


def remove(root: Path, sender: str) -> None:
    """Take a sender's token back: no request with it is taken from now on.

    Raises:
        ValueError: the id is invalid.
        OSError: the sender has no token.
    """
    check_sender(sender)
    try:
        (tokens_dir(root) / sender).unlink()
    except FileNotFoundError:
        raise FileNotFoundError(f"sender {sender} has no token of its own") from None
    sync_dir(tokens_dir(root))


def with_tokens(root: Path) -> list[str]:
    """Return the ids of the senders that have a token of their own, sorted."""
    return sorted(path.name for path in tokens_dir(root).glob("*") if SENDER_NAME.fullmatch(path.name))
