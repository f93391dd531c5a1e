"""The reference sender in Python: it keeps the window, asks Triton for both queues, and meets its deadline.

    agent = SenderAgent(deadline_us=2_000)
    decision = agent.decide(first_packet, now_ns, sizes, flows, receivers, default_queues)
    agent.sent(packet, now_ns, size, flow, receiver, queue)     # for each packet, as it is sent
    agent.acked(packet, now_ns, latency_us)                     # for each first ACK

A batch that is not decided in time keeps its default marking and is counted by reason. A thread of its own
watches the served model, so a sender never waits for a question about the server.

Shapes: W window rows, F features of a row, H horizon (8 packets).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from swiftqueue.feature_store.events.event_window import EventWindow
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.serving.agent.bindings.controller import CLASSIC, L4S, QueueController
from swiftqueue.serving.triton.endpoint import connect, first_line, grpc_address
from swiftqueue.serving.triton.repository import MODEL
from swiftqueue.serving.triton.served_model import why_not_usable

WATCH_S: Final = 1.0  # seconds between looks at the served model
WATCH_AFTER_FAILURE_S: Final = 0.1  # seconds, doubled at each failure, up to WATCH_S
WATCH_TIMEOUT_S: Final = 1.0
FIRST_TOKENS: Final = 64  # size of the window until a model says its own
# gRPC's own reconnection waits up to two minutes; a sender wants a restarted server back at once.
CHANNEL: Final = [
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentDecision:
    """The decision about a batch: the queue of each packet, and the outcome."""

    outcome: str  # decided | late | error | no_model
    queues: tuple[int, ...]  # (H,): 0 classic, 1 l4s
    predicted_us: NDArray[np.float32] | None = None  # (2, H): classic, default queue
    version: int | None = None
    round_trip_us: float | None = None


@dataclass
class DecisionCounts:
    """Batches by outcome: batches = decided + late + failed."""

    batches: int = 0
    decided: int = 0
    late: int = 0
    error: int = 0
    no_model: int = 0
    stale: int = 0  # answers that came after their deadline and were dropped

    @property
    def failed(self) -> int:
        """Return the batches without a prediction for another reason than time."""
        return self.error + self.no_model


@dataclass
class _Request:
    """One question to Triton, shared with the thread that gets the answer."""

    done: threading.Event = field(default_factory=threading.Event)
    result: Any = None
    error: Any = None
    abandoned: bool = False


class SenderAgent:
    """One sender. One thread calls its methods; `close` ends it."""

    def __init__(self, *, deadline_us: int, address: str | None = None) -> None:
        """Connect in the background; nothing here waits for a server.

        Args:
            deadline_us: longest wait for a decision in µs of wall clock.
            address: `host:port` of Triton's gRPC service (default: the local stack's).

        Raises:
            ValueError: the deadline is not above zero.

        """
        if deadline_us <= 0:
            raise ValueError(f"deadline_us is {deadline_us}: must be above zero")
        self.address = address or grpc_address()
        self.counts = DecisionCounts()
        self.controller = QueueController()
        self.window = EventWindow(FIRST_TOKENS)
        self._deadline_s = deadline_us / 1e6
        self._client = connect(self.address, CHANNEL)
        self._lock = threading.Lock()  # guards the request in flight and counts.stale
        self._tokens: int | None = None  # W of the served model
        self._problem = ""
        self._closing = threading.Event()
        self._look_now = threading.Event()
        self._found = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="swiftqueue-watch", daemon=True)
        self._watcher.start()

    def __enter__(self) -> SenderAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watching thread and the connection."""
        self._closing.set()
        self._look_now.set()
        self._watcher.join()
        self._client.close()

    def wait_for_model(self, timeout_s: float) -> bool:
        """Wait until a served model is known (at start; a sender in service never needs to)."""
        return self._found.wait(timeout_s)

    @property
    def problem(self) -> str:
        """Return why no model is known, or why the last request failed; empty if all is well."""
        return self._problem

    def sent(
        self, packet: int, sent_ns: int, size_bytes: int, flow_id: int, receiver_id: int, queue: int
    ) -> None:
        """Log a packet as it is sent, with the queue it was marked for."""
        self.window.sent(packet, sent_ns, size_bytes, flow_id, receiver_id, queue)

    def acked(self, packet: int, acked_ns: int, latency_us: float | None) -> None:
        """Log the first ACK that covers a packet; the latency is None where it is unknown (Karn)."""
        self.window.acked(packet, acked_ns, latency_us)
        self.controller.acked(packet)

    def decide(
        self,
        first_packet: int,
        decision_ns: int,
        size_bytes: Sequence[int],
        flow_ids: Sequence[int],
        receiver_ids: Sequence[int],
        default_queues: Sequence[int],
    ) -> AgentDecision:
        """Choose the queues of the next 8 packets, within the deadline.

        Args:
            first_packet: number of the first one in send order.
            decision_ns: the present time in ns, on the clock of `sent` and `acked`.
            size_bytes: IP length of each packet, bytes.
            flow_ids: flow of each packet.
            receiver_ids: receiver of each packet.
            default_queues: 1 (l4s) for packets of L4S-capable flows, else 0.

        """
        begin = time.perf_counter()
        self.counts.batches += 1
        defaults = tuple(int(q) for q in default_queues)
        tokens = self._tokens
        if tokens is None:
            return self._keep_default("no_model", defaults, flow_ids)
        if tokens != self.window.tokens:
            # Another model size: its history starts anew, as the sender's would after a restart.
            self.window = EventWindow(tokens)
        columns = (size_bytes, flow_ids, receiver_ids)
        x_classic_WF, in_flight = self.window.window(decision_ns, *columns, [CLASSIC] * HORIZON)
        x_default_WF, _ = self.window.window(decision_ns, *columns, defaults)
        request = self._ask(np.stack([x_classic_WF, x_default_WF]), begin)
        if request is None:
            return self._keep_default("late", defaults, flow_ids)
        round_trip_us = (time.perf_counter() - begin) * 1e6
        try:
            predicted_us, version = _answer(request)
        except (triton.InferenceServerException, ValueError) as error:
            text = error.message() if isinstance(error, triton.InferenceServerException) else str(error)
            self._problem = first_line(text)
            self._look_now.set()  # another model, with another window, may be served now
            late = "Deadline Exceeded" in self._problem
            return self._keep_default("late" if late else "error", defaults, flow_ids)
        queues = self.controller.choose(
            first_packet, decision_ns, flow_ids, defaults, predicted_us, in_flight
        )
        self.counts.decided += 1
        return AgentDecision("decided", tuple(queues), predicted_us, version, round_trip_us)

    def _ask(self, x_2WF: NDArray[np.float32], begin: float) -> _Request | None:
        """Send the windows and wait; return None once the deadline has passed."""
        request = _Request()

        def answered(result: Any, error: Any) -> None:
            with self._lock:
                request.result, request.error = result, error
                if request.abandoned and error is None:
                    self.counts.stale += 1
                request.done.set()

        tensor = triton.InferInput("window", list(x_2WF.shape), "FP32").set_data_from_numpy(x_2WF)
        left_s = self._deadline_s - (time.perf_counter() - begin)
        if left_s > 0:
            try:
                self._client.async_infer(MODEL, [tensor], answered, client_timeout=left_s)
            except triton.InferenceServerException as error:
                request.error = error
                return request
            left_s = self._deadline_s - (time.perf_counter() - begin)
            if request.done.wait(max(left_s, 0.0)):
                return request
        with self._lock:
            if request.done.is_set():
                self.counts.stale += request.error is None
            request.abandoned = True
        return None

    def _keep_default(
        self, outcome: str, defaults: tuple[int, ...], flow_ids: Sequence[int]
    ) -> AgentDecision:
        setattr(self.counts, outcome, getattr(self.counts, outcome) + 1)
        self.controller.keep_default(flow_ids)
        return AgentDecision(outcome, defaults)

    def _watch(self) -> None:
        """Look at the served model, every second and after each failed request."""
        pause_s = WATCH_AFTER_FAILURE_S
        while not self._closing.is_set():
            try:
                config = self._client.get_model_config(MODEL, client_timeout=WATCH_TIMEOUT_S).config
                self._use(config)
                pause_s = WATCH_S
            except triton.InferenceServerException as error:
                # A known model stays in use: each request finds out by itself, and costs no wait when nobody
                # listens.
                self._note(f"{self.address}: {first_line(error.message())}")
                pause_s = min(pause_s * 2, WATCH_S)
            self._look_now.wait(pause_s)
            if self._look_now.is_set():
                self._closing.wait(WATCH_AFTER_FAILURE_S)  # no busy loop while requests fail
                self._look_now.clear()

    def _use(self, config: Any) -> None:
        if problem := why_not_usable(config):
            self._tokens = None
            self._note(f"{self.address}: {problem}")
            return
        self._tokens = int(config.input[0].dims[0])
        self._problem = ""
        self._found.set()

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            logger.warning("no prediction: %s", problem)
        self._problem = problem


def _answer(request: _Request) -> tuple[NDArray[np.float32], int]:
    """Return the predicted latencies (2, H) and the version, or raise the request's error."""
    if request.error is not None:
        raise request.error
    predicted_us = request.result.as_numpy("latency_us")
    if predicted_us is None or predicted_us.shape != (2, HORIZON):
        raise ValueError("the answer is not 2 x 8 latencies")
    if not (np.isfinite(predicted_us) & (predicted_us >= 0)).all():
        raise ValueError("the answer has a latency that is negative or not finite")
    return predicted_us, int(request.result.get_response().model_version)


__all__ = ["CLASSIC", "L4S", "AgentDecision", "DecisionCounts", "SenderAgent"]
