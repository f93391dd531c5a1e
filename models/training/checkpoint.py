"""Write and read checkpoints of a training job, as safetensors and JSON, so that nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

MODEL_FILE: Final = "model.safetensors"
BEST_FILE: Final = "best.safetensors"
OPTIMIZER_FILE: Final = "optimizer.safetensors"
PROGRESS_FILE: Final = "progress.json"


def save_checkpoint(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    best: Mapping[str, Tensor],
    progress: Mapping[str, Any],
) -> None:
    """Write the weights, the best weights so far, the optimizer's state and the progress."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()}, folder / MODEL_FILE)
    save_file({k: v.detach().contiguous() for k, v in best.items()}, folder / BEST_FILE)
    # The optimizer numbers its parameters in the order of model.parameters().
    moments = {
        f"{index}.{name}": value.detach().contiguous()
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
    }
    save_file(moments, folder / OPTIMIZER_FILE)
    (folder / PROGRESS_FILE).write_text(json.dumps(dict(progress)))


def load_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Restore weights and optimizer state; return the best weights so far and the progress."""
    model.load_state_dict(load_file(folder / MODEL_FILE))
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in load_file(folder / OPTIMIZER_FILE).items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return load_file(folder / BEST_FILE), read_progress(folder)


def read_progress(folder: Path) -> dict[str, Any]:
    """Return the progress that a checkpoint was saved with."""
    progress: dict[str, Any] = json.loads((folder / PROGRESS_FILE).read_text())
    return progress
