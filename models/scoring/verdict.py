"""What the figures say in words: where the fine-tuned model wins, and by name where it loses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from models.scoring.predictions import BASELINES, FINETUNED, PRETRAINED


class Measure(NamedTuple):
    """A headline figure: where it stands in a method's scores, its name, and which way is better."""

    group: str
    key: str
    words: str
    higher_is_better: bool
    digits: int
    unit: str
    undefined: str = "undefined: there is no such packet"

    def of(self, scores: Mapping[str, Any]) -> float | None:
        """Its value under `acked`; None if it could not be computed."""
        value: float | None = scores["acked"][self.group][self.key]
        return value

    def text(self, value: float | None) -> str:
        """Format a value as the report prints it."""
        return "–" if value is None else f"{value:.{self.digits}f}{self.unit}"


LATE: Final = Measure("late", "average_precision", "average precision of late packets", True, 3, "")
ERROR: Final = Measure("error", "mae_ms", "mean absolute error", False, 2, " ms")
CHOICE: Final = Measure(
    *("choice", "regret_ms", "regret of the choice between the queues", False, 2, " ms"),
    "not known: the waits in both queues are not",
)


class Sentence(NamedTuple):
    """One line of the verdict; `kind` is `wins`, `loses` or `note`."""

    kind: str
    text: str


def verdict(metrics: Mapping[str, Any]) -> list[Sentence]:
    """Judge the fine-tuned model against every baseline on the headline figures, over all traces."""
    return list(_judge("all traces", metrics["all"]))


def verdict_by_trace(metrics: Mapping[str, Any]) -> list[Sentence]:
    """Give the same judgement for each trace."""
    return [s for name, scores in metrics["traces"].items() for s in _judge(f"trace {name}", scores)]


def _judge(scope: str, scores: Mapping[str, Any]) -> Iterator[Sentence]:
    for measure in (LATE, ERROR, CHOICE):
        ours = measure.of(scores[FINETUNED])
        if ours is None:
            yield Sentence("note", f"On {scope} the {measure.words} is {measure.undefined}.")
            continue
        sign = 1 if measure.higher_is_better else -1
        others = {name: value for name in BASELINES if (value := measure.of(scores[name])) is not None}
        better = {name: value for name, value in others.items() if sign * value > sign * ours}
        for name, theirs in sorted(better.items(), key=lambda item: -sign * item[1]):
            yield Sentence(
                "loses",
                f"On {scope} the fine-tuned model loses to {name} on the {measure.words}: "
                f"{measure.text(ours)} against {measure.text(theirs)}"
                f"{_settled(scores, measure, name)}.",
            )
        if not better and others:
            name = max(others, key=lambda other: sign * others[other])
            word = "equals the best baseline" if others[name] == ours else "beats every baseline"
            yield Sentence(
                "wins",
                f"On {scope} the fine-tuned model {word} on the {measure.words}: {measure.text(ours)} "
                f"against {measure.text(others[name])} of {name}{_settled(scores, measure, name)}.",
            )
        before = measure.of(scores[PRETRAINED])
        word = "no better than" if before is None or sign * ours <= sign * before else "better than"
        yield Sentence(
            "note",
            f"On {scope} fine-tuning is {word} the pre-trained head on the {measure.words}: "
            f"{measure.text(ours)} against {measure.text(before)}.",
        )


def _settled(scores: Mapping[str, Any], measure: Measure, name: str) -> str:
    """Say where the paired interval of the difference holds zero, so that nobody makes much of it."""
    between = scores[name]["acked"].get("finetuned_minus_this", {}).get(f"{measure.key}_95")
    inside = between is not None and between[0] <= 0 <= between[1]
    return " (within the noise)" if inside else ""
