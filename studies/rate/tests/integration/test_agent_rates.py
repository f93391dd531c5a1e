"""Connections' rates by the real agent: the engine's forecasts, and what is none."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until

from swiftqueue.serving.agent.io import frames
from swiftqueue.studies.rate.client import Forecast, RateClient
from swiftqueue.studies.rate.engine import RateEngine
from swiftqueue.studies.rate.frames import FORECAST, RATE_OUTCOMES, SAMPLE, blank
from swiftqueue.studies.rate.programs import AGENT
from swiftqueue.studies.rate.samples.definition import MOST_SAMPLES, NAMES, PREFIXES

sys.path.append(str(Path(__file__).resolve().parents[1]))
from rate_agent import RateAgent

pytestmark = pytest.mark.slow
WITHIN_S = 30.0


def flow(rate: float, n: int = MOST_SAMPLES) -> np.ndarray:
    from rate_flows import samples_of

    return np.array([list(row.values()) for row in samples_of(rate, 50_000, n)])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """An untrained Transformer, a folder for each seed."""
    import torch
    from rate_flows import saved_once, untrained

    from swiftqueue.studies.rate.model.network import RateNetwork

    def make(seed: int) -> RateNetwork:
        made = untrained("transformer", seed)
        torch.nn.init.normal_(made.out.weight, std=0.1)
        return made

    return saved_once(tmp_path_factory.mktemp("networks"), make)


@pytest.fixture
def published(tmp_path: Path, network: Callable[[int], Path]) -> Callable[[int], Path]:
    """Put a network in service: a folder whose name is its version, and a link moved to it."""

    def publish(version: int) -> Path:
        shutil.copytree(network(version), tmp_path / str(version))
        (partial := tmp_path / ".partial").symlink_to(str(version))
        return partial.replace(tmp_path / "rates")

    return publish


@pytest.fixture
def agent(tmp_path: Path, published: Callable[[int], Path]) -> Iterator[RateAgent]:
    path = tmp_path / "agent.sock"
    with RateAgent("--listen", path, "--local", published(1), "--metrics-port", 0) as agent:
        yield agent


def answered(client: RateClient) -> Forecast:
    found = client.take(WITHIN_S)
    assert found is not None
    return found


def asked(client: RateClient, connection: int, raw: np.ndarray, first: int = 0) -> Forecast:
    """Tell samples from `first` on; ask with the last one."""
    for sample in range(first, len(raw)):
        client.tell(connection, sample, raw[sample], ask=sample == len(raw) - 1)
    return answered(client)


def test_a_sender_gets_the_engines_forecasts(
    agent: RateAgent, tmp_path: Path, network: Callable[[int], Path]
) -> None:
    """Connections that alternate, of two senders."""
    engine, flows = RateEngine(network(1)), [flow(rate) for rate in (8e5, 3e6, 9e6)]
    path = tmp_path / "agent.sock"
    with RateClient(path) as one, RateClient(path) as other:
        for sample in range(MOST_SAMPLES):
            for connection, raw in enumerate(flows):
                for client in (one, other):
                    ask = sample + 1 in PREFIXES
                    client.tell(connection, sample, raw[sample], ask=ask)
                    if ask:
                        found = answered(client)
                        assert (found.connection, found.sample) == (connection, sample)
                        assert (found.outcome, found.version) == ("forecast", 1)
                        np.testing.assert_array_equal(found.rate_H, engine.forecast(raw[: sample + 1]))

        def counted() -> bool:
            return agent.metrics()["rate_connections"] == 2 * 3

        wait_until(counted, "their connections are not counted")
        metrics = agent.metrics()
        assert metrics['forecasts_total{outcome="forecast"}'] == 2 * 3 * 3
        assert metrics["forecast_seconds_count"] == 2 * 3 * 3
    wait_until(lambda: agent.metrics()["senders"] == 0, "senders that went are still counted")
    wait_until(lambda: agent.metrics()["rate_connections"] == 0, "their connections are still counted")
    assert agent.end()["forecasts"] == dict.fromkeys(RATE_OUTCOMES, 0) | {"forecast": 18}


def test_what_has_no_forecast_says_so_and_other_connections_go_on(agent: RateAgent, tmp_path: Path) -> None:
    raw, at = flow(2e6), {name: place for place, name in enumerate(NAMES)}

    def spoilt(field: str, value: int) -> np.ndarray:
        other = raw[:10].copy()
        other[9, at[field]] = value
        return other

    with RateClient(tmp_path / "agent.sock") as client:
        whole = raw[:5]
        for connection, bad, line in (
            (1, raw[:4], "the flow has 4 samples; a forecast takes 5 to 35"),
            (2, spoilt("rtt", -5), "a field is negative, a count falls"),
            (3, spoilt("delivered", 0), "a field is negative, a count falls"),
            (4, spoilt("delivery_rate_app_limited", 2), "a flag is not 0 or 1"),
            (5, np.concatenate([raw, raw[-1:]]), "more than 35 samples"),
        ):
            found = asked(client, connection, bad)
            assert found.outcome == "none"
            assert np.isnan(found.rate_H).all()
            agent.complained(f"connection {connection}: ")
            agent.complained(line)
            assert asked(client, 100 + connection, whole).outcome == "forecast"
        client.tell(6, 0, raw[0])
        client.tell(6, 2, raw[2], ask=True)  # sample 1 is missing
        assert answered(client).outcome == "none"
        assert asked(client, 7, raw[:5]).outcome == "forecast"
        client.tell(7, 5, raw[5], last=True)
        client.tell(7, 6, raw[6], ask=True)  # it was the last
        assert answered(client).outcome == "none"
        assert asked(client, 7, raw[:5]).outcome == "forecast"  # sample 0 begins anew
        client.tell(8, 0, raw[0])
        assert client.take(0.2) is None  # nobody asked


def test_to_wait_for_no_time_finds_what_is_there_and_shortens_no_telling(
    agent: RateAgent, tmp_path: Path
) -> None:
    raw = flow(2e6, n=5)
    with RateClient(tmp_path / "agent.sock", patience_s=WITHIN_S) as client:
        for sample in range(5):
            client.tell(1, sample, raw[sample], ask=sample == 4)
        found = wait_until(lambda: client.take(0), "what is there is not taken")
        assert found.outcome == "forecast"
        agent.process.send_signal(signal.SIGSTOP)
        assert client.take(0.05) is None
        goes_on = threading.Timer(0.5, agent.process.send_signal, [signal.SIGCONT])
        goes_on.start()
        for connection in range(1_000):  # more than the socket holds
            for sample in range(4):
                client.tell(connection, sample, raw[sample])
        goes_on.join()
        client.tell(999, 4, raw[4], ask=True)
        assert answered(client).outcome == "forecast"


def test_the_oldest_connection_is_forgotten(agent: RateAgent, tmp_path: Path) -> None:
    raw = flow(2e6, n=5)
    with RateClient(tmp_path / "agent.sock") as client:
        for connection in range(1_100):
            for sample in range(4):
                client.tell(connection, sample, raw[sample])
        client.tell(0, 4, raw[4], ask=True)
        assert answered(client).outcome == "none"
        client.tell(1_099, 4, raw[4], ask=True)
        assert answered(client).outcome == "forecast"
        assert wait_until(lambda: agent.metrics()["rate_connections"] == 1_024, "not the bound")


def test_another_network_is_taken_up_by_connections_that_begin_then(
    agent: RateAgent, tmp_path: Path, network: Callable[[int], Path], published: Callable[[int], Path]
) -> None:
    raw = flow(2e6)
    with RateClient(tmp_path / "agent.sock") as client:
        assert asked(client, 1, raw[:5]).version == 1
        published(2)
        wait_until(lambda: asked(client, 2, raw[:5]).version == 2, "version 2 is not taken up")
        assert asked(client, 1, raw[:6], first=5).version == 1  # it began with that
        expected = RateEngine(network(2)).forecast(raw[:15])
        np.testing.assert_array_equal(asked(client, 2, raw[:15], first=5).rate_H, expected)
        (tmp_path / "3").mkdir()
        (tmp_path / "3" / "model.json").write_text("{}")
        (partial := tmp_path / ".partial").symlink_to("3")
        partial.replace(tmp_path / "rates")
        agent.complained("the model in service goes on")
        assert asked(client, 3, raw[:5]).version == 2
    assert len(agent.complaints) == 1


def test_what_cannot_be_is_refused_in_one_line_and_others_go_on(agent: RateAgent, tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    def one(frame: np.ndarray, **fields: float) -> bytes:
        for name, value in fields.items():
            frame[name] = value
        return frame.tobytes()

    with RateClient(path) as good:
        for line, data in (
            ("a HELLO frame comes first", one(blank(SAMPLE))),
            ("its sample is negative", frames.hello("x").tobytes() + one(blank(SAMPLE), sample=-1)),
            ("a flag or spare byte", frames.hello("x").tobytes() + one(blank(SAMPLE), asked=2)),
            ("a sender sends one HELLO", frames.hello("x").tobytes() + one(blank(FORECAST), rates=1)),
            ("a sender sends one HELLO", 2 * frames.hello("x").tobytes()),
            ("its size is not that of its type", one(blank(SAMPLE), bytes=255)),
            ("it is of the latency agent", frames.blank(frames.BYE).tobytes()),
            ("its format is not 1", b"\0" * 4096),
        ):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(path))
                raw.sendall(data)
                raw.settimeout(WITHIN_S)
                said = b""
                while more := raw.recv(1 << 12):
                    said += more
            assert line.encode() in said
            agent.complained(line)
            assert asked(good, 1, flow(2e6, n=5)).outcome == "forecast"


def test_structs_and_records_of_frames_are_the_same(project: Path, tmp_path: Path) -> None:
    claims = []
    for struct, kind in {"SampleFrame": SAMPLE, "ForecastFrame": FORECAST}.items():
        claims.append(f"sizeof(agent::{struct}) == {kind.itemsize}")
        for name, (what, at, *_) in (kind.fields or {}).items():
            if name in (frames.HEADER.names or ()):
                continue
            claims.append(f"offsetof(agent::{struct}, {name}) == {at}")
            claims.append(f"sizeof(agent::{struct}::{name}) == {what.itemsize}")
    lines = [f'static_assert({claim}, "{claim}");' for claim in claims]
    source = tmp_path / "claims.cc"
    head = '#include <cstddef>\n#include "studies/rate/native/frames.h"\nusing namespace swiftqueue;\n'
    source.write_text(head + "\n".join(lines))
    command = ["g++", "-std=c++20", "-fsyntax-only", "-I.", str(source)]
    compiled = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert compiled.returncode == 0, compiled.stderr


def test_a_folder_without_a_network_is_one_line(tmp_path: Path, make_artifact: Callable[..., Path]) -> None:
    latency = make_artifact(1, layers=1)
    given = ["--listen", tmp_path / "s", "--local"]
    for folder, line in (
        (tmp_path / "none", "is gone"),
        (latency, "format 'swiftqueue-artifact"),
    ):
        command = [str(each) for each in (AGENT, *given, folder)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 1
        said = [one for one in ended.stderr.splitlines() if "runs as root" not in one]
        assert len(said) == 1
        assert line in said[0].replace('"', "'")
