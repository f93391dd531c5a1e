"""`swiftqueue rate completions`: what a forecast fed back into a kernel's BBR does to times.

The same runs, variants and figures as ns-3's (`experiments/feedback.py`), on the bed: each second
download is judged and has `sq_rate` or Cubic, the others the kernel's BBR. At its fifth ACK `sq_rate` asks,
and this program answers, or with our network an agent. A flow that gets no answer is plain BBR.

Shapes: S samples of a flow, F fields (28), N records of a run.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.serving.agent.process import end
from swiftqueue.studies.rate.experiments.feedback import (
    BBR,
    BUFFERS_BDP,
    CUBIC,
    ORACLE,
    OURS,
    PATH,
    RTTS_MS,
    WINDOWS,
    Run,
    chosen,
    hash_of,
)
from swiftqueue.studies.rate.experiments.feedback import VARIANTS as OF_NS3
from swiftqueue.studies.rate.programs import AGENT, SAMPLER, SAMPLER_OBJECT, why_no_agent
from swiftqueue.studies.rate.samples.definition import NAMES
from swiftqueue.studies.rate.testbed.flows import ACKED, CONTROL, RECORD, why_not
from swiftqueue.studies.rate.testbed.follow import Sampler, following
from swiftqueue.testbed.host import router_log, tcp_traffic
from swiftqueue.testbed.host.hosts import ADDRESS_B, DEVICE, Bed, run_folder
from swiftqueue.testbed.host.lateness import Error, router_error
from swiftqueue.testbed.host.programs import ROUTER, build_hash, wait_for_name
from swiftqueue.testbed.host.selfcheck import NO_AQM
from swiftqueue.testbed.host.tcp import PORT, STOP_S, running, summary, urgent

SAMPLES: Final = 5
NOT_OF_LINUX: Final = ("hystart++", "suss")
VARIANTS: Final = {name: how for name, how in OF_NS3.items() if name not in NOT_OF_LINUX}
OTHERS: Final = PORT + 1
ROUTES: Final = 32  # number of a table of routes; a new host has none of its own
LEAST_BYTES, MOST_BYTES = 1500, 10**9  # bounds of the router's buffer (testbed/router/options.h)
HYSTART: Final = Path("/sys/module/tcp_cubic/parameters/hystart")
LINUX_WINDOW: Final = "4096 131072 6291456"  # tcp_rmem as Linux has it; the bed's own goes farther

Answer = Callable[[float, Path], float | None]
"""The dispersion of a flow's first ACKs and the run's file of records, to a forecast; bytes/s.

None: nothing is said.
"""


@dataclass(frozen=True)
class Traffic:
    """The downloads of a run, beside unresponsive packets."""

    load: float = PATH["load"]
    cross: float = PATH["cross"]
    flows: int = int(PATH["flows"])
    bytes: int = int(PATH["bytes"])
    rate_mbps: float = PATH["rate-bps"] / 1e6

    def __post_init__(self) -> None:
        above_0 = {"--load": self.load, "rate_mbps": self.rate_mbps, "bytes": self.bytes}
        for name, value in above_0.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{name} {value:g}: must be above 0, and finite")
        if not 0 <= self.cross < 1:
            raise ValueError(f"cross {self.cross:g}: must be 0 or more, and below 1")
        if self.flows < 2:
            raise ValueError(f"--downloads {self.flows}: must be 2 or more, each second is judged")


def reached(records_N: NDArray[Any], size: int) -> float:
    """BBR's estimate at the end of the judged flow that ended last, bytes/s; 0: none of `size` bytes has."""
    ended = (records_N["port"] == PORT) & (records_N["fields"][:, ACKED] > size)  # with the SYN
    at_end = records_N["fields"][ended, NAMES.index("bbr_bw")]
    return float(at_end[-1]) if len(at_end) else 0.0


def answers(variant: str, traffic: Traffic, place: str, artifact: Path | None) -> Answer | Path:
    """Return the forecaster that a variant gives a flow; for ours the network, with which an agent answers.

    Args:
        variant: a name in VARIANTS.
        traffic: the downloads.
        place: the run in words: random forecasts are the same for the same words.
        artifact: folder of the network, for ours.

    Raises:
        ValueError: there is no such variant.

    """
    if variant == OURS and artifact is not None:
        return artifact
    if variant == OURS or variant not in VARIANTS:
        raise ValueError(f"variant {variant}: must be one of {', '.join(VARIANTS)}; {OURS} needs --artifact")
    how = VARIANTS[variant]
    if "forecast" not in how:
        return lambda _dispersion, _records: None
    rate = _rates(how["forecast"], traffic, place)
    scale = float(how.get("scale", 1))
    return lambda dispersion, records: scale * rate(dispersion, records)


def _rates(kind: str, traffic: Traffic, place: str) -> Callable[[float, Path], float]:
    """Return a kind of forecast before it is scaled, in bytes/s; the kinds are ns-3's (`forecasts.h`)."""
    truth = traffic.rate_mbps * 1e6 / 8 * (1 - traffic.cross)
    # A generator of its own: that of `tcp_traffic.py` has the seed alone, and says when downloads begin.
    draw = random.Random(f"forecasts {place}")  # noqa: S311 - no secret
    if kind == "oracle":
        return lambda _dispersion, _records: truth
    if kind == "random":
        return lambda _dispersion, _records: truth * math.exp(draw.uniform(math.log(0.1), math.log(10)))
    if kind == "dispersion":
        return lambda dispersion, _records: dispersion
    return lambda dispersion, records: (  # by the previous flow
        reached(np.fromfile(records, RECORD), traffic.bytes) or dispersion
    )


@contextmanager
def sampling(log: Path, answer: Answer) -> Iterator[Sampler]:
    """Register `sq_rate` for as long as the block lasts; its questions are answered in a thread.

    Raises:
        RuntimeError: the kernel does not take it, and the line is the sampler's; or that has ended early.

    """
    words = urgent(SAMPLER, "collect", SAMPLER_OBJECT, log, SAMPLES)
    command = [str(word) for word in words]
    wait_for_name(CONTROL)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        if not process.stdout.readline():
            raise RuntimeError(f"the sampler ended with {process.wait()}")
        sampler = Sampler(process)
        thread = threading.Thread(target=_answer, args=(sampler, answer, log))
        thread.start()
        try:
            yield sampler
        finally:
            end(process, STOP_S)
            thread.join()
        if not sampler.said:
            raise RuntimeError(f"the sampler ended with {process.returncode}")


def _answer(sampler: Sampler, answer: Answer, log: Path) -> None:
    pipe, lines = sampler.process.stdin, sampler.process.stdout
    assert pipe is not None  # noqa: S101 - it was asked for
    assert lines is not None  # noqa: S101 - likewise
    for line in lines:
        said = json.loads(line)
        if said["event"] == "summary":
            sampler.said = said
        elif said["port"] == PORT:
            found = answer(said["dispersion"], log)
            if found is not None:
                try:
                    pipe.write(f"{said['flow']} {found!r}\n")
                    pipe.flush()
                except OSError:
                    return  # the sampler has gone


def download(
    traffic: Traffic, rtt_ms: float, buffer_bdp: float, window: int, seed: int, answer: Answer | Path,
    *, control: str = CONTROL, initial_window: int = 0,
) -> tuple[list[dict[str, float]], dict[str, Any], Error]:  # fmt: skip
    """Send one run's downloads; returns what is said of each, the sampler's summary, the router's error.

    Args:
        traffic: the downloads.
        rtt_ms: round trip of the path.
        buffer_bdp: size of the router's buffer.
        window: the receiver's, in bytes; 0: it grows as Linux's.
        seed: seed of arrivals and cross traffic.
        answer: to what `sq_rate` asks.
        control: congestion control of the judged downloads.
        initial_window: theirs, in packets; 0: Linux's own.

    Raises:
        RuntimeError: this machine cannot, or a program failed; the line says why.

    """
    if reason := why_not():
        raise RuntimeError(reason)
    bps = traffic.rate_mbps * 1e6
    queue = NO_AQM | {"max_bytes": _bytes(traffic, rtt_ms, buffer_bdp)}
    cross = traffic.rate_mbps * traffic.cross
    gap_s = traffic.bytes * 8 / (traffic.load * bps)
    take = [sys.executable, tcp_traffic.__file__, "take", ADDRESS_B]
    with (
        run_folder() as folder,
        Bed(
            rate_mbps=traffic.rate_mbps, cross_mbps=cross, delay_ms=rtt_ms / 2, seed=seed, queue=queue,
            log=(log := Path(folder) / "router"),
        ) as bed,
    ):  # fmt: skip
        limits = f"echo {LINUX_WINDOW} > /proc/sys/net/ipv4/tcp_rmem"
        _set(bed.b("sh", "-c", limits))
        if initial_window:  # by a route that the judged downloads' port alone takes
            for words in (
                f"rule add ipproto tcp dport {PORT} table {ROUTES}",
                f"route add {ADDRESS_B} dev {DEVICE} initcwnd {initial_window} table {ROUTES}",
            ):
                _set(bed.a("ip", *words.split()))
        with (
            running(bed.b(*urgent(*take, PORT, "", window)), "the receiver"),
            running(bed.b(*urgent(*take, OTHERS, "", window)), "the others' receiver"),
            (
                following(Path(folder), answer, SAMPLES)
                if isinstance(answer, Path)
                else sampling(Path(folder) / "records", answer)
            ) as sampler,
        ):
            sizes = [traffic.bytes, traffic.flows, gap_s, seed, control, OTHERS]
            send = [sys.executable, tcp_traffic.__file__, "flows", ADDRESS_B, PORT, *sizes]
            sent = summary(subprocess.Popen(bed.a(*urgent(*send)), stdout=subprocess.PIPE, text=True))
        return sent["each"], sampler.said, router_error(router_log.read(log), rtt_ms / 2 * 1e6)


def _set(command: list[str]) -> None:
    """Set something on a host.

    Raises:
        RuntimeError: it could not be; the last line of what the command said.

    """
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError((ran.stderr.splitlines() or [f"{command!r} ended with {ran.returncode}"])[-1])


def measure(
    output: Path,
    artifact: Path,
    seeds: Sequence[int],
    report: Callable[[str], None],
    *,
    traffic: Traffic = Traffic(),
    rtts_ms: Sequence[int] = RTTS_MS,
    buffers_bdp: Sequence[float] = BUFFERS_BDP,
    variants: Sequence[str] = tuple(VARIANTS),
    seconds: float = math.inf,
) -> list[Run]:
    """Make the runs that are not there yet, seed by seed; returns all of them.

    Args:
        output: folder of the finished runs.
        artifact: folder of the network that forecasts, for ours.
        seeds: seeds of arrivals, cross traffic and random forecasts.
        report: is told what is run.
        traffic: the downloads.
        rtts_ms: round trips of the paths.
        buffers_bdp: sizes of the router's buffer.
        variants: names in `VARIANTS` to judge; plain BBR and the oracle always are.
        seconds: begin no run after so long.

    Raises:
        RuntimeError: this machine cannot, or a program failed; the line says why.
        ValueError: a buffer that cannot be, or there is no such variant.

    """
    for buffer, rtt in itertools.product(buffers_bdp, rtts_ms):
        if not 0 < buffer < math.inf:
            raise ValueError(f"--buffer-bdp {buffer:g}: must be above 0, and finite")
        if not LEAST_BYTES <= (size := _bytes(traffic, rtt, buffer)) <= MOST_BYTES:
            raise ValueError(
                f"--buffer-bdp {buffer:g}: at {rtt} ms that is {size:,} bytes; the router's buffer has "
                f"{LEAST_BYTES:,} to {MOST_BYTES:,}"
            )
    judged = chosen(variants, VARIANTS, always=(BBR, ORACLE))
    if reason := why_not() or (why_no_agent() if OURS in judged else None):
        raise RuntimeError(reason)
    if CUBIC in judged and HYSTART.is_file() and HYSTART.read_text().strip() == "0":
        raise RuntimeError(f"{CUBIC}: its HyStart is off on this machine ({HYSTART})")
    output.mkdir(parents=True, exist_ok=True)
    begin, found = time.monotonic(), []
    content = {
        OURS: hash_of(artifact) + build_hash(AGENT) if OURS in judged else "",
        "random": "by place",
    }
    programs = build_hash(ROUTER, SAMPLER, SAMPLER_OBJECT)
    for seed, rtt, buffer, window in itertools.product(seeds, rtts_ms, buffers_bdp, WINDOWS):
        for variant in judged:
            known = [variant, rtt, buffer, window, seed, asdict(traffic), content.get(variant, ""), programs]
            key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:20]
            path = output / f"{key}.json"
            if not path.is_file():
                if time.monotonic() - begin > seconds:
                    continue
                place = f"{rtt} ms, {buffer:g} BDP, window {window}, seed {seed}"
                report(f"{variant}, {place}")
                answer = answers(variant, traffic, place, artifact)
                how = VARIANTS[variant]
                each, said, error = download(
                    traffic, rtt, buffer, WINDOWS[window], seed, answer,
                    control=how.get("control", CONTROL), initial_window=int(how.get("initial-window", 0)),
                )  # fmt: skip
                made = _run(variant, rtt, buffer, window, seed, each, said, error)
                write_file(path, json.dumps(asdict(made)) + "\n")
            found.append(Run(**read_object(path)))
    return found


def _bytes(traffic: Traffic, rtt_ms: float, buffer_bdp: float) -> int:
    """Size of the router's buffer."""
    return round(traffic.rate_mbps * 1e6 / 8 * rtt_ms / 1e3 * buffer_bdp)


def whole(runs: Sequence[Run]) -> list[Run]:
    """The runs of cells with all of their seed's variants, in every window, of seeds with all such cells."""
    of_seed, of_cell = defaultdict(set), defaultdict(set)
    for run in runs:
        of_seed[run.seed].add(run.variant)
        of_cell[run.cell].add(run.variant)
    cells = {cell for cell, variants in of_cell.items() if variants == of_seed[cell[3]]}
    places = {(rtt, buffer, window) for rtt, buffer, window, _ in cells}
    places = {p for p in places if all((*p[:2], window) in places for window in WINDOWS)}
    counts = {p: {seed for *place, seed in cells if tuple(place) == p} for p in places}
    seeds = set.intersection(*counts.values()) if counts else set()
    return [run for run in runs if run.cell[:3] in places and run.seed in seeds]


def _run(
    variant: str, rtt: int, buffer: float, window: str, seed: int,
    each: Sequence[Mapping[str, float]], said: Mapping[str, Any], error: Error,
) -> Run:  # fmt: skip
    own = [one for one in each if one["asked"]]
    return Run(
        variant,
        rtt,
        buffer,
        window,
        seed,
        [one["seconds"] for one in own],
        [one["seconds"] for one in each if not one["asked"]],
        int(sum(one["segments"] for one in own)),
        int(sum(one["retransmitted"] for one in own)),
        int(said["judged"][0]),
        0,
        error,
    )
