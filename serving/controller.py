"""The queue controller: for each packet, the queue with the lower predicted latency, with restraint.

Pure and free of I/O, so that the same rules can stand in C++ beside a kernel. The default marking of an
L4S-capable flow is the L4S queue; only its packets may be moved, and only to the classic queue.

Shapes: H horizon (8 packets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

CLASSIC: Final = 0  # numbers as in feature_store/window.h
L4S: Final = 1


@dataclass(frozen=True)
class ControllerParams:
    """How willingly packets change queues."""

    # Hysteresis: the other queue must be better by both margins, or a flow would alternate between queues
    # whose predictions differ by noise, and every change of queue may reorder its packets.
    margin_us: float = 1_000.0  # the L queue's marking step, RFC 9332 section 4.2
    margin_share: float = 0.1  # of the predicted latency in the flow's present queue
    # A burst moved on one prediction fills the queue it was moved to before its first ACK can say so.
    max_moved_unacked: int = 64  # packets moved and not yet acknowledged, of all flows
    give_up_ns: int = 2_000_000_000  # a moved packet without an ACK counts no longer (window.h: kGiveUpNs)

    def __post_init__(self) -> None:
        if self.margin_us < 0 or self.margin_share < 0 or self.max_moved_unacked < 0 or self.give_up_ns <= 0:
            raise ValueError(f"{self}: margins and limits must not be negative")


class QueueController:
    """Chooses queues batch by batch; remembers each flow's queue and the moved packets in flight."""

    def __init__(self, params: ControllerParams | None = None) -> None:
        self.params = params or ControllerParams()
        self._queue_of: dict[int, int] = {}
        self._moved: dict[int, int] = {}  # packet -> decision time, in send order

    @property
    def moved_unacked(self) -> int:
        """Packets moved to the classic queue and not acknowledged yet."""
        return len(self._moved)

    def choose(
        self,
        first_packet: int,
        now_ns: int,
        flow_ids: Sequence[int],
        default_queues: Sequence[int],
        predicted_us: NDArray[np.floating],
    ) -> list[int]:
        """Choose the queue of each packet of a batch.

        Args:
            first_packet: number of the batch's first packet in send order.
            now_ns: the decision time.
            flow_ids: flow of each packet, (H,).
            default_queues: L4S for packets of L4S-capable flows, else CLASSIC, (H,).
            predicted_us: latency in the classic (row 0) and in the default queue (row 1), (2, H).

        """
        self._forget(now_ns)
        chosen = []
        for i, (flow, default) in enumerate(zip(flow_ids, default_queues, strict=True)):
            queue = CLASSIC if default == CLASSIC else self._choose_one(int(flow), predicted_us[:, i])
            if default == L4S:
                self._queue_of[int(flow)] = queue
                if queue == CLASSIC:
                    self._moved[first_packet + i] = now_ns
            chosen.append(queue)
        return chosen

    def keep_default(self, flow_ids: Sequence[int]) -> None:
        """Note that a batch went out with its default marking, so its flows are in the L4S queue again."""
        for flow in flow_ids:
            self._queue_of.pop(int(flow), None)

    def acked(self, packet: int) -> None:
        """Note the first ACK that covers a packet."""
        self._moved.pop(packet, None)

    def _choose_one(self, flow: int, predicted_us: NDArray[np.floating]) -> int:
        present = self._queue_of.get(flow, L4S)
        stay_us, change_us = float(predicted_us[present]), float(predicted_us[1 - present])
        margin_us = max(self.params.margin_us, self.params.margin_share * stay_us)
        queue = 1 - present if stay_us - change_us > margin_us else present
        return L4S if len(self._moved) >= self.params.max_moved_unacked else queue

    def _forget(self, now_ns: int) -> None:
        while self._moved:
            oldest = next(iter(self._moved))
            if now_ns - self._moved[oldest] < self.params.give_up_ns:
                return
            del self._moved[oldest]
