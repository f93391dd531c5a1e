"""Stage `pretrain`: trains the whole forecaster on the pre-training slices of all traces.

Where `architecture.name` is `auto`, it chooses the forecaster first, and `choice.json` has the scores.
"""

from __future__ import annotations

import json
import time
from typing import Any

from swiftqueue.pipelines.stage import Given, run_stage


def main(params: Given, packets: Given, split: Given, output: Given) -> None:
    """Read packet tables, train (or resume), write the forecaster and the record of the epochs."""
    import polars as pl
    import polars.selectors as cs

    from swiftqueue.common.atomic import new_folder
    from swiftqueue.common.section import read, read_all
    from swiftqueue.common.state import state_dir
    from swiftqueue.models.forecasters.forecaster import AUTO, AutoParams, candidates, write
    from swiftqueue.models.forecasters.jobs import StageData, pretrain
    from swiftqueue.models.forecasters.selection import CHOICE_FILE, choose
    from swiftqueue.models.registry.lineage import packet_sets
    from swiftqueue.models.registry.runs import stage_run
    from swiftqueue.models.scoring.evaluation import STABLE_DIGITS
    from swiftqueue.models.sharp import change_of
    from swiftqueue.models.training.epochs import SPEED
    from swiftqueue.models.training.ray_job import discard

    among = candidates(params)
    data = StageData(packets, split, state_dir(), change_of(params))
    traces = data.traces()
    seed = max(int(getattr(each.params, "seed", 0)) for each in among)
    choice = None
    with stage_run("pretrain", traces=list(traces), params=read_all(params), seed=seed) as run:
        run.takes(packet_sets(packets, traces, params.with_name("dvc.lock")))
        logged = set()

        def epoch(record: dict[str, Any]) -> None:
            run.log(record, step=record["epoch"])
            logged.add(record["epoch"])

        def say(line: str) -> None:
            print(line, flush=True)

        variant = among[0]
        if len(among) > 1:
            choice = choose(list(traces.values()), among, read(params, AutoParams), say)
            variant = choice.variant
            say(f"auto: {choice.line}")
            run.log({AUTO: choice.as_json()["candidates"]})
            run.chose(variant.name)
        say(f"pretrain: {variant.name} on {len(traces)} trace{'s' * (len(traces) > 1)}")
        started = time.monotonic()
        trained = pretrain(data, variant, say, epoch)
        if choice is not None:
            seconds = time.monotonic() - started
            say(f"auto: the choice took {choice.seconds:.0f} s, the training {seconds:.0f} s")
            run.log({AUTO: {"choice_s": choice.seconds, "training_s": seconds}})
        for record in trained.epochs:  # the epochs of an interrupted run are among them
            if record["epoch"] not in logged:
                run.log(record, step=record["epoch"])
        with new_folder(output) as folder:
            write(folder, trained.forecaster)
            epochs = pl.DataFrame(trained.epochs, schema=None if trained.epochs else {"epoch": pl.Int64})
            # The speed is in the lines above and in MLflow; here it would make each run's output another.
            epochs = epochs.drop(SPEED, strict=False).with_columns(cs.float().round_sig_figs(STABLE_DIGITS))
            epochs.write_csv(folder / "epochs.csv")
            if choice is not None:
                (folder / CHOICE_FILE).write_text(json.dumps(choice.as_json(), indent=1) + "\n")
        run.keep(output, "model")
    if trained.checkpoints:
        discard(trained.checkpoints)


if __name__ == "__main__":
    run_stage("pretrain", main)
