"""Declare the study's commands, and the model that can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PARAMS_FILE: Final = Path("studies/rate/params.yaml")
NAME: Final = "rate"
HELP: Final = "Forecasts of a TCP connection's rate from its first ACKs."
FUNCTIONS: Final = {
    "agent": "swiftqueue.studies.rate.agent:agent",
    "add": "swiftqueue.studies.rate.command:add",
    "bench": "swiftqueue.studies.rate.command:bench",
    "collect": "swiftqueue.studies.rate.command:collect",
    "completions": "swiftqueue.studies.rate.testbed.command:completions",
    "exchange": "swiftqueue.studies.rate.command:exchange",
    "feedback": "swiftqueue.studies.rate.command:feedback",
    "follow": "swiftqueue.studies.rate.testbed.follow:follow",
    "forecast": "swiftqueue.studies.rate.command:forecast",
    "plain": "swiftqueue.studies.rate.command:plain",
    "results": "swiftqueue.studies.rate.command:results",
    "round": "swiftqueue.studies.rate.command:rounds",
    "simulate": "swiftqueue.studies.rate.command:simulate",
    "study": "swiftqueue.studies.rate.command:study",
}
SERVED: Final = {"rate": ("swiftqueue-rate", "swiftqueue.studies.rate.deployed:MODEL")}
KIND: Final = "rate"
MODEL: Final = SERVED[KIND][0]
