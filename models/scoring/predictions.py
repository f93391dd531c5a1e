"""Hold the walk-forward predictions of every method on every test slice of a trace.

Round K of a trace fine-tunes the head on the slice before its test slice. Its head answers once the round has
ended, as for a real sender; until then an earlier head answers. All methods have the visibility `acked`.

Shapes: `B` decisions, `H` horizon (8 packets).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.feature_store.packets.truth import Waits
from swiftqueue.models.scoring import baselines
from swiftqueue.models.scoring.metrics import Bools, Floats, Ints
from swiftqueue.models.sharp import PAPERS, Change
from swiftqueue.models.training.protocol import EvaluationProtocol

FINETUNED, PRETRAINED = "finetuned", "pretrained"  # the model, and the model without fine-tuning (ablation)
AT_ONCE: Final = "finetuned_at_once"  # the model as if a round took no time
TREES, TREES_CONTINUED = "xgboost", "xgboost_continued"
EWMA: Final = "ewma"
VIRTUAL_QUEUE, VIRTUAL_QUEUE_ONLINE = "virtual_queue", "virtual_queue_online"
VIRTUAL_QUEUES: Final = (VIRTUAL_QUEUE, VIRTUAL_QUEUE_ONLINE)  # its rates fitted, and estimated online
BASELINES: Final = (TREES, TREES_CONTINUED, *VIRTUAL_QUEUES, EWMA, *baselines.LAST_VISIBLE)
METHODS: Final = (FINETUNED, AT_ONCE, PRETRAINED, *BASELINES)
SEND_GAP: Final = "send_gap"  # gives only a direction, so it has only a sharp-change score


@dataclass
class TracePredictions:
    """Predictions of all test slices of one trace, in send order, by method."""

    trace: str
    protocol: EvaluationProtocol
    round_B: Ints
    head_B: Ints  # round whose head answered; -1: the head of pre-training
    decision_ns_B: Ints
    y_BH: Floats
    flow_BH: NDArray[np.int64]
    last_flow_BH: Floats  # last visible latency of the packet's flow; 0: none
    gap_BH: NDArray[np.int8]  # direction by the send-gap rule
    us_BH: dict[str, Floats] = field(default_factory=dict)
    change: Change = PAPERS  # least change of latency that counts
    waits: Waits | None = None  # waits of the packets predicted, (B * H,); None: unknown
    classic_BH: dict[str, Bools] = field(default_factory=dict)  # packets for which a method prefers classic
