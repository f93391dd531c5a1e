"""`swiftqueue tune`: finds each variant's best parameters on training slices, with one budget for all.

Optuna's TPE sampler proposes and Ray Tune runs. The first trial is the variant as its section has it. A trial
learns from the first two thirds of the training slices and is judged on the rest, like `forecasts --choose`.
A proposal follows from the seed and the trials before it, so trials run one after the other. Each trial is a
file of its own, written atomically. A search that was stopped proposes the same trials again, and a trial of
the same packets, parameters and code is not repeated.

The objective is the mean log error over packets: networks and trees are trained for it, it weighs an error
of 1 ms at 10 like one of 10 at 100, and it counts all packets. The average precision, reported beside it,
rests on the few late packets of ten seconds and would follow their chance.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
import yaml

from swiftqueue.benchmarks.forecasts import fingerprint, judging_of, traces_of
from swiftqueue.common.atomic import write_file
from swiftqueue.common.json_file import read_object
from swiftqueue.common.local_ray import ray_cluster
from swiftqueue.common.say import say
from swiftqueue.common.section import read_all
from swiftqueue.common.usage_reporting import switch_off
from swiftqueue.models.forecasters.comparison import HeldOutPackets, JudgingParams, key_of_run, run
from swiftqueue.models.forecasters.forecaster import Variant, variants
from swiftqueue.models.forecasters.search import LogRange
from swiftqueue.models.forecasters.traces import Trace, name_of, within_training
from swiftqueue.models.sharp import change_of

SUMMARY: Final = "tuning.json"
SECTIONS: Final = "tuned.yaml"
OBJECTIVE: Final = "log_mae"
STARTUP_TRIALS: Final = 4  # trials that TPE draws by chance, the section's own among them
TRAINING_SEED: Final = 1  # training seed of each trial
QUIET: Final = {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
FAILED: Final = float("inf")  # objective of a trial whose training diverged


def tune(
    packets: Path,
    output: Path,
    *,
    names: Sequence[str],
    only: Sequence[str],
    trials: int,
    seconds: float,
    seed: int,
    protocol: str,
    sections: Path,
    params: Path,
) -> None:
    """Search for the variants' best parameters; write each trial, the sections found, and a summary.

    Args:
        packets: folder of packet tables.
        output: folder of trials, `tuned.yaml` and `tuning.json`.
        names: names of the traces; none means all.
        only: variants to tune; none means all that have something to tune.
        trials: most trials of a variant.
        seconds: CPU seconds of a variant's trials after which no other trial begins.
        seed: seed of the proposals.
        protocol: name of the lengths of the slices.
        sections: file of the variants.
        params: file of the parameters: when a packet is late, how it is judged, which traces only teach.

    Raises:
        FileNotFoundError: a trace has no packet table.
        ValueError: an argument, a section or a trace is invalid; or, once all else is written, a variant
            could not be tuned. The line names it.
    """
    wanted = variants(sections, only)
    if fixed := [each.name for each in wanted if only and not each.kind.search]:
        raise ValueError(f"--only {fixed[0]}: it has nothing to tune (`search` in models/forecasters/)")
    if not any(each.kind.search for each in wanted):
        raise ValueError(f"{sections}: no section has anything to tune")
    change, judging = change_of(params), judging_of(params)
    judged, teaching = traces_of(packets, names, protocol, params)
    traces = within_training([replace(trace, change=change) for trace in judged])
    asked = HeldOutPackets.of(traces)
    if not np.isfinite(asked.came_BH).any():
        which = ", ".join(trace.name for trace in traces)
        raise ValueError(f"{which}: no latency is known in the last third of training, to judge a trial by")
    given = _TrialInputs(fingerprint(traces, judging, teaching), traces, asked, judging, teaching)
    budget = {"trials": trials, "cpu_seconds": seconds, "seed": seed, "training_seed": TRAINING_SEED}
    found, failed = {}, []
    switch_off()
    os.environ.update(QUIET)  # set before the import, when Ray reads them
    with ray_cluster(1):
        for variant in wanted:
            if variant.kind.search:
                search = _Search(variant, output / variant.name, given)
                try:
                    found[variant.name] = search.run(trials, seconds, seed)
                except ValueError as error:
                    failed.append(variant.name)
                    say(f"{error}; left out")
    if not found:
        raise ValueError(f"nothing could be tuned, for the reasons above: {', '.join(failed)}")
    about = {
        "traces": [trace.name for trace in traces],
        "protocol": protocol,
        "n": int(asked.came_BH.size),
        "objective": OBJECTIVE,
        "change": change.model_dump(),
        **judging.as_json(),
        "also": [name_of(table) for table in teaching],
        "budget": budget,
    }
    raw = read_all(sections)
    tuned = {name: {**raw[name], **one["best"]["values"]} for name, one in found.items()}
    write_file(output / SECTIONS, yaml.safe_dump(tuned, sort_keys=False))
    write_file(output / SUMMARY, json.dumps({**about, "variants": found}, indent=1, allow_nan=False) + "\n")
    say(f"{output / SECTIONS}, {output / SUMMARY}: {len(found)} variants")
    if failed:
        raise ValueError(f"not tuned, for the reasons above: {', '.join(failed)}")


@dataclass(frozen=True)
class _TrialInputs:
    """The data that every trial learns from and is judged by; `work` is its hash."""

    work: str
    traces: Sequence[Trace]
    asked: HeldOutPackets
    judging: JudgingParams
    teaching: Sequence[pl.DataFrame]


class _Search:
    """The search of one variant, whose trials lie in `folder`."""

    def __init__(self, variant: Variant, folder: Path, given: _TrialInputs) -> None:
        self.variant, self.folder, self.given = variant, folder, given
        self.done: list[dict[str, Any]] = []

    def run(self, trials: int, seconds: float, seed: int) -> dict[str, Any]:
        """Propose and try until the budget is spent; return the result as plain JSON."""
        import optuna
        from ray import tune
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        kept = {path.stem: read_object(path) for path in self.folder.glob("*.json")}
        search = OptunaSearch(
            space=distributions(self.variant),
            metric=OBJECTIVE,
            mode="min",
            sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS),
            points_to_evaluate=[own_values(self.variant)],
        )
        trial = tune.with_parameters(_trial, variant=self.variant, given=self.given, kept=kept)
        with _scratch(self.folder) as scratch:
            results = tune.Tuner(
                tune.with_resources(trial, {"cpu": 1}),
                tune_config=tune.TuneConfig(
                    search_alg=search, num_samples=trials, max_concurrent_trials=1, reuse_actors=True
                ),
                run_config=tune.RunConfig(
                    name="ray",
                    storage_path=str(scratch.absolute()),
                    callbacks=[_callback(self, trials)],
                    stop=_stopper(self, seconds),
                    verbose=0,
                ),
            ).fit()
        if results.errors:
            reason = str(results.errors[0]).strip().splitlines()[-1]
            raise ValueError(f"a trial of {self.variant.name} failed: {reason}")
        best = min(self.done, key=lambda one: _score(one))
        if _score(best) == FAILED:
            raise ValueError(f"no trial of {self.variant.name} could be trained: {best['failed']}")
        return {
            "space": {name: str(each) for name, each in distributions(self.variant).items()},
            "cpu_s": round(self.spent, 1),
            "default": self.done[0],
            "best": best,
            "trials": self.done,
        }

    @property
    def spent(self) -> float:
        """Return the CPU seconds that the trials took, including those of earlier runs."""
        return float(sum(one["cpu_s"] for one in self.done))

    def heard(self, result: Mapping[str, Any], trials: int) -> None:
        """Write a finished trial and print its line."""
        one: dict[str, Any] = json.loads(result["trial"])
        path = self.folder / f"{one['key']}.json"
        kept = path.is_file()
        if not kept:
            write_file(path, json.dumps(one, allow_nan=False) + "\n")
        self.done.append(one)
        values = ", ".join(f"{name} {value:.3g}" for name, value in one["values"].items())
        scored = one.get("failed") or f"log error {one[OBJECTIVE]:.5f} ({one['cpu_s']:.0f} s of CPU)"
        line = f"{self.variant.name}, trial {len(self.done)} of {trials}: {scored}; {values}"
        say(f"{line}; kept" if kept else line)


def distributions(variant: Variant) -> dict[str, Any]:
    """Return the distributions of a variant's search, in Optuna's form.

    Raises:
        ValueError: a value of its section cannot be drawn from them.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    found: dict[str, Any] = {}
    for name, own in own_values(variant).items():
        each = variant.kind.search[name]
        if not isinstance(each, LogRange):
            # The variant's own value joins the choices: Optuna refuses any other, and the first trial has it.
            found[name] = CategoricalDistribution(tuple(dict.fromkeys((*each, own))))
        elif own > 0:
            found[name] = FloatDistribution(each.low, each.high, log=True)
        else:
            raise ValueError(
                f"{variant.name}.{name} is {own:g}; `tune` draws its logarithm, so it must be above 0"
            )
    return found


def own_values(variant: Variant) -> dict[str, Any]:
    """Return the section's values of the parameters that a search may change."""
    return {name: getattr(variant.params, name) for name in variant.kind.search}


def with_values(variant: Variant, values: Mapping[str, Any]) -> Variant:
    """Return the variant with other values.

    Raises:
        ValueError: a value is invalid.
    """
    params = variant.kind.Params(**{**variant.params.model_dump(), **values})
    return Variant(variant.name, variant.kind, params)


def _trial(
    config: dict[str, Any], variant: Variant, given: _TrialInputs, kept: Mapping[str, Mapping[str, Any]]
) -> None:
    """Run one trial, in Ray's process."""
    import torch
    from ray import tune

    torch.set_num_threads(1)  # seconds are of one core
    tried = with_values(variant, config)
    key = key_of_run(tried, TRAINING_SEED, given.work)
    one = dict(kept[key]) if key in kept else {"key": key, **_scored(tried, config, given)}
    # The values go as text: Ray would flatten them into numbers of its own.
    tune.report({OBJECTIVE: _score(one), "trial": json.dumps(one, allow_nan=False)})


def _scored(tried: Variant, values: Mapping[str, Any], given: _TrialInputs) -> dict[str, Any]:
    started = time.process_time()
    of = given.traces, given.asked, given.judging
    try:
        found = run(tried, TRAINING_SEED, *of, lambda _: None, given.teaching)["tuned"]
    except ValueError as error:  # a diverged training is a result too
        scores = {"failed": str(error)}
    else:
        scores = {name: found["error"][name] for name in (OBJECTIVE, "mae_ms")}
        scores |= {name: found["late"][name] for name in ("average_precision", "n_late")}
    return {"values": dict(values), "cpu_s": round(time.process_time() - started, 2), **scores}


def _score(one: Mapping[str, Any]) -> float:
    return float(one.get(OBJECTIVE, FAILED))


def _callback(search: _Search, trials: int) -> Any:
    from ray import tune

    class TrialListener(tune.Callback):  # type: ignore[misc]
        def on_trial_result(self, **info: Any) -> None:
            search.heard(info["result"], trials)

    return TrialListener()


def _stopper(search: _Search, seconds: float) -> Any:
    from ray import tune

    class BudgetStopper(tune.Stopper):  # type: ignore[misc]
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False  # a trial reports once, when it is over

        def stop_all(self) -> bool:
            return search.spent >= seconds

    return BudgetStopper()


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield the folder of Ray's own records of a search; its nodes see it, and the block removes it."""
    scratch = folder / "ray"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
