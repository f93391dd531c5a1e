"""Which process speaks for a sender id: the one that opened a session last.

Packet and sequence numbers start at 0 in each session. A sender that starts opens the next one; from then on
the batches of the session before are refused, so of two senders under one id the later one is believed, and
the other is told. The number is a file's name: no clock is asked, and every replica sees it at once.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from feature_store.telemetry_events import SENDER_NAME, BatchKey, RefusedError
from feature_store.telemetry_log import sync_dir


def sessions_dir(root: Path) -> Path:
    """Folder that has a folder for each sender id, and in it a file named after its session."""
    return root / "sessions"


def open_session(root: Path, sender: str) -> int:
    """Open a sender's next session, durably, and return its number, from 1.

    Raises:
        RefusedError: the sender id is none.
        OSError: the store cannot be written.
    """
    if not SENDER_NAME.fullmatch(sender):
        raise RefusedError("schema", f"sender {sender[:80]!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -")
    folder = sessions_dir(root) / sender
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        before = current_session(root, sender)
        with contextlib.suppress(FileExistsError):  # another replica was first: take the next
            (folder / str(before + 1)).touch(exist_ok=False)
            break
    for path in (folder, folder.parent, root):
        sync_dir(path)
    (folder / str(before)).unlink(missing_ok=True)
    return before + 1


def current_session(root: Path, sender: str) -> int:
    """Number of the sender's newest session; 0 if it never opened one."""
    try:
        return max((int(name) for name in os.listdir(sessions_dir(root) / sender)), default=0)
    except FileNotFoundError:
        return 0


def check_session(root: Path, key: BatchKey) -> None:
    """Refuse a batch that is not of its sender's newest session.

    Raises:
        RefusedError: `two_senders` for an earlier session, `session` for one that was never opened.
    """
    newest = current_session(root, key.sender)
    if key.session < newest:
        raise RefusedError(
            "two_senders",
            f"sender {key.sender}: session {key.session} ended when session {newest} was opened; "
            "if two senders run under this id, give each its own",
        )
    if key.session > newest:
        raise RefusedError("session", f"sender {key.sender}: session {key.session} was never opened")
