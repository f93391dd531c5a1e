"""The tables of the pages, each a function of what is published; a page names them in its markers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from swiftqueue.benchmarks import published
from swiftqueue.benchmarks.inference import BATCH, WINDOW
from swiftqueue.benchmarks.published import Published
from swiftqueue.benchmarks.results import evaluations, forecasters, tuning
from swiftqueue.benchmarks.rows import Row
from swiftqueue.common.json_file import read_object
from swiftqueue.laboratory.report import changes, uplinks
from swiftqueue.laboratory.report import tables as lab
from swiftqueue.laboratory.report.comparison import (
    LIMITS,
    Place,
    against_chance,
    by_seed,
    change_of,
    compare,
    percent,
    places,
)
from swiftqueue.laboratory.report.judging import SERVED
from swiftqueue.laboratory.report.measures import QUEUEING_P99
from swiftqueue.laboratory.runs import experience
from swiftqueue.laboratory.runs.results import SCHEMA as RUNS
from swiftqueue.laboratory.runs.results import load as load_runs
from swiftqueue.models.scoring.intervals import Estimate
from swiftqueue.models.scoring.predictions import (
    FINETUNED,
    METHODS,
    PRETRAINED,
    TREES,
    VIRTUAL_QUEUE,
    VIRTUAL_QUEUE_ONLINE,
)
from swiftqueue.testbed.host import report as bed_report
from swiftqueue.testbed.host import runs as bed_runs

LABORATORY: Final = Path("docs/laboratory")
WIDEST: Final = 150  # characters of a table's line
# Methods that a picture shows where it has room for a few.
FEW: Final = (FINETUNED, PRETRAINED, TREES, VIRTUAL_QUEUE, VIRTUAL_QUEUE_ONLINE, "ewma", "last_flow")
# Rows that a benchmark's page draws, as patterns of `NAME | REFERENCE`; of other benchmarks all are drawn.
SHOWN: Final[Mapping[str, Sequence[str]]] = {
    "inference": (
        f"{BATCH}, avx512, p?? | *",
        f"{BATCH}, bf16, p?? | *",
        f"{WINDOW}, avx512, p50 | *",
        "share of*",
        "head swap*",
        "*, bf16 | fp32",
    ),
    "serving": ("event stream, p?? | *", "event stream, unix socket, p50 | identity*"),
    "swap": ("*round trip, p99 | *", "*answered, worst stretch | *", "*a push: *"),
    "linerate": ("*asked 2 ms ahead, *", "packets decided*", "a sender pays*"),
    "live": ("trigger*", "step validate*", "step encode*", "step train*", "step shadow*", "questions*"),
    "marker": ("marked *", "plain*", "answer to *p99 | *", "packets with*"),
    "queues": ("*; flows: 100 | FqCoDel", "LFQ; flows: 1000 |*", "LFQ, no network; flows: 1000 |*"),
    "soak-weeks": ("push s,*", "scheduler memory*", "triton memory*", "MLflow rows*"),
}
FORMS: Final = {"tuned": "Head tuned before each test slice", "pretrained": "The same without tuning"}
ANYWHERE: Final = {  # scenarios of the page of many places, and whose model each has
    "anywhere-figure8": "figure 8's models",
    "anywhere-followed": "models of many places",
    "anywhere-guarded": "these with the guard",
}
WORDS: Final = {
    FINETUNED: "**fine-tuned model**",
    "finetuned_at_once": "the same, as if a round took no time",
    "pretrained": "the same without fine-tuning",
    TREES: "XGBoost, derived inputs",
    "xgboost_continued": "XGBoost, continued on each fine-tuning slice",
    VIRTUAL_QUEUE: "virtual queue, fitted to late packets",
    VIRTUAL_QUEUE_ONLINE: "virtual queue, rates estimated online",
    "ewma": "EWMA of the flow (RFC 6298)",
    "last_flow": "last latency of the flow",
    "last_queue": "last latency of the queue",
    "last_sender": "last latency of the sender",
}


@dataclass(frozen=True)
class Data:
    """All that is published."""

    evaluations: Mapping[str, Any]
    runs: pl.DataFrame
    benchmarks: Mapping[str, Published]
    forecasters: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    unpublished_models: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RUNS))
    bed: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=bed_runs.SCHEMA))
    uplinks: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=experience.UPLINKS_SCHEMA))

    @classmethod
    def load(cls, root: Path) -> Data:
        """Read it from a checkout.

        Raises:
            OSError: a file is not there.
            ValueError: one is damaged.
        """
        return cls(
            read_object(root / evaluations.FILE),
            load_runs(root / LABORATORY),
            published.load(root / published.FILE),
            forecasters.load(root),
            tuning.load(root),
            load_runs(root / LABORATORY / "unpublished-models"),
            bed_runs.load(root / LABORATORY),
            experience.load(root / LABORATORY, experience.UPLINKS),
        )

    def evaluation(self, name: str) -> dict[str, Any]:
        """Return the scores of a published evaluation.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.evaluations:
            raise ValueError(f"{evaluations.FILE} has no {name}: swiftqueue results --scores {name} FILE")
        found: dict[str, Any] = self.evaluations[name]
        return found

    def benchmark(self, name: str) -> Published:
        """Return the figures of a published benchmark.

        Raises:
            ValueError: there are none.
        """
        if name not in self.benchmarks:
            raise ValueError(f"{published.FILE} has no {name}: swiftqueue bench {name} --publish")
        return self.benchmarks[name]

    def of(self, *scenarios: str) -> pl.DataFrame:
        """Return the runs of some scenarios."""
        return self.runs.filter(pl.col("scenario").is_in(scenarios))


def scores(data: Data, name: str, methods: Sequence[str] = METHODS) -> list[str]:
    """Return a table of methods' scores in one evaluation."""
    one = data.evaluation(name)
    about = one["about"]
    said = (
        f"{_origin(one['date'], one['commit'], one['machine'])} "
        f"Protocol `{about['protocol']}`, {about['traces']} traces, training seed {about['seed']}, "
        f"n = {one['n']:,} packets, {one['n_late']:,} of them late (share {one['base_rate']:.3f})."
    )
    rate = f"recall at {about['false_alarm_rate']:.0%} false alarms"
    sharp = "F1 sharp (`prediction_change`)"
    head = ["method", "AP late (95 %)", rate, "MAE, ms (95 %)", "P99 error, ms", sharp]
    choice = one.get("choice")
    if choice is not None:
        said += (
            f" Regret is of the {choice['n']:,} packets that may be moved; who never moves has "
            f"{choice['never_ms']:.2f} ms, who always does {choice['always_ms']:.2f} ms."
        )
        head.append("regret, ms (95 %)")
    lines = [*_wrapped(said), "", *lab.head_of(head)]
    for method in methods:
        if (found := one["methods"].get(method)) is None:  # published before there was that row
            continue
        lines.append(
            lab.row_of(
                [
                    WORDS[method],
                    _interval(found["average_precision"], found["average_precision_95"], 3),
                    _number(found["recall_at_false_alarms"], 3),
                    _interval(found["mae_ms"], found["mae_ms_95"], 2),
                    _number(found["p99_ms"], 0),
                    _number(found["f1_sharp_acked"], 2),
                    *([] if choice is None else [_interval(found["regret_ms"], found["regret_ms_95"], 2)]),
                ]
            )
        )
    return lines


def forecast_rows(data: Data, rows: Callable[[Mapping[str, Any]], list[str]], *entries: str) -> list[str]:
    """Return a table of some entries of the forecasters, or a line that names an unpublished one."""
    if missing := [name for name in entries if name not in data.forecasters]:
        return [f"Not published yet: `swiftqueue results --forecasts {missing[0]} FILE`."]
    said = forecasters.measured(data.forecasters[entries[-1]])
    return [*_wrapped(said), "", *rows(data.forecasters)]


def _benchmark(name: str) -> Callable[[Data], list[str]]:
    return lambda data: figures(data, name)


def figures(data: Data, *names: str) -> list[str]:
    """Return benchmarks' rows in one table, with date, commit and machine; of those in `SHOWN`, some rows."""
    return _drawn([(name, data.benchmark(name)) for name in names])


def benchmark_table(one: Published) -> list[str]:
    """Return all rows of a benchmark in one table, with date, commit and machine."""
    return _drawn([("", one)])


def _drawn(found: Sequence[tuple[str, Published]]) -> list[str]:
    """Return a table of benchmarks by name; a list where a table would be too wide."""
    said = " ".join(f"{_origin(one.date, one.commit, one.machine)} {one.remark}".strip() for _, one in found)
    shown = [row for name, one in found for row in one.rows if _is_shown(name, row)]
    if left_out := sum(len(one.rows) for _, one in found) - len(shown):
        said += f" {left_out} more rows are in `{published.FILE}`."
    lines = lab.head_of(["what", "ours", "reference", "", "ratio"])
    for row in shown:
        ours, reference = _measured(row.ours, row), _measured(row.reference, row)
        lines.append(lab.row_of([row.name, ours, reference, row.reference_name, _ratio(row)]))
    if max(map(len, lines)) > WIDEST:
        lines = [
            line
            for row in shown
            for line in _wrapped(
                f"- **{_measured(row.ours, row)}**: {row.name}. Reference: {_measured(row.reference, row)} "
                f"({row.reference_name}), ratio {_ratio(row)}.",
                "  ",
            )
        ]
    return [*_wrapped(said), "", *lines]


def _is_shown(name: str, row: Row) -> bool:
    patterns = SHOWN.get(name, ["*"])
    return any(fnmatchcase(f"{row.name} | {row.reference_name}", pattern) for pattern in patterns)


def _ratio(row: Row) -> str:
    """Return the ratio; a figure of 0 has none, since the data hold only a cap."""
    return f"{row.ratio:.3g}" if row.ours else lab.NONE


def brief(data: Data, profile: str, prefix: str) -> list[str]:
    """Return a short table of the scenarios along an axis whose names begin with a prefix."""
    runs = data.runs.filter(pl.col("scenario").str.starts_with(prefix))
    return lab.brief(runs, profile, with_costs=False)


def many_places(runs: pl.DataFrame) -> list[str]:
    """Return a line for each place: how each kind of model changes P99; bold where a harm is settled."""
    here = runs.filter(pl.col("scenario").is_in([*ANYWHERE]))
    lines = lab.head_of(["profile", "place", *ANYWHERE.values()])
    for place in places(here):
        if place.scenario == next(iter(ANYWHERE)):
            cells = [_in_place(here, place._replace(scenario=scenario)) for scenario in ANYWHERE]
            lines.append(lab.row_of([f"`{place.profile}`", place.point, *cells]))
    return lines


def _in_place(runs: pl.DataFrame, place: Place) -> str:
    """Return the change of P99, bold where a limit of the guard or the report is settled broken."""
    asked = {limit.measure for limit in changes.WITHOUT_TAIL}
    said = lab.change(runs, place, "model")
    for wanted in (changes.WITHOUT_TAIL, LIMITS):
        found = compare(runs, place, "model", wanted)
        for one in found.broken() if found else []:
            if one.beyond and (wanted is changes.WITHOUT_TAIL or one.limit.measure not in asked):
                return f"**{said}**"
    return said


def _choice(data: Data) -> str:
    one = data.evaluation("late-packets")
    ours, trees = (one["methods"][method]["regret_ms"] for method in (FINETUNED, TREES))
    low, high = one["methods"][FINETUNED]["regret_ms_95"]
    always, never = (one["choice"][f"{who}_ms"] for who in ("always", "never"))
    said = f"regret {ours:.1f} ms ({low:.1f}–{high:.1f}); trees {trees:.1f}"
    return f"{said}, always moving {always:.1f}, never {never:.1f}"


def summary(data: Data) -> list[str]:
    """Return the README's rows, each with a link to its page."""
    rows = (
        ("late packets", "late-packets", _late(data, "late-packets")),
        ("tuned head", "late-packets", _tuned(data)),
        ("Wi-Fi, one layer", "wifi", _late(data, "wifi")),
        ("choice of queue", "late-packets", _choice(data)),
        ("P99 wait, uncoupled", "figure8", _wait(data, "uncoupled")),
        ("P99 wait, RFC 9332", "rfc9332", _wait(data, "rfc9332")),
        ("one answer through Triton", "serving", _answer(data)),
        ("a new version in service", "live", _new_head(data)),
    )
    lines = lab.head_of(["page", "result"])
    return [*lines, *(lab.row_of([f"[{what}](docs/results/{page}.md)", said]) for what, page, said in rows)]


TABLES: Final[Mapping[str, Callable[[Data], list[str]]]] = {
    "summary": summary,
    "late-packets": lambda data: scores(data, "late-packets"),
    "wifi": lambda data: scores(data, "wifi", FEW),
    "speed-tests": lambda data: scores(data, "speed-tests", FEW),
    "forecasters": lambda data: forecasters.beside_layers(data.forecasters),
    "choice": lambda data: forecasters.choices(data.forecasters),
    "tuning-scores": lambda data: forecast_rows(data, tuning.scored, tuning.UNTUNED, tuning.TUNED),
    "bed": lambda data: bed_report.side_by_side(data.bed),
    "figure8": lambda data: lab.controls_in_brief(data.of(SERVED)),
    "other-traffic": lambda data: lab.controls_in_brief(
        data.of("hadoop", "receivers", "replay", "many-flows"), ("random", "model")
    ),
    "sweeps": partial(brief, profile="uncoupled", prefix="sweep-"),
    "charge": lambda data: changes.along_axis(data.runs, "charge-", "charge, µs"),
    "surroundings": lambda data: lab.controls_in_brief(data.of("surroundings"), ("model",)),
    "uplinks": lambda data: uplinks.places_in_brief(data.uplinks),
    "many-places": lambda data: many_places(data.unpublished_models),
    "map": lambda data: brief(data, "rfc9332", "map-"),
    **{
        f"bench-{name}": _benchmark(name)
        for name in (
            *("capacity", "extract", "gate", "inference", "ingest", "intervals", "linerate"),
            *("live", "marker", "queues", "reservoir", "selfcheck", "serving", "swap"),
        )
    },
    "bench-finetune": lambda data: figures(data, "finetune", "pretrain"),
    "bench-soak": lambda data: figures(data, "soak", "soak-weeks"),
}


def _late(data: Data, name: str) -> str:
    one = data.evaluation(name)
    ours, trees = (one["methods"][method]["average_precision"] for method in (FINETUNED, TREES))
    low, high = one["methods"][FINETUNED]["average_precision_95"]
    said = f"average precision {ours:.2f} ({low:.2f}–{high:.2f}); trees {trees:.2f}"
    if rule := one["methods"].get(VIRTUAL_QUEUE):  # not yet known to every evaluation
        return f"{said}, virtual queue {rule['average_precision']:.2f}"
    return f"{said}, chance {one['base_rate']:.2f}"


def _tuned(data: Data) -> str:
    """Say whether tuning the head helps on the default traces."""
    methods = data.evaluation("late-packets")["methods"]
    tuned, untuned = methods[FINETUNED], methods[PRETRAINED]
    said = "tuning helps" if tuned["average_precision"] > untuned["average_precision"] else "no help"
    return (
        f"{said} on these traces: average precision {tuned['average_precision']:.3f} tuned, "
        f"{untuned['average_precision']:.3f} untuned"
    )


def _wait(data: Data, profile: str) -> str:
    place, runs = Place(SERVED, "", profile), data.of(SERVED)
    random = change_of(runs, place, "random", QUEUEING_P99)
    said = f"{_to(change_of(runs, place, 'model', QUEUEING_P99))}; by chance {_short(random)}"
    if profile == "uncoupled":
        return f"{said}; against chance {_short(against_chance(runs, place))}"
    return f"{said}; {len(by_seed(runs, place, 'model', QUEUEING_P99))} seeds"


def _answer(data: Data) -> str:
    row = _row_named(data, "serving", "event stream, p50", "identity, p50")
    return f"{row.ours:.0f} µs (p50); of a model that computes nothing {row.reference:.0f} µs"


def _new_head(data: Data) -> str:
    rows = data.benchmark("live").rows
    return f"{rows[0].ours:.1f} s from trigger to first answer, on a minute at 100 Mbit/s"


def _row_named(data: Data, bench: str, name: str, reference: str) -> Row:
    return next(r for r in data.benchmark(bench).rows if (r.name, r.reference_name) == (name, reference))


def _to(change: Estimate | None) -> str:
    if change is None or change.low is None or change.high is None:
        return lab.NONE
    return f"{change.mean * 100:+.1f} % ({change.low * 100:.1f} to {change.high * 100:.1f})"


def _short(change: Estimate | None) -> str:
    return lab.NONE if change is None else percent(change).split(" (")[0]


def _interval(value: float | None, ends: Sequence[float] | None, digits: int) -> str:
    text = _number(value, digits)
    return f"{text} ({ends[0]:.{digits}f}–{ends[1]:.{digits}f})" if ends else text


def _number(value: float | None, digits: int) -> str:
    return lab.NONE if value is None else f"{value:.{digits}f}"


def _measured(value: float, row: Row) -> str:
    if row.unit == "share":
        return f"{value:.2%}".replace("%", " %")
    text = f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return f"{text} {'µs' if row.unit == 'us' else row.unit}".strip()


def _origin(date: str, commit: str, machine: str) -> str:
    return f"Measured on {date} at commit `{commit}`, on {machine}."


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
