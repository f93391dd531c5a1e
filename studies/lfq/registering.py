"""`swiftqueue lfq register`: a network of LFQ becomes a version of the registry, judged in the simulator."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.section import read
from swiftqueue.laboratory.runs import execution
from swiftqueue.models.networks.files import WEIGHTS_FILE
from swiftqueue.pipelines.simulators import PROJECT
from swiftqueue.studies.lfq.commands import PARAMS_FILE
from swiftqueue.studies.lfq.deployed import LfqRegisterParams
from swiftqueue.studies.lfq.flows import Flow, FlowDisc, Simulator, reward
from swiftqueue.studies.lfq.learning import KEPT
from swiftqueue.studies.lfq.settings import LfqSettings, load
from swiftqueue.studies.lfq.table import best_environments, learned, static
from swiftqueue.studies.lfq.weight_file import said_of

if TYPE_CHECKING:
    from swiftqueue.models.registry.bars import Verdict
    from swiftqueue.studies.lfq.gate import LimitScores

ONE_LIMIT: Final = "one limit for all"


class LimitJudge:
    """Rewards in environments that nothing was learned from, beside those of every static limit.

    Shapes: L discs, N environments.
    """

    def __init__(self, settings: LfqSettings, simulator: Simulator, alpha: float) -> None:
        """Simulate the static limits, if their runs are not kept yet."""
        self.simulator, self.alpha = simulator, alpha
        self.environments = [environment for _, environment in best_environments(settings)]
        static_LN = self.rewards([static(limit) for limit in settings.limits], "limits")
        self.best_N = static_LN.max(0)
        part_LN = static_LN / self.best_N
        self.one_limit_N: NDArray[np.float64] = part_LN[part_LN.mean(1).argmax()]

    def rewards(self, discs: Sequence[FlowDisc], what: str) -> NDArray[np.float64]:
        """Return the reward of each disc in each environment (L, N)."""
        flows = [Flow(environment, disc) for disc in discs for environment in self.environments]
        rows = self.simulator.run(flows, what).rows.select("bytes", "queue_mean").iter_rows()
        worth = [
            reward(received / flow.environment.seconds, queue, self.alpha)
            for flow, (received, queue) in zip(flows, rows, strict=True)
        ]
        return np.array(worth).reshape(len(discs), -1)

    def score(self, artifact: Path) -> LimitScores:
        """Judge the network of an artifact.

        Raises:
            ValueError: it is no such network, or learned with another alpha.
        """
        from swiftqueue.studies.lfq.gate import LimitScores
        from swiftqueue.studies.lfq.network import load as load_network

        _, about = load_network(artifact)
        if float(about["alpha"]) != self.alpha:
            raise ValueError(f"it learned with alpha {about['alpha']:g}, not {self.alpha:g}")
        return LimitScores(self.rewards([learned(artifact / WEIGHTS_FILE)], "network")[0] / self.best_N)


def register(weights: Path, overrides: list[str], output: Path) -> int:
    """Register a weight file of `lfq train` (or find it again), judge it, make it the challenger.

    Raises:
        OSError: the registry does not answer.
        ValueError: a key is wrong, nothing says how the network learned, or it cannot be judged.
    """
    from swiftqueue.models.registry.bars import decide
    from swiftqueue.models.registry.entering import enter, outcome_line
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import texts
    from swiftqueue.studies.lfq import gate
    from swiftqueue.studies.lfq.network import export_onnx, schema_hash, to_artifact

    settings, said = load(overrides), said_of(weights)
    section = read(PROJECT / PARAMS_FILE, LfqRegisterParams)
    if why := section.why_nothing():
        raise ValueError(why)
    with execution.sole_user(output), tempfile.TemporaryDirectory() as temporary:
        source = to_artifact(weights, Path(temporary) / "artifact")
        judged = LimitJudge(settings, Simulator(output.resolve() / KEPT), float(said["alpha"]))
        naive = {ONE_LIMIT: gate.LimitScores(judged.one_limit_N)}

        def judge(
            challenger: LimitScores, champion: LimitScores | None, why_not: str, reference: LimitScores | None
        ) -> Verdict:
            return decide(challenger, champion, naive, gate.gains, why_not=why_not, reference=reference)

        def metrics(scores: Mapping[str, LimitScores]) -> dict[str, float]:
            return {f"gate.{name}.part_of_best": one.mean for name, one in {**scores, **naive}.items()}

        entered = enter(
            Registry(section.model_name),
            source,
            score=judged.score,
            judge=judge,
            complete=export_onnx,
            tags={"schema_hash": schema_hash(), "protocol": "drawn environments", "source": weights.stem},
            params=texts({"lfq": _kept(said)}),
            metrics=metrics,
            headline=dict,
            reports=None,
            lock=PROJECT / "dvc.lock",
        )
    print(outcome_line(entered.record({"part": gate.MARGIN}, {})))
    return 0


def _kept(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that say how the network learned."""
    return {key: value for key, value in said.items() if key in ("rule", "alpha", "environments", "flows")}
