"""Pre-training of the event stream for the loop: the forecaster's, put into the form that is served.

One process does it. A run that is stopped begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from feature_store.events.definition import EVENTS
from feature_store.packets.schema import HORIZON, scan_packets
from models.architecture import EventStreamLoop
from models.forecasters.event_stream import trained
from models.forecasters.forecaster import Trace
from models.networks.event_window import served
from models.networks.loop_network import Pretrained
from models.training.calibration import calibrated
from models.training.windows import WindowSet


def pretrain(
    windows: WindowSet, packets: Path, params: EventStreamLoop, say: Callable[[str], None]
) -> Pretrained:
    """Train on the pre-training slices of all traces; each epoch is said in a line.

    Args:
        windows: whose traces and slices; of the definition `event-stream`.
        packets: packet tables by trace.
        params: sizes, and how.
        say: told of each epoch.

    Raises:
        ValueError: the windows are of another definition or size, or cannot be trained on.
    """
    tokens = params.reach + HORIZON
    if (windows.schema_hash, windows.tokens) != (EVENTS.schema_hash, tokens):
        raise ValueError(
            f"architecture.name is event-stream, and the windows are not of its {tokens} rows; "
            "run the stages `windows` and `split` again"
        )
    torch.set_num_threads(1)  # a model this small only loses by more
    parts = []
    for name, trace in windows.traces.items():
        table = scan_packets(packets, name).collect()
        parts.append(Trace(name, table, trace.slices, change=trace.change).to_learn(trace.pretrain))
        if len(parts[-1]) == 0:
            raise ValueError(f"trace {name}: its training slice holds no decision; use a longer protocol")
    found = trained(parts, params, params.seed, say)
    numbered: list[dict[str, Any]] = [{"epoch": n, **each} for n, each in enumerate(found.epochs, start=1)]
    return Pretrained(served(calibrated(found.model, found.past), params.served_level), numbered)
