"""The sender agent against a real Triton: alive, restarted, stopped in its tracks, gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from agent_program import GONE_S, AgentProgram
from registered import add_version
from triton_process import kill_server, paused_server
from waiting import wait_until

from swiftqueue.benchmarks.served_models import IDENTITY, served, write_model
from swiftqueue.feature_store.events.definition import EVENTS
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.predictors.reference_client import AgentDecision, SenderAgent
from swiftqueue.serving.triton.endpoint import Triton
from swiftqueue.serving.triton.repository import MODEL

pytestmark = pytest.mark.slow

DEADLINE_US = 30_000
# What a wait may exceed its deadline by on a busy machine; the wait itself is a timed one.
SLACK_US = 30_000


class Sender:
    """Sends a packet every 0.25 ms of its own clock and gets its ACKs 20 ms later."""

    def __init__(self, agent: SenderAgent) -> None:
        self.agent = agent
        self.packet = 0
        self.now_ns = 10**9
        self.waits_us: list[float] = []

    def batch(self) -> AgentDecision:
        flows = [i % 3 for i in range(8)]
        defaults = [0 if flow == 0 else 1 for flow in flows]
        begin = time.perf_counter()
        decision = self.agent.decide(self.packet, self.now_ns, [1500] * 8, flows, [0] * 8, defaults)
        self.waits_us.append((time.perf_counter() - begin) * 1e6)
        for flow, queue in zip(flows, decision.queues, strict=True):
            self.agent.sent(self.packet, self.now_ns, 1500, flow, 0, queue)
            if self.packet >= 80:
                self.agent.acked(self.packet - 80, self.now_ns, 20_000.0)
            self.packet += 1
            self.now_ns += 250_000
        return decision

    def until_decided(self) -> AgentDecision:
        def decided() -> AgentDecision | None:
            decision = self.batch()
            return decision if decision.outcome == "decided" else None

        return wait_until(decided, lambda: f"nothing is decided: {self.agent.counts}, {self.agent.problem}")


@pytest.fixture
def sender(champion: int) -> Iterator[Sender]:
    with SenderAgent(deadline_us=DEADLINE_US) as agent:
        assert agent.wait_for_model(60), agent.problem
        yield Sender(agent)
    counts = agent.counts
    assert counts.batches == counts.decided + counts.late + counts.failed


def test_decides_with_the_served_version(sender: Sender, champion: int) -> None:
    sender.until_decided()
    decisions = [sender.batch() for _ in range(100)]
    decided = [d for d in decisions if d.outcome == "decided"]
    assert len(decided) >= 90
    assert {d.version for d in decided} == {champion}
    for d in decided:
        assert d.predicted_us is not None
        assert d.predicted_us.shape == (2, 8)
        assert all(q == 0 for q, flow in zip(d.queues, range(8), strict=True) if flow % 3 == 0)


def test_answers_are_those_of_the_artifact(sender: Sender, make_artifact: Callable[..., Path]) -> None:
    from swiftqueue.models.networks import artifact
    from swiftqueue.models.networks.prediction import predict

    for _ in range(20):
        sender.batch()
    flows = [1] * 8
    x_WF, _ = sender.agent.window.window(sender.now_ns, [900] * 8, flows, [0] * 8, [1] * 8)
    local_BH = predict(artifact.load(make_artifact(1)).model, x_WF[None])
    decision = sender.agent.decide(sender.packet, sender.now_ns, [900] * 8, flows, [0] * 8, [1] * 8)
    assert decision.predicted_us is not None, decision
    np.testing.assert_allclose(decision.predicted_us[1], local_BH[0], rtol=1e-4)


def test_a_stopped_server_costs_no_more_than_the_deadline(sender: Sender) -> None:
    sender.until_decided()
    with paused_server():
        sender.waits_us.clear()
        outcomes = [sender.batch().outcome for _ in range(10)]
    assert set(outcomes) <= {"late", "error"}
    assert median(sender.waits_us) < DEADLINE_US + SLACK_US  # a busy machine pauses now and then
    sender.until_decided()


def test_a_killed_server_is_found_again_when_it_is_back(sender: Sender, champion: int) -> None:
    from swiftqueue.infra.local.servers import start_stack

    sender.until_decided()
    before = sender.agent.counts.decided
    kill_server()
    try:
        sender.waits_us.clear()
        end = time.monotonic() + GONE_S
        outcomes = []
        while time.monotonic() < end:
            outcomes.append(sender.batch().outcome)
            time.sleep(0.01)
        assert set(outcomes) <= {"error", "late"}
        assert median(sender.waits_us) < DEADLINE_US + SLACK_US  # a busy machine pauses now and then
    finally:
        start_stack()
    decision = sender.until_decided()
    assert decision.version == champion
    assert sender.agent.counts.decided == before + 1


def test_late_answers_are_dropped_and_counted(champion: int) -> None:
    with SenderAgent(deadline_us=1) as agent:
        assert agent.wait_for_model(60)
        sender = Sender(agent)
        outcomes = {sender.batch().outcome for _ in range(20)}
        assert outcomes == {"late"}
        assert agent.counts.late == 20


def test_a_model_with_another_window_is_taken_up(
    sender: Sender, champion: int, make_artifact: Callable[..., Path]
) -> None:
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion

    sender.until_decided()
    folder = make_artifact(12, onnx=True, layers=1)
    version = add_version(folder)
    deploy_version(version)
    decision = sender.until_decided()
    while decision.version != version:
        decision = sender.until_decided()
    assert sender.agent.window.tokens == 72
    rollback_champion()
    while decision.version != champion:
        decision = sender.until_decided()


OLD_SCHEMA_HASH = "ed5cfb08984c5aee135616b101e817c99cfe962ea8aaabdd3d98516674f4bed3"
# What makes a served model another one than a sender asks for: a change of its config.pbtxt, and the line.
OTHER_MODELS = {
    "an input more": (
        "input [ {",
        'input [ { name: "w" data_type: TYPE_FP32 dims: [ 1 ] }, {',
        "take FP32 windows",
    ),
    "another input": ('name: "window"', 'name: "windows"', "take FP32 windows"),
    "doubles": ("data_type: TYPE_FP32 dims: [ 136", "data_type: TYPE_FP64 dims: [ 136", "take FP32 windows"),
    "fewer features": (
        f"dims: [ 136, {len(EVENTS.features)} ]",
        f"dims: [ 136, {len(EVENTS.features) - 1} ]",
        "take FP32 windows",
    ),
    "any number of tokens": (
        f"dims: [ 136, {len(EVENTS.features)} ]",
        f"dims: [ -1, {len(EVENTS.features)} ]",
        "take FP32 windows",
    ),
    "another output": ('name: "latency_us"', 'name: "latency_ms"', "answer with FP32 latency_us"),
    "whole numbers": (
        '"latency_us" data_type: TYPE_FP32',
        '"latency_us" data_type: TYPE_INT32',
        "answer with FP32 latency_us",
    ),
    "fewer latencies": ("dims: [ 8 ]", "dims: [ 4 ]", "answer with FP32 latency_us"),
    "a window at a time": ("max_batch_size: 64", "max_batch_size: 1", "fewer than 2 windows in a request"),
    "other features": ('string_value: "', 'string_value: "0', "takes features"),
    "the old form": (
        EVENTS.schema_hash,
        OLD_SCHEMA_HASH,
        "is of the old form, a network over windows of packets",
    ),
}


def test_a_model_of_another_shape_is_not_asked_and_both_clients_say_the_same(
    serving_state: Path, make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """A real Triton serves models that are not ours, by a backend that takes any shape."""
    repository = tmp_path / "repository"
    write_model(repository, MODEL, make_artifact(1), IDENTITY)
    file = repository / MODEL / "config.pbtxt"
    ours = file.read_text()
    without_agent = agent_process.why_not_built()
    with served(tmp_path, [MODEL]) as address, Triton(address) as triton:
        agent_options = ["--server", address, "--metrics-port", 0, "--listen", tmp_path / "agent.sock"]
        refused = f'model_refused{{server="{address}"}}'
        with SenderAgent(deadline_us=1_000_000, address=address) as agent, ExitStack() as stack:
            sender = Sender(agent)
            sender.until_decided()
            cpp = None if without_agent else stack.enter_context(AgentProgram(*agent_options))
            for what, (was, becomes, line) in OTHER_MODELS.items():
                assert was in ours
                file.write_text(ours.replace(was, becomes, 1))
                triton.load(MODEL)
                wait_until(lambda line=line: line in agent.problem, f"nothing is said of {what}")
                assert sender.batch().outcome == "no_model"
                if cpp is not None:
                    wait_until(lambda: cpp.metrics()[refused] == 1, f"the agent takes {what}")
                    assert problem_of_the_agent(address, line) == agent.problem
            file.write_text(ours)
            triton.load(MODEL)
            sender.until_decided()
            if cpp is not None:
                wait_until(lambda: cpp.metrics()[refused] == 0, "a model that is ours is refused")
                counted = cpp.metrics()[f'refused_models_total{{server="{address}"}}']
                assert 1 <= counted <= len(OTHER_MODELS)  # each reason in a row once, if it was looked at


def problem_of_the_agent(address: str, line: str) -> str:
    """What the C++ agent says of a server, once it is about its model."""
    options = ("--server", address, "--synthetic-bps", 1e9, "--seconds", 0.001, "--wait-model-s", 0.3)
    end = time.monotonic() + 20
    while True:
        with AgentProgram(*options) as program:
            problem = str(program.end(None)["problem"])
        if line in problem:
            return problem
        assert time.monotonic() < end, problem
