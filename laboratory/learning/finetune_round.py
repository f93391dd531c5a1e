"""One round of fine-tuning inside a simulation: the program of simulation/ starts it now and then.

The forecaster that answers in the simulation tunes its head on the packets of the run so far, by its own
`tuned`, as anywhere else: what had not been acknowledged by the round's end is not learned. The last line
printed is the new artifact's folder. Without Ray: its start-up takes longer than the round.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from swiftqueue.pipelines.simulators import PROJECT

TRACE: Final = "s1"
PARAMS: Final = PROJECT / "params.yaml"


def finetune_round(run: Path, span_ns: tuple[int, int], parent: Path, output: Path) -> str:
    """Fine-tune the parent's head on a span of a run, and write the artifact `output`.

    Args:
        run: folder with `truth.npy` and `trace.json` of the run from its beginning to the round's end.
        span_ns: first and last simulated time of the round's data.
        parent: artifact whose head is trained on.
        output: folder of the new artifact; it appears once it is whole.

    Returns:
        A line about the round.

    Raises:
        ValueError: the artifact is made for other inputs, or training diverged.
    """
    import torch

    from swiftqueue.common.atomic import new_folder
    from swiftqueue.common.section import read
    from swiftqueue.laboratory.learning.packet_table import packets_of
    from swiftqueue.models.forecasters.forecaster import load
    from swiftqueue.models.forecasters.traces import TracePart, decision_times
    from swiftqueue.models.networks.parameters import ALL
    from swiftqueue.models.sharp import change_of
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.models.training.protocol import Slice

    torch.set_num_threads(1)
    packets = packets_of(run, TRACE)
    first, last = np.searchsorted(decision_times(packets), span_ns)
    part = TracePart(TRACE, packets, Slice(int(first), int(last)), change=change_of(PARAMS)).to_learn()
    tuned = load(parent).tuned(part, read(PARAMS, FinetuneParams))
    with new_folder(output) as partial:
        tuned.export(partial, ALL)  # as many quantiles as it had
    known = int(np.isfinite(part.latencies_us()).sum())
    return f"{len(part)} decisions, {known} latencies" if known else "no latency is known: the head is kept"


def print_round(number: int, run: Path, span_ns: tuple[int, int], parent: Path, output: Path) -> None:
    """Do a round for the simulation that asked for it: a line about it, then the new artifact's folder.

    Raises:
        ValueError: as `finetune_round`; the line names the round.
    """
    try:
        said = finetune_round(run, span_ns, parent, output)
    except (ValueError, OSError) as error:
        raise ValueError(f"finetune round {number}: {error}") from None
    print(f"round {number}: {said}")
    print(output.absolute(), flush=True)
