"""Make networks over windows forecasters: SwiftQueue's Transformer and a BiLSTM; trees.py has the trees.

Shapes: B decisions, W window tokens, F features, H horizon (8 packets).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from swiftqueue.feature_store.events.event_stream import AS_SENT
from swiftqueue.models.forecasters.forecaster import Forecaster, Say, check_made_for
from swiftqueue.models.forecasters.search import LogRange
from swiftqueue.models.forecasters.traces import Floats, TracePart
from swiftqueue.models.networks.files import WEIGHTS_FILE, check_finite, load_weights, quiet
from swiftqueue.models.networks.parameters import check_heads
from swiftqueue.models.networks.prediction import HeadInputs, latencies
from swiftqueue.models.networks.scaling import (
    ScaledFeature,
    TargetScaling,
    TargetTransform,
    fit_features,
    fit_target,
)
from swiftqueue.models.sharp import Change
from swiftqueue.models.training.head import FinetuneParams, with_tuned_head
from swiftqueue.models.window.network import Architecture, BiLstm, Readout, Transformer
from swiftqueue.models.window.training import Examples, TrainingParams, encoded, train
from swiftqueue.models.window.trees import WindowTrees
from swiftqueue.models.window.windows import (
    UNITS,
    Windows,
    bdp_packets,
    input_names,
    schema_hash,
    tokens_for,
    windows_of,
)

FIT_WINDOWS: Final = 4096  # evenly spaced windows for fitting the scaling; more would not change the result
FEED_FORWARD: Final = 4  # multiple of the width (Vaswani et al. 2017, table 3; the paper's 256 for 64)
TOKENS: Final = (64, 256)  # least and most tokens of a window that is sized from the traces


class WindowParams(TrainingParams):
    """Form and sizes of the Transformer, and parameters of its training and tuning."""

    section: ClassVar = "window"
    tokens: Annotated[int, Field(ge=16, le=4096, multiple_of=8)] | None = None
    """Number of packets in a window; null: 1.5 bandwidth-delay products of the training slices."""
    inputs: list[str]
    """Inputs of a token, by name (models/window/windows.py); an empty list means all."""
    more_inputs: Annotated[list[str], Field(default_factory=list)]
    """Further inputs of a token from the event log, by name (docs/EVENTS.md), as of its sending."""
    layers: Annotated[int, Field(ge=1, le=16)]
    """Number of encoder layers."""
    width: Annotated[int, Field(ge=1, le=1024)]
    """Width of each token in the network; the feed-forward layers are four times as wide."""
    heads: Annotated[int, Field(ge=1, le=64)]
    """Number of attention heads, which must divide the width."""
    target: TargetTransform
    """Quantity that the loss takes: the latency, or its logarithm."""
    readout: Readout
    """Tokens from which the latencies are read: each candidate's own, or the last one, as in the paper."""
    anchor: str | None
    """Name of a visible latency that the network corrects; null: none, as in the paper."""
    head_dropout: Annotated[float, Field(ge=0, lt=1)]
    """Probability of dropout between the head's two layers in training; the paper's is 0.2."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check_heads(self.section, self.width, self.heads)
        if self.anchor is not None and self.anchor not in self.names:
            line = f"{self.section}.anchor is {self.anchor!r}; it must be a text or null, one of its inputs"
            raise ValueError(line)
        return self

    @property
    def names(self) -> list[str]:
        """Return the names of a token's inputs."""
        return input_names(self.inputs, self.more_inputs)

    def sizes(self) -> Architecture:
        """Return the form and sizes of the network."""
        return Architecture(
            width=self.width,
            heads=self.heads,
            feed_forward=FEED_FORWARD * self.width,
            layers=self.layers,
            head_dropout=self.head_dropout,
            readout=self.readout,
            anchor=self.anchor,
        )


class WindowForecaster(Forecaster):
    """A forecaster with the Transformer over windows."""

    Params = WindowParams
    search: ClassVar = {
        "noam_factor": LogRange(0.05, 0.8),
        "weight_decay": LogRange(1e-6, 1e-3),
        "batch_size": (32, 64, 128),
        "warmup_steps": (100, 300, 1000),
    }
    Network: ClassVar[type[Transformer]] = Transformer

    def __init__(self, model: Transformer, params: WindowParams, tokens: int) -> None:
        """Take a trained network and the size of its windows."""
        self.model, self.params, self.tokens = model.eval(), params, tokens

    @classmethod
    def fit(cls, parts: Sequence[TracePart], params: WindowParams, seed: int, say: Say) -> Self:
        """Train on the earlier part of each slice; the last tenth chooses the epoch."""
        learnt, held_out = zip(*(part.held_out() for part in parts), strict=True)
        tokens = params.tokens or tokens_for(max(bdp_packets(part.packets) for part in learnt), *TOKENS)
        examples, validation = (
            Examples.of(
                [(windows_of(each, tokens, params.names), each.latencies_us(), each.change) for each in some]
            )
            for some in (learnt, held_out)
        )
        spaced_N = np.unique(np.linspace(0, len(examples) - 1, FIT_WINDOWS).astype(np.int64))
        units = [UNITS[name] for name in params.names]
        features = fit_features(examples.gather(spaced_N), params.names, units)
        torch.manual_seed(seed)
        model = cls.Network(features, fit_target(examples.y_us_NH, params.target), params.sizes())
        train(model, examples, validation, params, seed, say)
        return cls(model, params, tokens)

    def encode(self, part: TracePart, queue: int = AS_SENT) -> HeadInputs:
        """Return the head's inputs for a part's decisions."""
        return encoded(self.model, self.windows(part, queue))

    def answer(self, encoded: HeadInputs) -> Floats:
        """Return latencies in µs (B, H)."""
        return latencies(self.model, encoded)

    def tuned_on(
        self,
        encoded: HeadInputs,
        came_BH: Floats,
        change: Change,
        how: FinetuneParams,
        starts: Sequence[int] = (),
    ) -> Self:
        """Train the head alone, with the alpha of the whole training."""
        alpha = how.model_copy(update={"sharp_weight": self.params.sharp_weight})
        return with_tuned_head(self, encoded, came_BH, change, alpha, starts)

    def windows(self, part: TracePart, queue: int = AS_SENT) -> Windows:
        """Return the windows of a part's decisions, as the network sees them."""
        return windows_of(part, self.tokens, self.params.names, queue)

    def multiply_adds(self) -> int:
        """Return the multiply-adds of a batch that PyTorch executes: a window for each queue."""
        with quiet("torch.utils.flop_counter"):
            from torch.utils.flop_counter import FlopCounterMode

        # PyTorch counts an LSTM's products only in double precision, and those of attention only as MATH.
        model = copy.deepcopy(self.model).double()
        x_BWF = torch.zeros(2, self.tokens, len(model.features), dtype=torch.double)
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(x_BWF)
        last = len(x_BWF) * model.sizes.horizon * model.sizes.width  # the head's last sums
        return int(counter.get_total_flops() // 2 + last)

    def write(self, folder: Path) -> dict[str, Any]:
        """Write the weights; no file can run code."""
        state = {name: value.detach().contiguous() for name, value in self.model.state_dict().items()}
        check_finite(state, str(folder))
        save_file(state, folder / WEIGHTS_FILE)
        return {
            "params": self.params.model_dump(),
            "inputs": [asdict(each) for each in self.model.features],
            "target": asdict(self.model.target),
            "schema_hash": _made_for(self.params),
            "tokens": self.tokens,
        }

    @classmethod
    def read(cls, folder: Path, described: Mapping[str, Any]) -> Self:
        """Read the weights."""
        params = cls.Params(**described["params"])
        check_made_for(described, _made_for(params))
        inputs = [ScaledFeature(**each) for each in described["inputs"]]
        model = cls.Network(inputs, TargetScaling(**described["target"]), params.sizes())
        load_weights(folder, model)
        return cls(model, params, int(described["tokens"]))


class BiLstmParams(WindowParams):
    """Sizes of the BiLSTM, and the parameters of its training and tuning."""

    section: ClassVar = "bilstm"

    @model_validator(mode="after")
    def _width_is_even(self) -> Self:
        if self.width % 2:
            raise ValueError(f"{self.section}.width is {self.width}; it must be even")
        return self


class BiLstmForecaster(WindowForecaster):
    """A forecaster with the BiLSTM over windows."""

    Params = BiLstmParams
    Network = BiLstm


FORECASTERS: Final = {
    "window": WindowForecaster,
    "bilstm": BiLstmForecaster,
    "window-trees": WindowTrees,
}


def _made_for(params: WindowParams) -> str:
    """Return the hash of the definition of a token's inputs: windows', and events' if it has them."""
    return schema_hash(with_events=bool(params.more_inputs))
