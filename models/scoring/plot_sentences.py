"""Say in a sentence what each of the report's plots shows, from the figures that it is drawn of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from swiftqueue.models.scoring.plot_tables import AROUND, SharpChange
from swiftqueue.models.scoring.predictions import BASELINES, FINETUNED, PRETRAINED
from swiftqueue.models.scoring.verdict import LATE

AFTER: Final = 8  # packets after a sharp change whose mean is compared: a batch


@dataclass(frozen=True)
class PlotSentences:
    """A sentence for each plot."""

    late: str
    changes: str
    rounds: str
    horizon: str
    examples: str


def sentences(
    metrics: Mapping[str, Any], tables: Mapping[str, pl.DataFrame], changes: Sequence[SharpChange]
) -> PlotSentences:
    """Return the plots' sentences."""
    return PlotSentences(
        _late(metrics["all"]),
        _changes(tables["sharp_changes"]),
        _rounds(metrics["rounds"]),
        _horizon(tables["error_by_horizon"]),
        _examples(changes),
    )


def _late(scores: Mapping[str, Any]) -> str:
    ours = LATE.of(scores[FINETUNED])
    if ours is None:
        return "No packet of the test slices is late, so there is nothing to find."
    known = {name: value for name in BASELINES if (value := LATE.of(scores[name])) is not None}
    best = max(known, key=lambda name: known[name])
    chance = scores[FINETUNED]["acked"]["late"]["base_rate"]
    return (
        f"The area under the fine-tuned model's curve is {ours:.3f}; the best baseline, {best}, has "
        f"{known[best]:.3f}, and chance (dotted) has {chance:.3f}."
    )


def _changes(table: pl.DataFrame) -> str:
    """Compare the change from the packet before to the mean of a batch after it."""
    said = []
    for word in ("rise", "drop"):
        lines = table[f"{word}_true"], table[f"{word}_{FINETUNED}"]
        if lines[0].null_count():
            continue
        true_ms, ours_ms = (float(x[AROUND:][:AFTER].to_numpy().mean()) - float(x[AROUND - 1]) for x in lines)
        said.append(
            f"At a sharp {word} latency moves by {true_ms:+.1f} ms on average, and the prediction by "
            f"{ours_ms:+.1f} ms"
        )
    if not said:
        return "The test slices have no sharp change with enough packets around it."
    return f"{'. '.join(said)} (from the packet before to the mean of {AFTER} packets)."


def _rounds(rounds: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    key = "average_precision"
    pairs = [(one[FINETUNED][key], one[PRETRAINED][key]) for each in rounds.values() for one in each]
    known = [(tuned, untuned) for tuned, untuned in pairs if None not in (tuned, untuned)]
    if not known:
        return "No round's test slice has a late packet, so rounds differ in their error alone."
    better = sum(tuned > untuned for tuned, untuned in known)
    low, high = min(tuned for tuned, _ in known), max(tuned for tuned, _ in known)
    return (
        f"Average precision of the fine-tuned model lies between {low:.2f} and {high:.2f} by round; "
        f"in {better} of {len(known)} rounds with late packets it exceeds the untuned head's."
    )


def _horizon(table: pl.DataFrame) -> str:
    errors = table[FINETUNED]
    if errors.null_count():
        return "Hardly a latency is known, so there is no error at some place."
    first, last = float(errors[0]), float(errors[-1])
    return (
        f"The fine-tuned model's error is {first:.2f} ms for a batch's first packet and {last:.2f} ms for "
        f"its eighth ({(last - first) / first:+.0%})."
        if first
        else "The fine-tuned model's error is 0 for a batch's first packet."
    )


def _examples(changes: Sequence[SharpChange]) -> str:
    if not changes:
        return "The test slices have no sharp change with enough packets around it."
    foretold = 0
    for change in changes:
        before, after = change.lines["true"][AROUND - 1 : AROUND + 1]
        ours = change.lines[FINETUNED][AROUND]
        foretold += abs(ours - after) < abs(ours - before)
    return (
        f"In {foretold} of these {len(changes)} changes the prediction for the first changed packet is "
        "nearer to its own latency than to that of the packet before."
    )
