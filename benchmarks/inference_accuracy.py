"""Score the default traces with float32 and with bfloat16 in the engine, to see what bfloat16 costs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from swiftqueue.benchmarks.rows import Row
from swiftqueue.common.say import say

PARAMS: Final = Path("params.yaml")
DATA: Final = Path("data")  # folder that `dvc repro` made
# Group and name of each figure, and whether more of it is better.
FIGURES: Final = (
    ("late", "average_precision", True),
    ("error", "mae_ms", False),
    ("choice", "regret_ms", False),
)


def accuracy_rows() -> list[Row]:
    """Return scores with products of bfloat16 beside those of float32; print the differences' intervals.

    There are none where `dvc repro` has not made the default traces and models; a line says so.
    """
    from swiftqueue.common.section import read
    from swiftqueue.models.event_stream.forecaster import EventStreamForecaster
    from swiftqueue.models.forecasters.forecaster import load
    from swiftqueue.models.forecasters.traces import read_traces, tested
    from swiftqueue.models.forecasters.walk import TUNED, predict_trace
    from swiftqueue.models.scoring.evaluation import evaluate
    from swiftqueue.models.scoring.predictions import FINETUNED, METHODS, PRETRAINED
    from swiftqueue.models.sharp import change_of
    from swiftqueue.pipelines.evaluate import EvaluateParams, heads_of
    from swiftqueue.pipelines.live.encoding import EngineEncoder
    from swiftqueue.serving.engine import Engine

    folder = DATA / "models" / "pretrained"
    if not folder.is_dir() or not isinstance(base := load(folder), EventStreamForecaster):
        say("bench inference: no default network in data/models, so bf16 is not scored: dvc repro")
        return []
    section, predictions = read(PARAMS, EvaluateParams), []
    encoders = {isa: EngineEncoder(Engine(folder, isa), base) for isa in ("auto", "bf16")}
    for trace in tested(read_traces(DATA / "packets", DATA / "split.json", change_of(PARAMS))):
        trace = trace.with_waits(DATA / "traces" / "simulated")
        heads = {}
        for isa, encoder in encoders.items():
            heads[isa] = heads_of(load(folder), DATA / "models" / "finetuned", trace)
            for head in heads[isa].values():
                if isinstance(head, EventStreamForecaster):  # as the pre-trained one is
                    head.encoder = encoder
        methods = {FINETUNED: (heads["auto"], TUNED), PRETRAINED: (heads["bf16"], TUNED)}
        found = predict_trace(trace, methods, section.round_s)
        for method in set(METHODS) - methods.keys():  # the scores are of every method
            found.us_BH[method] = found.us_BH[PRETRAINED]
            found.classic_BH[method] = found.classic_BH[PRETRAINED]
        predictions.append(found)
    rate, round_s = section.false_alarm_rate, section.round_s
    scores = evaluate(predictions, seed=section.seed, false_alarm_rate=rate, round_s=round_s)["all"]
    exact, rounded = (scores[method]["acked"] for method in (FINETUNED, PRETRAINED))
    rows = []
    for group, name, higher in FIGURES:
        ours, theirs = rounded[group][name], exact[group][name]
        low, high = rounded["finetuned_minus_this"][f"{name}_95"]
        say(f"{name}: {theirs:.6g} with fp32 less {ours:.6g} with bf16 is {low:.2g} to {high:.2g} (95 %)")
        ratio = ours / theirs if higher else theirs / ours
        rows.append(Row(f"{name}, bf16", ours, theirs, "fp32", ratio, "" if higher else "ms", 1))
    return rows
