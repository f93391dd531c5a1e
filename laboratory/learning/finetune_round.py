"""One round of fine-tuning inside a simulation: the program of simulation/ starts it now and then.

It does what stage `finetune` does for a round, on the run as far as it has come: packet table, windows,
labels that had been acknowledged by the round's end, and `models.training.finetuning` on the head. The last
line printed is the new artifact's folder. Without Ray: its start-up takes longer than the round.

Shapes: B windows of the round, H horizon (8 packets).
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from pipelines.simulators import PROJECT

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
        ValueError: the artifact was made for other windows, or training diverged.
    """
    import torch

    from feature_store.events.windows import build_windows, schema_hash
    from laboratory.learning.packet_table import packets_of
    from models.networks import artifact
    from models.section import read
    from models.sharp import change_of
    from models.training.examples import examples_from_arrays
    from models.training.finetuning import FinetuneParams, finetune_head

    torch.set_num_threads(1)
    params = read(PARAMS, FinetuneParams)
    current = artifact.load(parent, schema_hash())
    windows = build_windows(packets_of(run, TRACE), current.description.tokens, span_ns=span_ns)
    y_BH = windows.known_at(span_ns[1])
    if not np.isfinite(y_BH).any():
        artifact.save(output, current.model, current.description)
        return "no latency known in the span: the head is kept"
    examples = examples_from_arrays(windows.x_BWF, y_BH, change_of(PARAMS))
    tuned = finetune_head(current.model, examples, params)
    artifact.save(output, tuned.model, current.description)
    return f"{len(y_BH)} windows, loss {tuned.loss[0]:.4f} -> {tuned.loss[-1]:.4f}"


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
