"""Define boosted trees as a network over queries, so that they are stored, exported and served like one.

The rows of a decision's queries go in as they are, and the whole ensemble is the head. XGBoost fits the trees
(boosting.py); their splits and leaves become tensors here.

Shapes: B batch, W rows, F inputs of a row, H horizon (8 packets), P inputs of a query, T trees, N nodes of
the largest tree, M packets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from swiftqueue.models.networks.query_network import QueryNetwork
from swiftqueue.models.networks.scaling import SCALE_FLOOR, ScaledFeature, TargetScaling, transform_of

MOST_NODES: Final = 2**22  # nodes of all trees; memory for them is allocated before they are read
INDICES: Final = ("input_TN", "left_TN", "right_TN")  # buffers that are places in other arrays


@dataclass(frozen=True)
class TreesForm:
    """Sizes of an ensemble."""

    trees: int
    nodes: int  # number of nodes of the largest tree
    depth: int  # steps from a root to its deepest leaf

    def __post_init__(self) -> None:
        if min(self.trees, self.nodes) < 1 or self.depth < 0 or self.trees * self.nodes > MOST_NODES:
            raise ValueError(f"architecture {self} is not possible; there may be {MOST_NODES} nodes")
        if self.depth > self.nodes:
            raise ValueError(f"architecture {self} is not possible: trees are deeper than they have nodes")


class Ensemble(nn.Module):
    """The sum of trees' leaves: (…, P) gives (…), the log-latency in µs. A leaf leads to itself."""

    input_TN: Tensor
    left_TN: Tensor
    right_TN: Tensor
    first_T: Tensor

    def __init__(self, form: TreesForm) -> None:
        super().__init__()
        self.depth = form.depth
        shape = form.trees, form.nodes
        for name in INDICES:
            self.register_buffer(name, torch.zeros(shape, dtype=torch.int64))
        self.register_buffer("first_T", torch.arange(form.trees) * form.nodes, persistent=False)
        self.below_TN = nn.Parameter(torch.zeros(shape), requires_grad=False)  # smaller inputs go left
        self.leaf_TN = nn.Parameter(torch.zeros(shape), requires_grad=False)
        self.base = nn.Parameter(torch.zeros(1), requires_grad=False)

    def forward(self, x_QHP: Tensor) -> Tensor:
        """Return log-latencies (…) of raw queries (…, P)."""
        x_MP = x_QHP.reshape(-1, x_QHP.shape[-1])
        input_n, below_n, left_n, right_n = (
            each.reshape(-1) for each in (self.input_TN, self.below_TN, self.left_TN, self.right_TN)
        )
        at_MT = self.first_T.expand(x_MP.shape[0], -1)
        for _ in range(self.depth):
            here_MT = torch.gather(x_MP, 1, input_n[at_MT])
            at_MT = self.first_T + torch.where(here_MT < below_n[at_MT], left_n[at_MT], right_n[at_MT])
        return (self.leaf_TN.reshape(-1)[at_MT].sum(1) + self.base).reshape(x_QHP.shape[:-1])


class QueryTrees(QueryNetwork):
    """Boosted trees over the queries of raw rows, the last H."""

    sizes: TreesForm

    def __init__(
        self,
        event_inputs: Sequence[ScaledFeature],
        query_inputs: Sequence[ScaledFeature],
        target: TargetScaling,
        sizes: TreesForm,
        quantiles: Sequence[float] = (),
    ) -> None:
        """Make trees without splits, to be filled; there are no inputs of events and no quantiles.

        Raises:
            ValueError: there are inputs of events, or quantiles.
        """
        if event_inputs or quantiles:
            raise ValueError("trees see no events, and give one latency")
        super().__init__((), query_inputs, target, 1, None)
        self.sizes = sizes
        self.head: Any = Ensemble(sizes)

    def encode(self, x_BWF: Tensor) -> Tensor:
        """Return the queries (B, H, P) of raw rows (B, W, F)."""
        return x_BWF[:, -self.horizon :, self.query_columns]

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Fill the trees.

        Raises:
            ValueError: a split leads out of its tree, or asks for an input that there is none of.
        """
        for name in INDICES:
            most = len(self.query_inputs) if name == "input_TN" else self.sizes.nodes
            places = state_dict[f"head.{name}"]
            if int(places.min()) < 0 or int(places.max()) >= most:
                raise ValueError(f"weight head.{name} has a place beyond the {most} that there are")
        return super().load_state_dict(state_dict, strict, assign)


def network_of(model: Mapping[str, Any], names: Sequence[str], units: Sequence[str]) -> QueryTrees:
    """Return the network of trees that XGBoost wrote as JSON; `names` are the inputs that they see.

    An input's scaling is that of its thresholds. The trees do not use it: by it the check of a served version
    makes rows that fall on both sides of the splits.
    """
    learner = model["learner"]
    grown = learner["gradient_booster"]["model"]["trees"]
    nodes = max(len(tree["left_children"]) for tree in grown)
    # Where all latencies are alike, each tree is its root: one step leads from there to itself.
    form = TreesForm(len(grown), nodes, max(1, *map(_depth, grown)))
    state = {name: np.zeros((form.trees, form.nodes), np.int64) for name in INDICES}
    floats = {name: np.zeros((form.trees, form.nodes), np.float32) for name in ("below_TN", "leaf_TN")}
    thresholds: dict[int, list[float]] = {}
    for t, tree in enumerate(grown):
        left = np.array(tree["left_children"])
        n, leaf, own = len(left), left < 0, np.arange(len(left))
        conditions = np.array(tree["split_conditions"], np.float32)
        state["left_TN"][t, :n] = np.where(leaf, own, left)
        state["right_TN"][t, :n] = np.where(leaf, own, np.array(tree["right_children"]))
        state["input_TN"][t, :n] = np.where(leaf, 0, np.array(tree["split_indices"]))
        floats["below_TN"][t, :n] = np.where(leaf, 0, conditions)
        floats["leaf_TN"][t, :n] = np.where(leaf, conditions, 0)
        for place, value in zip(np.array(tree["split_indices"])[~leaf], conditions[~leaf], strict=True):
            thresholds.setdefault(int(place), []).append(float(value))
    base = float(str(learner["learner_model_param"]["base_score"]).strip("[]"))
    inputs = [
        _scaled(*named, thresholds.get(p, [])) for p, named in enumerate(zip(names, units, strict=True))
    ]
    network = QueryTrees((), inputs, TargetScaling("log"), form)
    arrays = {**state, **floats, "base": np.array([base], np.float32)}
    network.load_state_dict({f"head.{name}": torch.from_numpy(each) for name, each in arrays.items()})
    network.eval()
    return network


def _depth(tree: Mapping[str, Any]) -> int:
    depth = np.zeros(len(tree["left_children"]), int)
    for node, children in enumerate(zip(tree["left_children"], tree["right_children"], strict=True)):
        for child in children:  # children come after their parents
            if child >= 0:
                depth[child] = depth[node] + 1
    return int(depth.max())


def _scaled(name: str, unit: str, thresholds: Sequence[float]) -> ScaledFeature:
    values = np.array(thresholds, np.float64)
    transform = transform_of(unit)
    if transform == "identity" or not values.size:
        return ScaledFeature(name, unit)
    logs = np.log1p(np.maximum(values, 0))
    scale = max(float(logs.std()), SCALE_FLOOR)
    return ScaledFeature(name, unit, transform, round(float(logs.mean()), 6), round(scale, 6))


NETWORK: Final = (TreesForm, QueryTrees)
