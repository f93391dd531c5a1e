"""Stage `rate_train`: which networks stay, and which are trained anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rate_flows import write_flows

from swiftqueue.studies.rate.stages import train as rate_train

SMALL = {
    "seeds": [1, 2], "epochs": 1, "batch_size": 16, "lstm_units": 4, "width": 4, "layers": 1, "heads": 1,
    "dropout": 0.0, "learning_rate": 2e-3, "fields": [], "pairs": [[5, 2000]],
}  # fmt: skip


@pytest.mark.slow
def test_networks_are_those_that_are_asked_for_by_the_code_that_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params, flows, models = tmp_path / "params.yaml", tmp_path / "flows", tmp_path / "models"
    write_flows(flows)
    (models / "of-somebody").mkdir(parents=True)

    def run(**changes: object) -> tuple[set[str], int]:
        params.write_text(json.dumps({"rate_train": SMALL | changes}))
        rate_train.main(params, flows, models)
        there = capsys.readouterr().out.count("is there")
        return {folder.name for folder in models.iterdir()} - {"of-somebody"}, there

    kinds = ("lstm", "transformer", "lstm-5-2000")
    assert run() == ({f"{kind}-{seed}" for kind in kinds for seed in (1, 2)}, 0)
    assert run(seeds=[2], pairs=[]) == ({"lstm-2", "transformer-2"}, 2)
    assert (models / "of-somebody").is_dir()
    monkeypatch.setattr(rate_train, "code_hash", lambda *modules: "of other code")
    assert run(seeds=[2], pairs=[]) == ({"lstm-2", "transformer-2"}, 0)
