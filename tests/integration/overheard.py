"""A socket before the agent's that overhears, or stands in for it: what was decided is known to the test.

python overheard.py PATH QUEUES    # an agent that decides so, as 01101001, until it is killed
"""

from __future__ import annotations

import select
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from agent_program import split_frames

from swiftqueue.serving.agent.io import frames


def _read(one: socket.socket) -> bytes:
    with suppress(ConnectionResetError):  # it ended with words of ours unread
        return one.recv(1 << 16)
    return b""


def _hand_on(data: bytes, to: socket.socket) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; what the other said is still here
        to.sendall(data)


class Overheard:
    """A socket before the agent's, which hands everything on both ways and keeps what the agent says.

    Without an agent behind it, it is one: it greets, and decides each batch by `queues`.
    """

    def __init__(self, path: Path, agent: Path | None = None, queues: tuple[int, ...] = ()) -> None:
        self.said = b""
        self.heard = b""
        self._new = b""  # not answered yet
        self._queues = queues
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._agent = agent
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        far: socket.socket | None = None
        if self._agent is not None:
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._agent))
        while ready := select.select([near, *([far] if far else [])], [], [])[0]:
            for one in ready:
                if not (data := _read(one)):
                    return
                if one is far:
                    self.said += data
                    _hand_on(data, near)
                    continue
                self.heard += data
                if far:
                    _hand_on(data, far)
                    continue
                self._new += data
                asked = split_frames(self._new)
                self._new = self._new[sum(int(frame["bytes"]) for frame in asked) :]
                answer = b"".join(map(self._answer, asked))
                self.said += answer
                _hand_on(answer, near)

    def _answer(self, frame: Any) -> bytes:
        if frame["type"] == 1:
            return frames.hello("agent").tobytes()
        if frame["type"] != 4:
            return b""
        decision = frames.blank(frames.DECISION)
        decision["first_packet"], decision["queues"] = frame["first_packet"], self._queues
        return decision.tobytes()

    def join(self, timeout_s: float | None = 20) -> None:
        """Wait until all is heard that a sender said which has ended."""
        self._thread.join(timeout_s)

    def decided(self) -> dict[int, int]:
        """Queue that was decided for each packet."""
        return {
            int(frame["first_packet"]) + i: int(queue)
            for frame in split_frames(self.said)
            if frame["type"] == 5 and frame["outcome"] == 0
            for i, queue in enumerate(frame["queues"])
        }

    def frames(self) -> list[Any]:
        """Frames that the sender wrote."""
        return list(split_frames(self.heard))

    def sent(self) -> dict[int, int]:
        """Codepoint that the sender said of each packet."""
        return {int(f["packet"]): int(f["ecn"]) for f in self.frames() if f["type"] == 2}

    def acked(self) -> list[int]:
        """Packets that the sender said were acknowledged."""
        return [int(f["packet"]) for f in self.frames() if f["type"] == 3]


if __name__ == "__main__":
    agent = Overheard(Path(sys.argv[1]), queues=tuple(map(int, sys.argv[2])))
    print("ready", flush=True)
    agent.join(None)
