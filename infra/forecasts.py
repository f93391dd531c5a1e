"""`swiftqueue forecasts`: every variant of forecasters.yaml on the same packets, seed by seed; resumable.

Each run, a variant with a seed, is a file of its own, written whole or not at all: what is there for the same
packets, parameters and code is kept. The summary beside them is drawn anew from all runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl

from feature_store.atomic import write_file
from feature_store.packets.schema import QUEUES, scan_packets, traces_in
from feature_store.parquet import read_parquet
from models.forecasters.forecaster import Trace, Variant, Waits, decision_times, variants
from models.forecasters.walk import FORMS, Asked, run, within_training
from models.import_closure import code_hash
from models.json_file import read_object
from models.say import say
from models.scoring.intervals import Estimate, estimate
from models.scoring.metrics import interval
from models.section import near, read_all
from models.training.protocol import divide, protocol_named

SUMMARY: Final = "scores.json"
SCORES: Final = {
    "average_precision": ("late", "average_precision"),
    "recall_at_false_alarms": ("late", "recall_at_false_alarms"),
    "mae_ms": ("error", "mae_ms"),
    "p99_ms": ("error", "p99_ms"),
    "log_mae": ("error", "log_mae"),
    "pinball_ms": ("spread", "pinball_ms"),
    "regret_ms": ("choice", "regret_ms"),
    "right": ("choice", "right"),
    "moved": ("choice", "moved"),
}
DRAWN: Final = ("average_precision", "mae_ms", "regret_ms")  # scores that have draws of seconds
ALIKE: Final = ("n", "never_ms", "always_ms", "shorter_is_classic")  # of a choice: the same for every variant
DRAWS_SEED: Final = 1
MOST_SHARED: Final = 0.2  # of a table's packets that seem to be in another one; two simulated seeds: 0.07
DIGITS: Final = 5
L4S: Final = QUEUES[1]
Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # of runs: a variant's, the reference's


def run_forecasts(
    packets: Path,
    output: Path,
    *,
    names: Sequence[str],
    only: Sequence[str],
    seeds: int,
    protocol: str,
    against: str,
    choose: bool,
    sections: Path,
    told: str = "all",
    truths: Mapping[str, Path] | None = None,
    also: Path | None = None,
) -> None:
    """Run what is missing and write the summary.

    Args:
        packets: folder of packet tables.
        output: folder of runs and summary.
        names: of the traces; none: all.
        only: variants; none: all.
        seeds: training seeds, 1 to so many.
        protocol: lengths of the slices.
        against: the variant that differences are taken from.
        choose: test on the last third of the training slices.
        sections: file of the variants.
        told: of packets 2 to 8 of a batch at its decision (`replay_events`).
        truths: by trace, a `truth.parquet` that says what each packet would have waited in either queue.
        also: folder of packet tables of other traces, learned from besides, from end to end.

    Raises:
        FileNotFoundError: there is no packet table of a trace.
        ValueError: an argument, a section or a trace cannot be; the line names it.
    """
    import torch

    wanted = variants(sections, only)
    if against not in read_all(sections):
        raise ValueError(f"--against {against}: there is no section of that name in {sections}")
    torch.set_num_threads(1)  # small networks lose by more, and seconds are of one core
    traces = traces_of(packets, names, protocol, told, truths or {})
    more = [] if also is None else tables_besides(also, traces)
    if choose:
        traces = within_training(traces)
    work = fingerprint(traces, more)
    asked: Asked | None = None
    for variant in wanted:
        for seed in range(1, (seeds if variant.kind.seeded else 1) + 1):
            path, key = output / f"{variant.name}-{seed}.json", key_of(variant, seed, work)
            if path.is_file() and read_object(path).get("key") == key:
                say(f"{variant.name}, seed {seed}: kept")
                continue
            asked = asked or Asked.of(traces)
            line = f"{variant.name}, seed {seed}"
            found = run(variant, seed, traces, asked, lambda one, line=line: say(f"{line}: {one}"), more)  # type: ignore[misc]
            write_file(path, json.dumps({"key": key, **found}, allow_nan=False) + "\n")
            late, error = found["tuned"]["late"], found["tuned"]["error"]
            say(f"{line}: AP {_shown(late['average_precision'])}, MAE {_shown(error['mae_ms'])} ms")
    about = {
        "traces": [trace.name for trace in traces],
        "protocol": protocol,
        "within_training": choose,
        "against": against,
        "told": told,
        "also": [str(table["trace"][0]) for table in more],
    }
    alike = {each.name for each in variants(sections) if not each.kind.seeded}
    summary = summarised(_runs(output, work), about, alike)
    write_file(output / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
    say(f"{output / SUMMARY}: {len(summary['variants'])} variants")


def traces_of(
    packets: Path,
    names: Sequence[str],
    protocol: str,
    told: str = "all",
    truths: Mapping[str, Path] | None = None,
) -> list[Trace]:
    """Read traces (none named: all) and divide them; raises as `run_forecasts`."""
    names, truths = names or traces_in(packets), truths or {}
    if wrong := [name for name in truths if name not in names]:
        raise ValueError(f"--truth {wrong[0]}: there is no such trace; {near(wrong[0], list(names))}")
    if not names:
        raise ValueError(f"no packet tables under {packets}; run `swiftqueue extract` or the stage `extract`")
    found = []
    for name in names:
        table = scan_packets(packets, name).collect()
        slices = divide(decision_times(table), protocol_named(protocol), name)
        waits = waits_of(table, truths[name]) if name in truths else None
        found.append(Trace(name, table, slices, told=told, waits=waits))
    return found


def tables_besides(folder: Path, judged: Sequence[Trace]) -> list[pl.DataFrame]:
    """Read the packet tables of a folder, to learn from besides those of the judged traces.

    Raises:
        ValueError: there are none, or one has packets of a judged trace, under whatever name.
    """
    if not (names := traces_in(folder)):
        raise ValueError(f"--also {folder}: there are no packet tables")
    tables = [scan_packets(folder, name).collect() for name in names]
    for name, table in zip(names, tables, strict=True):
        for trace in judged:
            if name == trace.name or _shared(table, trace.packets) > MOST_SHARED:
                raise ValueError(f"--also {folder}: {name} has packets of {trace.name}, which is judged")
    return tables


def _shared(table: pl.DataFrame, judged: pl.DataFrame) -> float:
    """Share of the smaller table's packets that the other has too, by latencies and spans of time.

    So neither another name nor another beginning hides a trace.
    """
    sent, late = pl.col("sent_ns"), pl.col("latency_us")
    marks = {"near_ns": sent.diff(37), "far_ns": sent.diff(100), "now_us": late, "then_us": late.shift(7)}
    seen = [each.select(**marks).drop_nulls() for each in (table, judged)]
    return seen[0].join(seen[1], on=list(marks), how="semi").height / max(1, min(map(len, seen)))


def waits_of(packets: pl.DataFrame, truth: Path) -> Waits:
    """Read what the packets of a table would have waited in either queue.

    Raises:
        ValueError: the file cannot be read, does not tell that, or is of other packets.
    """
    columns = ("sent_ns", "default_queue", "classic_wait_us", "l4s_wait_us")
    table = read_parquet([truth])
    if missing := [name for name in columns if name not in table.columns]:
        raise ValueError(f"{truth}: column {missing[0]} is missing; it must tell of both queues")
    if not table["sent_ns"].equals(packets["sent_ns"]):
        raise ValueError(f"{truth}: its {table.height} packets are not the {packets.height} of the trace")
    classic, l4s = (table[name].fill_null(float("nan")).to_numpy() for name in columns[2:])
    return Waits(classic, l4s, (table["default_queue"] == L4S).to_numpy())


def fingerprint(traces: Sequence[Trace], also: Sequence[pl.DataFrame] = ()) -> str:
    """Name of some packets and of what is done with them."""
    digest = hashlib.sha256()
    for trace in traces:
        digest.update(json.dumps([trace.name, trace.slices.as_json()]).encode())
        digest.update(trace.packets.hash_rows(seed=1).to_numpy().tobytes())
        if trace.told != "all":
            digest.update(trace.told.encode())
        if trace.waits is not None:
            digest.update(trace.waits.classic_us_N.tobytes() + trace.waits.l4s_us_N.tobytes())
    for table in also:
        digest.update(b"also" + table.hash_rows(seed=1).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def key_of(variant: Variant, seed: int, work: str) -> str:
    """Name of a run: the same only for the same packets, parameters, seed and code."""
    code = code_hash(variant.kind.__module__, "models.forecasters.walk")
    content = [variant.kind_name, variant.params.model_dump(), seed, work, code]
    return f"{work}-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}"


def _runs(output: Path, work: str) -> dict[str, list[dict[str, Any]]]:
    """All runs on these packets, by variant."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(output.glob("*.json")):
        one = read_object(path) if path.name != SUMMARY else {}
        if str(one.get("key", "")).startswith(work):
            found.setdefault(str(one["variant"]), []).append(one)
    return found


def summarised(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], about: Mapping[str, Any], alike: AbstractSet[str]
) -> dict[str, Any]:
    """Means over seeds, their intervals, and paired differences from one variant, for each form.

    An interval over seeds is Student's t of the differences by seed; the one over seconds draws seconds and
    seeds together. A variant of `alike` has one run, which is the same for every seed.
    """
    first = next(iter(runs.values()))[0]["tuned"]
    result: dict[str, Any] = {
        **about,
        "n": first["n"],
        "n_late": first["late"]["n_late"],
        "base_rate": first["late"]["base_rate"],
        "variants": {},
    }
    if chosen := first.get("choice"):
        result["choice"] = {name: chosen[name] for name in ALIKE}
    reference = str(about["against"])
    base = runs.get(reference, ())
    for name, some in runs.items():
        pairs = _paired(some, base, alike=bool({name, reference} & alike)) if name != reference else []
        result["variants"][name] = {
            "seeds": len(some),
            "multiply_adds": some[0]["multiply_adds"],
            "fit_cpu_s": round(float(np.mean([one["fit_cpu_s"] for one in some])), 1),
            **{form: _form(some, pairs, form) for form in FORMS},
        }
    return result


def _form(runs: Sequence[Mapping[str, Any]], pairs: Pairs, form: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for score, (part, key) in SCORES.items():
        values = [one[form].get(part, {}).get(key) for one in runs]
        if any(value is None for value in values):
            found[score] = None
            continue
        found[score] = _said(estimate(values))
        if pairs and all(other[form].get(part, {}).get(key) is not None for _, other in pairs):
            seeds = [ours[form][part][key] - other[form][part][key] for ours, other in pairs]
            found[score]["less_reference"] = _said(estimate(seeds))
            if score in DRAWN:
                found[score]["less_reference"]["seconds_95"] = _over_seconds(pairs, form, score)
    if spreads := [one[form]["spread"] for one in runs if one[form].get("spread", {}).get("coverage")]:
        coverage = np.mean([each["coverage"] for each in spreads], axis=0)
        found["coverage"] = {"levels": spreads[0]["levels"], "share": [round(float(x), 4) for x in coverage]}
    return found


def _paired(
    runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], *, alike: bool
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Runs of one seed; where one of the two is alike for all seeds, it stands beside each of the other."""
    if alike:
        return [(ours, other) for ours in runs for other in base]
    by_seed = {one["seed"]: one for one in base}
    return [(one, by_seed[one["seed"]]) for one in runs if one["seed"] in by_seed]


def _over_seconds(pairs: Pairs, form: str, score: str) -> list[float] | None:
    """95 % of the differences under draws of seconds, each with a draw of seeds."""
    if not all(one[form]["draws"] for pair in pairs for one in pair):
        return None
    ours, other = (
        np.array([pair[side][form]["draws"][score] for pair in pairs], dtype=np.float64) for side in (0, 1)
    )
    draws = ours.shape[1]
    random = np.random.default_rng(DRAWS_SEED)
    chosen = random.integers(len(pairs), size=(len(pairs), draws))
    difference = (ours - other)[chosen, np.arange(draws)].mean(0)
    ends = interval(difference)
    return None if ends is None else [round(end, DIGITS) for end in ends]


def _said(found: Estimate | None) -> dict[str, Any]:
    if found is None:
        return {"mean": None, "seeds_95": None}
    ends = None if found.low is None or found.high is None else [found.low, found.high]
    return {
        "mean": round(found.mean, DIGITS),
        "seeds_95": ends and [round(end, DIGITS) for end in ends],
    }


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
