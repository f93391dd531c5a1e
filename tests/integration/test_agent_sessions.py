"""The C++ agent's sessions at real Tritons that die, start again, forget, or serve another model.

Each answer is compared with what the network makes of all the sender's events: a batch may be late, and an
answer is never a wrong one.
"""

# Shapes: W rows of a window, F features, H horizon (8 packets).

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from agent_program import DEFAULTS, FLOWS, AgentProgram, LiveSender, needs_agent
from test_native_backend import Native, empty, native  # noqa: F401 - fixtures
from test_sessions import limited
from test_triton_predictor import Replica
from waiting import wait_until

from swiftqueue.benchmarks.served_models import write_model
from swiftqueue.feature_store.events.event_window import EventWindow
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.serving.agent.bindings.controller import CLASSIC
from swiftqueue.serving.engine import Engine
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import Triton
from swiftqueue.serving.triton.repository import MODEL

pytestmark = [pytest.mark.slow, needs_agent]
PATIENT_US = 5_000_000  # a batch that is not decided by then was never answered
ENOUGH = 60  # batches: 16 events each, and a question looks back at 128


class Witness(LiveSender):
    """A sender that knows what each answer must be: by the version that it names."""

    def __init__(self, path: Path, engines: dict[int, Engine], name: str = "witness") -> None:
        super().__init__(path, name, PATIENT_US)
        self.engines = engines
        self.windows = {engine.shape[0]: EventWindow(engine.shape[0]) for engine in engines.values()}
        self.decided = 0
        self.version = -1  # of the last answer

    def live(self, batches: int) -> None:
        """Send batches, of which each answer is compared."""
        for _ in range(batches):
            first, now_ns = self.packet, self.now_ns
            asked_WF = {
                tokens: np.stack(
                    [
                        window.window(now_ns, [self.size_bytes] * 8, FLOWS, [0] * 8, queues)[0]
                        for queues in ([CLASSIC] * 8, DEFAULTS)
                    ]
                )
                for tokens, window in self.windows.items()
            }
            decision = self.batch()
            assert decision is not None
            if self.outcomes[-1] == "decided":
                self.decided += 1
                self.version = int(decision["version"])
                engine = self.engines[self.version]
                expected_BH = engine.forward(asked_WF[engine.shape[0]])
                said_BH = np.stack([decision["classic_us"], decision["default_us"]])
                np.testing.assert_allclose(said_BH, expected_BH, rtol=1e-5, err_msg=f"packet {first}")
            for window in self.windows.values():
                for i, queue in enumerate(decision["queues"]):
                    window.sent(
                        first + i, now_ns + i * 250_000, self.size_bytes, int(FLOWS[i]), 0, int(queue)
                    )
                for packet in range(max(first - 80, 0), max(first - 72, 0)):
                    window.acked(packet, self.now_ns, 20_000.0)


def resends(agent: AgentProgram) -> float:
    return sum(value for name, value in agent.metrics().items() if name.startswith("resends_total"))


@pytest.fixture
def pair(
    make_artifact: Callable[..., Path], tmp_path: Path, serving_state: Path
) -> Iterator[tuple[Replica, Replica, dict[int, Engine]]]:
    """Two Tritons with the native backend, of versions 1 and 2, and what computes their answers."""
    both, engines = [], {}
    for version in (1, 2):
        folder, root = make_artifact(version), tmp_path / f"server-{version}"
        write_model(root / "repository", MODEL, folder, Backend.NATIVE, version)
        ports = dict(zip(("grpc", "metrics"), free_ports(2), strict=True))
        both.append(Replica(f"triton-sessions-{version}", root, ports))
        engines[version] = Engine(folder)
    try:
        for replica in both:
            replica.start()
        yield both[0], both[1], engines
    finally:
        for replica in both:
            replica.kill()


def test_a_killed_server_hands_a_sender_over_and_gets_it_back(
    pair: tuple[Replica, Replica, dict[int, Engine]], tmp_path: Path
) -> None:
    first, second, engines = pair
    path = tmp_path / "agent.sock"
    servers = ("--server", first.address, "--server", second.address)
    with (
        AgentProgram("--listen", path, *servers, "--metrics-port", 0, "--guard", "off") as agent,
        Witness(path, engines) as sender,
    ):
        wait_until(lambda: sender.live(1) or sender.decided)
        sender.live(ENOUGH)
        first.kill()
        sender.live(ENOUGH)
        first.start()
        wait_until(lambda: agent.metrics()[f'connected{{server="{first.address}"}}'] == 1)
        sender.live(ENOUGH)
        well = [outcome == "decided" for outcome in sender.outcomes]
        assert sum(well) >= len(well) - 2 - well.index(True), sender.outcomes
        metrics = agent.metrics()
        assert metrics['batches_total{outcome="decided"}'] == sum(well)


def test_a_server_that_forgets_is_sent_the_events_again(
    native: Native,  # noqa: F811
    make_artifact: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """It has room for one session, and two senders take turns."""
    folder, path = make_artifact(1), tmp_path / "agent.sock"
    limited(native, folder, sessions=1)
    engines = {1: Engine(folder)}
    with AgentProgram(
        "--listen", path, "--server", native.triton.address, "--metrics-port", 0, "--guard", "off"
    ) as agent:
        with Witness(path, engines) as one, Witness(path, {1: Engine(folder)}, "other") as other:
            wait_until(lambda: one.live(1) or one.decided)
            for _ in range(30):
                one.live(1)
                other.live(1)
            assert other.outcomes == ["decided"] * 30
            assert resends(agent) >= 50
            assert native.metric("swiftqueue_sessions") == [1]
        wait_until(lambda: native.metric("swiftqueue_sessions") == [0], "a sender's session stays behind")


def test_senders_whose_questions_travel_together_get_their_own_answers(
    native: Native,  # noqa: F811
    make_artifact: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Each sends packets of another size; the server has room for fewer sessions than there are senders."""
    folder, path, count = make_artifact(1), tmp_path / "agent.sock", 8
    limited(native, folder, sessions=count - 1)
    with (
        AgentProgram(
            "--listen", path, "--server", native.triton.address, "--metrics-port", 0, "--guard", "off"
        ) as agent,
        ExitStack() as connections,
        ThreadPoolExecutor(count) as threads,
    ):
        senders: list[Witness] = []
        for i in range(count):
            sender = Witness(path, {1: Engine(folder)}, f"sender {i}")
            connections.enter_context(sender)
            sender.size_bytes = 200 * (i + 1)
            senders.append(sender)
        wait_until(lambda: senders[0].live(1) or senders[0].decided)
        before = native.metric("nv_inference_request_success", model=MODEL)[0]
        list(threads.map(lambda sender: sender.live(ENOUGH), senders))
        requests = native.metric("nv_inference_request_success", model=MODEL)[0] - before
        assert all(sender.outcomes[-ENOUGH:] == ["decided"] * ENOUGH for sender in senders)
        assert resends(agent) > 0, "no session went"
        assert requests < count * ENOUGH, "no two questions travelled together"


def test_another_head_and_another_encoder_go_on_and_one_that_looks_back_further_begins_anew(
    native: Native,  # noqa: F811
    make_artifact: Callable[..., Path],
    tmp_path: Path,
) -> None:
    folders = {1: make_artifact(1), 2: make_artifact(1, head=2), 3: make_artifact(2)}
    folders[4] = make_artifact(2, layers=3)
    path = tmp_path / "agent.sock"
    native.push(folders[1], 1)
    with (
        AgentProgram(
            "--listen", path, "--server", native.triton.address, "--metrics-port", 0, "--guard", "off"
        ) as agent,
        Witness(path, {version: Engine(folder) for version, folder in folders.items()}) as sender,
    ):
        wait_until(lambda: sender.live(1) or sender.decided)
        sender.live(ENOUGH)
        for version in (2, 3):
            native.push(folders[version], version, version - 1)
            sender.live(ENOUGH)
            assert sender.version == version
            assert resends(agent) == 0, "the session is kept"
        native.push(folders[4], 4, 3)
        sender.live(ENOUGH)
        assert resends(agent) >= 1
        assert sender.outcomes.count("decided") >= len(sender.outcomes) - 3 - sender.outcomes.index("decided")
        with Triton(native.triton.address) as triton:
            assert triton.served_version() == 4


def test_in_local_mode_another_encoder_goes_on_with_filled_sessions(
    make_artifact: Callable[..., Path], tmp_path: Path
) -> None:
    """Several senders' answers are those of the network, by the old encoder and then by the new one."""
    folders = {1: make_artifact(1), 2: make_artifact(2, layers=3)}
    for version, folder in folders.items():
        shutil.copytree(folder, tmp_path / str(version))
    (tmp_path / "champion").symlink_to("1")
    path, count = tmp_path / "agent.sock", 4
    with (
        AgentProgram(
            "--listen", path, "--local", tmp_path / "champion", "--metrics-port", 0, "--guard", "off"
        ) as agent,
        ExitStack() as connections,
        ThreadPoolExecutor(count) as threads,
    ):
        senders: list[Witness] = []
        for i in range(count):
            engines = {version: Engine(folder) for version, folder in folders.items()}
            sender = Witness(path, engines, f"sender {i}")
            connections.enter_context(sender)
            sender.size_bytes = 300 * (i + 1)
            senders.append(sender)
        list(threads.map(lambda sender: sender.live(ENOUGH), senders))
        (tmp_path / "next").symlink_to("2")
        (tmp_path / "next").replace(tmp_path / "champion")

        def taken_up() -> bool:
            list(threads.map(lambda sender: sender.live(1), senders))
            return all(sender.version == 2 for sender in senders)

        wait_until(taken_up, "the new encoder does not answer")
        list(threads.map(lambda sender: sender.live(ENOUGH), senders))
        assert all(set(sender.outcomes) == {"decided"} for sender in senders)
        assert agent.metrics()['batches_total{outcome="error"}'] == 0
