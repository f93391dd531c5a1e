"""A sender's client of the ingest: it numbers batches, sends them one by one, and never blocks the sender."""

from __future__ import annotations

import http.client
import json
import logging
import random
import re
import ssl
import stat
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.state import stranger_listens
from swiftqueue.feature_store.telemetry.events import EVENT, REASONS, SENDER_NAME, BatchKey, Events, encode

BUFFER_BATCHES: Final = 256  # a minute of batches of a quarter of a second
TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
PORTS: Final = {"http": 80, "https": 443}
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,256}")
TAKEN: Final = (200, 201)  # statuses of a batch that is on the disk, and of a session that is open
_log = logging.getLogger(__name__)


class SenderRefusedError(RuntimeError):
    """The ingest takes no more from this client: another one uses its sender id, or its token is wrong."""


@dataclass
class ShippingCounts:
    """The outcomes of the batches given to a client."""

    accepted: int = 0
    duplicates: int = 0  # accepted batches that the ingest had already: its answer had been lost
    refused: int = 0  # bad batches; sending them again would not help
    # Batches dropped at a full buffer, which leave a gap in the sequence numbers, or left at the close.
    dropped: int = 0
    retries: int = 0


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and port of an ingest's address.

    Raises:
        ValueError: it is not `http://HOST:PORT` or `https://HOST:PORT`.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc:
        told = url.rpartition("@")[2]  # the part before it may be a secret
        raise ValueError(f"ingest address {told!r}: must be http://HOST:PORT or https://HOST:PORT")
    return parts.hostname, parts.port or PORTS[parts.scheme]


def read_token(path: Path) -> str:
    """Return the token in the file that `swiftqueue sender add --out` or the installation made.

    Raises:
        OSError: the file is missing, or others may read it.
        ValueError: it has no token.
    """
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise PermissionError(f"{path}: others may read this token: chmod 600 {path}, or make a new one")
    token = path.read_text(errors="replace").strip()
    if not TOKEN.fullmatch(token):
        raise ValueError(f"{path}: has no token (swiftqueue sender add NAME --out FILE)")
    return token


class IngestClient:
    """Ships a sender's batches in a thread of its own; `send` returns at once.

    Batches are numbered when they are given. While the ingest is away or busy, the newest `buffer` batches
    wait; older ones are dropped and leave a gap in the store.
    """

    def __init__(
        self,
        url: str,
        sender: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        own_server: bool = False,
        events_before: int = 0,
        after: threading.Event | None = None,
        buffer: int = BUFFER_BATCHES,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Start the thread; nothing is sent before the first batch.

        Args:
            url: address of the ingest.
            sender: id of the sender.
            token: token that speaks for the sender.
            ca: PEM file of the authority for an `https://` server; None takes the system's.
            own_server: whether the server is this user's own: no other user at its port gets the token.
            events_before: events of the sender since it connected to the agent (docs/TELEMETRY.md), a count.
            after: set when the sender's previous client has ended; nothing is sent before.
            buffer: most batches that wait.
            timeout_s: longest wait for one answer, in seconds.

        Raises:
            ValueError: the id, the address or the token is invalid.
            OSError: the certificates cannot be read.
        """
        if not SENDER_NAME.fullmatch(sender):
            raise ValueError(f"sender {sender!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -")
        if token is not None and not TOKEN.fullmatch(token):
            raise ValueError(f"sender {sender}: the token must be 16 to 256 letters, digits, . _ ~ + / = -")
        self.sender, self.shipped = sender, ShippingCounts()
        self._host, self._port = host_and_port(url)
        self._tls = ssl.create_default_context(cafile=ca) if url.startswith("https:") else None
        if token and not self._tls and self._host not in LOOPBACK:
            _log.warning("sender %s: its token goes to %s in clear; use https://", sender, self._host)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._own_server = own_server and self._host in LOOPBACK
        self._events_before, self._after = events_before, after
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._session: int | None = None
        self._sequence = 0
        self._first = 0  # number of the batch that is the session's 0
        self._waiting: deque[tuple[int, Events]] = deque()
        self._buffer = buffer
        self._in_hand = False  # one batch is out of the buffer and not answered yet
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._conflict: str | None = None
        self._thread = threading.Thread(target=self._run, name=f"ingest-{sender}", daemon=True)
        self._thread.start()

    def __enter__(self) -> IngestClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, events: Events) -> None:
        """Give one batch (records of `EVENT`) to be shipped.

        Raises:
            SenderRefusedError: another sender uses this id; give each its own.
            ValueError: the array is no batch.
        """
        if events.dtype != EVENT or events.ndim != 1:
            raise ValueError(f"sender {self.sender}: a batch must be an array of records of EVENT")
        with self._changed:
            if self._conflict:
                raise SenderRefusedError(self._conflict)
            if len(self._waiting) >= self._buffer:
                self._waiting.popleft()
                self.shipped.dropped += 1
            self._waiting.append((self._sequence, events))
            self._sequence += 1
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every batch is answered; return False if the time ran out first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._conflict is not None or not (self._waiting or self._in_hand), timeout_s
            )

    @property
    def waiting(self) -> int:
        """Return the number of batches not answered yet."""
        with self._changed:
            return len(self._waiting) + self._in_hand

    def close(self, timeout_s: float = 5.0) -> None:
        """Ship the waiting batches for `timeout_s` at most, and end the thread; drops are reported."""
        self.flush(timeout_s)
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(self._timeout_s + LONGEST_PAUSE_S)
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
            self.shipped.dropped += left
        if left:
            _log.warning(
                "sender %s: closed with %d batches not shipped, its last: their loss shows as no gap",
                self.sender,
                left,
            )

    def _run(self) -> None:
        if self._after is not None:
            self._after.wait()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
                if self._closing.is_set():
                    return
                sequence, events = self._waiting.popleft()
                self._in_hand = True
            try:
                if not self._ship(sequence, events):
                    with self._changed:
                        self._waiting.appendleft((sequence, events))
            except SenderRefusedError as error:
                _log.error("%s", error)
                with self._changed:
                    self._conflict = str(error)
                    self.shipped.dropped += len(self._waiting) + 1
                    self._waiting.clear()
            except Exception:  # a mistake of ours costs this batch, not the thread and so all later ones
                _log.exception("batch %d of sender %s is given up", sequence, self.sender)
                self.shipped.dropped += 1
            finally:
                with self._changed:
                    self._in_hand = False
                    self._changed.notify_all()

    def _ship(self, number: int, events: Events) -> bool:
        """Send one batch until it is answered; return False when closed before."""
        if self._session is None:
            asked = (
                json.dumps({"events_before": self._events_before}).encode() if self._events_before else b""
            )
            answer = self._until_answered("sessions", asked, lambda said: type(said.get("session")) is int)
            if answer is None:
                return False
            if answer[0] not in TAKEN:
                raise SenderRefusedError(f"sender {self.sender}: {answer[1].get('error', answer)}")
            self._session = answer[1]["session"]
        sequence = number - self._first
        body = encode(BatchKey(self.sender, self._session, sequence), events)
        answer = self._until_answered("batches", body, lambda said: said.get("sequence") == sequence)
        if answer is None:
            return False
        if answer[1].get("reason") == "jump" and sequence:  # far too much was dropped: begin anew
            _log.warning("%s: in a new session", answer[1].get("error"))
            self._session, self._first, self._events_before = None, number, 0
            return self._ship(number, events)
        status, said = answer
        if status in TAKEN:
            self.shipped.accepted += 1
            self.shipped.duplicates += bool(said.get("duplicate"))
        elif said.get("reason") in ("two_senders", "session", "token"):
            raise SenderRefusedError(str(said.get("error")))
        else:
            self.shipped.refused += 1
            _log.error("batch %d of sender %s refused: %s", number, self.sender, said.get("error", status))
        return True

    def _until_answered(
        self, call: str, body: bytes, is_taken: Callable[[dict[str, Any]], bool]
    ) -> tuple[int, dict[str, Any]] | None:
        """Post again and again, ever more slowly, until the answer is final; return None when closed.

        Only the ingest says what it took or why it refused: Ray Serve's proxy answers 404 before it knows the
        application, and another program that has its port now may answer 200.
        """
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            asked_s = None
            try:
                status, said, asked_s = self._post(f"/v1/senders/{self.sender}/{call}", body)
                if is_taken(said) if status in TAKEN else said.get("reason") in REASONS:
                    return status, said
                line = f"{status} {said.get('error', '')}"
            except (OSError, http.client.HTTPException) as error:
                line = f"{type(error).__name__}: {error}"
            self._hang_up()  # the port may be another program's by the next try
            if self.shipped.retries == 0 or pause_s == LONGEST_PAUSE_S:
                _log.warning(
                    "sender %s: the ingest does not take batches (%s); trying again", self.sender, line
                )
            self.shipped.retries += 1
            self._closing.wait(max(asked_s or 0, pause_s * random.uniform(0.5, 1)))  # noqa: S311 - jitter
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return None

    def _post(self, path: str, body: bytes) -> tuple[int, dict[str, Any], float | None]:
        if self._connection is None:
            if self._own_server and stranger_listens(self._port):
                raise PermissionError(f"another user listens at port {self._port}, and is not told the token")
            self._connection = (
                http.client.HTTPSConnection(
                    self._host, self._port, timeout=self._timeout_s, context=self._tls
                )
                if self._tls
                else http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
            )
        self._connection.request("POST", path, body, self._headers)
        response = self._connection.getresponse()
        content = response.read()
        try:
            said = json.loads(content)
        except ValueError:  # an answer of Ray Serve itself
            said = content[:200].decode(errors="replace")
        if not isinstance(said, dict):
            said = {"error": said}
        later = response.headers.get("Retry-After", "")
        return response.status, said, min(float(later), LONGEST_PAUSE_S) if later.isdecimal() else None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
