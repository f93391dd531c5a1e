"""Say in words where the fine-tuned model wins, and where it loses to which method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from swiftqueue.models.scoring.predictions import BASELINES, FINETUNED, PRETRAINED, TREES, TREES_CONTINUED

LEAST_BLOCKS: Final = 5  # with fewer blocks of time an interval is so wide that zero inside says nothing
TWINS: Final = {"trees": (TREES, TREES_CONTINUED)}  # baselines that are a forecaster of the model's own kind


class HeadlineFigure(NamedTuple):
    """A headline figure: its place in a method's scores, its name, and its better direction."""

    group: str
    key: str
    words: str
    higher_is_better: bool
    digits: int
    unit: str
    undefined: str = "undefined: there is no such packet"

    def of(self, scores: Mapping[str, Any]) -> float | None:
        """Return the figure's value under `acked`; None if it could not be computed."""
        value: float | None = scores["acked"][self.group][self.key]
        return value

    def text(self, value: float | None) -> str:
        """Format a value as the report prints it."""
        return "–" if value is None else f"{value:.{self.digits}f}{self.unit}"


LATE: Final = HeadlineFigure("late", "average_precision", "average precision of late packets", True, 3, "")
ERROR: Final = HeadlineFigure("error", "mae_ms", "mean absolute error", False, 2, " ms")
CHOICE: Final = HeadlineFigure(
    *("choice", "regret_ms", "regret of the choice between the queues", False, 2, " ms"),
    "unknown, as the waits in both queues are",
)


NOISE: Final = "within the noise"
SHORT: Final = "too short to tell"


class Sentence(NamedTuple):
    """One line of the verdict; `kind` is `wins`, `loses`, `even`, `tuning` or `note`."""

    kind: str
    text: str


def verdict(metrics: Mapping[str, Any]) -> list[Sentence]:
    """Judge the fine-tuned model against every baseline on the headline figures, over all traces."""
    twins = _twins(metrics)
    said = list(_judge("all traces", metrics["all"], twins))
    if twins:
        said.append(
            Sentence("note", f"{_listed(twins)} are of the model's own kind, so it is not judged by them.")
        )
    return said


def verdict_by_trace(metrics: Mapping[str, Any]) -> list[Sentence]:
    """Judge the fine-tuned model for each trace."""
    twins = _twins(metrics)
    return [s for name, scores in metrics["traces"].items() for s in _judge(f"trace {name}", scores, twins)]


def _twins(metrics: Mapping[str, Any]) -> tuple[str, ...]:
    return TWINS.get(metrics.get("about", {}).get("forecaster", ""), ())


def _judge(scope: str, scores: Mapping[str, Any], twins: Sequence[str]) -> Iterator[Sentence]:
    even: dict[str, list[str]] = {}  # by reason, the figures in which some baseline is ahead, but not settled
    for measure in (LATE, ERROR, CHOICE):
        ours = measure.of(scores[FINETUNED])
        if ours is None:
            yield Sentence("note", f"On {scope} the {measure.words} is {measure.undefined}.")
            continue
        sign = 1 if measure.higher_is_better else -1
        others = {
            name: value
            for name in BASELINES
            if name not in twins and (value := measure.of(scores[name])) is not None
        }
        better = {name: value for name, value in others.items() if sign * value > sign * ours}
        reasons = {name: _unsettled(scores, measure, name) for name in better}
        for names, theirs in _alike(measure, {n: v for n, v in better.items() if not reasons[n]}):
            yield Sentence(
                "loses",
                f"On {scope} the fine-tuned model loses to {names} on the {measure.words}: "
                f"{measure.text(ours)} against {theirs}.",
            )
        for reason in (NOISE, SHORT):
            if some := {n: v for n, v in better.items() if reasons[n] == reason}:
                ahead = ", ".join(f"{theirs} of {names}" for names, theirs in _alike(measure, some))
                even.setdefault(reason, []).append(f"the {measure.words} ({measure.text(ours)}; {ahead})")
        if not better and others:
            name = max(others, key=lambda other: sign * others[other])
            word = "equals the best baseline" if others[name] == ours else "beats every baseline"
            reason = _unsettled(scores, measure, name)
            noise = f" ({reason})" if reason else ""
            yield Sentence(
                "wins",
                f"On {scope} the fine-tuned model {word} on the {measure.words}: {measure.text(ours)} "
                f"against {measure.text(others[name])} of {name}{noise}.",
            )
    if NOISE in even:
        yield Sentence(
            "even",
            f"On {scope} the fine-tuned model and some baselines ahead of it are within the noise of each "
            f"other on {_listed(even[NOISE])}.",
        )
    if SHORT in even:
        yield Sentence(
            "even",
            f"On {scope} some baselines are ahead of the fine-tuned model, and the tests are {SHORT} whether "
            f"by chance, on {_listed(even[SHORT])}.",
        )
    yield from _tuning(scope, scores)


def _tuning(scope: str, scores: Mapping[str, Any]) -> Iterator[Sentence]:
    """Say whether tuning the head helps, from the figures with and without it."""
    helped: list[str] = []
    not_helped: list[str] = []
    figures = []
    for measure in (LATE, ERROR, CHOICE):
        tuned, untuned = measure.of(scores[FINETUNED]), measure.of(scores[PRETRAINED])
        if tuned is None or untuned is None:
            continue
        better = tuned > untuned if measure.higher_is_better else tuned < untuned
        (helped if better else not_helped).append(f"the {measure.words}")
        reason = _unsettled(scores, measure, PRETRAINED)
        noise = f", {reason}" if reason else ""
        figures.append(f"{measure.words} {measure.text(tuned)} tuned, {measure.text(untuned)} untuned{noise}")
    if figures:
        partly = f"helps on {_listed(helped)} alone" if helped else "does not help"
        yield Sentence(
            "tuning",
            f"On {scope} tuning the head {partly if not_helped else 'helps'}: {'; '.join(figures)}.",
        )


def _alike(measure: HeadlineFigure, better: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    """Group baselines with one printed figure; return their names with that figure, the best first."""
    by_text: dict[str, list[str]] = {}
    for name, value in sorted(better.items(), key=lambda one: one[1], reverse=measure.higher_is_better):
        by_text.setdefault(measure.text(value), []).append(name)
    yield from ((_listed(names), text) for text, names in by_text.items())


def _listed(words: Sequence[str]) -> str:
    """Return words joined as in a sentence."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _unsettled(scores: Mapping[str, Any], measure: HeadlineFigure, name: str) -> str:
    """Return why a difference is not settled, by its paired interval; empty where it is."""
    acked = scores[name]["acked"]
    between = acked.get("finetuned_minus_this", {}).get(f"{measure.key}_95")
    if between is not None and not between[0] <= 0 <= between[1]:
        return ""
    if acked.get("blocks", LEAST_BLOCKS) < LEAST_BLOCKS:
        return SHORT
    return "" if between is None else NOISE
