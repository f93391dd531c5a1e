"""`swiftqueue-rate-agent` as a program, for the tests that need the real one."""

from __future__ import annotations

from typing import Any

import pytest
from agent_program import AgentProgram

from studies.rate.programs import AGENT, why_no_agent


class RateAgent(AgentProgram):
    """The agent, started; its last words are read by `end`. A test is skipped if it cannot be built."""

    binary = AGENT

    def __init__(self, *arguments: object) -> None:
        if reason := why_no_agent():
            pytest.skip(reason)
        super().__init__(*arguments)

    def check(self, summary: dict[str, Any]) -> None:
        """Check that every forecast that was timed has an outcome."""
        assert summary["forecast_us"]["count"] == sum(summary["forecasts"].values())
