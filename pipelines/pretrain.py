"""Stage `pretrain`: the whole predictor on the pre-training slices of all traces, as a Ray Train job."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from pipelines.stage import load_params, stage_main


def main() -> None:
    """Read the windows, train (or resume), write the artifact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--params", type=Path, required=True)
    parser.add_argument("--windows", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    with stage_main("pretrain"):
        from models import artifact, training
        from models.state import state_dir

        known = {field.name for field in fields(training.PretrainParams)}
        params = training.PretrainParams(**load_params(arguments.params, "pretrain", known))
        print(f"pretrain: starting Ray Train with {params.workers} worker(s)", flush=True)
        pretrained = training.pretrain(
            arguments.windows,
            params,
            state_dir(),
            say=lambda record: print(training.epoch_line(record), flush=True),
        )
        artifact.save(arguments.output, pretrained.model, pretrained.description)
        (arguments.output / "epochs.json").write_text(json.dumps(pretrained.epochs, indent=1) + "\n")
        training.forget(training.storage_of(arguments.windows, params, state_dir()))


if __name__ == "__main__":
    main()
