"""A sender's side of the ingest: numbers its batches, sends them one after the other, and never blocks it."""

from __future__ import annotations

import http.client
import json
import logging
import random
import threading
import urllib.parse
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from feature_store.telemetry_events import EVENT_SCHEMA, REASONS, SENDER_NAME, BatchKey, encode

BUFFER_BATCHES: Final = 256  # a minute of batches of a quarter of a second
TIMEOUT_S: Final = 10.0
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
TAKEN: Final = (200, 201)  # a batch that is on the disk, a session that is open
_log = logging.getLogger(__name__)


class SenderRefusedError(RuntimeError):
    """The ingest takes no more batches from this client: another one uses its sender id, and came later."""


@dataclass
class Shipped:
    """What became of the batches given to a client."""

    accepted: int = 0
    duplicates: int = 0  # of those accepted: the ingest had it already, its answer had been lost
    refused: int = 0  # bad batches; sending them again would not help
    # The oldest, where the buffer was full: a gap in the sequence numbers; and what waited at the close.
    dropped: int = 0
    retries: int = 0


def host_and_port(url: str) -> tuple[str, int]:
    """Take an ingest's address apart.

    Raises:
        ValueError: it is not `http://HOST:PORT`.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"ingest address {url!r}: must be http://HOST:PORT")
    return parts.hostname, parts.port or 80


class IngestClient:
    """Ships a sender's batches in a thread of its own; `send` returns at once.

    Batches are numbered when they are given. While the ingest is away or busy the newest `buffer` batches
    wait; older ones are dropped and show as a gap in the store.
    """

    def __init__(
        self, url: str, sender: str, *, buffer: int = BUFFER_BATCHES, timeout_s: float = TIMEOUT_S
    ) -> None:
        if not SENDER_NAME.fullmatch(sender):
            raise ValueError(f"sender {sender!r}: must be 1 to 64 of A-Z a-z 0-9 . _ -")
        self.sender, self.shipped = sender, Shipped()
        self._host, self._port = host_and_port(url)
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None
        self._session: int | None = None
        self._sequence = 0
        self._waiting: deque[tuple[int, pa.RecordBatch]] = deque()
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

    def send(self, events: pa.RecordBatch) -> None:
        """Give one batch (`EVENT_SCHEMA`) to be shipped.

        Raises:
            SenderRefusedError: another sender uses this id; give each its own.
            ValueError: the batch has other columns.
        """
        if not events.schema.equals(EVENT_SCHEMA):
            raise ValueError(f"sender {self.sender}: a batch must have the columns of EVENT_SCHEMA")
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
        """Wait until every batch is answered; False if the time ran out first."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._conflict is not None or not (self._waiting or self._in_hand), timeout_s
            )

    @property
    def waiting(self) -> int:
        """Batches not answered yet."""
        with self._changed:
            return len(self._waiting) + self._in_hand

    def close(self, timeout_s: float = 5.0) -> None:
        """Ship what waits, for so long at most, and end the thread; what is left is dropped, and said."""
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

    def _ship(self, sequence: int, events: pa.RecordBatch) -> bool:
        """Send one batch until it is answered; False when closed before."""
        if self._session is None:
            path = f"/v1/senders/{self.sender}/sessions"
            answer = self._until_answered(path, b"", lambda said: type(said.get("session")) is int)
            if answer is None:
                return False
            if answer[0] not in TAKEN:
                raise SenderRefusedError(f"sender {self.sender}: {answer[1].get('error', answer)}")
            self._session = answer[1]["session"]
        body = encode(BatchKey(self.sender, self._session, sequence), events)
        answer = self._until_answered("/v1/batches", body, lambda said: said.get("sequence") == sequence)
        if answer is None:
            return False
        status, said = answer
        if status in TAKEN:
            self.shipped.accepted += 1
            self.shipped.duplicates += bool(said.get("duplicate"))
        elif said.get("reason") in ("two_senders", "session"):
            raise SenderRefusedError(str(said.get("error")))
        else:
            self.shipped.refused += 1
            _log.error("batch %d of sender %s refused: %s", sequence, self.sender, said.get("error", status))
        return True

    def _until_answered(
        self, path: str, body: bytes, is_taken: Callable[[dict[str, Any]], bool]
    ) -> tuple[int, dict[str, Any]] | None:
        """Post again and again, ever more slowly, until the answer is final; None when closed meanwhile.

        Only the ingest says what it took or why it refused: Ray Serve's proxy answers 404 before it knows the
        application, and whoever else has its port now may answer 200.
        """
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            asked_s = None
            try:
                status, said, asked_s = self._post(path, body)
                if is_taken(said) if status in TAKEN else said.get("reason") in REASONS:
                    return status, said
                line = f"{status} {said.get('error', '')}"
            except (OSError, http.client.HTTPException) as error:
                line = f"{type(error).__name__}: {error}"
            self._hang_up()  # the port may be another's by the next try
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
            self._connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        self._connection.request("POST", path, body, {"Content-Type": "application/vnd.apache.arrow.stream"})
        response = self._connection.getresponse()
        content = response.read()
        try:
            said = json.loads(content)
        except ValueError:  # from Ray Serve itself
            said = content[:200].decode(errors="replace")
        if not isinstance(said, dict):
            said = {"error": said}
        later = response.headers.get("Retry-After", "")
        return response.status, said, min(float(later), LONGEST_PAUSE_S) if later.isdecimal() else None

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
