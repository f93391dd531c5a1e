"""Weight files of LFQ's network for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def weight_file(path: Path, answer: float | None = None) -> Path:
    """Write one whose network always answers the same (hundreds of packets); None: as it was drawn."""
    import torch

    from swiftqueue.studies.lfq import network
    from swiftqueue.studies.lfq.weight_file import INPUTS

    torch.manual_seed(3)
    made = network.make_network()
    if answer is not None:
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.zero_()
            last = made[-1]
            assert isinstance(last, torch.nn.Linear)
            last.bias.fill_(answer)
    everything = np.array([[-1e6] * INPUTS, [1e6] * INPUTS], np.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    return network.save(path, made, everything, {"rule": "x", "alpha": 10})
