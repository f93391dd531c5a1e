"""`swiftqueue lfq train`: limits learned from forks.

- `counterfactual`: a flow is forked into an arm for each of twelve limits, which then stay. The label of all
  that was seen of the flow is the best arm's limit.
- `offline` and `online`, the slides' rules: the network's own limit plus one and minus one. Offline both arms
  are run and the better one is learned. Online one is, and learned if it beats what a critic expected.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.laboratory.runs import execution
from swiftqueue.studies.lfq.flows import (
    LFQ,
    NO_LIMIT,
    Flow,
    FlowDisc,
    Simulator,
    best_limit,
    better_arm,
    drawn,
    reward,
)
from swiftqueue.studies.lfq.settings import LfqSettings, load
from swiftqueue.studies.lfq.weight_file import INPUTS, PACKETS

if TYPE_CHECKING:
    import torch

MODELS: Final = Path("models") / "lfq"
KEPT: Final = "lfq"
LITERAL_FROM: Final = 1_000_000  # numbers of the environments that the literal rules learn from
LITERAL: Final = ("offline", "online")
STATIC: Final = {"MaxSize": NO_LIMIT}


def train(overrides: list[str], output: Path) -> int:
    """Simulate and train; leaves `output/models/lfq/RULE-ALPHA.safetensors`, and a JSON beside each.

    Raises:
        ValueError: a key is wrong, or the program cannot be built.
    """
    settings = load(overrides)
    with execution.sole_user(output):
        simulator = Simulator(output.resolve() / KEPT)
        folder = output.resolve() / MODELS
        folder.mkdir(parents=True, exist_ok=True)
        forks = Forks(settings, simulator)
        for alpha in settings.alphas:
            counterfactual(settings, simulator, forks, alpha, folder)
        if settings.literal_flows:
            for alpha in settings.literal_alphas:
                for rule in LITERAL:
                    literal(settings, simulator, rule, alpha, folder)
    print(f"models: {output / MODELS}; `swiftqueue lfq table --artifact {output / MODELS}` judges them")
    return 0


class Forks:
    """All arms of all environments: what was seen, and what each arm's limit led to."""

    def __init__(self, settings: LfqSettings, simulator: Simulator) -> None:
        """Simulate what is not kept yet."""
        self.settings = settings
        flows, self.environments = [], []
        for number in range(settings.environments):
            environment, random = drawn(settings, number)
            fork_s = float(random.uniform(0, environment.seconds / 2))
            begin = round(
                math.exp(random.uniform(math.log(settings.limits[0]), math.log(settings.limits[-1])))
            )
            self.environments.append(environment)
            for arm, limit in enumerate(settings.limits):
                before = sorted(random.uniform(0, fork_s, settings.samples)) if arm == 0 else []
                behind = sorted(random.uniform(fork_s, environment.seconds, settings.samples))
                disc = FlowDisc(LFQ, {**STATIC, "FlowLimit": str(begin)})
                times = tuple(map(float, [*before, *behind]))
                flows.append(Flow(environment, disc, fork_s, limit, times_s=times))
        found = simulator.run(flows, "forks")
        arms = len(settings.limits)
        self.after = found.rows.select("after_s", "after_bytes", "after_queue_mean").to_numpy()
        self.after = self.after.reshape(-1, arms, 3)
        self.x_NF = [np.concatenate(found.inputs[i : i + arms]) for i in range(0, len(flows), arms)]

    def label(self, number: int, alpha: float) -> int:
        """Return the best arm's limit in an environment."""
        rewards = {
            limit: reward(received / seconds, queue, alpha)
            for limit, (seconds, received, queue) in zip(
                self.settings.limits, self.after[number], strict=True
            )
        }
        return best_limit(rewards, self.settings.tolerance)


def counterfactual(
    settings: LfqSettings, simulator: Simulator, forks: Forks, alpha: float, folder: Path
) -> Path:
    """Learn the best arms' limits; the epoch is chosen on environments that are not learned from."""
    import torch

    from swiftqueue.studies.lfq.network import make_network, save

    labels = np.array([forks.label(n, alpha) for n in range(settings.environments)])
    held = math.ceil(settings.environments * settings.validation)
    parts = {"train": range(held, settings.environments), "validation": range(held)}
    data: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, numbers in parts.items():
        told_NF = np.concatenate([forks.x_NF[n] for n in numbers])
        told_N = np.concatenate([np.full(len(forks.x_NF[n]), labels[n] / PACKETS) for n in numbers])
        seen = told_NF.any(axis=1)  # nothing had been decided yet, else
        data[name] = (torch.from_numpy(told_NF[seen]), torch.from_numpy(told_N[seen].astype(np.float32)))
    x_NF, y_N = data["train"]
    generator = torch.Generator().manual_seed(settings.seed)
    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    network = make_network()
    shift_F, scale_F = x_NF.mean(0), x_NF.std(0).clamp(min=1e-4)

    def error(x_BF: torch.Tensor, y_B: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = network((x_BF - shift_F) / scale_F)
        return (answer.squeeze(-1) - y_B).abs().mean()

    optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
    steps = settings.epochs * math.ceil(len(x_NF) / settings.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=steps)
    best, kept = math.inf, None
    for _ in range(settings.epochs):
        network.train()
        order = torch.randperm(len(x_NF), generator=generator)
        for first in range(0, len(order), settings.batch):
            chosen = order[first : first + settings.batch]
            _step(optimizer, error(x_NF[chosen], y_N[chosen]))
            schedule.step()
        with torch.no_grad():
            validated = float(error(*data["validation"])) * PACKETS
        if validated < best:
            best, kept = validated, {k: v.clone() for k, v in network.state_dict().items()}
    assert kept is not None  # noqa: S101 - there is an epoch
    network.load_state_dict(kept)
    fold(network, shift_F, scale_F)
    all_NF = np.concatenate([x for x in forks.x_NF])
    said = {
        "rule": "counterfactual",
        "alpha": alpha,
        "environments": settings.environments,
        "flows": settings.environments * len(settings.limits),
        "samples": len(x_NF),
        "validation_error_packets": best,
        "constant_error_packets": float((y_N.median() - data["validation"][1]).abs().mean()) * PACKETS,
        "label_mean_packets": {
            tcp: float(np.mean([v for v, e in zip(labels, forks.environments, strict=True) if e.tcp == tcp]))
            for tcp in settings.tcps
        },
        "program": simulator.name,
        "settings": settings.model_dump(),
    }
    return save(folder / f"counterfactual-{alpha:g}.safetensors", network, all_NF, said)


def literal(settings: LfqSettings, simulator: Simulator, rule: str, alpha: float, folder: Path) -> Path:
    """Learn by plus and minus one from the network's own limit, a batch of forks at a time."""
    import torch

    from swiftqueue.studies.lfq.network import make_network, save

    torch.manual_seed(settings.seed)
    torch.set_num_threads(1)
    network, critic = make_network(), make_network(INPUTS + 1)
    with torch.no_grad():
        last = [m for m in network if isinstance(m, torch.nn.Linear)][-1]
        last.bias.fill_(settings.literal_begin / PACKETS)
    optimizers = [
        torch.optim.SGD(n.parameters(), lr=settings.literal_learning_rate) for n in (network, critic)
    ]
    arms = 2 if rule == "offline" else 1
    batches = settings.literal_flows // (settings.literal_batch * arms)
    seen: list[NDArray[np.float32]] = []
    learned = 0
    now = folder / f".{rule}-{alpha:g}.safetensors"
    for batch in range(batches):
        # Inputs outside the range seen so far must not make it fall back: it has to try.
        save(now, network, np.array([[-1e6] * INPUTS, [1e6] * INPUTS], np.float32), {})
        flows = []
        for i in range(settings.literal_batch):
            environment, random = drawn(settings, LITERAL_FROM + batch * settings.literal_batch + i)
            fork_s = float(random.uniform(0, environment.seconds / 2))
            changes = (-1, 1) if rule == "offline" else (int(random.choice([-1, 1])),)
            disc = FlowDisc(LFQ, {**STATIC, "FlowLimit": str(settings.literal_begin)}, now)
            flows += [Flow(environment, disc, fork_s, change=change, times_s=(fork_s,)) for change in changes]
        found = simulator.run(flows, f"{rule}, alpha {alpha:g}, batch {batch + 1} of {batches}")
        x_AF = np.concatenate(found.inputs)
        limits = found.rows["fork_limit"].to_numpy()
        worth = np.array(
            [
                reward(received / seconds, queue, alpha)
                for seconds, received, queue in found.rows.select(
                    "after_s", "after_bytes", "after_queue_mean"
                ).iter_rows()
            ]
        )
        seen.append(x_AF)
        x_BF, y_B = x_AF[::arms], np.empty(settings.literal_batch)
        if rule == "offline":
            for i in range(settings.literal_batch):
                y_B[i] = better_arm(int(limits[2 * i]), worth[2 * i], worth[2 * i + 1])
        else:
            tried = np.array([limit + (flow.change or 0) for limit, flow in zip(limits, flows, strict=True)])
            asked = torch.from_numpy(np.column_stack([x_BF, tried / PACKETS]).astype(np.float32))
            expected = critic(asked).squeeze(-1)
            y_B[:] = np.where(worth > expected.detach().numpy(), tried, 2 * limits - tried)
            _step(optimizers[1], ((expected - torch.from_numpy(worth.astype(np.float32))) ** 2).mean())
        known = x_BF.any(axis=1)
        if known.any():
            answer = network(torch.from_numpy(x_BF[known])).squeeze(-1)
            label = torch.from_numpy((np.clip(y_B[known], 1, 1000) / PACKETS).astype(np.float32))
            _step(optimizers[0], (answer - label).abs().mean())
            learned += int(known.sum())
    now.unlink(missing_ok=True)
    now.with_suffix(".json").unlink(missing_ok=True)
    said = {
        "rule": rule,
        "alpha": alpha,
        "environments": batches * settings.literal_batch,
        "flows": batches * settings.literal_batch * arms,
        "samples": learned,
        "program": simulator.name,
        "settings": settings.model_dump(),
    }
    return save(folder / f"{rule}-{alpha:g}.safetensors", network, np.concatenate(seen), said)


def fold(network: torch.nn.Sequential, shift_F: torch.Tensor, scale_F: torch.Tensor) -> None:
    """Let the first layer take inputs as they are, where it learned from (x - shift) / scale."""
    import torch

    first = network[0]
    assert isinstance(first, torch.nn.Linear)  # noqa: S101 - as it was made
    with torch.no_grad():
        weight = first.weight.double() / scale_F.double()
        first.bias.copy_(first.bias.double() - weight @ shift_F.double())
        first.weight.copy_(weight)


def _step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
