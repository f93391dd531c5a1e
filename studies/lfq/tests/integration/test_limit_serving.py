"""LFQ's network beside the other models: judged in the simulator, the same registry, a real Triton."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from registered import served

sys.path.append(str(Path(__file__).resolve().parents[1]))
pytestmark = pytest.mark.slow
# Little to judge by; what is judged is tests/simulation/test_lfq_disc.py's.
SMALL = ["seconds=1", "limits=[5, 50]", "best_environments=6"]


def weights(folder: Path, packets: float) -> Path:
    """A weight file whose network always answers so many packets."""
    from limit_weights import weight_file

    return weight_file(folder / "x-10.safetensors", packets / 100)


@pytest.mark.long
def test_registers_deploys_and_rolls_back(
    champion: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A limit of 5 is near the best one; a limit of 1000 is far from it and does not pass."""
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion
    from swiftqueue.serving.triton.endpoint import Triton, TritonError
    from swiftqueue.studies.lfq import table
    from swiftqueue.studies.lfq.commands import KIND, MODEL
    from swiftqueue.studies.lfq.registering import register
    from swiftqueue.studies.lfq.weight_file import INPUTS, content_of

    lab, name = tmp_path / "lab", MODEL
    a = weights(tmp_path / "a", 5)
    assert register(a, SMALL, lab) == 0
    assert "version 1 passed the gate: no champion yet" in capfd.readouterr().out
    deploy_version(None, kind=KIND)
    said = capfd.readouterr().out.replace('"', "'")
    assert "version 1 goes to the Python backend with ONNX Runtime: " in said
    assert "is not 'swiftqueue-artifact/2'" in said  # the engine in Triton is that of latencies
    x_BTF = np.random.default_rng(1).uniform(0, 2, (3, 1, INPUTS)).astype(np.float32)
    with Triton() as triton:
        assert (triton.served_version(name), served()) == (1, champion)
        np.testing.assert_allclose(triton.infer(x_BTF, name).y_BH, 5, rtol=1e-5)
        x_BTF[1, 0, 20] = np.nan
        with pytest.raises(TritonError, match=r"limit_0 is NaN or outside \["):
            triton.infer(x_BTF, name)

    assert register(weights(tmp_path / "b", 1000), SMALL, lab) == 0
    assert "version 2 FAILED the gate: worse than the champion: part of" in capfd.readouterr().out
    with pytest.raises(ValueError, match="version 2 did not pass the gate"):
        deploy_version(2, kind=KIND)
    assert register(weights(tmp_path / "c", 5.2), SMALL, lab) == 0
    deploy_version(None, kind=KIND)
    capfd.readouterr()
    assert print_status(kind=KIND) == 0
    assert "triton, limit: serves version 3 by the Python backend" in capfd.readouterr().out
    rollback_champion(kind=KIND)
    assert Registry(name).alias("champion") == 1
    assert served() == champion

    (rule,) = table.networks_of("champion", lab).items()  # as `lfq table --artifact champion` takes it
    assert (rule[0], content_of(rule[1].weights)) == ("LFQ x 10", content_of(a))


def test_what_cannot_be_registered_is_one_line(champion: int, tmp_path: Path) -> None:
    from swiftqueue.studies.lfq.registering import register

    path = weights(tmp_path / "a", 5)
    said = json.loads(path.with_suffix(".json").read_text())
    path.with_suffix(".json").write_text(json.dumps({**said, "content": "0" * 16}))
    with pytest.raises(ValueError, match=r"x-10.safetensors: its bytes are not those that x-10.json says"):
        register(path, SMALL, tmp_path / "lab")
    with pytest.raises(ValueError, match="does not say rule, alpha, content"):
        register(tmp_path / "none.safetensors", SMALL, tmp_path / "lab")
