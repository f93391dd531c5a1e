"""`swiftqueue forecasts`: every variant of forecasters.yaml on the same packets, seed by seed; resumable.

Each run, a variant with a seed, is a file of its own, written atomically. A run of the same packets,
parameters and code is not repeated. Fitted forecasters are kept, too, so other scores need no training. The
summary beside them is written anew from all runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.common.say import say
from swiftqueue.common.section import near, read, read_all
from swiftqueue.feature_store.packets.schema import read_packets, traces_in
from swiftqueue.feature_store.packets.truth import read_waits
from swiftqueue.models.forecasters.comparison import FORMS, HeldOutPackets, JudgingParams, key_of_run, run
from swiftqueue.models.forecasters.forecaster import Variant, variants
from swiftqueue.models.forecasters.traces import Trace, decision_times, name_of, within_training
from swiftqueue.models.scoring.intervals import Estimate, estimate, over_all
from swiftqueue.models.sharp import change_of
from swiftqueue.models.training.head import FinetuneParams
from swiftqueue.models.training.protocol import TEACH, divide, protocol_named
from swiftqueue.pipelines.evaluate import EvaluateParams
from swiftqueue.pipelines.split import own_protocols

SUMMARY: Final = "scores.json"
FITTED: Final = "fitted"  # folder of the fitted forecasters
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
    "f1_prediction_change": ("f1", "prediction_change"),
    "f1_truth_change": ("f1", "truth_change"),
    "f1_prediction_change_by_flow": ("f1", "prediction_change_by_flow"),
    "f1_truth_change_by_flow": ("f1", "truth_change_by_flow"),
}
DRAWN: Final = ("average_precision", "mae_ms", "regret_ms")  # scores with bootstrap draws over time
ALIKE: Final = ("n", "never_ms", "always_ms", "shorter_is_classic")  # scores alike for every variant
MOST_SHARED: Final = 0.2  # share of a table's packets that another may share by chance; simulated seeds: 0.07
DIGITS: Final = 5
Pairs = Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]  # a variant's runs and the reference's


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
    params: Path,
    told: str,
    truths: Mapping[str, Path],
    visibility: str,
    also: Path | None,
) -> None:
    """Run the missing runs and write the summary; a run that fails is left out of it.

    Args:
        packets: folder of packet tables.
        output: folder of runs and summary.
        names: names of the traces to judge; none means all.
        only: variants to run; none means all.
        seeds: number of training seeds, which are 1, 2, ...
        protocol: name of the lengths of the slices.
        against: name of the variant that differences are taken from.
        choose: whether to test on the last third of the training slices.
        sections: file of the variants.
        params: file of the parameters: when a packet is late, how it is judged, which traces only teach.
        told: known inputs of packets 2 to 8 of a batch at its decision (`replay_events`).
        truths: by trace, a `truth.parquet` with each packet's waiting time in either queue.
        visibility: earlier latencies known at a decision; variants are trained under it, too.
        also: folder of packet tables of further traces, which are learned from as a whole.

    Raises:
        FileNotFoundError: a trace has no packet table.
        ValueError: an argument, section or trace is invalid, or runs failed; the line names it.
    """
    import torch

    wanted, every = variants(sections, only), variants(sections)
    if against not in read_all(sections):
        raise ValueError(f"--against {against}: there is no section of that name in {sections}")
    torch.set_num_threads(1)  # small networks lose by more threads, and seconds are of one core
    change, judging = change_of(params), judging_of(params)
    found, teaching = traces_of(packets, names, protocol, params, told, truths)
    traces = [replace(trace, visibility=visibility, change=change) for trace in found]
    more = [*teaching, *([] if also is None else tables_besides(also, traces, teaching))]
    if choose:
        traces = within_training(traces)
    work = fingerprint(traces, judging, more)
    asked: HeldOutPackets | None = None
    failed = []
    for variant in wanted:
        for seed in range(1, (seeds if variant.kind.seeded else 1) + 1):
            path, key = output / f"{variant.name}-{seed}.json", key_of_run(variant, seed, work)
            if path.is_file() and read_object(path).get("key") == key:
                say(f"{variant.name}, seed {seed}: kept")
                continue
            asked = asked or HeldOutPackets.of(traces)
            line = f"{variant.name}, seed {seed}"
            try:
                scored = run(
                    *(variant, seed, traces, asked, judging),
                    lambda one, line=line: say(f"{line}: {one}"),  # type: ignore[misc]
                    *(more, output / FITTED),
                )
            except ValueError as error:
                failed.append(line)
                say(f"{line}, {error}; left out")
                continue
            write_file(path, json.dumps({"key": key, **scored}, allow_nan=False) + "\n")
            tuned = scored["tuned"]
            precision, mae_ms = tuned["late"]["average_precision"], tuned["error"]["mae_ms"]
            say(f"{line}: AP {_shown(precision)}, MAE {_shown(mae_ms)} ms")
    about = {
        "traces": [trace.name for trace in traces],
        "protocol": protocol,
        "within_training": choose,
        "against": against,
        "told": told,
        "visibility": visibility,
        "change": change.model_dump(),
        **judging.as_json(),
        "also": [name_of(table) for table in more],
    }
    if runs := _runs(output, work, every):
        summary = summarised(runs, about, {each.name for each in every if not each.kind.seeded})
        write_file(output / SUMMARY, json.dumps(summary, indent=1, allow_nan=False) + "\n")
        say(f"{output / SUMMARY}: {len(summary['variants'])} variants")
        if against not in runs:
            say(f"{against} was not run, so there are no differences from it (--against)")
    if failed:
        raise ValueError(f"runs failed, for the reasons above: {'; '.join(failed)}")


def judging_of(params: Path) -> JudgingParams:
    """Return how a parameter file has forecasts judged; raise ValueError where it is invalid."""
    section = read(params, EvaluateParams)
    return JudgingParams(section.round_s, section.false_alarm_rate, read(params, FinetuneParams))


def traces_of(
    packets: Path,
    names: Sequence[str],
    protocol: str,
    params: Path,
    told: str = "all",
    truths: Mapping[str, Path] | None = None,
) -> tuple[list[Trace], list[pl.DataFrame]]:
    """Return the judged traces, divided, and the tables of the traces that only teach.

    No names mean all traces. A trace only teaches where the parameter file says so.
    """
    if repeated := [name for place, name in enumerate(names) if name in names[:place]]:
        raise ValueError(f"--trace {repeated[0]}: it is named twice")
    names, truths = names or traces_in(packets), truths or {}
    if not names:
        raise ValueError(f"no packet tables under {packets}; run `swiftqueue extract` or the stage `extract`")
    own = own_protocols(read_all(params))
    teaching = [name for name in names if own.get(name) == TEACH.name]
    judged = [name for name in names if name not in teaching]
    if not judged:
        raise ValueError(f"{', '.join(teaching)}: protocol {TEACH.name} in {params}, so nothing is judged")
    if wrong := [name for name in truths if name not in judged]:
        raise ValueError(f"--truth {wrong[0]}: no such trace is judged; {near(wrong[0], judged)}")
    if truths and (without := [name for name in judged if name not in truths]):
        raise ValueError(f"--truth: trace {without[0]} has none; give one of every trace, or of none")
    if teaching:
        say(f"{', '.join(teaching)}: only learned from, as {params} says (protocol {TEACH.name})")
    found = []
    for name in judged:
        table = read_packets(packets, name)
        slices = divide(decision_times(table), protocol_named(protocol), name)
        waits = read_waits(truths[name], table) if name in truths else None
        found.append(Trace(name, table, slices, told=told, waits=waits))
    return found, [read_packets(packets, name) for name in teaching]


def tables_besides(
    folder: Path, judged: Sequence[Trace], teaching: Sequence[pl.DataFrame]
) -> list[pl.DataFrame]:
    """Return the packet tables of a folder of further training traces.

    Raises:
        ValueError: the folder has none, or a table shares packets with another trace, under whatever name.
    """
    if not (names := traces_in(folder)):
        raise ValueError(f"--also {folder}: there are no packet tables")
    others = [(trace.name, trace.packets, "is judged") for trace in judged]
    others += [(name_of(table), table, "teaches already") for table in teaching]
    tables = [read_packets(folder, name) for name in names]
    for name, table in zip(names, tables, strict=True):
        for other, packets, role in others:
            if name == other or _shared(table, packets) > MOST_SHARED:
                raise ValueError(f"--also {folder}: {name} has packets of {other}, which {role}")
    return tables


def _shared(table: pl.DataFrame, judged: pl.DataFrame) -> float:
    """Return the share of the smaller table's packets in the other, by latencies and spans of time.

    Neither another name nor another beginning hides a trace.
    """
    sent, late = pl.col("sent_ns"), pl.col("latency_us")
    marks = {"near_ns": sent.diff(37), "far_ns": sent.diff(100), "now_us": late, "then_us": late.shift(7)}
    seen = [each.select(**marks).drop_nulls() for each in (table, judged)]
    return seen[0].join(seen[1], on=list(marks), how="semi").height / max(1, min(map(len, seen)))


def fingerprint(traces: Sequence[Trace], judging: JudgingParams, also: Sequence[pl.DataFrame] = ()) -> str:
    """Return a hash of packets and of everything that is done with them."""
    digest = hashlib.sha256(json.dumps(judging.as_json()).encode())
    for trace in traces:
        digest.update(json.dumps([trace.name, trace.slices.as_json()]).encode())
        digest.update(trace.packets.hash_rows(seed=1).to_numpy().tobytes())
        asked = [trace.told, trace.visibility, trace.change.model_dump()]
        digest.update(json.dumps(asked).encode())
        if trace.waits is not None:
            waits = trace.waits
            for each in (waits.classic_us_N, waits.l4s_us_N, waits.movable_N):
                digest.update(each.tobytes())
    for table in also:
        digest.update(b"also" + table.hash_rows(seed=1).to_numpy().tobytes())
    return digest.hexdigest()[:16]


def _runs(output: Path, work: str, every: Sequence[Variant]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs on these packets by variant, without those of other parameters or code."""
    by_name = {variant.name: variant for variant in every}
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(output.glob("*.json")):
        one = read_object(path) if path.name != SUMMARY else {}
        variant = by_name.get(str(one.get("variant")))
        if variant and one.get("key") == key_of_run(variant, one["seed"], work):
            found.setdefault(variant.name, []).append(one)
    return found


def summarised(
    runs: Mapping[str, Sequence[Mapping[str, Any]]], about: Mapping[str, Any], alike: AbstractSet[str]
) -> dict[str, Any]:
    """Return means over seeds, their intervals and paired differences from one variant, for each form.

    `seeds_95` is Student's t of the differences by seed; in `seconds_95` time and traces vary (`over_all`).
    A variant of `alike` has one run, which is the same for every seed.
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
                found[score]["less_reference"]["seconds_95"] = _over_all(pairs, form, score)
    if spreads := [one[form]["spread"] for one in runs if one[form].get("spread", {}).get("coverage")]:
        coverage = np.mean([each["coverage"] for each in spreads], axis=0)
        found["coverage"] = {"levels": spreads[0]["levels"], "share": [round(float(x), 4) for x in coverage]}
    return found


def _paired(
    runs: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]], *, alike: bool
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Return pairs of runs of one seed; a run alike for all seeds is paired with each of the other's."""
    if alike:
        return [(ours, other) for ours in runs for other in base]
    by_seed = {one["seed"]: one for one in base}
    return [(one, by_seed[one["seed"]]) for one in runs if one["seed"] in by_seed]


def _over_all(pairs: Pairs, form: str, score: str) -> list[float] | None:
    """Return the 95 % interval of the differences, ours less the other's, over seeds, time and traces."""
    if not all(one[form]["draws"] for pair in pairs for one in pair):
        return None
    part, key = SCORES[score]
    by_seed = [ours[form][part][key] - other[form][part][key] for ours, other in pairs]

    def differences(of: str) -> NDArray[np.float64]:
        ours, other = (
            np.array([pair[side][form][of][score] for pair in pairs], dtype=np.float64) for side in (0, 1)
        )
        return ours - other

    by_trace = differences("by_trace")
    by_trace = by_trace[:, np.isfinite(by_trace).all(0)]  # without late packets there is no average precision
    ends = over_all(by_seed, differences("draws"), pairs[0][0][form]["blocks"], by_trace)
    return ends and [round(end, DIGITS) for end in ends]


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
