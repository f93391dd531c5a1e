"""Measure a forecast of a connection's rate from its first n samples, beside PyTorch and ONNX Runtime.

A network of the default sizes with random weights answers the same made-up flows: n samples of tcp_info in,
six rates out, on one thread, in turn. The engine is timed in C++, the references around their Python call;
that costs them a few us. ONNX Runtime computes 35 samples, as it is served. The engine keeps a flow's state,
so that an ACK costs one token: `each ACK` is the last one alone, where PyTorch computes all n.

Then the agent is told of samples at its socket, with the engine inside or a Triton behind it, and times
itself from the arrival of the fifth to its answer. A program in Python beside it counts which answers came
within the flow's least round trip, of 10 to 300 ms.

Last, short downloads of this machine's kernel over a path of 40 ms: from the fifth ACK, by the kernel's own
clock, until the flow's forecast is in the map that the congestion control reads.

Shapes: S samples, F fields, H horizons.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks.rows import Row, UnsupportedMachineError

if TYPE_CHECKING:
    from models.networks.scaling import ScaledFeature
    from studies.rate.engine import RateEngine
    from studies.rate.model.network import RateNetwork

CALLS: Final = 400  # calls per round and contestant
FLOWS: Final = 64  # flows on which agreement is measured
LARGEST: Final = 1e-5  # largest relative difference of the engine from PyTorch; more is no answer
SEED: Final = 1
ASKED: Final = 5  # samples that the agent forecasts from
AGENT_CALLS: Final = 200  # calls per round and door
WANTED_US: Final = 150.0  # microseconds allowed from an ACK to its answer
ANSWER_S: Final = 10.0
KERNEL_FLOWS: Final = 25  # downloads per round
KERNEL_BYTES: Final = 50_000  # bytes of each download: 35 packets
KERNEL_GAP_S: Final = 0.05
RATE_MBPS: Final = 50.0
RTT_MS: Final = 40.0
DOORS: Final = {"engine": "engine in the agent", "triton": "Triton behind the agent"}
Raw = npt.NDArray[np.int64]
Times = npt.NDArray[np.float64]


def measure(rounds: int) -> list[Row]:
    """Return the medians over `rounds` of each round's median, and the agreement.

    Raises:
        ValueError: the engine or ONNX Runtime answers otherwise than PyTorch.
        ImportError: the engine is not built.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from studies.rate.engine import RateEngine
    from studies.rate.model import networks
    from studies.rate.samples.definition import PREFIXES

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as temporary, torch.inference_mode():
            flows, folder = made_up_flows(), Path(temporary) / "network"
            networks.save(folder, make_network(flows), {})
            network, _ = networks.load(folder)
            engine = RateEngine(folder)
            rows = [_agreement(engine, network, flows)]
            ask = _onnx_runtime(networks.export_onnx(folder))
            for n in PREFIXES:
                rows += _latencies(engine, network, ask, [flow[:n] for flow in flows], rounds)
            rows += _doors(Path(temporary), folder, network.features, flows, rounds)
            return rows + kernel_rows(Path(temporary), folder, rounds)
    finally:
        torch.set_num_threads(threads)


def made_up_flows() -> list[Raw]:
    """Return the samples (S, F) of flows whose packets come one behind the other, then in doubled bursts."""
    from studies.rate.samples.definition import MOST_SAMPLES, NAMES

    draw, flows, size = np.random.default_rng(SEED), [], 1440
    for _ in range(FLOWS):
        gap_us, rtt_us = int(draw.integers(50, 2_000)), int(draw.integers(10_000, 300_000))
        number = np.arange(1, MOST_SAMPLES + 1)
        bursts = np.floor(np.log2(1 + (number - 1) / 10)).astype(np.int64)  # bursts of 10, 20, 40 packets
        ts = rtt_us * (1 + bursts) + gap_us * number
        known: dict[str, Any] = {
            "ts": ts, "rto": 2 * rtt_us, "rtt": rtt_us + gap_us * number, "snd_cwnd": 9 + number,
            "pacing_rate": 3 * number * size * 1_000_000 // ts, "bytes_acked": number * size,
            "min_rtt": rtt_us, "busy_time": ts, "bbr_minrtt": rtt_us,
            "delivery_rate": number * size * 1_000_000 // ts,
            "bbr_bw": number * size * 1_000_000 // ts, "delivered": number, "segs_out": 10 + 2 * number,
            "bytes_sent": (10 + 2 * number) * size,
        }  # fmt: skip
        columns = [np.broadcast_to(known.get(name, 0), MOST_SAMPLES) for name in NAMES]
        flows.append(np.ascontiguousarray(np.stack(columns, 1), dtype=np.int64))
    return flows


def make_network(flows: list[Raw]) -> RateNetwork:
    """Return our Transformer in its default sizes, with random weights everywhere."""
    import torch

    from studies.rate.model.network import fit_scaling
    from studies.rate.model.transformer import RateTransformer
    from studies.rate.samples.definition import inputs

    torch.manual_seed(SEED)
    network = RateTransformer(fit_scaling(np.concatenate([inputs(flow) for flow in flows])))
    torch.nn.init.normal_(network.out.weight, std=0.1)
    return network.eval()


def _agreement(engine: RateEngine, network: RateNetwork, flows: list[Raw]) -> Row:
    """Return the largest relative difference to PyTorch in float64, and that of PyTorch in float32."""
    import torch

    from studies.rate.samples.definition import inputs

    def said(dtype: torch.dtype) -> npt.NDArray[np.float64]:
        network.to(dtype)
        answers = [
            network(torch.from_numpy(inputs(flow)).to(dtype)[None])[0].double().exp() for flow in flows
        ]
        return torch.stack(answers).numpy()

    exact, single = said(torch.float64), said(torch.float32)
    ours = float(np.max(np.abs(np.stack([engine.forward(flow) for flow in flows]) / exact - 1)))
    theirs = float(np.max(np.abs(single / exact - 1)))
    if not ours <= LARGEST:
        raise ValueError(f"rate bench: the engine differs from PyTorch by {ours:.2g} (limit {LARGEST:g})")
    name = f"largest difference to PyTorch in float64, {len(flows)} flows, {engine.isa}"
    return Row(name, ours * 1e6, theirs * 1e6, "PyTorch in float32", theirs / ours, "ppm", 1)


def _latencies(
    engine: RateEngine,
    network: RateNetwork,
    ask: Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]],
    flows: list[Raw],
    rounds: int,
) -> list[Row]:
    from studies.rate.model import networks
    from studies.rate.samples.definition import inputs

    n = len(flows[0])
    expected = np.stack([networks.forecast(network, flow) for flow in flows])
    padded = [networks.padded(inputs(flow))[None] for flow in flows]
    if not np.allclose(np.concatenate([ask(x_1SF) for x_1SF in padded]), expected, rtol=1e-4):
        raise ValueError("rate bench: ONNX Runtime answers otherwise than PyTorch")
    samples: dict[str, list[Times]] = {"PyTorch": [], "ONNX Runtime": [], "all": [], "last": []}
    for number in range(rounds):
        samples["PyTorch"].append(_call_us(lambda i: networks.forecast(network, flows[i])))
        samples["ONNX Runtime"].append(_call_us(lambda i: ask(padded[i])))
        whole, last = engine.time_us(flows[number % len(flows)], CALLS)
        samples["all"].append(whole)
        samples["last"].append(last)

    median = {name: statistics.median(float(np.median(us)) for us in each) for name, each in samples.items()}
    rows = []
    for what, ours in ((f"forecast from {n} samples", "all"), (f"each ACK, after {n} samples", "last")):
        for reference in ("PyTorch", "ONNX Runtime") if ours == "all" else ("PyTorch",):
            us, theirs = median[ours], median[reference]
            rows.append(Row(f"{what}, {engine.isa}, p50", us, theirs, reference, theirs / us, "us", rounds))
    return rows


def _doors(
    root: Path, folder: Path, features: Sequence[ScaledFeature], flows: list[Raw], rounds: int
) -> list[Row]:
    """Return rows from ACK to answer through the agent, by the engine inside it and by Triton.

    Raises:
        UnsupportedMachineError: the agent or Triton is not built here.
    """
    from benchmarks.served_models import served, write_model
    from serving.triton.config import Backend
    from studies.rate.commands import MODEL as SERVED
    from studies.rate.programs import why_no_agent

    if reason := why_no_agent():
        raise UnsupportedMachineError(reason)
    (version := root / "1").symlink_to(folder)
    write_model(root / "repository", SERVED, folder, Backend.PYTHON, features=features)
    rows = []
    with served(root, [SERVED], name="bench-triton-rate") as address:
        options = {
            "engine": [f"--local={version}"],
            "triton": [f"--server={address}"],
        }
        told = {door: _asked(root / "agent.sock", given, flows, rounds) for door, given in options.items()}
    for door, (agent_us, share) in told.items():
        rows += _wanted(f"ACK to answer, {DOORS[door]}", agent_us, share, rounds)
    return rows


def _wanted(what: str, us: float, share: float, rounds: int) -> list[Row]:
    """Return rows of the time and share of a way from an ACK, beside their targets."""
    name, most, least = f"{what}, n = {ASKED}", "wanted at most", "wanted at least"
    return [
        Row(f"{name}, p50", us, WANTED_US, most, WANTED_US / us, "us", rounds),
        Row(f"{name}, within a round trip", 100 * share, 99.9, least, share / 0.999, "%", rounds),
    ]


def kernel_rows(root: Path, network: Path, rounds: int) -> list[Row]:
    """ACK to map of a kernel's downloads on the bed; none, and a line, where this machine has no bed."""
    from studies.rate.testbed.flows import CONTROL, why_not
    from studies.rate.testbed.follow import following
    from testbed.host import tcp_traffic
    from testbed.host.hosts import ADDRESS_B, Bed
    from testbed.host.selfcheck import NO_AQM
    from testbed.host.tcp import PORT, running, summary, urgent

    if reason := why_not():
        print(f"ACK to map is left out: {reason}", file=sys.stderr)
        return []
    queue = NO_AQM | {"max_bytes": round(RATE_MBPS * 1e6 / 8 * RTT_MS / 1e3)}
    program = [sys.executable, tcp_traffic.__file__]
    with (
        Bed(rate_mbps=RATE_MBPS, delay_ms=RTT_MS / 2, queue=queue) as bed,
        running(bed.b(*urgent(*program, "take", ADDRESS_B, PORT)), "the receiver"),
        following(root, network, ASKED) as sampler,
    ):
        flows = rounds * KERNEL_FLOWS
        sizes = [KERNEL_BYTES, flows, KERNEL_GAP_S, SEED, CONTROL]
        send = bed.a(*urgent(*program, "flows", ADDRESS_B, PORT, *sizes))
        summary(subprocess.Popen(send, stdout=subprocess.PIPE, text=True))
    told = sampler.said["ack_to_map"]
    share = told["within_a_trip"] / flows
    return _wanted(f"ACK to map, {DOORS['engine']}", told["p50_us"], share, rounds)


def _asked(path: Path, options: list[str], flows: list[Raw], rounds: int) -> tuple[float, float]:
    """Return the agent's own p50 in us, and the share of answers within their flow's least round trip."""
    from studies.rate.client import RateClient
    from studies.rate.programs import AGENT
    from studies.rate.samples.definition import NAMES

    trip, in_time, calls = NAMES.index("min_rtt"), 0, rounds * AGENT_CALLS
    command = [str(AGENT), f"--listen={path}", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as agent:
        try:
            assert agent.stdout is not None  # noqa: S101 - it is a pipe, asked for above
            if not agent.stdout.readline():  # it is ready
                raise RuntimeError(f"rate bench: {agent.communicate()[1].strip()}")
            with RateClient(path) as client:
                for call in range(-FLOWS, calls):  # the first calls warm up
                    flow = flows[call % FLOWS]
                    for sample in range(ASKED - 1):
                        client.tell(call + FLOWS, sample, flow[sample])
                    start_s = time.perf_counter()
                    client.tell(call + FLOWS, ASKED - 1, flow[ASKED - 1], ask=True, last=True)
                    found = client.take(ANSWER_S)
                    took_us = 1e6 * (time.perf_counter() - start_s)
                    good = found is not None and found.outcome == "forecast"
                    in_time += call >= 0 and good and took_us <= flow[ASKED - 1, trip]
        finally:
            agent.terminate()
            lines = agent.communicate(timeout=ANSWER_S)[0].splitlines()
    said = json.loads(lines[-1])
    return float(said["forecast_us"]["p50"]), in_time / calls


def _onnx_runtime(file: Path) -> Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]:
    from benchmarks.inference_references import onnx_runtime

    call = onnx_runtime(file)
    return lambda x_1SF: np.asarray(call(x_1SF), np.float32)


def _call_us(call: Callable[[int], object]) -> Times:
    us = np.empty(CALLS)
    for i in range(CALLS):
        start_ns = time.perf_counter_ns()
        call(i % FLOWS)
        us[i] = (time.perf_counter_ns() - start_ns) / 1000
    return us
