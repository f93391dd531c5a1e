"""The network of LFQ as `swiftqueue deploy --model limit` takes it.

Shapes: B windows, T tokens (1), F inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Final

from swiftqueue.models.registry.register_params import RegisteredParams
from swiftqueue.serving.deploy.checks import ServableArtifact, SmokeWindows, smoke_windows
from swiftqueue.serving.deploy.served_models import ServedModel
from swiftqueue.serving.triton.limits import limits_of
from swiftqueue.studies.lfq import network as networks
from swiftqueue.studies.lfq.commands import PARAMS_FILE


class LfqRegisterParams(RegisteredParams):
    """The network that limits a flow's packets in a router."""

    section: ClassVar = "lfq_register"


def check(source: Path) -> ServableArtifact:
    """Load a network of LFQ.

    Raises:
        OSError, ValueError: the artifact is not whole, or takes other inputs.
    """
    network, _ = networks.load(source)
    x_BTF = smoke_windows(networks.features(), 1)
    smoke = SmokeWindows(x_BTF, networks.served_limits(network, x_BTF))
    return ServableArtifact(smoke, limits_of(networks.features()))


MODEL: Final = ServedModel(LfqRegisterParams, check, "swiftqueue lfq register", PARAMS_FILE)
