"""Compare the event stream with and without the virtual queue's forecast as an input and as its anchor.

All variants learn from the loop's training slices (params.yaml). The trained networks are then scored on
traces of other seeds, which no network learned from, by the functions of `swiftqueue forecasts`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from swiftqueue.benchmarks.forecasts import judging_of, summarised, traces_of
from swiftqueue.common.section import read
from swiftqueue.feature_store.packets.extract import ExtractJob, extract_trace
from swiftqueue.models.forecasters import comparison
from swiftqueue.models.forecasters.forecaster import Variant, variants
from swiftqueue.models.forecasters.kept import fit
from swiftqueue.models.forecasters.traces import TracePart, lessons
from swiftqueue.models.forecasters.walk import forecasts, tune_heads
from swiftqueue.models.sharp import change_of
from swiftqueue.pipelines.simulate import SimulateParams, simulate

PARAMS = Path("params.yaml")
SECTIONS = Path(os.environ.get("ANCHOR_SECTIONS", Path(__file__).with_name("anchor.yaml")))
OUTPUT = Path(os.environ.get("ANCHOR_OUTPUT", "var/anchor"))


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def make(folder: Path, seeds: list[int], program: Path) -> None:
    """Simulate traces as the stage does, one after the other, and extract their packet tables."""
    params = read(PARAMS, SimulateParams)
    for seed in seeds:
        captures = folder / "captures"
        captures.mkdir(parents=True, exist_ok=True)
        one = SimulateParams(**params.model_dump() | {"seeds": [seed]})
        (capture,) = simulate(one, captures, program)
        found = extract_trace(ExtractJob(capture, capture.stem, None, "selective"), folder / "packets")
        capture.unlink()
        say(f"{capture.stem}: {found.get('packets', found)}")


def lessons_of_the_loop(packets: Path) -> list[TracePart]:
    """Return what the stage `pretrain` learns from."""
    change = change_of(PARAMS)
    found, teaching = traces_of(packets, [], "small", PARAMS)
    return lessons([replace(trace, change=change) for trace in found], teaching)


def trained(packets: Path, names: list[str], seeds: list[int]) -> None:
    """Train each variant with each seed, seed by seed, and keep it."""
    parts = lessons_of_the_loop(packets)
    for seed in seeds:
        for variant in variants(SECTIONS, names):
            if seed == seeds[0] or variant.kind.seeded:
                line = f"{variant.name}, seed {seed}"
                _, cpu_s = fit(
                    variant, seed, parts, lambda one, line=line: say(f"{line}: {one}"), OUTPUT / "fitted"
                )
                say(f"{line}: {cpu_s} s")


def scored(packets: Path, learned: Path, names: list[str], seeds: list[int], output: Path) -> None:
    """Score the kept forecasters on all traces of a folder, with tuned heads and without."""
    change, judging = change_of(PARAMS), judging_of(PARAMS)
    found, _ = traces_of(packets, [], "small", PARAMS)
    traces = [replace(trace, change=change) for trace in found]
    parts = lessons_of_the_loop(learned)

    def kept(variant: Variant, seed: int, _: Any, tell: Any, __: Any) -> Any:
        return fit(variant, seed, parts, tell, OUTPUT / "fitted")

    def walked(fitted: Any, some: Any, how: Any, *, both: bool) -> dict[str, Any]:
        """Return the forecasts of both forms; each decision is encoded once, unlike in `comparison`."""
        said = [
            forecasts(tune_heads(fitted, trace, how.finetune), trace, how.round_s, forms=comparison.FORMS)
            for trace in some
        ]
        joined = {
            form: comparison.DecisionForecasts.joined([each[form] for each in said])
            for form in comparison.FORMS
        }
        return {form: comparison._Forecasts(one.us_BH, one.spread) for form, one in joined.items()}

    comparison.fit, comparison._walked = kept, walked
    asked = comparison.HeldOutPackets.of(traces)
    output.mkdir(parents=True, exist_ok=True)
    runs: dict[str, list[dict[str, Any]]] = {}
    chosen = variants(SECTIONS, names)
    for variant in chosen:
        for seed in seeds if variant.kind.seeded else seeds[:1]:
            path = output / f"{variant.name}-{seed}.json"
            if not path.is_file():
                one = comparison.run(variant, seed, traces, asked, judging, say)
                path.write_text(json.dumps(one) + "\n")
            one = json.loads(path.read_text())
            runs.setdefault(variant.name, []).append(one)
            figures = {form: (one[form]["late"], one[form]["error"]) for form in comparison.FORMS}
            shown = [
                f"{form} AP {late['average_precision']:.4f} MAE {error['mae_ms']:.4f}"
                for form, (late, error) in figures.items()
            ]
            say(f"{variant.name}, seed {seed}: {'; '.join(shown)}")
    alike = {variant.name for variant in chosen if not variant.kind.seeded}
    about = {"against": "default", "traces": [trace.name for trace in traces]}
    summary = summarised(runs, about, alike)
    (output / "scores.json").write_text(json.dumps(summary, indent=1) + "\n")
    say(f"{summary['n']} packets, {summary['n_late']} late, {', '.join(about['traces'])}")
    for name, variant in summary["variants"].items():
        for form in comparison.FORMS:
            for score in ("average_precision", "mae_ms", "p99_ms", "log_mae"):
                cell = variant[form][score]
                say(f"{name} {form} {score} {cell['mean']} {cell.get('less_reference')}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    what, packets, *more = sys.argv[1:]
    if what == "make":
        make(Path(packets), [int(each) for each in more[1:]], Path(more[0]))
    elif what == "train":
        trained(Path(packets), more[0].split(","), [int(each) for each in more[1].split(",")])
    else:
        scored(
            Path(packets),
            Path(more[0]),
            more[1].split(","),
            [int(each) for each in more[2].split(",")],
            OUTPUT / more[3],
        )
