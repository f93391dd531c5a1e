"""Checks from Triton's configuration whether a sender can ask the model that a server serves.

The C++ agent makes the same check and prints the same line (serving/agent/predictors/usable_model.h).
"""

from __future__ import annotations

from typing import Any, Final

from tritonclient.grpc.model_config_pb2 import TYPE_FP32

from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.feature_store.events.event_window import check_tokens
from swiftqueue.feature_store.packets.schema import HORIZON
from swiftqueue.models.networks.parameters import why_old

WINDOWS: Final = 2  # windows of a question: one for each candidate queue


def why_not_usable(config: Any) -> str:
    """Return why event windows made here do not fit this model (`ModelConfig`); empty if they do."""
    theirs = _schema_hash(config)
    if old := why_old("", theirs):
        return f"the served model {old}"
    if theirs != EVENTS.schema_hash:
        ours = EVENTS.schema_hash[:12]
        return f"the served model takes features {theirs[:12] or '?'}, this sender makes {ours}"
    features = len(EVENTS.features)
    inputs = [tensor for tensor in config.input if _is(tensor, "window", 2)]
    others = [tensor for tensor in config.input if tensor.name != "window" and not tensor.optional]
    if others or not inputs or not _takes_windows(*inputs[0].dims, wanted=features):
        return f"the served model does not take FP32 windows [tokens, {features}]"
    if not any(_is(tensor, "latency_us", 1) and tensor.dims[0] == HORIZON for tensor in config.output):
        return f"the served model does not answer with FP32 latency_us [{HORIZON}]"
    if config.max_batch_size < WINDOWS:
        return f"the served model takes fewer than {WINDOWS} windows in a request"
    return ""


def _is(tensor: Any, name: str, dims: int) -> bool:
    return bool(tensor.name == name and tensor.data_type == TYPE_FP32 and len(tensor.dims) == dims)


def _schema_hash(config: Any) -> str:
    return str(config.parameters["schema_hash"].string_value) if "schema_hash" in config.parameters else ""


def _takes_windows(tokens: int, features: int, *, wanted: int) -> bool:
    try:
        check_tokens(tokens)
    except ValueError:
        return False
    return features == wanted
