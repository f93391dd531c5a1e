"""`swiftqueue lab run`: from scenarios to results, resumed where an earlier command stopped."""

from __future__ import annotations

import contextlib
import fnmatch
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.local_ray import ray_cluster
from swiftqueue.laboratory.learning.judged_models import (
    anchor_of,
    check_acks,
    model_at,
    models_by_profile,
    trees_at,
)
from swiftqueue.laboratory.report import looks
from swiftqueue.laboratory.report.comparison import Place
from swiftqueue.laboratory.runs import execution, experience, programs, results, rows
from swiftqueue.laboratory.runs.resolve import (
    Cell,
    Model,
    PlannedRun,
    cells,
    check_tables,
    control_of,
    identity,
    is_named,
    resolve,
)
from swiftqueue.laboratory.scenarios.checked import LONGEST_S
from swiftqueue.laboratory.scenarios.controls import MATCHED, TREES, VIEWED_BY, check_controls
from swiftqueue.laboratory.scenarios.files import check_points, environment_at, files_of, load, names, path_of
from swiftqueue.laboratory.scenarios.schema import TRAINING_SEEDS_FROM, Scenario

DEPENDENT: Final = ("random", "placebo")  # on another run's result
SCENARIO: Final = "scenario"  # the scenario names the share that control random moves
NO_MODEL: Final = "no --artifact was given; train one with `swiftqueue lab train`"
NO_CHOICE: Final = "the captured sender has no L4S flow to choose for"
LEFT_OUT: Final = "left out by --controls"
POINT_LEFT_OUT: Final = "left out by --points"


@dataclass(frozen=True)
class Request:
    """The options of `lab run`; None takes the scenario's own value."""

    scenarios: list[str]
    seeds: int | None = None
    seconds: float | None = None
    artifact: str | None = None  # a folder, or `champion`
    truth: bool = False
    # Controls, and patterns of points, to run; of the scenario's others, only what was run before counts.
    controls: Sequence[str] | None = None
    pcap: bool = False
    points: Sequence[str] | None = None
    until_settled: bool = False  # a place gets further seeds only until its change is settled


def run_lab(request: Request, output: Path) -> int:
    """Run all cells of the scenarios and put them into the results; 1 if a run failed.

    Raises:
        ValueError: a scenario or the model is wrong, or the program cannot be built; nothing was run.
    """
    scenarios = {name: adjusted(load(path), request) for name, path in files_of(request.scenarios).items()}
    for name, scenario in scenarios.items():
        check_tables(name, scenario, request.points)
        if request.until_settled:
            looks.planned(len(scenario.seeds))  # refuses what settles nothing
    check_patterns(request.points or (), scenarios)
    with execution.sole_user(output):
        models = models_by_profile(request.artifact, output) if request.artifact else {}
        check_acks(models, scenarios)
        program, build = programs.build()
        check_discs(program, scenarios, request.points)
        laboratory = _Laboratory(request, scenarios, models, program, build, output.resolve())
        rows.keep_rows(output)
        results.forget(output, list(scenarios))
        # One cluster for all rounds: to start it takes as long as many a run.
        with contextlib.ExitStack() as cluster:
            failed = 0
            for _ in laboratory.rounds():
                first = laboratory.asked(dependent=False)
                if laboratory.missing(first):
                    cluster.enter_context(ray_cluster(workers=1))
                failed += laboratory.run(first, "runs")
                failed += laboratory.run(laboratory.asked(dependent=True), "random marking and placebos")
        experience.collect(output, scenarios)
    print(f"results: {output / results.FILE}; `swiftqueue lab report --output {output}` draws them")
    return 1 if failed else 0


def list_scenarios() -> None:
    """Print each scenario's name, what it is, and how many runs it stands for."""
    width = max(len(name) for name in names())
    for name in names():
        scenario = load(path_of(name))
        count = len(list(cells(name, scenario)))
        print(f"{name:<{width}} {scenario.about} ({count} runs of {scenario.seconds:g} s)")


def adjusted(scenario: Scenario, request: Request) -> Scenario:
    """Return the scenario with the command's number of seeds, seconds and controls.

    Raises:
        ValueError: they leave nothing to measure, or one is unknown.
    """
    changes: dict[str, object] = {}
    if request.seeds is not None:
        if not 1 <= request.seeds < TRAINING_SEEDS_FROM:
            raise ValueError(f"--seeds {request.seeds}: give 1 to {TRAINING_SEEDS_FROM - 1}")
        further = range(max(scenario.seeds) + 1, TRAINING_SEEDS_FROM)
        changes["seeds"] = [*scenario.seeds, *further][: request.seeds]
    if request.seconds is not None:
        if not request.seconds > scenario.warmup_s:  # nor NaN
            raise ValueError(
                f"--seconds {request.seconds:g}: the first {scenario.warmup_s:g} s are left out, so give more"
            )
        if request.seconds > LONGEST_S:
            raise ValueError(f"--seconds {request.seconds:g}: give {LONGEST_S:g} at most")
        changes["seconds"] = request.seconds
    if request.controls is not None:
        check_controls("--controls", request.controls)
        added = [control for control in request.controls if control not in scenario.controls]
        changes["controls"] = [*scenario.controls, *added]
    changed = scenario.model_copy(update=changes)
    for option in ("seconds", "controls"):
        if option in changes:
            check_points(changed, f"--{option}")
    return changed


def check_patterns(patterns: Sequence[str], scenarios: Mapping[str, Scenario]) -> None:
    """Raise ValueError unless each pattern of `--points` names a point of one of the scenarios."""
    axes = [scenario.axis for scenario in scenarios.values() if scenario.axis]
    points = [point for axis in axes for point in axis.points]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(point, pattern) for point in points):
            raise ValueError(
                f"--points {pattern!r}: no point is named so; there is {'; '.join(points) or 'none'}"
            )


def check_discs(
    program: Path, scenarios: Mapping[str, Scenario], patterns: Sequence[str] | None = None
) -> None:
    """See that the program can set up the queue discs that the scenarios name; each network once.

    Raises:
        ValueError: one line that names file and key.
    """
    seen: set[str] = set()
    for name, scenario in scenarios.items():
        for cell in {(cell.point, cell.profile): cell for cell in cells(name, scenario, patterns)}.values():
            run = resolve(scenario, cell, {"kind": "default"}, [])
            network = json.dumps([run["profile"], run["bottlenecks"]])
            if network in seen or not any("disc" in link for link in run["bottlenecks"]):
                continue
            seen.add(network)
            if problem := execution.check(program, run):
                own = scenario.axis.points[cell.point].set if scenario.axis else {}
                changes = any(key.partition(".")[0] in ("bottlenecks", "uplinks") for key in own)
                where = f"axis.points.{cell.point}" if changes else "environment"
                raise ValueError(f"{name}.yaml: {where}: {problem}")


class _Laboratory:
    """The cells of some scenarios, and what has come of them."""

    def __init__(
        self,
        request: Request,
        scenarios: Mapping[str, Scenario],
        models: Mapping[str, Model],
        program: Path,
        build: str,
        output: Path,
    ) -> None:
        self.scenarios, self.models = scenarios, models
        self.program, self.build, self.output = program, build, output
        self.anchors: dict[str, Model | None] = {}  # by the content of the trained model
        self.only, self.points = request.controls, request.points
        self.truth = request.truth
        self.outputs = [name for name in ("pcap", "truth") if getattr(request, name)]
        self.until_settled = request.until_settled
        self.settled: set[Place] = set()  # places that get no further seeds
        self.look: dict[str, int] = {}  # how many seeds of a scenario are run by now; not there: all

    def rounds(self) -> Iterator[None]:
        """Yield before each round of runs: one, or one before each planned look."""
        if not self.until_settled:
            yield
            return
        plans = {name: looks.planned(len(scenario.seeds)) for name, scenario in self.scenarios.items()}
        for i in range(max(map(len, plans.values()))):
            self.look = {name: plan[min(i, len(plan) - 1)] for name, plan in plans.items()}
            yield
            runs = results.load(self.output)
            found = [row for name, plan in plans.items() for row in looks.looked(runs, name, plan)]
            self.settled = looks.settled_places(found)
        looks.keep(self.output, found)
        print("\n".join(looks.said(found)))

    def _is_due(self, cell: Cell) -> bool:
        """Return whether a cell belongs to this round."""
        if cell.scenario not in self.look:
            return True
        seeds = self.scenarios[cell.scenario].seeds[: self.look[cell.scenario]]
        return cell.seed in seeds and Place(cell.scenario, cell.point, cell.profile) not in self.settled

    def asked(self, *, dependent: bool) -> list[PlannedRun]:
        """Return what is to be run, seed by seed: what needs another run's result, or all else."""
        return [
            self._unless_left_out(scenario, cell)
            for name, scenario in self.scenarios.items()
            for cell in sorted(cells(name, scenario), key=lambda cell: cell.seed)
            if (cell.control in DEPENDENT) == dependent and self._is_due(cell)
        ]

    def missing(self, asked: list[PlannedRun]) -> bool:
        """Return whether any run has no result yet."""
        keys = {identity(one.run, self.build) for one in asked if one.run is not None}
        return not all(execution.is_complete(self.output, key) for key in keys)

    def run(self, asked: list[PlannedRun], title: str) -> int:
        """Run what has no result yet, keep all results, and return how many runs failed."""
        waiting: dict[str, list[PlannedRun]] = {}
        for one in asked:
            if one.run is not None:
                waiting.setdefault(identity(one.run, self.build), []).append(one)
        kept = [key for key in waiting if execution.is_complete(self.output, key)]
        self._keep([row for key in kept for row in self._rows(key, waiting[key])])
        left_out = [(one, one.reason or "") for one in asked if one.run is None]
        self._keep([self._not_run(one, reason) for one, reason in left_out])
        chosen = (LEFT_OUT, POINT_LEFT_OUT)  # the command says these itself
        for reason in dict.fromkeys(reason for _, reason in left_out if reason not in chosen):
            names = [one.cell.control for one, why in left_out if why == reason]
            runs = f"{len(names)} run{'' if len(names) == 1 else 's'}"
            print(f"{', '.join(dict.fromkeys(names))}: {runs} left out: {reason}")
        if kept:
            print(f"{title}: {len(kept)} of {len(waiting)} have their result already")
        failures: list[str] = []

        def done(job: execution.Job, problem: str | None) -> None:
            if problem is None:
                self._keep(self._rows(job.identity, waiting[job.identity]))
                return
            failures.append(job.identity)
            for one in waiting[job.identity]:
                print(f"not run: {one.cell.words()}: {problem}")
            self._keep([self._not_run(one, problem) for one in waiting[job.identity]])

        jobs = [self._job(key, ones[0]) for key, ones in waiting.items() if key not in kept]
        execution.run_all(self.program, self.output, jobs, done, title)
        return len(failures)

    def _job(self, key: str, one: PlannedRun) -> execution.Job:
        folder = one.model.folder if one.model else None
        record = execution.folder_of(self.output, one.record) / execution.DECISIONS if one.record else None
        return execution.Job(key, one.run or {}, folder, record)

    def _unless_left_out(self, scenario: Scenario, cell: Cell) -> PlannedRun:
        """Return it as not to be run if the command leaves it out and it has no result yet."""
        if not is_named(cell.point, self.points):
            reason = POINT_LEFT_OUT
        elif self.only is not None and cell.control not in self.only:
            reason = LEFT_OUT
        else:
            return self._asked(scenario, cell)
        with contextlib.suppress(ValueError):  # the run that it replays may not be here
            one = self._asked(scenario, cell)
            if one.run is not None and execution.is_complete(self.output, identity(one.run, self.build)):
                return one
        return PlannedRun(cell, None, reason)

    def _asked(self, scenario: Scenario, cell: Cell) -> PlannedRun:
        environment = environment_at(scenario, cell.point, f"{cell.scenario}.yaml")
        disc = environment.without_view()
        if cell.control in VIEWED_BY and disc is not None:
            return PlannedRun(cell, None, f"{disc} gives no view of its queues")
        if cell.control != "default" and not environment.chooses():
            return PlannedRun(cell, None, NO_CHOICE)
        model = self._model(cell)
        share, share_of, record = 0.0, None, None
        if cell.control in ("model", "anchor", TREES) and model is None:
            return PlannedRun(cell, None, self._why_no_model(cell))
        if cell.control == "random" and (given := environment.controls.random.share) is not None:
            share, share_of = given, SCENARIO
        elif cell.control == "random":
            found = self._share(cell)
            if found is None:
                reason = "nothing says which share to move: neither model nor oracle was run"
                return PlannedRun(cell, None, reason)
            share, share_of = found
        if cell.control == "placebo" and (record := self._record(scenario, cell)) is None:
            return PlannedRun(cell, None, "the model, whose decisions it repeats, was not run")
        control = control_of(environment, cell.control, model=model, share=share, record=record or "")
        run = resolve(scenario, cell, control, self.outputs)
        if record is not None and not self._is_repeatable(record, run):
            return PlannedRun(cell, None, "the model's run, whose decisions it repeats, is not at hand")
        return PlannedRun(cell, run, model=model, share_of=share_of, record=record)

    def _model(self, cell: Cell) -> Model | None:
        """Return the model that drives a cell's control, or None."""
        if cell.control == TREES:
            return trees_at(self.models, cell.profile, cell.scenario)
        asks = cell.control in ("model", "anchor")
        model = model_at(self.models, cell.point, cell.profile, cell.scenario) if asks else None
        if model is None or cell.control == "model":
            return model
        if model.content not in self.anchors:
            self.anchors[model.content] = anchor_of(model, self.output)
        return self.anchors[model.content]

    def _why_no_model(self, cell: Cell) -> str:
        if cell.control == TREES:
            return f"--artifact has no {TREES}/{cell.profile}/" if self.models else NO_MODEL
        if model_at(self.models, cell.point, cell.profile, cell.scenario):
            return "the model has no anchor"
        return f"--artifact has no {cell.profile}/" if self.models else NO_MODEL

    def _record(self, scenario: Scenario, cell: Cell) -> str | None:
        """Return the identity of the model's run in the same cell; None without a model."""
        one = self._asked(scenario, replace(cell, control="model"))
        return identity(one.run, self.build) if one.run is not None else None

    def _is_repeatable(self, record: str, run: Mapping[str, Any]) -> bool:
        """Return whether a run's decisions are there, or the run that repeats them has its result already."""
        decisions = execution.folder_of(self.output, record) / execution.DECISIONS
        return decisions.is_file() or execution.is_complete(self.output, identity(run, self.build))

    def _share(self, cell: Cell) -> tuple[float, str] | None:
        """Return the share that the model (or else the oracle) moved in the same cell, in this program's run.

        None where neither has a result, or no L4S packet was sent.
        """
        for control in MATCHED:
            one = self._asked(self.scenarios[cell.scenario], replace(cell, control=control))
            if one.run is None or control not in self.scenarios[cell.scenario].controls:
                continue
            key = identity(one.run, self.build)
            if execution.is_complete(self.output, key):
                moved = self._row(key, one)["moved_share"]
                if moved is not None:
                    return float(moved), control
        return None

    def _rows(self, key: str, ones: list[PlannedRun]) -> list[dict[str, object]]:
        folder = execution.folder_of(self.output, key)
        if self.truth and not (folder / execution.TRUTH_PARQUET).is_file():
            from swiftqueue.feature_store.packets.truth import TRUTH, write_truth

            write_truth(folder, folder / execution.TRUTH_PARQUET)
            (folder / TRUTH).unlink()
        return [self._row(key, one) for one in ones]

    def _row(self, key: str, one: PlannedRun) -> dict[str, Any]:
        folder = execution.folder_of(self.output, key)
        return rows.complete(one, self.scenarios[one.cell.scenario], key, self.build, folder)

    def _not_run(self, one: PlannedRun, reason: str) -> dict[str, Any]:
        return rows.not_run(one, self.scenarios[one.cell.scenario], reason)

    def _keep(self, new: list[dict[str, object]]) -> None:
        if new:
            results.merge(self.output, new)
