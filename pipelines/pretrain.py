"""Stage `pretrain`: the whole predictor on the pre-training slices of all traces, as a Ray Train job."""

from __future__ import annotations

import shutil
from typing import Any

from pipelines.stage import Given, run_stage


def main(params: Given, windows: Given, split: Given, output: Given) -> None:
    """Read the windows, train (or resume), write the artifact and the record of the epochs."""
    import polars as pl

    from feature_store.atomic import new_folder
    from feature_store.state import state_dir
    from models.networks import artifact
    from models.registry.runs import stage_run
    from models.section import read, read_all
    from models.training import pretraining
    from models.training.windows import load_windows

    section = read(params, pretraining.PretrainParams)
    traces = list(load_windows(windows, split).traces)
    print(f"pretrain: starting Ray Train with {section.workers} worker(s)", flush=True)
    with stage_run("pretrain", traces=traces, params=read_all(params), seed=section.seed) as run:
        logged = set()

        def say(record: dict[str, Any]) -> None:
            print(pretraining.epoch_line(record), flush=True)
            if "epoch" in record:
                run.log(record, step=record["epoch"])
                logged.add(record["epoch"])

        pretrained = pretraining.pretrain(windows, split, section, state_dir(), say=say)
        for record in pretrained.epochs:  # of a run that was stopped, too
            if record["epoch"] not in logged:
                run.log(record, step=record["epoch"])
    with new_folder(output) as folder:
        artifact.write(folder, pretrained.model, pretrained.description)
        pl.DataFrame(pretrained.epochs).write_csv(folder / "epochs.csv")
    finished = pretraining.storage_of(windows, split, section, state_dir())
    shutil.rmtree(finished, ignore_errors=True)  # running it again trains again


if __name__ == "__main__":
    run_stage("pretrain", main)
