"""Stage `finetune`: the head of every walk-forward round of every trace, in one Ray Train job."""

from __future__ import annotations

import shutil
from typing import Any

from swiftqueue.pipelines.stage import Given, run_stage


def main(params: Given, packets: Given, split: Given, pretrained: Given, output: Given) -> None:
    """Read packet tables and the pre-trained forecaster, walk the rounds (or resume), write their heads."""
    from swiftqueue.common.atomic import new_folder
    from swiftqueue.common.section import read, read_all
    from swiftqueue.common.state import state_dir
    from swiftqueue.models.forecasters.jobs import StageData, figures, finetune, round_line
    from swiftqueue.models.forecasters.selection import chosen_in
    from swiftqueue.models.registry.lineage import packet_sets
    from swiftqueue.models.registry.runs import stage_run
    from swiftqueue.models.sharp import change_of
    from swiftqueue.models.training.head import FinetuneParams
    from swiftqueue.models.training.ray_job import discard

    section = read(params, FinetuneParams)
    data = StageData(packets, split, state_dir(), change_of(params))
    traces = list(data.traces())
    print(f"finetune: starting Ray Train with {section.workers} worker(s)", flush=True)
    with stage_run("finetune", traces=traces, params=read_all(params), seed=section.seed) as run:
        run.takes(packet_sets(packets, traces, params.with_name("dvc.lock")))
        if choice := chosen_in(pretrained):
            run.chose(choice["chosen"])

        def say(record: dict[str, Any]) -> None:
            print(round_line(record), flush=True)
            if "round" in record:
                run.log({record["trace"]: figures(record)}, step=record["round"])

        rounds_dir = finetune(data, pretrained, section, say)
        with new_folder(output) as partial:
            shutil.copytree(rounds_dir, partial, dirs_exist_ok=True)
        for trace in traces:  # only the last head of each; DVC has them all
            heads = sorted((output / trace).glob("round-*"), key=lambda one: int(one.name.partition("-")[2]))
            if heads:
                run.keep(heads[-1], f"model/{trace}")
    discard(rounds_dir.parent)


if __name__ == "__main__":
    run_stage("finetune", main)
