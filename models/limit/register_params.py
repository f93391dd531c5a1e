"""Define the section of params.yaml about registering, serving and keeping LFQ's network."""

from __future__ import annotations

from typing import ClassVar

from swiftqueue.models.registry.register_params import RegisteredParams


class LfqRegisterParams(RegisteredParams):
    """The network that limits a flow's packets in a router (study `lfq`)."""

    section: ClassVar = "lfq_register"
