"""Measure how a forecast that is fed back into BBR changes completion times, in ns-3 (README.md).

A run is one path and ten downloads: each second one is what is judged, the others are plain BBR. Runs of one
seed have the same arrivals, so each is compared with plain BBR's of the same seed and path. Figures of a seed
go over all its paths; intervals over seeds are Student's t.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.models.scoring.intervals import LEVEL, Estimate, corrected, estimate, paired_change
from swiftqueue.pipelines.simulators import Runs

if TYPE_CHECKING:
    from swiftqueue.studies.rate.model.network import RateNetwork

BBR: Final = "bbr"
ORACLE: Final = "oracle"
OURS: Final = "network"
CUBIC: Final = "cubic"
VARIANTS: Final[dict[str, dict[str, str]]] = {
    BBR: {},
    ORACLE: {"forecast": "oracle"},
    "half-oracle": {"forecast": "oracle", "scale": "0.5"},
    OURS: {"forecast": "network"},
    "dispersion": {"forecast": "dispersion"},
    "previous-flow": {"forecast": "previous"},
    "random": {"forecast": "random"},
    "initial-window-32": {"initial-window": "32"},
    CUBIC: {"control": "cubic"},
    "hystart++": {"control": "hystart++"},
    "suss": {"control": "suss"},
}
RTTS_MS: Final = (50, 100, 150, 200, 250, 300, 350, 400)
BUFFERS_BDP: Final = (0.5, 1.0)
WINDOWS: Final = {"default": 0, "8 MB": 8 << 20}
PATH: Final[dict[str, float]] = {
    "rate-bps": 100e6, "load": 0.1, "cross": 0.1, "receivers": 4, "flows": 10, "every": 2, "bytes": 3_200_000,
}  # fmt: skip
PATIENCE_S: Final = 120.0  # time that a flow counts as that was cut off; ns3/rate.cc
LONG_MS: Final = 100  # round trips from which on the large window must help
WANTED: Final = {"share_of_oracle": 0.60, "long_change": -0.30, "p99": 0.05, "points": 1.0, "others": 0.95}


@dataclass(frozen=True)
class Run:
    """One run's figures; times in s, in the order of arrival."""

    variant: str
    rtt_ms: int
    buffer_bdp: float
    window: str
    seed: int
    own_s: list[float]
    others_s: list[float]
    segments: int  # segments of the judged flows
    retransmitted: int
    used: int  # judged flows whose forecast was followed
    unfinished: int
    router: dict[str, float | None] | None = None  # lateness of a kernel run's router; None: unknown

    @property
    def cell(self) -> tuple[int, float, str, int]:
        """Return the features it has in common with the run of plain BBR that it is compared with."""
        return self.rtt_ms, self.buffer_bdp, self.window, self.seed


def measure(
    program: Path,
    output: Path,
    artifact: Path,
    seeds: Sequence[int],
    report: Callable[[int, int], None] = lambda _done, _of: None,
    rtts_ms: Sequence[int] = RTTS_MS,
    variants: Sequence[str] = tuple(VARIANTS),
) -> list[Run]:
    """Make the runs that are not there yet, seed by seed; return all of them.

    Args:
        program: path that `build_simulator(program="rate")` returned.
        output: folder of the finished runs.
        artifact: folder of the network that forecasts.
        seeds: seeds of all random choices.
        report: called with how many runs there are, and of how many.
        rtts_ms: round trips of the paths.
        variants: names in `VARIANTS` to judge; plain BBR, the oracle and ours always are.

    Raises:
        StageError: a run ended with an error; the line names it.
        OSError: the network is not there.
        ValueError: there is no such variant.
    """
    judged = chosen(variants, VARIANTS, always=(BBR, ORACLE, OURS))
    runs, network = Runs(program), hash_of(artifact)
    source = hashlib.sha256(program.read_bytes()).hexdigest()
    cells = itertools.product(seeds, rtts_ms, BUFFERS_BDP, WINDOWS, judged)
    wanted = [(v, rtt, buffer, window, seed) for seed, rtt, buffer, window, v in cells]
    done = itertools.count(1)

    def make(one: tuple[str, int, float, str, int]) -> Run:
        variant, rtt, buffer, window, seed = one
        options: dict[str, Any] = {
            **PATH, "rtt-ms": rtt, "buffer-bdp": buffer, "window": WINDOWS[window], "seed": seed,
            **VARIANTS[variant],
        }  # fmt: skip
        known = [options, source, network if variant == OURS else ""]
        key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:20]
        if variant == OURS:
            options = {**options, "artifact": str(artifact)}
        path = output / f"{key}.json"
        if path.is_file():
            found = Run(**read_object(path))
        else:
            found = _made(runs, options, one)
            write_file(path, json.dumps(asdict(found)) + "\n")
        report(next(done), len(wanted))
        return found

    output.mkdir(parents=True, exist_ok=True)
    return runs.each(make, wanted)


def chosen(wanted: Sequence[str], known: Mapping[str, Any], always: Sequence[str]) -> list[str]:
    """The variants that are wanted, and those that always are, in the order of the known ones.

    Raises:
        ValueError: one is not known.
    """
    if unknown := sorted(set(wanted) - set(known)):
        raise ValueError(f"variant {unknown[0]}: must be one of {', '.join(known)}")
    return [name for name in known if name in {*always, *wanted}]


def _made(runs: Runs, options: Mapping[str, Any], one: tuple[str, int, float, str, int]) -> Run:
    with tempfile.TemporaryDirectory(prefix="rate-") as scratch:
        given = [f"--{key}={value}" for key, value in options.items()]
        runs.run([*given, f"--out={scratch}"], " ".join(map(str, one)))
        table = pl.read_csv(Path(scratch) / "completions.csv", schema_overrides={"completed_ns": pl.Int64})
    seconds = ((pl.col("completed_ns") - pl.col("started_ns")) / 1e9).fill_null(PATIENCE_S)
    table = table.with_columns(seconds=seconds)
    own, others = table.filter(asked=1), table.filter(asked=0)
    return Run(
        *one,
        own["seconds"].to_list(),
        others["seconds"].to_list(),
        int(own["segments"].sum()),
        int(own["retransmitted"].sum()),
        int((own["verdict"] == "used").sum()),
        int(table["completed_ns"].null_count()),
    )


def hash_of(artifact: Path) -> str:
    """Hash of the network that the engine reads from a folder."""
    digest = hashlib.sha256()
    for name in ("model.json", "model.safetensors"):
        digest.update((artifact / name).read_bytes())
    return digest.hexdigest()


def network_at(artifact: Path) -> RateNetwork:
    """The network in a folder; where there is none, the line says how to get one."""
    from swiftqueue.models.networks.files import DESCRIPTION_FILE
    from swiftqueue.studies.rate.model import networks

    if not (artifact / DESCRIPTION_FILE).is_file():
        raise ValueError(
            f"no network at {artifact}; `dvc repro studies/rate/dvc.yaml` makes it; or name one: --artifact"
        )
    return networks.load(artifact)[0]


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of each window and variant, with intervals over its seeds, and what was wanted of ours.

    Each run has plain BBR's and the oracle's of its cell beside it; the other variants may have fewer seeds.
    """
    plain = {run.cell: run for run in runs if run.variant == BBR}
    variants = [name for name in VARIANTS if any(run.variant == name for run in runs)]
    found: dict[str, Any] = {}
    for window in WINDOWS:
        here = [run for run in runs if run.window == window]
        change = {
            v: {s: _change(one, plain) for s, one in _by_seed([r for r in here if r.variant == v]).items()}
            for v in variants
        }
        found[window] = {
            v: _figures([r for r in here if r.variant == v], plain)
            | {
                "change": _over(list(change[v].values())),
                "share_of_oracle": _over([one / change[ORACLE][s] for s, one in change[v].items()]),
                "by_rtt": _by_rtt([r for r in here if r.variant == v], plain),
            }
            for v in variants
        }
    return {
        "feedback": _written(found),
        "seeds": sorted({run.seed for run in runs}),
        "runs": len(runs),
        "flows": sum(len(run.own_s) for run in runs),
        "rtts_ms": sorted({run.rtt_ms for run in runs}),
        "rate_mbps": PATH["rate-bps"] / 1e6,
        "wanted": WANTED,
        "verdict": _verdict(found) if OURS in variants else {},
    }


def _change(runs: Sequence[Run], plain: Mapping[Any, Run]) -> float:
    """Relative change of the median completion time, a geometric mean over paths."""
    logs = [math.log(statistics.median(r.own_s) / statistics.median(plain[r.cell].own_s)) for r in runs]
    return math.expm1(math.fsum(logs) / len(logs))


def _by_seed(runs: Sequence[Run]) -> dict[int, list[Run]]:
    return {seed: [r for r in runs if r.seed == seed] for seed in sorted({run.seed for run in runs})}


def _by_rtt(runs: Sequence[Run], plain: Mapping[Any, Run]) -> dict[str, Estimate]:
    of = {t: [r for r in runs if r.rtt_ms == t] for t in sorted({run.rtt_ms for run in runs})}
    return {str(t): _over([_change(one, plain) for one in _by_seed(of[t]).values()]) for t in of}


def _figures(runs: Sequence[Run], plain: Mapping[Any, Run]) -> dict[str, Any]:
    """Compare all runs of a variant with plain BBR's same runs: tail, retransmissions, the others."""
    by_seed = {seed: _against(one, plain) for seed, one in _by_seed(runs).items()}
    return {key: _over([one[key] for one in by_seed.values()]) for key in ("points", "others")} | {
        # The means are geometric: a seed's tail is a few downloads, and no interval may reach below -100 %.
        "p99": paired_change({s: one["tail"] for s, one in by_seed.items()}, dict.fromkeys(by_seed, 1.0)),
        "median_s": statistics.median(s for run in runs for s in run.own_s),
        "retransmitted": _lost(runs),
        "used": sum(run.used for run in runs) / sum(len(run.own_s) for run in runs),
        "unfinished": sum(run.unfinished for run in runs),
    }


def _against(runs: Sequence[Run], plain: Mapping[Any, Run]) -> dict[str, float]:
    """Compare a variant's runs of one seed with plain BBR's."""
    base = [plain[run.cell] for run in runs]
    # Each time over the median of plain BBR on that path: paths differ eightfold.
    scales = [statistics.median(b.own_s) for b in base]
    tail, plain_tail = (
        float(np.percentile([s / scale for r, scale in zip(of, scales, strict=True) for s in r.own_s], 99))
        for of in (runs, base)
    )
    goodput, plain_goodput = (sum(1 / s for r in of for s in r.others_s) for of in (runs, base))
    return {
        "tail": tail / plain_tail,
        "points": 100 * (_lost(runs) - _lost(base)),
        "others": goodput / plain_goodput,
    }


def _lost(runs: Sequence[Run]) -> float:
    return sum(run.retransmitted for run in runs) / sum(run.segments for run in runs)


def _verdict(found: Mapping[str, Any]) -> dict[str, str]:
    """Return the verdict on the network's forecasts: reached, not reached, or not settled."""
    windows = [found[window][OURS] for window in WINDOWS]
    default, large = windows
    long = [cell for trip, cell in large["by_rtt"].items() if int(trip) >= LONG_MS]
    return {
        "share_of_oracle": _answer([default["share_of_oracle"]], WANTED["share_of_oracle"], most=False),
        "long_change": _answer(long, WANTED["long_change"], most=True)
        if long
        else f"no round trip from {LONG_MS} ms on",
        "p99": _answer([one["p99"] for one in windows], WANTED["p99"], most=True),
        "points": _answer([one["points"] for one in windows], WANTED["points"], most=True),
        "others": _answer([one["others"] for one in windows], WANTED["others"], most=False),
    }


def _answer(places: Sequence[Estimate], limit: float, *, most: bool) -> str:
    """Return whether the figure keeps to the limit at every place; `most`: it may be at most the limit.

    Reached: at each place, 95 % sure. Not reached: at some place 95 % sure, Holm over the places. One seed is
    taken at its word.
    """
    kept = [one.mean <= limit if most else one.mean >= limit for one in places]
    if any(one.n == 1 for one in places):
        return "reached" if all(kept) else "not reached"
    if all(one.below(limit) if most else one.above(limit) for one in places):
        return "reached"
    broken = corrected([2 * one.chance(limit, below=not most) for one in places])  # two-sided, as intervals
    return "not reached" if min(broken) < 1 - LEVEL else "not settled"


def _over(values: Sequence[float]) -> Estimate:
    found = estimate(values)
    if found is None:
        raise ValueError("no seed has a run")
    return found


def _written(found: Any) -> Any:
    """The same with each estimate as what is published of it."""
    if isinstance(found, Estimate):
        return {"mean": found.mean, "low": found.low, "high": found.high, "n": found.n}
    return {key: _written(one) for key, one in found.items()} if isinstance(found, dict) else found


def lines(found: Mapping[str, Any]) -> list[str]:
    """A summary in words: a line for each window and sender."""
    return [
        f"window {window}, {name}: median {one['change']['mean']:+.1%}, P99 {one['p99']['mean']:+.1%}, "
        f"retransmitted {one['points']['mean']:+.2f} points, others' goodput {one['others']['mean']:.1%}"
        for window, variants in found["feedback"].items()
        for name, one in variants.items()
    ]
