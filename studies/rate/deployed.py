"""The model of rates as `swiftqueue deploy --model rate` takes it.

Shapes: B flows, S samples, F fields of a sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from serving.deploy.checks import ServableArtifact, SmokeWindows, smoke_windows
from serving.deploy.served_models import ServedModel
from serving.triton.limits import limits_of
from studies.rate.commands import PARAMS_FILE
from studies.rate.model import networks
from studies.rate.samples.definition import MOST_SAMPLES, PREFIXES
from studies.rate.stages.register import RateRegisterParams


def check(source: Path) -> ServableArtifact:
    """Load a network that forecasts rates; the smoke windows are flows of any length.

    Raises:
        OSError, ValueError: it is not whole, or was made for other samples.
    """
    network, _ = networks.load(source)
    x_BSF = smoke_windows(network.features, MOST_SAMPLES)
    for flow, x_SF in enumerate(x_BSF):
        x_SF[min(PREFIXES) + 2 * flow :] = 0
    return ServableArtifact(
        SmokeWindows(x_BSF, networks.served_rates(network, x_BSF)), limits_of(network.features)
    )


MODEL: Final = ServedModel(RateRegisterParams, check, "dvc repro studies/rate/dvc.yaml", PARAMS_FILE)
