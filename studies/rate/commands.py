"""What the study adds where it is there: its commands, and the model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PARAMS_FILE: Final = Path("studies/rate/params.yaml")
NAME: Final = "rate"
HELP: Final = "Forecasts of a TCP connection's rate from its first ACKs."
FUNCTIONS: Final = {
    "agent": "studies.rate.agent:agent",
    "add": "studies.rate.command:add",
    "bench": "studies.rate.command:bench",
    "collect": "studies.rate.command:collect",
    "completions": "studies.rate.testbed.command:completions",
    "exchange": "studies.rate.command:exchange",
    "feedback": "studies.rate.command:feedback",
    "follow": "studies.rate.testbed.follow:follow",
    "forecast": "studies.rate.command:forecast",
    "plain": "studies.rate.command:plain",
    "results": "studies.rate.command:results",
    "round": "studies.rate.command:rounds",
    "simulate": "studies.rate.command:simulate",
    "study": "studies.rate.command:study",
}
SERVED: Final = {"rate": ("swiftqueue-rate", "studies.rate.deployed:MODEL")}
KIND: Final = "rate"
MODEL: Final = SERVED[KIND][0]
