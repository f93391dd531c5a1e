"""Stage `pretrain`: the whole predictor on the pre-training slices of all traces.

How it is trained, the network says (`models/loop/`).
"""

from __future__ import annotations

from typing import Any

from pipelines.stage import Given, run_stage


def main(params: Given, packets: Given, windows: Given, split: Given, output: Given) -> None:
    """Read windows or events, train (or resume), write the artifact and the record of the epochs."""
    import polars as pl

    from feature_store.atomic import new_folder
    from feature_store.state import state_dir
    from models.networks import artifact
    from models.networks.loop_network import Data, chosen
    from models.registry.lineage import packet_sets
    from models.registry.runs import stage_run
    from models.section import read, read_all
    from models.sharp import change_of
    from models.training.ray_job import discard
    from models.training.windows import load_windows

    network, change = chosen(params), change_of(params)
    section: Any = read(params, network.params())
    print(f"pretrain: {network.how(section)}", flush=True)
    found = load_windows(windows, split)
    with stage_run("pretrain", traces=list(found.traces), params=read_all(params), seed=section.seed) as run:
        run.takes(packet_sets(packets, found.traces, params.with_name("dvc.lock")))
        logged = set()

        def epoch(record: dict[str, Any]) -> None:
            run.log(record, step=record["epoch"])
            logged.add(record["epoch"])

        data = Data(packets, windows, split, state_dir(), change)
        pretrained = network.pretrain(data, section, lambda line: print(line, flush=True), epoch)
        for record in pretrained.epochs:  # of a run that was stopped, too
            if record["epoch"] not in logged:
                run.log(record, step=record["epoch"])
        described = artifact.Description(found.tokens, found.schema_hash, found.visibility, found.protocol)
        with new_folder(output) as folder:
            artifact.write(folder, pretrained.model, described)
            pl.DataFrame(pretrained.epochs).write_csv(folder / "epochs.csv")
        run.keep(output, "model")
    if pretrained.checkpoints:
        discard(pretrained.checkpoints)


if __name__ == "__main__":
    run_stage("pretrain", main)
