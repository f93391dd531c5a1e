"""Published scores of `swiftqueue forecasts`: `docs/results/forecasters.json`, an entry by kind of trace."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.published import check, entries_of, origin
from common.atomic import write_file
from common.json_file import read_object
from laboratory.report import tables as lab
from models.scoring.choice import RULES, rule_name
from models.scoring.intervals import estimate

FILE: Final = Path("docs/results/forecasters.json")
# Alike in two summaries of the same packets, each known at the same moment and scored alike.
SAME_PACKETS: Final = (
    *("traces", "protocol", "within_training", "told", "visibility", "change", "round_s", "explored", "also"),
    *("n", "n_late"),
)
NEEDED: Final = {"traces", "protocol", "within_training", "against", "n", "n_late", "base_rate", "variants"}
DIFFERENCE: Final = "less the reference"
HEAD: Final = [
    "variant",
    "seeds",
    "AP late",
    DIFFERENCE,
    "MAE, ms",
    DIFFERENCE,
    "log error",
    "M multiply-adds",
]
MILLION: Final = 1e6

# The judgements as they were written down beforehand (docs/results/forecasters.md).
JUDGED: Final = ("fresh", "pages-and-video", "speed-tests", "wifi")
LONG: Final = ("web-long", "web-varying-long", "video-long", "video-varying-long")
JUDGED_AGAIN: Final = (
    *LONG,
    *("fresh-again", "pages-and-video-again", "speed-tests-again", "wifi-again"),
)
# Of the traffic of one kind, with models of their own.
DRAWS: Final = tuple(f"video-long-{seed}" for seed in range(1201, 1206))
LAYERS: Final = "event-stream-2"  # two layers, judged on draws of their own
LAYERS_SEEDS: Final = range(1301, 1306)
ALIKE: Final = "window-queueing"  # a window with the event stream's inputs
VIDEO: Final = LONG[2:]
REGRET: Final = "regret_ms"
PAGES: Final = LONG[:2]  # kinds that were made again with pages of their own in each group
PAGES_SEEDS: Final = range(1401, 1406)
SELECTIVE_SEEDS: Final = range(1501, 1506)  # of draws of all long kinds, read by selective ACKs, too
JUDGED_LAYERS: Final = ("fresh-layers", "pages-and-video-layers", "speed-tests-layers", "wifi-layers")
FIVE_SEEDS: Final = tuple(name.replace("-layers", "-five") for name in JUDGED_LAYERS)  # training seeds 1 to 5
BASELINES: Final = ("mlp", "xgboost")
JUDGED_SCORES: Final = (
    ("average_precision", "AP late", 3),
    ("mae_ms", "MAE, ms", 2),
    (REGRET, "regret, ms", 2),
)
CHALLENGER: Final = "event-stream"
CHAMPION: Final = "window"
LAYERS_HEAD: Final = ["traces", "score", "beside", LAYERS, "the other", "difference", "verdict"]
JUDGED_HEAD: Final = ("over seeds", "over seeds and seconds", "verdict")
# Traces with three receivers, on which the choice between the queues is scored (docs/results/choice.md).
CHOICES: Final = ("web", "web-varying", "video", "video-varying")
TRIED_RULE: Final = 0.4  # the best one on web
TOLD: Final = {"all": "", "flows": "-flows", "first": "-first"}  # what ends an entry's name
SELECTIVE: Final = "-selective"  # likewise, of latencies by selective ACKs too
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
TOLD_HEAD: Final = ["trace", "told of packets 2 to 8", "AP late", "MAE, ms", "regret, ms"]
TIE_PRECISION: Final = 0.02
TIE_ERROR: Final = 0.02  # of the champion's error


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
    """In what two summaries are not of the same packets; empty where they are."""
    if bool(old.get("choice")) != bool(new.get("choice")):
        return "choice"
    return next((key for key in SAME_PACKETS if old.get(key) != new.get(key)), "")


def _joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with the variants that are new to it, or were measured again; its reference stays.

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
    """What was measured, on what, when."""
    where = "the last third of the training slices" if one["within_training"] else "all test slices"
    return (
        f"Measured on {one['date']} at commit `{one['commit']}`, on {one['machine']}. Traces "
        f"{', '.join(one['traces'])}; protocol `{one['protocol']}`, {where}: {one['n']:,} packets, "
        f"{one['n_late']:,} of them late (share {number({'mean': one['base_rate']}, 3)})."
    )


def said(one: Mapping[str, Any]) -> str:
    """The same, and what a table of differences shows."""
    return (
        f"{measured(one)} Reference: `{one['against']}`. "
        "In brackets 95 % of the difference: over seeds, then over seeds and seconds."
    )


def rows(one: Mapping[str, Any], form: str) -> list[str]:
    """A line for each variant, `tuned` or as `pretrained`, the best average precision first."""
    by_score = sorted(one["variants"].items(), key=lambda each: -_mean(each[1][form]["average_precision"]))
    lines = lab.head_of(HEAD)
    for name, found in by_score:
        scores = found[form]
        lines.append(
            lab.row_of(
                [
                    f"**`{name}`**" if name == one["against"] else f"`{name}`",
                    str(found["seeds"]),
                    *_beside(scores["average_precision"], 3),
                    *_beside(scores["mae_ms"], 2),
                    number(scores["log_mae"], 4),
                    f"{found['multiply_adds'] / MILLION:.2f}",
                ]
            )
        )
    return lines


def verdicts(
    published: Mapping[str, Any],
    kinds: Sequence[str] = JUDGED,
    challenger: str = CHALLENGER,
    others: Sequence[str] = (CHAMPION,),
) -> list[str]:
    """A line for each other forecaster, kind of trace and score: an event stream less the other, tuned heads.

    Raises:
        ValueError: a kind is not published, or not against the event stream, or without another one.
    """
    lines = lab.head_of(["traces", "score", "beside", challenger, "the other", *JUDGED_HEAD])
    for other in others:
        for kind in kinds:
            one = published.get(kind)
            if one is None or one["against"] != challenger or other not in one["variants"]:
                raise ValueError(f"{FILE} has no {challenger} beside {other} on {kind}")
            own, theirs = (one["variants"][name]["tuned"] for name in (challenger, other))
            for key, name, digits in JUDGED_SCORES:
                if theirs.get(key) is None:
                    continue  # nothing knows what either queue would have cost
                if "less_reference" not in theirs[key]:
                    raise ValueError(f"{FILE}: {other} on {kind} joined later, without differences")
                less = theirs[key]["less_reference"]
                # The summary has the other less the challenger.
                ends = [
                    less[each] and [-less[each][1], -less[each][0]] for each in ("seeds_95", "seconds_95")
                ]
                means = [number(scores[key], digits) for scores in (own, theirs)]
                said_ends = [_ends(each, digits) for each in ends]
                told = _judged(key, ends, theirs[key]["mean"])
                lines.append(lab.row_of([kind, name, f"`{other}`", *means, *said_ends, told]))
    return lines


def beside(published: Mapping[str, Any], kinds: Sequence[str] = JUDGED_AGAIN) -> list[str]:
    """A line for each kind of trace and variant of a judgement, the least error of tuned heads first.

    Raises:
        ValueError: a kind is not published.
    """
    scores = [name for _, name, _ in JUDGED_SCORES]
    head = ["traces", "packets", "late, %", "variant", "seeds", *scores]
    lines = lab.head_of([*head, *(f"{name}, untuned" for name in scores[:2])])
    for kind in kinds:
        one = entry(published, kind)
        found = sorted(one["variants"].items(), key=lambda each: each[1]["tuned"]["mae_ms"]["mean"])
        for name, variant in found:
            about = [f"{one['n']:,}", f"{100 * one['base_rate']:.1f}", f"`{name}`", str(variant["seeds"])]
            tuned = [number(variant["tuned"].get(key), digits) for key, _, digits in JUDGED_SCORES]
            untuned = [number(variant["pretrained"].get(key), n) for key, _, n in JUDGED_SCORES[:2]]
            lines.append(lab.row_of([kind, *about, *tuned, *untuned]))
    return lines


def over_draws(published: Mapping[str, Any]) -> list[str]:
    """A line for each draw of one kind's traffic: both networks. Then the verdict over the draws.

    Raises:
        ValueError: a draw is not published, or lacks one of the two.
    """
    lines = lab.head_of(["traces", "score", CHALLENGER, CHAMPION, "difference", "verdict"])
    for key, name, digits in JUDGED_SCORES:
        pairs = _pairs(published, DRAWS, CHALLENGER, key)
        for trace, (ours, theirs) in zip(DRAWS, pairs, strict=True):
            said = [f"{score:.{digits}f}" for score in (ours, theirs)]
            lines.append(lab.row_of([trace, name, *said, f"{ours - theirs:+.{digits}f}", ""]))
        lines.append(lab.row_of(["mean", name, *_over(pairs, key, digits)]))
    return lines


def layers(
    published: Mapping[str, Any],
    others: Sequence[str] = (CHAMPION,),
    kinds: Sequence[str] = LONG,
    seeds: Sequence[int] = LAYERS_SEEDS,
) -> list[str]:
    """Two layers beside other forecasters: a line for each long kind and score, the mean over its draws.

    Raises:
        ValueError: a draw is not published, or lacks one of the two.
    """
    lines = lab.head_of(LAYERS_HEAD)
    for other in others:
        for kind in kinds:
            lines += _on_draws(published, other, kind, seeds)
    return lines


def selective(published: Mapping[str, Any]) -> list[str]:
    """Two layers beside the baselines on those draws that are read by selective ACKs and are published.

    Raises:
        ValueError: one of them lacks a baseline.
    """
    lines = lab.head_of(LAYERS_HEAD)
    for kind in LONG:
        seeds = [seed for seed in SELECTIVE_SEEDS if f"{kind}-{seed}" in published]
        if len(seeds) > 1:  # one draw settles nothing
            for other in BASELINES:
                lines += _on_draws(published, other, kind, seeds)
    return lines


def _on_draws(published: Mapping[str, Any], other: str, kind: str, seeds: Sequence[int]) -> list[str]:
    """Two layers beside another forecaster on a kind's draws: a line for each score."""
    lines = []
    for key, name, digits in JUDGED_SCORES:
        pairs = _pairs(published, [f"{kind}-{seed}" for seed in seeds], LAYERS, key, other)
        about = [f"{kind}, {len(pairs)} draws", name, f"`{other}`"]
        lines.append(lab.row_of([*about, *_over(pairs, key, digits)]))
    return lines


TREES: Final = "xgboost"


@dataclass(frozen=True)
class Regrets:
    """Of each draw of a long kind, ms: who never moves, two layers, boosted trees, who always moves."""

    never: list[float]
    ours: list[float]
    trees: list[float]
    always: list[float]

    @classmethod
    def of(cls, published: Mapping[str, Any], kind: str) -> Regrets:
        """Those of a kind's newest draws.

        Raises:
            ValueError: a draw is not published.
        """
        draws = draws_of(kind)
        ours, trees = zip(*_pairs(published, draws, LAYERS, REGRET, TREES), strict=True)
        choices = [entry(published, name)["choice"] for name in draws]
        never, always = ([one[rule] for one in choices] for rule in ("never_ms", "always_ms"))
        return cls(never, list(ours), list(trees), always)


def beside_fixed(published: Mapping[str, Any]) -> list[str]:
    """Regret of two layers beside that of who never and who always moves: a line for each long kind.

    Raises:
        ValueError: a draw is not published.
    """
    what = [
        "never moving",
        LAYERS,
        "always moving",
        f"{LAYERS} less always moving",
        "verdict",
        "boosted trees",
    ]
    lines = lab.head_of(["regret, ms", *what])
    for kind in LONG:
        found = Regrets.of(published, kind)
        said = _over(list(zip(found.ours, found.always, strict=True)), REGRET, 2)
        never, trees = (f"{statistics.fmean(values):.2f}" for values in (found.never, found.trees))
        lines.append(lab.row_of([f"{kind}, {len(found.ours)} draws", never, *said, trees]))
    return lines


def draws_of(kind: str) -> list[str]:
    """Entries of the newest draws of a long kind on which two layers were judged."""
    return [f"{kind}-{seed}" for seed in (PAGES_SEEDS if kind in PAGES else LAYERS_SEEDS)]


def cost(published: Mapping[str, Any]) -> list[str]:
    """A line for each kind: millions of multiplications of a batch of the window model and of two layers.

    Raises:
        ValueError: a kind is not published.
    """
    lines = lab.head_of(["traces", CHAMPION, LAYERS, "the first over the second"])
    for kind in (*LONG, *FIVE_SEEDS):
        names = [f"{kind}-{seed}" for seed in LAYERS_SEEDS] if kind in LONG else [kind]
        of = [entry(published, name)["variants"] for name in names]
        pairs = [[each[name]["multiply_adds"] / MILLION for name in (CHAMPION, LAYERS)] for each in of]
        columns = [*zip(*pairs, strict=True), [window / layers for window, layers in pairs]]
        lines.append(lab.row_of([kind, *map(_from_to, columns)]))
    return lines


def _from_to(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.1f}" for end in (min(values), max(values))))


def _pairs(
    published: Mapping[str, Any], draws: Sequence[str], challenger: str, key: str, other: str = CHAMPION
) -> list[tuple[float, float]]:
    """A score of the challenger and of another one on each draw, heads tuned."""
    of = [entry(published, name)["variants"] for name in draws]
    if any(not {challenger, other} <= set(variants) for variants in of):
        raise ValueError(f"{FILE} has no {challenger} beside {other} on each of {', '.join(draws)}")
    return [
        (float(each[challenger]["tuned"][key]["mean"]), float(each[other]["tuned"][key]["mean"]))
        for each in of
    ]


def _over(pairs: Sequence[tuple[float, float]], key: str, digits: int) -> list[str]:
    """Means of two or more draws, their difference with its interval, and the verdict."""
    ours, theirs = (statistics.fmean(column) for column in zip(*pairs, strict=True))
    less = estimate([one - other for one, other in pairs])
    if less is None or less.low is None or less.high is None:
        raise ValueError("a verdict over draws needs two of them")
    ends = (less.low, less.high)
    difference = f"{less.mean:+.{digits}f} ({_ends(ends, digits)})"
    return [f"{ours:.{digits}f}", f"{theirs:.{digits}f}", difference, _judged(key, [ends], theirs)]


def _judged(key: str, ends: Sequence[Sequence[float] | None], theirs: float) -> str:
    """The verdict on a score, of which the champion has `theirs`."""
    lower_is_better = key != "average_precision"
    tie = TIE_ERROR * theirs if lower_is_better else TIE_PRECISION
    return verdict(ends, tie, lower_is_better=lower_is_better)


def verdict(ends: Sequence[Sequence[float] | None], tie: float, *, lower_is_better: bool) -> str:
    """`better` or `worse` where all intervals of a difference agree, `no worse` where none leaves the tie."""
    gains = [sorted(-end for end in each) if lower_is_better else list(each) for each in ends if each]
    if len(gains) < len(ends):
        return "not settled"
    if all(low > 0 for low, _ in gains):
        return "**better**"
    if all(high < 0 for _, high in gains):
        return "**worse**"
    return "no worse" if all(low >= -tie for low, _ in gains) else "not settled"


def choice_entry(kind: str, told: str = "all") -> str:
    """Name of what is published of a kind of trace with three receivers."""
    return f"choice-{kind}{TOLD[told]}"


def calibration_entry(kind: str) -> str:
    """Name of what is published of quantiles, calibrated and not, on such a kind."""
    return f"calibration-{kind}"


def choices(published: Mapping[str, Any], acks: str = "") -> list[str]:
    """A line for each kind of trace and variant: how well it chooses between the queues, with tuned heads.

    `acks` ends the entries' names: SELECTIVE, or none where latencies are of cumulative ACKs.

    Raises:
        ValueError: a kind is not published.
    """
    lines = lab.head_of(CHOICE_HEAD)
    for kind in CHOICES:
        one = entry(published, choice_entry(kind) + acks)
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


@dataclass(frozen=True)
class Covered:
    """Coverage of a variant's levels on a kind of trace, by one of its heads."""

    kind: str
    variant: str
    seeds: int
    form: str
    levels: Sequence[float]
    shares: Sequence[float]  # of the latencies, at or below each level
    pinball: Mapping[str, Any]

    @property
    def off_points(self) -> float:
        """Mean distance of the shares from their levels, in percentage points."""
        away = [abs(share - level) for share, level in zip(self.shares, self.levels, strict=True)]
        return 100 * sum(away) / len(away)


def covered(published: Mapping[str, Any]) -> list[Covered]:
    """Coverage of every variant with quantiles, by kind of trace.

    Raises:
        ValueError: a kind is not published, or nobody has quantiles there.
    """
    found = []
    for kind in CHOICES:
        for name, variant in entry(published, calibration_entry(kind))["variants"].items():
            for form in ("tuned", "pretrained"):
                scores = variant[form]
                if "coverage" not in scores:
                    raise ValueError(f"{FILE}: {calibration_entry(kind)}: {name} has no quantiles")
                levels, shares = (scores["coverage"][key] for key in ("levels", "share"))
                one = Covered(kind, name, variant["seeds"], form, levels, shares, scores["pinball_ms"])
                found.append(one)
    return found


def coverages(published: Mapping[str, Any]) -> list[str]:
    """A line for each kind of trace, variant and head: the share of latencies up to each level.

    Raises:
        ValueError: as `covered`.
    """
    found = covered(published)
    levels = [f"{100 * level:g} %" for level in found[0].levels]
    head = ["trace", "variant", "seeds", "head", *levels, "off, points", "pinball, ms", DIFFERENCE]
    lines = lab.head_of(head)
    for one in found:
        shares = [f"{100 * share:.1f}" for share in one.shares]
        said = [one.kind, f"`{one.variant}`", str(one.seeds), one.form, *shares, f"{one.off_points:.1f}"]
        lines.append(lab.row_of([*said, *_beside(one.pinball, 3)]))
    return lines


def sooner(published: Mapping[str, Any]) -> list[str]:
    """A line for each kind of trace and variant: its probability that the classic queue is faster.

    Raises:
        ValueError: a kind is not published.
    """
    rules = [f"from {100 * rule:.0f} %" for rule in RULES]
    head = ["trace", "variant", "seeds", "Brier", "of the share", *rules]
    lines = lab.head_of([*head, f"{100 * TRIED_RULE:.0f} less 50 %"])
    for kind in CHOICES:
        for name, variant in entry(published, calibration_entry(kind))["variants"].items():
            scores = variant["tuned"]
            briers = [number(scores[key], 3) for key in ("brier", "brier_of_share")]
            regrets = [number(scores[rule_name(rule)], 2) for rule in RULES]
            less = _beside(scores[rule_name(TRIED_RULE)], 2, "less_even")[1]
            lines.append(lab.row_of([kind, f"`{name}`", str(variant["seeds"]), *briers, *regrets, less]))
    return lines


def told(published: Mapping[str, Any]) -> list[str]:
    """A line for each kind of trace and what the sender tells: what that knowledge is worth.

    Raises:
        ValueError: a kind is not published.
    """
    lines = lab.head_of(TOLD_HEAD)
    for kind in CHOICES:
        for each in TOLD:
            scores = entry(published, choice_entry(kind, each))["variants"][CHALLENGER]["tuned"]
            numbers = (("average_precision", 3), ("mae_ms", 2), (REGRET, 2))
            lines.append(lab.row_of([kind, each, *(with_ends(scores[key], n) for key, n in numbers)]))
    return lines


def entry(published: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """What is published under a name.

    Raises:
        ValueError: nothing is.
    """
    if name not in published:
        raise ValueError(f"{FILE} has no {name}: swiftqueue results --forecasts {name} FILE")
    return published[name]  # type: ignore[no-any-return]


def with_ends(score: Mapping[str, Any], digits: int) -> str:
    """A score with 95 % over its seeds, where there are several."""
    ends = score["seeds_95"]
    said_ends = "" if ends is None else f" ({ends[0]:.{digits}f} to {ends[1]:.{digits}f})"
    return f"{number(score, digits)}{said_ends}"


def _mean(score: Mapping[str, Any] | None) -> float:
    return -1.0 if score is None else float(score["mean"])


def _beside(score: Mapping[str, Any] | None, digits: int, other: str = "less_reference") -> tuple[str, str]:
    if score is None or other not in score:
        return number(score, digits), lab.NONE
    less = score[other]
    ends = [_ends(less[key], digits) for key in ("seeds_95", "seconds_95") if key in less]
    return number(score, digits), f"{less['mean']:+.{digits}f} ({'; '.join(ends)})"


def _ends(ends: Sequence[float] | None, digits: int) -> str:
    return lab.NONE if ends is None else f"{ends[0]:+.{digits}f} to {ends[1]:+.{digits}f}"


def number(score: Mapping[str, Any] | None, digits: int) -> str:
    """A score's mean."""
    return lab.NONE if score is None or score["mean"] is None else f"{score['mean']:.{digits}f}"
