"""Published scores of `swiftqueue forecasts`: `docs/results/forecasters.json`, an entry by kind of trace."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from swiftqueue.benchmarks.published import check, entries_of, origin
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.models.scoring.intervals import estimate

FILE: Final = Path("docs/results/forecasters.json")
# Alike in two summaries of the same packets, each known at the same moment and scored alike.
SAME_PACKETS: Final = (
    *("traces", "protocol", "within_training", "told", "visibility", "change", "round_s", "also"),
    *("n", "n_late"),
)
NEEDED: Final = {"traces", "protocol", "within_training", "against", "n", "n_late", "base_rate", "variants"}
DIFFERENCE: Final = "less the reference"
LONG: Final = ("web-long", "web-varying-long", "video-long", "video-varying-long")
PAGES: Final = LONG[:2]
LAYERS: Final = "event-stream-2"  # two layers, which the others stand beside
CUMULATIVE: Final = ("window", "window-queueing")  # on each kind's newest draws by cumulative ACKs
SELECTIVE_ACKS: Final = ("mlp", "xgboost")  # on draws of all long kinds by selective ACKs
PAGES_SEEDS: Final = range(1401, 1406)  # newest draws by cumulative ACKs: of web pages, and of video
VIDEO_SEEDS: Final = range(1301, 1306)
SELECTIVE_SEEDS: Final = range(1501, 1506)
REGRET: Final = "regret_ms"
JUDGED_SCORES: Final = (
    ("average_precision", "AP late", 3),
    ("mae_ms", "MAE, ms", 2),
    (REGRET, "regret, ms", 2),
)
# Traces with three receivers, on which the choice between the queues is scored (docs/results/choice.md).
CHOICES: Final = ("web", "web-varying", "video", "video-varying")
CHOICE_HEAD: Final = [
    "trace",
    "variant",
    "seeds",
    "regret, ms",
    DIFFERENCE,
    "shorter queue, %",
    "moved, %",
    "AP late",
    "MAE, ms",
]
SETTLED: Final = ("**better**", "**worse**")
TIE_PRECISION: Final = 0.02
TIE_ERROR: Final = 0.02  # share of the other forecaster's error


def load(root: Path) -> dict[str, Any]:
    """Read what is published below a checkout; nothing, where nothing is."""
    return entries_of(root / FILE)


def take(name: str, scores: Path, path: Path = FILE) -> str:
    """Put a summary into the file under a name; returns a line that says what became of the entry.

    Variants that forecast the packets of the entry of this name join it; else the summary takes its place.

    Raises:
        OSError: it is not there.
        ValueError: it is not one.
    """
    found = read_object(scores)
    check(scores, found, NEEDED, "summary of `swiftqueue forecasts`")
    entries = entries_of(path)
    new, old = {**origin(), **found}, entries.get(name)
    if old is None:
        entries[name], said = new, "is new"
    elif other := _differs(old, new):
        entries[name], said = new, f"takes the place of one whose {other} is another"
    else:
        entries[name] = _joined(old, new)
        said = f"has {', '.join(entries[name]['variants'])}"
    # A line each, without spaces: the file stays small enough for git.
    lines = (json.dumps({key: entries[key]}, separators=(",", ":"))[1:-1] for key in sorted(entries))
    write_file(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return f"{path}: {name} {said}"


def _differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the first field in which two summaries differ in their packets; empty where they do not."""
    if bool(old.get("choice")) != bool(new.get("choice")):
        return "choice"
    return next((key for key in SAME_PACKETS if old.get(key) != new.get(key)), "")


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry with the variants that are new to it or were measured again; its reference stays.

    Differences from the reference are left out of them: they are from another run of it.
    """
    whole = set(old["variants"]) <= set(new["variants"])
    if whole and old["against"] == new["against"]:
        return dict(new)
    added = {name: variant for name, variant in new["variants"].items() if name != old["against"]}
    for variant in added.values():
        for form in ("tuned", "pretrained"):
            for score in variant[form].values():
                if score is not None:
                    score.pop("less_reference", None)
    where = f"{', '.join(added)} on {new['date']} at commit `{new['commit']}`, on {new['machine']}"
    return {**old, "machine": f"{old['machine']}; {where}", "variants": {**old["variants"], **added}}


def measured(one: Mapping[str, Any]) -> str:
    """Return a sentence that says what was measured, on which traces and when."""
    where = "the last third of the training slices" if one["within_training"] else "all test slices"
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, on {one['machine']}. Traces "
        f"{', '.join(one['traces'])}; protocol `{one['protocol']}`, {where}: {one['n']:,} packets, "
        f"{one['n_late']:,} of them late (share {number({'mean': one['base_rate']}, 3)})."
    )


@dataclass(frozen=True)
class Beside:
    """Two layers beside another forecaster on a kind's draws: a pair of each score for each draw."""

    kind: str
    acks: str
    other: str
    pairs: Mapping[str, list[tuple[float, float]]]


def beside(published: Mapping[str, Any]) -> list[Beside]:
    """Return every comparison of two layers over the draws of the long kinds.

    Raises:
        ValueError: a draw is not published, or lacks one of the two.
    """
    found = []
    for kind in LONG:
        newest = PAGES_SEEDS if kind in PAGES else VIDEO_SEEDS
        others = [("cumulative", other, newest) for other in CUMULATIVE]
        others += [("cumulative", "bilstm", newest)] if kind in PAGES else []
        others += [("selective", other, SELECTIVE_SEEDS) for other in SELECTIVE_ACKS]
        for acks, other, seeds in others:
            draws = [f"{kind}-{seed}" for seed in seeds]
            pairs = {key: _pairs(published, draws, LAYERS, key, other) for key, _, _ in JUDGED_SCORES}
            found.append(Beside(kind, acks, other, pairs))
    return found


def beside_layers(published: Mapping[str, Any]) -> list[str]:
    """Return two layers beside each other forecaster: a line for each long kind, the mean over its draws.

    A cell has the score, and the difference with its interval, bold if it is settled.

    Raises:
        ValueError: as `beside`.
    """
    lines = lab.head_of(["traces", "ACKs", f"`{LAYERS}` beside", *(name for _, name, _ in JUDGED_SCORES)])
    for one in beside(published):
        cells = [_over(one.pairs[key], key, digits) for key, _, digits in JUDGED_SCORES]
        lines.append(lab.row_of([one.kind, one.acks, f"`{one.other}`", *cells]))
    return lines


def _pairs(
    published: Mapping[str, Any], draws: Sequence[str], challenger: str, key: str, other: str
) -> list[tuple[float, float]]:
    """Return a score of the challenger and of another forecaster on each draw, with tuned heads."""
    of = [entry(published, name)["variants"] for name in draws]
    if any(not {challenger, other} <= set(variants) for variants in of):
        raise ValueError(f"{FILE} has no {challenger} beside {other} on each of {', '.join(draws)}")
    tuned = ([float(each[name]["tuned"][key]["mean"]) for name in (challenger, other)] for each in of)
    return [(ours, others) for ours, others in tuned]


def _over(pairs: Sequence[tuple[float, float]], key: str, digits: int) -> str:
    """Return the challenger's mean over draws, and its difference with the interval, bold if settled."""
    ours, theirs = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    less = estimate([one - other for one, other in pairs])
    if less is None or less.low is None or less.high is None:
        raise ValueError("a verdict over draws needs two of them")
    ends = (less.low, less.high)
    mark = "**" if _judged(key, [ends], theirs) in SETTLED else ""
    return f"{ours:.{digits}f}, {mark}{less.mean:+.{digits}f}{mark} ({_ends(ends, digits)})"


def _judged(key: str, ends: Sequence[Sequence[float] | None], theirs: float) -> str:
    """Return the verdict on a score, of which the other has `theirs`."""
    lower_is_better = key != "average_precision"
    tie = TIE_ERROR * theirs if lower_is_better else TIE_PRECISION
    return verdict(ends, tie, lower_is_better=lower_is_better)


def verdict(ends: Sequence[Sequence[float] | None], tie: float, *, lower_is_better: bool) -> str:
    """Return `better` or `worse` where all intervals agree, `no worse` where none leaves the tie."""
    gains = [sorted(-end for end in each) if lower_is_better else list(each) for each in ends if each]
    if len(gains) < len(ends):
        return "not settled"
    if all(low > 0 for low, _ in gains):
        return "**better**"
    if all(high < 0 for _, high in gains):
        return "**worse**"
    return "no worse" if all(low >= -tie for low, _ in gains) else "not settled"


def choices(published: Mapping[str, Any]) -> list[str]:
    """Return how well each variant chooses between the queues: a line for each kind of trace and variant.

    Heads are tuned, and latencies are those of selective ACKs.

    Raises:
        ValueError: a kind is not published.
    """
    lines = lab.head_of(CHOICE_HEAD)
    for kind in CHOICES:
        one = entry(published, f"choice-{kind}-selective")
        never, always = one["choice"]["never_ms"], one["choice"]["always_ms"]
        lines.append(lab.row_of([kind, "never move", "", f"{never:.2f}", *[""] * 5]))
        lines.append(lab.row_of([kind, "always move", "", f"{always:.2f}", *[""] * 5]))
        found = sorted(one["variants"].items(), key=lambda each: each[1]["tuned"][REGRET]["mean"])
        for name, variant in found:
            scores = variant["tuned"]
            lines.append(
                lab.row_of(
                    [
                        kind,
                        f"**`{name}`**" if name == one["against"] else f"`{name}`",
                        str(variant["seeds"]),
                        *_beside(scores[REGRET], 2),
                        *(f"{100 * scores[key]['mean']:.0f}" for key in ("right", "moved")),
                        number(scores["average_precision"], 3),
                        number(scores["mae_ms"], 2),
                    ]
                )
            )
    return lines


def entry(published: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the published entry of a name.

    Raises:
        ValueError: nothing is.
    """
    if name not in published:
        raise ValueError(f"{FILE} has no {name}: swiftqueue results --forecasts {name} FILE")
    return published[name]  # type: ignore[no-any-return]


def with_ends(score: Mapping[str, Any], digits: int) -> str:
    """Return a score with its 95 % interval over seeds, where there are several."""
    ends = score["seeds_95"]
    said_ends = "" if ends is None else f" ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"
    return f"{number(score, digits)}{said_ends}"


def _beside(score: Mapping[str, Any] | None, digits: int, other: str = "less_reference") -> tuple[str, str]:
    if score is None or other not in score:
        return number(score, digits), lab.NONE
    less = score[other]
    ends = [_ends(less[key], digits) for key in ("seeds_95", "seconds_95") if key in less]
    return number(score, digits), f"{less['mean']:+.{digits}f} ({'; '.join(ends)})"


def _ends(ends: Sequence[float] | None, digits: int) -> str:
    return lab.NONE if ends is None else f"{ends[0]:+.{digits}f} to {ends[1]:+.{digits}f}"


def number(score: Mapping[str, Any] | None, digits: int) -> str:
    """Return a score's mean as text."""
    return lab.NONE if score is None or score["mean"] is None else f"{score['mean']:.{digits}f}"
