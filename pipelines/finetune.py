"""Stage `finetune`: the head of every walk-forward round of every trace, in one Ray Train job."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path

from pipelines.stage import atomic_dir, load_params, stage_main


def main() -> None:
    """Read windows and the pre-trained artifact, walk the rounds (or resume), write their artifacts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--pretrained", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with stage_main("finetune"):
        from models import finetuning, training
        from models.state import state_dir

        known = {field.name for field in fields(finetuning.FinetuneParams)}
        params = finetuning.FinetuneParams(**load_params(arguments.params, "finetune", known))
        print(f"finetune: starting Ray Train with {params.workers} worker(s)", flush=True)
        rounds_dir = finetuning.finetune(
            arguments.windows,
            arguments.pretrained,
            params,
            state_dir(),
            say=lambda record: print(finetuning.round_line(record), flush=True),
        )
        with atomic_dir(arguments.output) as partial:
            finetuning.publish(rounds_dir, partial)
        training.forget(rounds_dir.parent)


if __name__ == "__main__":
    main()
