"""Open sessions of senders: the process that opened a session last speaks for its sender id.

Sequence numbers start at 0 in each session. A sender that starts opens the next session, and from then on the
batches of the previous one are refused. So of two processes under one id the later one counts, and the other
gets an error. A session's number is the name of a file: it needs no clock, and every replica sees it at once.
The file holds the number of events that the sender had produced before, and the session in which its
connection to the agent began.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from swiftqueue.common.atomic import sync_dir
from swiftqueue.feature_store.telemetry.events import MAX_NUMBER, BatchKey, RefusedError, check_sender

KEPT: Final = 16  # sessions whose file is kept, since the compaction may still read one that has ended
Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]


@dataclass(frozen=True)
class SessionRequest:
    """The body of a request for a session."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    events_before: Number = 0  # events that the sender produced since it connected to the agent


@dataclass(frozen=True)
class SessionOpening:
    """The state of a session at its opening."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    events_before: Number = 0
    life: Number = 0  # number of the first session of the same connection to the agent


_ASKED: Final = TypeAdapter(SessionRequest)
_OPENING: Final = TypeAdapter(SessionOpening)


def read_asked(body: bytes) -> SessionRequest:
    """Read the body of a request for a session.

    Raises:
        RefusedError: the body is invalid.
    """
    if not body:
        return SessionRequest()
    try:
        return _ASKED.validate_json(body)
    except ValidationError:
        raise RefusedError(
            "schema", f'not the body of a session: must be empty or {{"events_before": 0..{MAX_NUMBER}}}'
        ) from None


def sessions_dir(root: Path) -> Path:
    """Return the folder that has a folder for each sender id, with a file for each session."""
    return root / "sessions"


def open_session(root: Path, sender: str, events_before: int = 0, *, most: int) -> int:
    """Open a sender's next session, durably, and return its number, from 1.

    Args:
        root: folder of the store.
        sender: id of the sender.
        events_before: events that it produced since it connected to the agent; 0 if it has just connected.
        most: largest number of senders in the store.

    Raises:
        RefusedError: the sender id is invalid, or there are `most` others.
        OSError: the store cannot be written.
    """
    check_sender(sender)
    folder = sessions_dir(root) / sender
    if not folder.is_dir():
        _admit(root, sender, most)
    partial = folder / f".{os.getpid()}-{secrets.token_hex(4)}"
    while True:
        number = current_session(root, sender) + 1
        goes_on = events_before and read_opening(root, sender, number - 1).life
        try:
            with partial.open("w") as file:
                json.dump(asdict(SessionOpening(events_before, goes_on or number)), file)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, folder / str(number))
            break
        except FileExistsError:  # another replica was first: take the next
            continue
        finally:
            partial.unlink(missing_ok=True)
    for path in (folder, folder.parent, root):
        sync_dir(path)
    for ended in _numbers(folder):
        if ended <= number - KEPT:
            (folder / str(ended)).unlink(missing_ok=True)
    return number


def _admit(root: Path, sender: str, most: int) -> None:
    """Make the folder of a new sender, under a lock that keeps their number within `most`."""
    senders = sessions_dir(root)
    senders.mkdir(parents=True, exist_ok=True)
    with (root / "sessions.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (senders / sender).is_dir():
            return
        if len(os.listdir(senders)) >= most:
            line = f"sender {sender}: there are {most} others already, the most allowed"
            raise RefusedError("senders", line)
        (senders / sender).mkdir()


def read_opening(root: Path, sender: str, session: int) -> SessionOpening:
    """Return a session's state at its opening, or the default if it is no longer known."""
    try:
        return _OPENING.validate_json((sessions_dir(root) / sender / str(session)).read_bytes())
    except (FileNotFoundError, ValidationError):  # missing, or written by a version that stored nothing
        return SessionOpening()


def current_session(root: Path, sender: str) -> int:
    """Return the number of the sender's newest session; 0 if it never opened one."""
    return max(_numbers(sessions_dir(root) / sender), default=0)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder) if name.isdecimal() and name.isascii()]
    except FileNotFoundError:
        return []


def check_session(root: Path, key: BatchKey) -> None:
    """Refuse a batch of another session than its sender's newest.

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
