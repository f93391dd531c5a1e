"""Write and read the files of any network: weights that can run no code, and its ONNX form.

Shapes: B batch, W window tokens, F features.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors

from swiftqueue.common.atomic import new_file

WEIGHTS_FILE: Final = "model.safetensors"
DESCRIPTION_FILE: Final = "model.json"
ONNX_FILE: Final = "model.onnx"
# The ONNX Runtimes of the embedded Triton and of recent official containers load this version.
ONNX_OPSET: Final = 18
ONNX_INPUT: Final = "window"
ONNX_OUTPUT: Final = "latency_us"


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the file is damaged.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; the folder is incomplete")
    try:
        tensors: dict[str, torch.Tensor] = parse_tensors(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path}: truncated or not a safetensors file ({error})") from error
    return tensors


def load_weights(folder: Path, model: torch.nn.Module) -> None:
    """Read the weights in a folder into a network of the same form, and switch its dropout off.

    Raises:
        FileNotFoundError: the file is missing.
        ValueError: the weights are damaged, of another form, or not finite.
    """
    path = folder / WEIGHTS_FILE
    state = read_tensors(path)
    check_state(state, model.state_dict(), path)
    model.load_state_dict(state)
    model.eval()


def write_onnx(folder: Path, model: torch.nn.Module, x_BWF: torch.Tensor, output: str) -> Path:
    """Write `model.onnx` of any network over windows shaped like `x_BWF`; B is free.

    Raises:
        ValueError: the exporter returned nothing.
    """
    import onnx

    with quiet("torch.onnx", "torch.utils.flop_counter"):
        program = torch.onnx.export(
            model,
            (x_BWF,),
            dynamo=True,
            opset_version=ONNX_OPSET,
            input_names=[ONNX_INPUT],
            output_names=[output],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            verbose=False,
        )
    if program is None:
        raise ValueError(f"{folder}: torch.onnx.export gave no program")
    with new_file(folder / ONNX_FILE) as partial:
        program.save(str(partial), external_data=False)
        onnx.checker.check_model(str(partial), full_check=True)
    return folder / ONNX_FILE


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppress the exporter's notes about packages that we do not use (torchvision, triton)."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():  # warnings about PyTorch's own calls
            warnings.simplefilter("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", "The tensor attributes .* were assigned during export")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def check_state(state: dict[str, torch.Tensor], expected: Mapping[str, torch.Tensor], path: Path) -> None:
    """Refuse weights that have unexpected names, shapes or types or are not finite; the line names one."""
    if missing := sorted(set(expected) - set(state)):
        raise ValueError(f"{path}: weight {missing[0]} is missing")
    if unknown := sorted(set(state) - set(expected)):
        raise ValueError(f"{path}: unknown weight {unknown[0]}")
    for name, value in state.items():
        if value.shape != expected[name].shape or value.dtype != expected[name].dtype:
            raise ValueError(
                f"{path}: weight {name} is {value.dtype} {tuple(value.shape)}, "
                f"expected {expected[name].dtype} {tuple(expected[name].shape)}"
            )
    check_finite(state, str(path))


def check_finite(state: Mapping[str, torch.Tensor], what: str) -> None:
    """Refuse a weight that is NaN or infinite; the line names it."""
    for name, value in state.items():
        if not torch.isfinite(value).all():
            raise ValueError(f"{what}: weight {name} holds NaN or infinity")
