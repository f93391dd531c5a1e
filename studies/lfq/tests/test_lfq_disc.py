"""LFQ: what it knows of a flow, what its network answers, how it learns, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cpp_suite import passed
from limit_weights import weight_file
from numpy.typing import NDArray

from swiftqueue.laboratory.report import verdict
from swiftqueue.pipelines.simulators import build_simulator
from swiftqueue.studies.lfq import judged, learning, table, verdicts
from swiftqueue.studies.lfq import network as limit_network
from swiftqueue.studies.lfq.flows import LFQ, NO_LIMIT, Flow, FlowDisc, FlowPath, Simulator

pytestmark = pytest.mark.slow  # ns-3 programs are compiled and run

SMALL = ["environments=6", "limits=[4, 16]", "epochs=2", "samples=1", "literal_flows=8", "literal_batch=2"]
TABLE = ["points=5", "best_environments=5", "limits=[4, 16]", "groups=5", "seconds=1.5"]


def test_its_parts_one_by_one() -> None:
    """The C++ suite: step response, clamps, when it asks, the limit, out of range, weight files."""
    assert passed("lfq-queue-disc-test") == 7


class Slowly:
    """A second, literal reading of testbed/router/lfq.h: every average from all samples, each time."""

    def __init__(self) -> None:
        self.queue: list[float] = []
        self.limit: list[float] = []
        self.arrived: list[int] = []
        self.departed: list[int] = []
        self.since: list[float] = []
        self.lost_ns = 0

    def arrive(self, ns: int, queue: int, limit: int) -> list[float]:
        if not self.arrived:
            self.lost_ns = ns
        self.arrived.append(ns)
        self.queue.append(queue)
        self.limit.append(min(limit, 1000))
        self.since.append(min((ns - self.lost_ns) * 1e-9, 10))
        averages = range(5, 15)
        return [
            *(average(self.queue, k) / 100 for k in averages),
            *(math.sqrt(self.variance(k)) / 100 for k in averages),
            *(average(self.limit, k) / 100 for k in averages),
            *(rate(self.arrived, k) / 1e4 for k in averages),
            *(rate(self.departed, k) / 1e4 for k in averages),
            *(average(self.since, k) / 10 for k in averages),
        ]

    def variance(self, k: int) -> float:
        means = [average(self.queue[: n + 1], k) for n in range(len(self.queue))]
        return average([(q - m) ** 2 for q, m in zip(self.queue, means, strict=True)], k)


def average(values: list[float], k: int) -> float:
    mean = 0.0
    for n, value in enumerate(values, 1):
        mean += max(1 / n, 2.0**-k) * (value - mean)
    return mean


def rate(times_ns: list[int], k: int) -> float:
    gaps = [(b - a) * 1e-9 for a, b in itertools.pairwise(times_ns)]
    mean = average(gaps, k)
    return 0.0 if not gaps else min(1 / mean, 1e6) if mean > 0 else 1e6


def test_inputs_are_those_of_a_literal_reading() -> None:
    program = build_simulator(program="lfq-parity")
    random = np.random.default_rng(7)
    lines, expected = [], []
    for _ in range(4):
        slowly, now = Slowly(), int(random.integers(0, 10**9))
        for _ in range(120):
            now += int(random.exponential(10.0 ** random.integers(3, 8)))
            kind = random.choice(["a", "a", "d", "l"])
            if kind == "a":
                queue, limit = int(random.integers(0, 200)), int(random.integers(1, 3000))
                lines.append(f"a {now} {queue} {limit}")
                expected.append(slowly.arrive(now, queue, limit))
            elif kind == "d":
                slowly.departed.append(now)
                lines.append(f"d {now}")
            elif slowly.arrived:
                slowly.lost_ns = now
                lines.append(f"l {now}")
        lines.append("")
    flows = "\n".join(lines).split("\n\n")
    found = []
    for flow in flows:
        done = subprocess.run(
            [program, "--events"], input=flow, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        found += [[float(word) for word in line.split()[1:]] for line in done]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


def a_network(folder: Path, *, answer: float | None = None) -> Path:
    return weight_file(folder / "counterfactual-10.safetensors", answer)


def test_answers_are_pytorchs(tmp_path: Path) -> None:
    import torch

    path = a_network(tmp_path)
    x_NF = np.random.default_rng(1).uniform(-1, 2, (300, 60)).astype(np.float32)
    given = "\n".join(" ".join(f"{float(x):.9g}" for x in row) for row in x_NF)
    program = build_simulator(program="lfq-parity")
    said = subprocess.run(
        [program, f"--weights={path}"], input=given, capture_output=True, text=True, check=True
    )
    found = np.array([line.split() for line in said.stdout.splitlines()], dtype=np.float64)
    loaded, _ = limit_network.load(limit_network.to_artifact(path, tmp_path / "artifact"))
    with torch.no_grad():
        answers = loaded(torch.from_numpy(x_NF)).squeeze(-1).numpy()
    np.testing.assert_allclose(found[:, 0], answers, rtol=1e-5, atol=1e-5)
    limits = np.clip(np.round(found[:, 0] * 100), 1, 1000)
    assert (found[:, 1] == limits).all()
    assert sum(p.numel() for p in limit_network.make_network().parameters()) == 147_457


def test_scaling_is_folded_into_the_first_layer() -> None:
    import torch

    torch.manual_seed(1)
    network = limit_network.make_network()
    x_BF, shift_F, scale_F = torch.randn(50, 60), torch.randn(60), torch.rand(60) + 0.1
    before = network((x_BF - shift_F) / scale_F)
    learning.fold(network, shift_F, scale_F)
    torch.testing.assert_close(network(x_BF), before, rtol=1e-4, atol=1e-5)


def environment(tcp: str = "new_reno", **changes: float) -> FlowPath:
    return replace(FlowPath(tcp, 15, 15, 4, 1), **changes)  # type: ignore[arg-type]


def static(limit: int) -> FlowDisc:
    return FlowDisc("swiftqueue::FairQueueDisc", {"MaxSize": NO_LIMIT, "FlowLimit": str(limit)})


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Simulator:
    return Simulator(tmp_path_factory.mktemp("kept"))


@pytest.mark.long
def test_full_use_needs_one_bdp_of_reno_and_less_of_bic(simulator: Simulator) -> None:
    """19 packets are one BDP of 15 Mbit/s and 15 ms; Reno halves its window, BIC keeps four fifths.

    Theory says that a quarter of a BDP is enough for BIC. With ns-3's recovery it is 93 %.
    """
    flows = [
        Flow(environment(tcp, seconds=8.0), static(limit), 3.0)
        for tcp in ("new_reno", "bic")
        for limit in (3, 5, 19)
    ]
    rows = simulator.run(flows, "static").rows
    use = (rows["after_bytes"] * 8 / rows["after_s"] / 15e6 * 1500 / 1446).to_numpy()
    reno, bic = use[:3], use[3:]
    assert reno[2] > 0.99
    assert reno[1] + 0.01 < bic[1] < 0.95  # a quarter of a BDP
    assert (np.diff(reno) > 0).all()


def test_arms_of_a_fork_share_what_was_before(simulator: Simulator, tmp_path: Path) -> None:
    """And the same line gives the same row; what is kept is read again."""
    lfq = FlowDisc(LFQ, {"MaxSize": NO_LIMIT, "FlowLimit": "30"}, a_network(tmp_path, answer=0.12))
    flows = [Flow(environment(), lfq, 2.0, change=change, times_s=(2.0, 3.0)) for change in (-1, 1)]
    found = simulator.run([*flows, flows[0]], "arms")
    less, more, again = found.inputs
    np.testing.assert_array_equal(less[0], more[0])
    assert (less[1] != more[1]).any()
    np.testing.assert_array_equal(less, again)
    assert found.rows["fork_limit"].to_list() == [12, 12, 12]
    assert found.rows["fallbacks"].to_list() == [0, 0, 0]
    assert found.rows.row(0) == found.rows.row(2) != found.rows.row(1)
    kept = simulator.run([*flows, flows[0]], "arms")
    assert kept.rows.equals(found.rows)


@pytest.mark.long
def test_training_the_table_and_its_verdicts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert learning.train(SMALL, tmp_path) == 0
    models = tmp_path / learning.MODELS
    names = ["counterfactual-0.01", "counterfactual-10", "offline-10", "online-10"]
    assert sorted(path.stem for path in models.glob("*.safetensors")) == names
    rules = ["LFQ counterfactual 0.01", "LFQ counterfactual 10", "FqCoDel"]
    with pytest.raises(ValueError, match=r"--controls: there is no rule 'fifo', there is LFQ counter"):
        table.run_table(str(models), ["fifo"], TABLE, tmp_path)
    assert table.run_table(str(models), rules, TABLE, tmp_path) == 0
    found = table.read(tmp_path)
    grid = found.filter(pl.col("study") == table.TABLE)
    assert grid.group_by("rule").len().sort("rule")["len"].to_list() == [20, 20, 20]
    assert (grid.filter(pl.col("rule") == "FqCoDel")["goodput_mbps"] > 1).all()
    again = table.run_table(str(models), rules, TABLE, tmp_path)
    assert again == 0
    assert table.read(tmp_path).equals(found)
    capfd.readouterr()
    for name, count in (("lfq-400", 4), ("lfq", 12 + 8)):  # 8 of the networks that no run had
        verdicts.print_verdicts(verdicts.of_scenario(name, tmp_path), as_json=True)
        said = json.loads(capfd.readouterr().out)
        assert len(said) == count
        assert all((one["at_most"] is None) != (one["at_least"] is None) for one in said)
        unmeasured = [one for one in said if one["measured"] is None]
        assert len(unmeasured) == (8 if name == "lfq" else 0)
        assert all(one["figure"].startswith(("LFQ offline: r of", "LFQ online: r of")) for one in unmeasured)
    (models / "offline-10.json").write_text("{}")
    with pytest.raises(ValueError, match=r"offline-10.safetensors: offline-10.json beside it does not say"):
        table.run_table(str(models), rules, TABLE, tmp_path)


def test_what_is_judged_is_what_the_rows_say() -> None:
    """Correlations, ratios and rewards of rows that are made by hand."""
    rows = [
        {
            **dict.fromkeys(table.SCHEMA),
            "study": table.BEST,
            "rule": rule,
            "tcp": "bic",
            "axis": "bandwidth",
            "mbps": mbps,
            "rtt_ms": 15.0,
            "seconds": 5.0,
            "group": group,
            "initial_window": 1,
            "goodput_mbps": goodput,
            "queue_mean": queue,
            "limit_mean": limit,
        }
        for group in range(5)
        for mbps in (5.0, 10.0)
        for rule, goodput, queue, limit in (
            ("LFQ counterfactual 10", mbps, 0.0, 2 * mbps),
            ("static 5", 2 * mbps, 0.0, 1.0),
            ("static 6", 2 * mbps, 100.0, 1.0),
        )
    ]
    made = pl.DataFrame(rows, schema=table.SCHEMA)
    rule = "LFQ counterfactual 10"
    assert judged.rules_of(made) == [rule]
    assert judged.correlation(made, rule, "bic", "bandwidth") == pytest.approx(dict.fromkeys(range(5), 1.0))
    assert judged.correlation(made, "static 5", "bic", "bandwidth") == dict.fromkeys(range(5), 0.0)
    assert judged.part_of_best(made, rule) == pytest.approx(dict.fromkeys(range(5), 0.5))
    ours, base = judged.mean_of(made, rule, "limit_mean"), judged.mean_of(made, rule, "goodput_mbps")
    assert judged.ratios(ours, base) == pytest.approx([2.0] * 5)
    finer = made.filter((pl.col("rule") != rule) | (pl.col("mbps") > 5))  # ours by another grid
    both = judged.beside(finer, rule, "static 5")
    assert set(both["mbps"]) == {10.0}
    assert both["rule"].value_counts().sort("rule")["count"].to_list() == [5, 5]
    at_least = verdict.judged("x", [1.0, 1.1, 1.2, 1.1, 1.0], at_least=0.9)
    assert at_least.verdict == verdict.HELD
    assert at_least.low is not None
    assert at_least.high is not None
    assert 0.9 < at_least.low < 1.08 < at_least.high
    assert verdict.judged("x", [1.0, 1.1, 1.2, 1.1, 1.0], at_least=2).verdict == verdict.NOT_HELD


@pytest.mark.parametrize(
    ("flow", "says"),
    [
        (Flow(environment("vegas"), static(5)), "there is no TCP vegas"),
        (
            Flow(environment(), FlowDisc(LFQ, {"Alpha": "1"})),
            "attributes.Alpha: swiftqueue::LfqQueueDisc has no",
        ),
        (Flow(environment(mbps=0.0), static(5)), "a number cannot be"),
    ],
)
def test_a_run_that_cannot_be(simulator: Simulator, flow: Flow, says: str) -> None:
    with pytest.raises(ValueError, match=f"line 1: {re.escape(says)}[^\n]*$"):
        simulator.run([flow], "wrong")


def test_weights_of_another_shape_are_one_line(simulator: Simulator, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = a_network(tmp_path)
    tensors: dict[str, NDArray[np.float32]] = load_file(path)
    tensors["layers.1.weight"] = tensors["layers.1.weight"][:100]
    save_file(tensors, path)
    says = f"{path}: tensor 'layers.1.weight' has the shape (100, 256), expected (256, 256)"
    with pytest.raises(ValueError, match=f"line 1: attributes.Weights: {re.escape(says)}$"):
        simulator.run([Flow(environment(), FlowDisc(LFQ, {}, path))], "wrong")
