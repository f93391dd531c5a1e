"""The study's commands: the group's name, its help, and the function behind each command."""

from __future__ import annotations

from typing import Final

NAME: Final = "rate"
HELP: Final = "Forecasts of a TCP connection's rate from its first ACKs."
FUNCTIONS: Final = {
    "add": "infra.rate:add",
    "collect": "infra.rate:collect",
    "exchange": "infra.rate:exchange",
    "feedback": "infra.rate:feedback",
    "follow": "testbed.host.rate_follow:follow",
    "forecast": "infra.rate:forecast",
    "plain": "infra.rate:plain",
    "round": "infra.rate:rounds",
    "simulate": "infra.rate:simulate",
    "study": "infra.rate:study",
}
