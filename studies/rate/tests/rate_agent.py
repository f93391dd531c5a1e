"""`swiftqueue-rate-agent` as a program, for the tests that need the real one."""

from __future__ import annotations

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
