"""Networks over windows: those of the loop (models/loop/) and the paper's.

Training is that of the stage `pretrain`, on one core; tuning that of the stage `finetune`.

Shapes: B decisions, W window tokens, K = W - H of history, F features, M inputs of events, H horizon (8
packets), N packets.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from feature_store.events.definition import WINDOW
from feature_store.events.event_stream import AS_SENT, INPUTS, Events, as_asked, event_schema_hash
from feature_store.events.windows import FEATURES, HORIZON, bdp_packets, iter_windows, schema_hash, tokens_for
from models.forecasters.forecaster import Floats, Forecaster, Part, Say
from models.forecasters.queries import QUERY_INPUTS, replayed
from models.forecasters.torch_files import read_inputs, write_network
from models.networks.files import load_weights, quiet
from models.networks.loop_network import named, names
from models.networks.prediction import predict
from models.networks.scaling import ScaledFeature, Target, fit_features, fit_target
from models.networks.transformer import Predictor
from models.networks.window_network import WindowNetwork
from models.search import Between
from models.section import Above0, Count, near
from models.sharp import sharp_changes
from models.training.examples import Examples, examples_from_arrays
from models.training.finetuning import Finetuned, FinetuneParams, finetune_head
from models.training.pretraining import (
    Pretrainer,
    PretrainParams,
    ScaledPrediction,
    epoch_line,
)
from models.training.protocol import Slice

NAMED: Final = {"transformer": "window"}  # names in forecasters.yaml that models/loop/ has not
FIT_WINDOWS: Final = 4096  # evenly spaced windows that the scaling is fitted on
TOKENS: Final = (64, 256)  # least and most of a window
SHARED: Final = {each.name for each in QUERY_INPUTS}
NUMBERED: Final = 2**24  # whole numbers up to here are exact in float32


def _kind(name: str) -> type[Predictor]:
    """Class of a network over windows.

    Raises:
        ValueError: there is none of that name.
    """
    over_windows = [each for each in names() if named(each).definition is WINDOW]
    if name not in (known := [*NAMED, *over_windows]):
        raise ValueError(f"it must be one of {', '.join(known)}")
    return cast("type[Predictor]", named(NAMED.get(name, name)).network())


def _known(name: str) -> str:
    _kind(name)
    return name


class WindowParams(PretrainParams):
    """Form and sizes of a network over windows, how it is trained, and how its head is tuned."""

    section: ClassVar = "window"
    seed: Annotated[int, Field(ge=0)] = 0
    """Not read: the command says which."""
    workers: Literal[1] = 1
    """One core: so that all forecasters are trained alike."""
    tokens: Annotated[int, Field(ge=16, le=4096, multiple_of=8)] | None = None
    """Packets of a window; none given: sized from the bandwidth-delay product of the training slices."""
    network: Annotated[str, AfterValidator(_known)]
    """What stands between the inputs and the head: a network of models/loop/; `transformer`: its `window`."""
    left_out: Annotated[list[str], Field(max_length=0, default_factory=list)]
    """None: `inputs` says which there are."""
    inputs: list[str]
    """Inputs of a token, by name (docs/WINDOWS.md); none named: all."""
    more_inputs: Annotated[list[str], Field(default_factory=list)]
    """Inputs of the event log that a token has besides, by name (docs/EVENTS.md): as of its sending."""
    head_dropout: Annotated[float, Field(ge=0, lt=1)]
    """In training, between the head's two layers: the paper has 0.2."""
    head_epochs: Count
    """Passes over a fine-tuning slice."""
    head_batch_size: Count
    """Windows of a step of fine-tuning."""
    head_learning_rate: Above0
    """Of Adam, of the head alone."""

    @model_validator(mode="after")
    def _inputs_are_there(self) -> Self:
        found = input_names(self.inputs, self.more_inputs)
        if self.anchor is not None and self.anchor not in found:
            raise ValueError(f"anchor is {self.anchor!r}; it must be one of its inputs, or null")
        return self


class WindowForecaster(Forecaster):
    """A network over windows."""

    Params = WindowParams
    search: ClassVar = {
        "noam_factor": Between(0.05, 0.8),
        "weight_decay": Between(1e-6, 1e-3),
        "batch_size": (32, 64, 128),
        "head_learning_rate": Between(1e-4, 1e-2),
    }

    def __init__(self, model: WindowNetwork, params: WindowParams, tokens: int) -> None:
        """Take a trained network and the size of its windows."""
        self.model, self.params, self.tokens = model.eval(), params, tokens
        self.tuning: Finetuned | None = None  # of the head, where it was tuned just now

    @classmethod
    def fit(cls, parts: Sequence[Part], params: WindowParams, seed: int, say: Say) -> Self:
        """Train on the earlier part of each slice; the last tenth chooses the epoch."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        tokens = params.tokens or tokens_for(max(bdp_packets(part.packets) for part in learnt), *TOKENS)
        names = input_names(params.inputs, params.more_inputs)
        train, validation = (_examples(some, tokens, names) for some in (learnt, held_out))
        shown = train.gather(np.unique(np.linspace(0, len(train) - 1, FIT_WINDOWS).astype(np.int64)))
        units = {each.name: each.unit for each in QUERY_INPUTS} | {each.name: each.unit for each in FEATURES}
        features = fit_features(shown, names, [units[name] for name in names])
        torch.manual_seed(seed)
        model = _network(features, fit_target(train.y_us_NH, params.target), params)
        how = PretrainParams(**{**params.model_dump(include=set(PretrainParams.model_fields)), "seed": seed})
        trainer = Pretrainer(model, ScaledPrediction(model), train, validation, how)
        trainer.run(lambda record: say(epoch_line(record).removeprefix("pretrain: ")))
        return cls(model, params, tokens)

    def tuned(self, part: Part) -> Self:
        """Train the head alone on cached outputs of the encoder."""
        came_BH = part.latencies_us()
        if not np.isfinite(came_BH).any():
            return self
        how = FinetuneParams(
            seed=1,
            workers=1,
            epochs=self.params.head_epochs,
            batch_size=self.params.head_batch_size,
            learning_rate=self.params.head_learning_rate,
            sharp_weight=self.params.sharp_weight,
        )
        examples = examples_from_arrays(self._windows(part), came_BH, part.change)
        other = copy.copy(self)
        other.tuning = finetune_head(self.model, examples, how)
        other.model = other.tuning.model
        return other

    def predict(self, part: Part, queue: int = AS_SENT) -> Floats:
        """Latencies in µs (B, H)."""
        return predict(self.model, self._windows(part, queue))

    def multiply_adds(self) -> int:
        """Of a batch: a window for each queue. Those that PyTorch executes."""
        with quiet("torch.utils.flop_counter"):
            from torch.utils.flop_counter import FlopCounterMode

        # An LSTM is plain products in double precision, attention by MATH.
        model = copy.deepcopy(self.model).double()
        x_BWF = torch.zeros(2, self.tokens, len(model.features), dtype=torch.double)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(x_BWF)
        last = len(x_BWF) * model.sizes.horizon * model.sizes.width  # of the head: no matrix product
        return int(counter.get_total_flops() // 2 + last)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights."""
        inputs = {"token": self.model.features}
        described = write_network(folder, self.model, self.model.target, inputs, _made_for(self.params))
        return {**described, "tokens": self.tokens}

    @classmethod
    def read(cls, folder: Path, params: WindowParams, described: Mapping[str, Any]) -> Self:
        """Read the weights."""
        inputs, target = read_inputs(described, _made_for(params))
        model = _network(inputs["token"], target, params)
        load_weights(folder, model)
        return cls(model, params, int(described["tokens"]))

    def _windows(self, part: Part, queue: int = AS_SENT) -> Floats:
        names = input_names(self.params.inputs, self.params.more_inputs)
        return windows_of(part, self.tokens, names, queue)


FORECASTERS: Final = {"window": WindowForecaster}


def input_names(wanted: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """Inputs of a token by name; none wanted: all of windows. Those of the event log come after them.

    Raises:
        ValueError: a name is no input, or is named twice.
    """
    known = [feature.name for feature in FEATURES]
    if wrong := [name for name in wanted if name not in known]:
        raise ValueError(f"inputs names {wrong[0]!r}, which no window has; {near(wrong[0], known)}")
    if wrong := [name for name in more if name not in SHARED or name in known]:
        others = sorted(SHARED - set(known))
        raise ValueError(f"more_inputs names {wrong[0]!r}, which no query adds; {near(wrong[0], others)}")
    found = [*(wanted or known), *more]
    if twice := [name for place, name in enumerate(found) if name in found[:place]]:
        raise ValueError(f"inputs names {twice[0]!r} twice")
    return found


def _made_for(params: WindowParams) -> str:
    """Hash of what defines a token's inputs: windows, and events where it has inputs of theirs."""
    if not params.more_inputs:
        return schema_hash()
    return hashlib.sha256(f"{schema_hash()} {event_schema_hash()}".encode()).hexdigest()


def _network(features: Sequence[ScaledFeature], target: Target, params: WindowParams) -> Predictor:
    model = _kind(params.network)(features, target, params.sizes(HORIZON))
    # In the place of the ReLU alone: names of weights stay as they are.
    model.head[1] = nn.Sequential(nn.ReLU(), nn.Dropout(params.head_dropout))
    return model


def windows_of(part: Part, tokens: int, names: Sequence[str], queue: int = AS_SENT) -> Floats:
    """Windows (B, W, F) of a part's decisions, with the inputs named.

    Raises:
        ValueError: an input is of the event log, and the part ends beyond packet 2^24.
    """
    known = [feature.name for feature in FEATURES]
    own = [name for name in names if name in known]
    x_BWF = np.zeros((len(part), tokens, len(names)), np.float32)
    _show(part, part.packets, own, x_BWF[..., : len(own)])
    as_they_are = (queue, part.told) == (AS_SENT, "all")
    if as_they_are and len(own) == len(names):
        return x_BWF
    found = replayed(part, queue)
    if not as_they_are:
        x_BWF[:, -HORIZON:, : len(own)] = as_asked(x_BWF[:, -HORIZON:, : len(own)], own, found)
    if len(own) < len(names):
        _add_events(x_BWF[..., len(own) :], part, names[len(own) :], found)
    return x_BWF


def _show(part: Part, packets: pl.DataFrame, names: Sequence[str], x_BWF: Floats) -> None:
    """Write inputs of the windows that a part's decisions have of a packet table."""
    chosen = [[feature.name for feature in FEATURES].index(name) for name in names]
    done = 0
    for some_BWF in iter_windows(packets, x_BWF.shape[1], part.visibility, first=part.decisions.lo):
        here = some_BWF[: len(part) - done, :, chosen]
        x_BWF[done : done + len(here)] = here
        done += len(here)
        if done == len(part):
            break


def _shown_packets(part: Part, tokens: int) -> NDArray[np.int64]:
    """Number of the packet that each history token of a part's windows is of, (B, K); -1: padding.

    The definition of a window chooses them, and by no size. So here a packet's size is its number.
    """
    if part.decisions.hi * HORIZON > NUMBERED:
        raise ValueError(f"trace {part.trace}: inputs of events reach no window beyond packet {NUMBERED}")
    numbered = part.packets.with_columns(size_bytes=pl.col("packet").cast(pl.Int32) + 1)
    x_BW1 = np.zeros((len(part), tokens, 1), np.float32)
    _show(part, numbered, ["size_bytes"], x_BW1)
    return x_BW1[:, :-HORIZON, 0].astype(np.int64) - 1


def _add_events(x_BWM: Floats, part: Part, names: Sequence[str], found: Events) -> None:
    """Write inputs of the event log into windows: a token's of its SEND, a candidate's of its query."""
    places = [[each.name for each in INPUTS].index(name) for name in names]
    sent_NM = found.x_EF[~found.ack_E][:, places]
    packet_BK = _shown_packets(part, x_BWM.shape[1])
    real_BK = packet_BK >= 0
    x_BWM[:, :-HORIZON][real_BK] = sent_NM[packet_BK[real_BK]]
    x_BWM[:, -HORIZON:] = found.x_DHF[..., places]


def _examples(parts: Sequence[Part], tokens: int, names: Sequence[str]) -> Examples:
    windows = [windows_of(part, tokens, names) for part in parts]
    came = [part.latencies_us() for part in parts]
    if not any(np.isfinite(came_BH).any() for came_BH in came):
        raise ValueError("no latency is known in a training slice")
    return Examples(
        tuple((x_BWF, Slice(0, len(x_BWF))) for x_BWF in windows),
        np.concatenate(came),
        np.concatenate([sharp_changes(each, part.change) for each, part in zip(came, parts, strict=True)]),
    )
