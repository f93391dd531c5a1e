"""Stage `pretrain`: the whole predictor on the pre-training slices of all traces.

The window's is a Ray Train job; the event stream's is trained in this process, on one core.
"""

from __future__ import annotations

from typing import Any

from pipelines.stage import Given, run_stage


def main(params: Given, packets: Given, windows: Given, split: Given, output: Given) -> None:
    """Read windows or events, train (or resume), write the artifact and the record of the epochs."""
    import polars as pl

    from feature_store.atomic import new_folder
    from feature_store.state import state_dir
    from models.architecture import event_stream
    from models.forecasters import served
    from models.networks import artifact
    from models.registry.runs import stage_run
    from models.section import read, read_all
    from models.training import pretraining
    from models.training.ray_job import discard
    from models.training.sharp import change_of
    from models.training.windows import load_windows

    events, section = event_stream(params), read(params, pretraining.PretrainParams)
    change = change_of(params)
    seed = events.seed if events else section.seed
    how = "event stream, on one core" if events else f"starting Ray Train with {section.workers} worker(s)"
    print(f"pretrain: {how}", flush=True)
    found = load_windows(windows, split, change=change)
    with stage_run("pretrain", traces=list(found.traces), params=read_all(params), seed=seed) as run:
        logged = set()

        def say(record: dict[str, Any]) -> None:
            print(pretraining.epoch_line(record), flush=True)
            if "epoch" in record:
                run.log(record, step=record["epoch"])
                logged.add(record["epoch"])

        if events:
            pretrained = served.pretrain(
                found, packets, events, lambda line: print(f"pretrain: {line}", flush=True)
            )
        else:
            pretrained = pretraining.pretrain(windows, split, section, change, state_dir(), say=say)
        for record in pretrained.epochs:  # of a run that was stopped, too
            if record["epoch"] not in logged:
                run.log(record, step=record["epoch"])
    with new_folder(output) as folder:
        artifact.write(folder, pretrained.model, pretrained.description)
        pl.DataFrame(pretrained.epochs).write_csv(folder / "epochs.csv")
    if not events:
        discard(pretraining.storage_of(windows, split, section, change, state_dir()))


if __name__ == "__main__":
    run_stage("pretrain", main)
