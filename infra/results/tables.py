"""The tables of the pages, each a function of what is published; a page names them in its markers."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from benchmarks import published
from benchmarks.published import Published
from benchmarks.rows import Row
from common.json_file import read_object
from infra.paper import waits
from infra.results import (
    confucius,
    evaluations,
    forecasters,
    lfq,
    lfq_traces,
    paper,
    queues,
    tuning,
    web_pages,
)
from laboratory.lfq import table as lfq_table
from laboratory.lfq import traces
from laboratory.report import guard, ladder, premise_map, rules
from laboratory.report import tables as lab
from laboratory.report.comparison import LIMITS, Place, against_chance, by_seed, change_of, percent
from laboratory.report.judging import JUDGED, SERVED
from laboratory.report.measures import MS, QUEUEING_P99
from laboratory.runs import experience
from laboratory.runs.results import COMPLETE
from laboratory.runs.results import SCHEMA as RUNS
from laboratory.runs.results import load as load_runs
from laboratory.scenarios.controls import CONTROLS
from laboratory.scenarios.schema import PROFILES
from models.scoring.intervals import Estimate
from models.scoring.predictions import FINETUNED, METHODS, PRETRAINED, TREES
from testbed.host import report as bed_report
from testbed.host import runs as bed_runs

LABORATORY: Final = Path("docs/laboratory")
WIDEST: Final = 150  # of a table's line, in characters
FORMS: Final = {"tuned": "Head tuned before each test slice", "pretrained": "The same without tuning"}
WORDS: Final = {
    FINETUNED: "**fine-tuned model**",
    "finetuned_at_once": "the same, as if a round took no time",
    "pretrained": "the same without fine-tuning",
    TREES: "XGBoost, derived inputs",
    "xgboost_continued": "XGBoost, continued on each fine-tuning slice",
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
    paper: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] = field(default_factory=dict)
    lfq: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=lfq_table.SCHEMA))
    unpublished_models: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RUNS))
    bed: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=bed_runs.SCHEMA))
    experience: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=experience.SCHEMA))
    flows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=experience.FLOWS_SCHEMA))
    classes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=experience.CLASSES_SCHEMA))
    pages: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=experience.PAGES_SCHEMA))
    traces: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=traces.SCHEMA))

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
            paper.load(root),
            tuning.load(root),
            lfq_table.read(root / LABORATORY),
            load_runs(root / LABORATORY / "unpublished-models"),
            bed_runs.load(root / LABORATORY),
            experience.load(root / LABORATORY),
            experience.load(root / LABORATORY, experience.FLOWS),
            experience.load(root / LABORATORY, experience.CLASSES),
            experience.load(root / LABORATORY, experience.PAGES),
            traces.load(root / LABORATORY),
        )

    def evaluation(self, name: str) -> dict[str, Any]:
        """Scores of a published evaluation.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.evaluations:
            raise ValueError(f"{evaluations.FILE} has no {name}: swiftqueue results --scores {name} FILE")
        found: dict[str, Any] = self.evaluations[name]
        return found

    def benchmark(self, name: str) -> Published:
        """Figures of a published benchmark.

        Raises:
            ValueError: there are none.
        """
        if name not in self.benchmarks:
            raise ValueError(f"{published.FILE} has no {name}: swiftqueue bench {name} --publish")
        return self.benchmarks[name]

    @property
    def headline(self) -> str:
        """Name of the scenario that the headline is of: what is served, or what was judged before it."""
        return JUDGED if self.of(SERVED).is_empty() else SERVED

    def of(self, *scenarios: str) -> pl.DataFrame:
        """Runs of some scenarios."""
        return self.runs.filter(pl.col("scenario").is_in(scenarios))


def scores(data: Data, name: str) -> list[str]:
    """Every method's scores in one evaluation."""
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
    for method in METHODS:
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


def forecasts(data: Data, name: str) -> list[str]:
    """Every variant's scores on one kind of trace, with tuned heads and without."""
    one = forecasters.entry(data.forecasters, name)
    tables = [line for form in FORMS for line in ["", f"{FORMS[form]}:", "", *forecasters.rows(one, form)]]
    return [*_wrapped(forecasters.said(one)), *tables]


def searched(data: Data) -> list[str]:
    """What the search of each variant took and found; or that nothing is published."""
    if not data.tuning:
        return ["Nothing is published yet: `swiftqueue tune`, then `swiftqueue results --tuning FILE`."]
    return [*_wrapped(tuning.said(data.tuning)), "", *tuning.searched(data.tuning)]


def forecast_rows(data: Data, rows: Callable[[Mapping[str, Any]], list[str]], *entries: str) -> list[str]:
    """A table of some entries of the forecasters, with what was measured; or which one is not published."""
    if missing := [name for name in entries if name not in data.forecasters]:
        return [f"Not published yet: `swiftqueue results --forecasts {missing[0]} FILE`."]
    said = forecasters.measured(data.forecasters[entries[-1]])
    return [*_wrapped(said), "", *rows(data.forecasters)]


def on_the_bed(data: Data, source: str) -> list[str]:
    """The bed's scenario, by a kernel or by the simulator: every control; or that nothing is published."""
    runs = data.bed.filter(pl.col("source") == source).drop("source")
    if runs.is_empty():
        return [
            "Nothing is published yet: `swiftqueue bed run figure8`, then `swiftqueue bed report --publish`."
        ]
    seconds = ", ".join(f"{one:g}" for one in sorted(set(runs["seconds"])))
    return [f"Runs of {seconds} s, the first {runs['warmup_s'][0]:g} s left out.", "", *lab.by_control(runs)]


def figures(data: Data, name: str) -> list[str]:
    """A published benchmark."""
    return benchmark_table(data.benchmark(name))


def benchmark_table(one: Published) -> list[str]:
    """A benchmark's rows, with date, commit and machine; a list where a table would be too wide."""
    said = f"{_origin(one.date, one.commit, one.machine)} {one.remark}".strip()
    lines = lab.head_of(["what", "ours", "reference", "", "ratio"])
    for row in one.rows:
        ours, reference = _measured(row.ours, row), _measured(row.reference, row)
        lines.append(lab.row_of([row.name, ours, reference, row.reference_name, _ratio(row)]))
    if max(map(len, lines)) > WIDEST:
        lines = [
            line
            for row in one.rows
            for line in _wrapped(
                f"- **{_measured(row.ours, row)}**: {row.name}. Reference: {_measured(row.reference, row)} "
                f"({row.reference_name}), ratio {_ratio(row)}.",
                "  ",
            )
        ]
    return [*_wrapped(said), "", *lines]


def _ratio(row: Row) -> str:
    """None beside 0, of which only a cap stands in the data."""
    return f"{row.ratio:.3g}" if row.ours else lab.NONE


def of_served(data: Data, scenario: str, draw: Callable[[Data], list[str]]) -> list[str]:
    """Draw a table of a scenario of the network that the loop serves; a line if none of it is published."""
    if not data.of(scenario).is_empty():
        return draw(data)
    run = f"swiftqueue lab run {scenario} --artifact docs/laboratory/models/figure8"
    publish = f"swiftqueue results --lab {scenario} var/lab"
    return _wrapped(f"Nothing is published yet: `{run}`, then `{publish}`.")


def worst_wait(data: Data, scenario: str = JUDGED) -> list[str]:
    """Return the longest wait of any L4S packet of the sender under RFC 9332, by control and seed."""
    runs = data.of(scenario).filter(pl.col("profile") == "rfc9332", pl.col("status") == COMPLETE)
    seeds = sorted(set(runs["seed"]))
    lines = lab.head_of(["control", *(f"seed {seed}, ms" for seed in seeds)])
    for control in CONTROLS:
        waits = {
            seed: quantiles[-1]
            for seed, quantiles in runs.filter(pl.col("control") == control)
            .select("seed", "queueing_cdf_us")
            .iter_rows()
        }
        if not waits:
            continue
        cells = [f"{waits[seed] * MS:.0f}" if seed in waits else lab.NONE for seed in seeds]
        lines.append(lab.row_of([f"`{control}`", *cells]))
    return lines


def brief(data: Data, profile: str, prefix: str) -> list[str]:
    """Scenarios along an axis, whose names begin so, in short."""
    return lab.brief(data.runs.filter(pl.col("scenario").str.starts_with(prefix)), profile)


def costs(data: Data, prefix: str) -> list[str]:
    """The same with intervals and costs, folded away."""
    names = sorted({name for name in data.runs["scenario"] if name.startswith(prefix)})
    parts = [line for name in names for line in ["", *lab.costs(data.runs, name)]]
    return [
        "<details><summary>With intervals, and what each control costs</summary>",
        *parts,
        "",
        "</details>",
    ]


def known(data: Data, profile: str, scenario: str = ladder.SCENARIO) -> list[str]:
    """A ladder of information in one profile."""
    return ladder.ladder(data.runs, profile, scenario)


def _choice(data: Data) -> str:
    one = data.evaluation("late-packets")
    ours, trees = (one["methods"][method]["regret_ms"] for method in (FINETUNED, TREES))
    low, high = one["methods"][FINETUNED]["regret_ms_95"]
    always, never = (one["choice"][f"{who}_ms"] for who in ("always", "never"))
    said = f"regret {ours:.1f} ms ({low:.1f}–{high:.1f}); trees {trees:.1f}"
    return f"{said}, always moving {always:.1f}, never {never:.1f}"


def summary(data: Data) -> list[str]:
    """The README's rows, each with its page."""
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
    "late-packets-cumulative": lambda data: scores(data, "cumulative"),
    "wifi": lambda data: scores(data, "wifi"),
    "speed-tests": lambda data: scores(data, "speed-tests"),
    "forecasters-verdicts": lambda data: forecasters.verdicts(data.forecasters),
    "forecasters-again-verdicts": lambda data: forecasters.verdicts(
        data.forecasters, forecasters.JUDGED_AGAIN
    ),
    "forecasters-layers": lambda data: forecasters.layers(data.forecasters),
    "forecasters-layers-beside": lambda data: forecasters.layers(data.forecasters, forecasters.BASELINES),
    "forecasters-selective": lambda data: forecasters.selective(data.forecasters),
    "forecasters-alike": lambda data: forecasters.layers(
        *(data.forecasters, (forecasters.ALIKE, forecasters.CHAMPION, *forecasters.BASELINES)),
        *(forecasters.PAGES, forecasters.PAGES_SEEDS),
    ),
    "forecasters-alike-video": lambda data: forecasters.layers(
        data.forecasters, [forecasters.ALIKE], forecasters.VIDEO
    ),
    "forecasters-bilstm": lambda data: forecasters.layers(
        data.forecasters, ["bilstm"], forecasters.PAGES, forecasters.PAGES_SEEDS
    ),
    "forecasters-layers-verdicts": lambda data: forecasters.verdicts(
        data.forecasters, forecasters.JUDGED_LAYERS, forecasters.LAYERS
    ),
    "forecasters-five": lambda data: forecasters.verdicts(
        *(data.forecasters, forecasters.FIVE_SEEDS, forecasters.LAYERS),
        others=(forecasters.CHAMPION, *forecasters.BASELINES),
    ),
    "forecasters-fixed": lambda data: forecasters.beside_fixed(data.forecasters),
    "forecasters-cost": lambda data: forecasters.cost(data.forecasters),
    "forecasters-draws": lambda data: forecasters.over_draws(data.forecasters),
    "forecasters-again": lambda data: forecasters.beside(data.forecasters),
    "forecasters-simulated": partial(forecasts, name="simulated"),
    "forecasters-inputs": partial(forecasts, name="inputs"),
    "choice": lambda data: forecasters.choices(data.forecasters),
    "choice-selective": lambda data: forecasters.choices(data.forecasters, forecasters.SELECTIVE),
    "choice-coverage": lambda data: forecasters.coverages(data.forecasters),
    "choice-sooner": lambda data: forecasters.sooner(data.forecasters),
    "choice-told": lambda data: forecasters.told(data.forecasters),
    "tuning": searched,
    "tuning-scores": lambda data: forecast_rows(data, tuning.scored, tuning.UNTUNED, tuning.TUNED),
    "ceiling": lambda data: forecast_rows(data, tuning.ceiling, tuning.UNTUNED, tuning.CEILING),
    "paper-waits": lambda data: waits.table(data.runs),
    "paper-waits-choices": lambda _: waits.choices(),
    "paper-verdicts": lambda data: paper.verdicts(data.paper),
    "paper-origins": lambda data: paper.origins(data.paper),
    "paper-exhibits": lambda data: paper.sections(data.paper),
    **{f"bed-{source}": partial(on_the_bed, source=source) for source in bed_runs.SOURCES},
    "bed-agreement": lambda data: bed_report.agreement(data.bed),
    "bed-router": lambda data: bed_report.router_table(data.bed),
    "targets": lambda data: lab.judged(data.of(JUDGED, "many-flows")),
    "figure8": lambda data: lab.by_control(data.of(JUDGED)),
    "fresh-figure8": partial(of_served, scenario=SERVED, draw=lambda data: lab.by_control(data.of(SERVED))),
    "fresh-worst-wait": partial(of_served, scenario=SERVED, draw=partial(worst_wait, scenario=SERVED)),
    **{
        f"fresh-ladder-{one}": partial(
            of_served, scenario=ladder.FRESH, draw=partial(known, profile=one, scenario=ladder.FRESH)
        )
        for one in PROFILES
    },
    "fresh-guard": partial(
        of_served,
        scenario=f"{guard.FRESH}figure8",
        draw=lambda data: [*guard.kept(data.runs, guard.FRESH), "", *guard.guarded(data.runs, guard.FRESH)],
    ),
    "worst-wait": worst_wait,
    "other-traffic": lambda data: lab.by_control(data.of("hadoop", "receivers", "replay", "many-flows")),
    **{f"sweeps-{profile}": partial(brief, profile=profile, prefix="sweep-") for profile in PROFILES},
    "sweeps-costs": lambda data: costs(data, "sweep-"),
    **{f"ladder-{profile}": partial(known, profile=profile) for profile in PROFILES},
    "ladder-long": partial(known, profile="uncoupled", scenario=ladder.LONG),
    "ladder-long-rfc9332": partial(known, profile="rfc9332", scenario=ladder.LONG_RFC9332),
    "guard": lambda data: guard.guarded(data.runs),
    "charge": lambda data: guard.guarded(data.runs, "charge-", "charge, µs"),
    "surroundings": lambda data: guard.guarded(data.runs, "surroundings", "surroundings"),
    "guard-tried": lambda data: guard.tried(data.runs),
    "guard-kept": lambda data: guard.kept(data.runs),
    "guard-shipped": lambda data: guard.guarded(data.runs, guard.SHIPPED),
    "guard-places": lambda data: guard.in_places(data.runs),
    "many-places": lambda data: guard.in_places(data.unpublished_models, "anywhere-"),
    "guard-unheard": lambda data: guard.guarded(data.runs, guard.UNHEARD),
    "guard-unheard-kept": lambda data: guard.kept(data.runs, guard.UNHEARD),
    "guard-discounted": lambda data: guard.guarded(data.runs, guard.DISCOUNTED),
    "guard-discounted-kept": lambda data: guard.kept(data.runs, guard.DISCOUNTED),
    "guard-shipped-kept": lambda data: guard.kept(data.runs, guard.SHIPPED),
    "rules": lambda data: rules.ruled(data.unpublished_models),
    "tuned": lambda data: rules.ruled(data.runs, rules.TUNED, rules.NEVER, "tuned"),
    "tuned-changes": lambda data: guard.guarded(data.runs, rules.TUNED, "head tuned", wanted=LIMITS),
    "trainings": lambda data: guard.guarded(
        data.unpublished_models, "figure8-trainings", "training", wanted=LIMITS
    ),
    "split": lambda data: guard.guarded(data.runs, "split", "share moved", "random", LIMITS),
    "premise-map": lambda data: premise_map.mapped(data.runs),
    "premise-map-counted": lambda data: premise_map.counted(data.runs),
    "premise-map-guarded": lambda data: premise_map.mapped(data.runs, premise_map.GUARDED),
    "premise-map-guarded-counted": lambda data: premise_map.counted(data.runs, premise_map.GUARDED),
    "map": lambda data: brief(data, "rfc9332", "map-"),
    "map-costs": lambda data: costs(data, "map-"),
    "lfq-400": lambda data: lfq.of_400(data.lfq),
    "lfq-correlations": lambda data: lfq.correlations(data.lfq),
    "lfq-beyond": lambda data: lfq.beyond(data.lfq),
    "lfq-flows": lambda data: lfq.many(data.flows),
    "lfq-best": lambda data: lfq.best_of(data.lfq),
    "lfq-traces": lambda data: lfq_traces.table(data.traces),
    "lfq-verdicts": lambda data: lfq.verdicts(data.lfq),
    "confucius-verdicts": lambda data: confucius.verdicts(data.experience, data.flows, data.classes),
    "confucius-pages": lambda data: confucius.pages(data.experience),
    "confucius-shares": lambda data: confucius.shares(data.flows),
    "confucius-occupancy": lambda data: confucius.occupancies(data.flows),
    "confucius-bounds": lambda data: confucius.bounds(data.experience),
    "queues-web": lambda data: queues.web(data.experience),
    "queues-web-pages": lambda data: web_pages.table(data.pages),
    "queues-web-verdicts": lambda data: queues.web_verdicts(data.experience),
    "who-picks": lambda data: queues.who(data.experience),
    "who-picks-waits": lambda data: queues.who_waits(data.experience),
    "who-picks-shares": lambda data: queues.who_shares(data.experience),
    "who-picks-else": lambda data: queues.who_else(data.experience),
    "who-picks-verdicts": lambda data: queues.who_verdicts(data.experience),
    "cheats": lambda data: queues.cheats(data.experience),
    "cheats-verdicts": lambda data: queues.cheats_verdicts(data.experience),
    "queues-costs": lambda data: queues.costs(data.benchmark("queues")),
    **{
        f"bench-{name}": partial(figures, name=name)
        for name in (
            *("capacity", "extract", "finetune", "gate", "inference", "ingest", "intervals", "linerate"),
            *("live", "marker", "pretrain", "reservoir", "selfcheck", "serving", "swap"),
            *("soak", "soak-first", "soak-weeks", "soak-weeks-after"),
        )
    },
}


def _late(data: Data, name: str) -> str:
    one = data.evaluation(name)
    ours, trees = (one["methods"][method]["average_precision"] for method in (FINETUNED, TREES))
    low, high = one["methods"][FINETUNED]["average_precision_95"]
    said = f"average precision {ours:.2f} ({low:.2f}–{high:.2f})"
    return f"{said}; boosted trees {trees:.2f}, chance {one['base_rate']:.2f}"


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
    place = Place(data.headline, "", profile)
    runs = data.of(data.headline)
    random = change_of(runs, place, "random", QUEUEING_P99)
    said = f"{_to(change_of(runs, place, 'model', QUEUEING_P99))}; by chance {_short(random)}"
    if profile == "uncoupled":
        said += f"; against chance {_short(against_chance(runs, place))}"
    else:
        said += f"; {len(by_seed(runs, place, 'model', QUEUEING_P99))} seeds"
    return said if data.headline == SERVED else f"{said}*"


def _answer(data: Data) -> str:
    row = _row_named(data, "serving", "event stream, p50", "identity, event windows, p50")
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
