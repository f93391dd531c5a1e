"""Make the ONNX network of a fine-tuned artifact from its parent's by replacing the head's weights.

An export takes PyTorch seconds, and fine-tuning changes only two linear layers of the graph. The result
equals a whole export bit for bit, as a test shows, and each push still compares it with PyTorch's answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.atomic import new_file
from swiftqueue.models.networks import artifact
from swiftqueue.models.networks.files import ONNX_FILE

if TYPE_CHECKING:
    from swiftqueue.models.networks.artifact import Artifact

HEAD: Final = "head."


def export_onnx(folder: Path, parent: Path) -> Path:
    """Write `model.onnx` beside the weights, from `parent`'s where the two differ only in the head.

    Any other artifact, or a parent whose head is not found in its network, is exported whole.
    """
    ours, theirs = artifact.load(folder), artifact.load(parent)
    if not (parent / ONNX_FILE).is_file() or not artifact.same_but_head(ours.model, theirs.model):
        return artifact.export_onnx(folder)
    import onnx

    network = onnx.load(str(parent / ONNX_FILE))
    if not put_head(network, _head(theirs), _head(ours)):
        return artifact.export_onnx(folder)
    with new_file(folder / ONNX_FILE) as partial:
        onnx.save(network, str(partial))
    return folder / ONNX_FILE


def put_head(
    network: Any, before: dict[str, NDArray[np.float32]], after: dict[str, NDArray[np.float32]]
) -> bool:
    """Replace the head's tensors in a network; if one is not found, replace nothing and return False.

    The exporter keeps a tensor under its own name, or folds its transposition into a nameless one.
    """
    from onnx import numpy_helper

    by_name = {initializer.name: initializer for initializer in network.graph.initializer}
    replaced = []
    for name, old in before.items():
        if name in by_name and np.array_equal(numpy_helper.to_array(by_name[name]), old):
            replaced.append((by_name[name], after[name]))
            continue
        folded = [
            initializer
            for initializer in by_name.values()
            if list(initializer.dims) == list(old.T.shape)
            and np.array_equal(numpy_helper.to_array(initializer), old.T)
        ]
        if len(folded) != 1:
            return False
        replaced.append((folded[0], after[name].T))
    for initializer, values in replaced:
        new = numpy_helper.from_array(np.ascontiguousarray(values), initializer.name)
        initializer.CopyFrom(new)
    return True


def _head(loaded: Artifact) -> dict[str, NDArray[np.float32]]:
    state = loaded.model.state_dict()
    return {name: value.numpy() for name, value in state.items() if name.startswith(HEAD)}
