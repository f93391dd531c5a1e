"""One round of fine-tuning inside a simulation: the program of simulation/ starts it now and then.

It does what stage `finetune` does for a round, on the run as far as it has come: packet table, windows,
labels that had been acknowledged by the round's end, and `models.finetuning` on the head. The last line
printed is the new artifact's folder. Without Ray: its start-up takes longer than the round.

Shapes: B windows of the run, W window tokens, F features, N windows of the round.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from feature_store import telemetry_off

if TYPE_CHECKING:
    from models.windows_data import TraceWindows

TRACE: Final = "s1"
PARAMS: Final = Path(__file__).resolve().parents[2] / "params.yaml"


def finetune_round(
    run: Path, span_ns: tuple[int, int], parent: Path, output: Path, params: Path = PARAMS
) -> str:
    """Fine-tune the parent's head on a span of a run, and write the artifact `output`.

    Args:
        run: folder with `truth.npy` and `trace.json` of the run from its beginning to the round's end.
        span_ns: first and last simulated time of the round's data.
        parent: artifact whose head is trained on.
        output: folder of the new artifact; it appears once it is whole.
        params: parameter file; its section `finetune` counts.

    Returns:
        A line about the round.

    Raises:
        ValueError: the artifact was made for other windows, or training diverged.
    """
    import torch

    from feature_store.windows import schema_hash
    from models import artifact
    from models.artifact import Artifact
    from models.examples import examples_of
    from models.finetuning import FinetuneParams, finetune_head
    from models.windows_data import Slice
    from pipelines.stage import load_params

    torch.set_num_threads(1)
    known = {field.name for field in fields(FinetuneParams)}
    settings = FinetuneParams(**load_params(params, "finetune", known))
    current: Artifact = artifact.load(parent, schema_hash())
    trace = _windows(run, current.description.tokens, span_ns)
    part = Slice(0, len(trace.decision_ns_B))
    if not np.isfinite(trace.labels_known_at(part, span_ns[1])).any():
        artifact.save(output, current.model, current.description)
        return "no latency known in the span: the head is kept"
    tuned = finetune_head(current.model, examples_of([(trace, part, span_ns[1])]), settings)
    artifact.save(output, tuned.model, current.description)
    return f"{len(part)} windows, loss {tuned.loss[0]:.4f} -> {tuned.loss[-1]:.4f}"


def _windows(run: Path, tokens: int, span_ns: tuple[int, int]) -> TraceWindows:
    """Return the windows decided within the span; the history before it is in them."""
    from feature_store import windows as fw
    from infra.lab.packet_table import packets_of
    from models.windows_data import Slice, TraceWindows

    packets = packets_of(run, TRACE)
    targets = fw.targets(packets)
    lo, hi = np.searchsorted(targets.decision_ns_B, span_ns).tolist()
    x_NWF = np.empty((hi - lo, tokens, len(fw.FEATURES)), np.float32)
    start = 0
    for part_BWF in fw.iter_windows(packets, tokens):
        here = slice(max(lo - start, 0), max(hi - start, 0))
        rows = part_BWF[here]
        at = max(start - lo, 0)
        x_NWF[at : at + len(rows)] = rows
        start += len(part_BWF)
        if start >= hi:
            break
    return TraceWindows(
        name=TRACE,
        x_BWF=x_NWF,
        y_us_BH=targets.y_BH[lo:hi],
        y_acked_ns_BH=targets.y_acked_ns_BH[lo:hi],
        decision_ns_B=targets.decision_ns_B[lo:hi],
        pretrain=Slice(0, 0),
        rounds=(),
    )


def main() -> None:
    """Run one round as the simulation's command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--from-ns", type=int, required=True)
    parser.add_argument("--to-ns", type=int, required=True)
    parser.add_argument("--artifact", type=Path, required=True)
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    telemetry_off.switch_off()
    try:
        said = finetune_round(
            arguments.run, (arguments.from_ns, arguments.to_ns), arguments.artifact, arguments.output
        )
    except (ValueError, OSError) as error:
        sys.exit(f"finetune round {arguments.round}: {error}")
    print(f"round {arguments.round}: {said}", flush=True)
    print(arguments.output.absolute(), flush=True)


if __name__ == "__main__":
    main()
