"""One round of fine-tuning inside a simulation: the program of simulation/ starts it now and then.

The forecaster that answers in the simulation tunes its head on the packets of the run so far, by its own
`tuned`, as anywhere else: what had not been acknowledged by the round's end is not learned. The last line
printed is the new artifact's folder. Without Ray: its start-up takes longer than the round.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pipelines.simulators import PROJECT

if TYPE_CHECKING:
    from models.forecasters.event_stream import EventStream
    from models.networks.event_window import EventWindowPredictor

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

    from feature_store.events.definition import EVENTS
    from laboratory.learning.packet_table import packets_of
    from models.forecasters.forecaster import Part, decision_times
    from models.networks import artifact
    from models.networks.event_window import EventWindowPredictor
    from models.sharp import change_of
    from models.training.protocol import Slice

    torch.set_num_threads(1)
    current = artifact.load(parent, EVENTS.schema_hash)
    assert isinstance(current.model, EventWindowPredictor)  # noqa: S101 - the engine runs no other
    packets = packets_of(run, TRACE)
    first, last = np.searchsorted(decision_times(packets), span_ns)
    part = Part(TRACE, packets, Slice(int(first), int(last)), change=change_of(PARAMS)).to_learn()
    forecaster = _forecaster(current.model)
    known = int(np.isfinite(part.latencies_us()).sum())
    current.model.head.load_state_dict(forecaster.tuned(part).plain.head.state_dict())
    artifact.save(output, current.model, current.description)
    return f"{len(part)} decisions, {known} latencies" if known else "no latency is known: the head is kept"


def _forecaster(model: EventWindowPredictor) -> EventStream:
    """Return the forecaster whose network is served in that form; its head is tuned as `finetune` says."""
    from models.architecture import EventStreamLoop
    from models.forecasters.event_stream import EventStream, EventStreamParams
    from models.forecasters.queries import EVENT_INPUTS, QUERY_INPUTS
    from models.networks.event_transformer import EventPredictor
    from models.section import read
    from models.training.finetuning import FinetuneParams

    names = [feature.name for feature in model.features]
    seen_of_events, seen_of_queries = ({each.name for each in rows} for rows in (EVENT_INPUTS, QUERY_INPUTS))
    events = [each for each in model.features if each.name in seen_of_events]
    queries = [each for each in model.queries if each.name in seen_of_queries]
    network = EventPredictor(events, queries, model.target, model.sizes, model.quantiles)
    state = model.state_dict()
    for layer, seen in (("send", events), ("ack", events), ("ask_about", queries)):
        columns = [names.index(each.name) for each in seen]
        state[f"{layer}.weight"] = state[f"{layer}.weight"][:, columns]
    network.load_state_dict(state)
    how = read(PARAMS, FinetuneParams)
    trained = read(PARAMS, EventStreamLoop).model_dump(include=set(EventStreamParams.model_fields))
    head = {
        "head_epochs": how.epochs,
        "head_batch_size": how.batch_size,
        "head_learning_rate": how.learning_rate,
        "sharp_weight": how.sharp_weight,
    }
    # The network itself says which quantiles it gives.
    plain: dict[str, Any] = {"quantiles": [], "calibration": None, "left_out": []}
    return EventStream(network, EventStreamParams(**trained | asdict(model.sizes) | plain | head))


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
