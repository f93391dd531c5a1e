"""Stage `finetune`: the head of every walk-forward round of every trace, in one Ray Train job."""

from __future__ import annotations

import shutil
from typing import Any

from pipelines.stage import Given, run_stage


def main(params: Given, packets: Given, split: Given, pretrained: Given, output: Given) -> None:
    """Read packet tables and the pre-trained forecaster, walk the rounds (or resume), write their heads."""
    from feature_store.atomic import new_folder
    from feature_store.state import state_dir
    from models.forecasters.jobs import Data, figures, finetune, round_line
    from models.registry.runs import stage_run
    from models.section import read, read_all
    from models.sharp import change_of
    from models.training.head import FinetuneParams
    from models.training.ray_job import discard

    section = read(params, FinetuneParams)
    data = Data(packets, split, state_dir(), change_of(params))
    traces = list(data.traces())
    print(f"finetune: starting Ray Train with {section.workers} worker(s)", flush=True)
    with stage_run("finetune", traces=traces, params=read_all(params), seed=section.seed) as run:

        def say(record: dict[str, Any]) -> None:
            print(round_line(record), flush=True)
            if "round" in record:
                run.log({record["trace"]: figures(record)}, step=record["round"])

        rounds_dir = finetune(data, pretrained, section, say)
    with new_folder(output) as partial:
        shutil.copytree(rounds_dir, partial, dirs_exist_ok=True)
    discard(rounds_dir.parent)


if __name__ == "__main__":
    run_stage("finetune", main)
