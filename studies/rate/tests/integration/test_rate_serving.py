"""The rate model beside the latency model: the same registry, the same deploy, a real Triton."""

from __future__ import annotations

import itertools
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from registered import add_version, served

from swiftqueue.studies.rate.samples.definition import NAMES

if TYPE_CHECKING:
    from swiftqueue.studies.rate.client import Forecast, RateClient

sys.path.append(str(Path(__file__).resolve().parents[1]))
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """An untrained network with its ONNX form: an LSTM of odd seeds, a Transformer of even ones."""
    from rate_flows import saved_once, untrained

    from swiftqueue.studies.rate.model import networks

    saved = saved_once(
        tmp_path_factory.mktemp("networks"),
        lambda seed: untrained("lstm" if seed % 2 else "transformer", seed),
    )

    def make(seed: int) -> Path:
        folder = saved(seed)
        if not (folder / "model.onnx").exists():
            networks.export_onnx(folder)
        return folder

    return make


def register(folder: Path, gate: str = "passed") -> int:
    from swiftqueue.models.registry.registry import Registry

    version = add_version(folder, gate=gate, model="swiftqueue-rate")
    Registry("swiftqueue-rate").set_alias("challenger", version)
    return version


def raw(n: int) -> np.ndarray:
    from rate_flows import samples_of

    return np.array([list(row.values()) for row in samples_of(2e6, 40_000, n)])


def patient(n: int) -> np.ndarray:
    """Samples of a connection with a round trip of the longest that an answer may take."""
    flow = raw(n)
    flow[:, NAMES.index("min_rtt")] = 900_000  # us
    return flow


def tell(client: RateClient, connection: int, flow: np.ndarray) -> None:
    """All samples of a connection; a forecast is asked for with the last."""
    for sample, raw_F in enumerate(flow):
        ends = sample == len(flow) - 1
        client.tell(connection, sample, raw_F, ask=ends, last=ends)


def asked(client: RateClient, n: int, numbers: itertools.count[int] = itertools.count()) -> Forecast:  # noqa: B008
    connection = next(numbers)
    tell(client, connection, patient(n))
    found = client.take(30)
    assert found is not None
    assert (found.connection, found.sample) == (connection, n - 1)
    return found


def test_deploys_rolls_back_and_leaves_the_latency_model_alone(  # type: ignore[no-untyped-def]
    champion: int, network: Callable[[int], Path], capsys
) -> None:
    from swiftqueue.infra.local.status import print_status
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy import hold
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion, serve_champion
    from swiftqueue.serving.triton.endpoint import Triton, TritonError
    from swiftqueue.studies.rate.commands import KIND, MODEL
    from swiftqueue.studies.rate.model import networks
    from swiftqueue.studies.rate.samples.definition import inputs

    rate = MODEL
    with Triton() as triton:
        assert triton.served_version(rate) is None
        first = register(network(2))
        deploy_version(None, kind=KIND)
        said = capsys.readouterr().out.replace('"', "'")
        assert f"version {first} goes to the Python backend with ONNX Runtime: " in said
        assert "is not 'swiftqueue-artifact/2'" in said  # the engine in Triton is that of latencies
        assert (triton.served_version(rate), served()) == (first, champion)
        loaded, _ = networks.load(network(2))
        flows = [inputs(raw(n)) for n in (5, 15, 35)]
        answer = triton.infer(np.stack([networks.padded(one) for one in flows]), rate)
        for one, rate_H in zip((5, 15, 35), answer.y_BH, strict=True):
            np.testing.assert_allclose(rate_H, networks.forecast(loaded, raw(one)), rtol=1e-5)
        bad = np.stack([networks.padded(flows[0])])
        bad[0, 2, 8] = np.nan
        with pytest.raises(TritonError, match=r"window: rtt is NaN or outside \["):
            triton.infer(bad, rate)
        with pytest.raises(TritonError, match="shape"):
            triton.infer(flows[0][None], rate)
        assert print_status(kind=KIND) == 0
        assert f"serves version {first} by the Python backend" in capsys.readouterr().out

        second = register(network(3))
        deploy_version(None, kind=KIND)
        assert triton.served_version(rate) == second == Registry(rate).alias("champion")
        rollback_champion(and_hold=True, kind=KIND)
        assert triton.served_version(rate) == first
        assert hold.held() is None
        with pytest.raises(ValueError, match="until `swiftqueue release --model rate`"):
            deploy_version(second, kind=KIND)
        assert hold.release(KIND)
        deploy_version(second, kind=KIND)

    capsys.readouterr()
    assert print_status(kind=KIND) == 0
    told = capsys.readouterr().out
    assert f"triton, rate: serves version {second} by the Python backend with ONNX Runtime" in told
    assert print_status() == 0
    told = capsys.readouterr().out
    assert f"triton: serves version {champion} by " in told
    assert f"triton, rate: serves version {second} by " in told
    assert (deploy_log.last_served() or {})["version"] == champion
    assert (deploy_log.last_served(kind=KIND) or {})["model"] == rate
    with Triton() as triton:
        triton.unload(rate)
        assert print_status(kind=KIND) == 1
        assert "serves no version" in (said := capsys.readouterr().out)
        assert "swiftqueue deploy --model rate" in said
        assert serve_champion(KIND) == second == triton.served_version(rate)
        assert served() == champion


def test_the_agent_asks_triton_and_goes_on_without_it(
    champion: int, network: Callable[[int], Path], tmp_path: Path
) -> None:
    """Forecasts equal to PyTorch's; without the server there are errors, and then forecasts again."""
    from rate_agent import RateAgent
    from waiting import wait_until

    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import Triton, grpc_addresses
    from swiftqueue.studies.rate.client import RateClient
    from swiftqueue.studies.rate.commands import KIND, MODEL
    from swiftqueue.studies.rate.model import networks

    register(network(2))
    deploy_version(None, kind=KIND)
    path, flow = tmp_path / "agent.sock", patient(35)
    with (
        RateAgent("--listen", path, "--server", grpc_addresses()[0]) as agent,
        RateClient(path) as client,
    ):
        wait_until(lambda: asked(client, 5).outcome == "forecast", "Triton does not forecast")
        loaded, _ = networks.load(network(2))
        for n in (5, 15, 35):
            found = wait_until(
                lambda n=n: (one := asked(client, n)).outcome == "forecast" and one, f"n = {n}"
            )
            np.testing.assert_allclose(found.rate_H, networks.forecast(loaded, flow[:n]), rtol=1e-5)
        assert asked(client, 4).outcome == "none"
        with Triton() as triton:
            triton.unload(MODEL)
            wait_until(lambda: asked(client, 5).outcome in ("no_model", "error"), "nobody forecasts")
            agent.complained("rates: ")
            deploy_version(None, kind=KIND)
        wait_until(lambda: asked(client, 5).outcome == "forecast", "Triton does not forecast again")


def test_what_triton_refuses_of_one_connection_costs_no_other_its_forecast(
    champion: int, network: Callable[[int], Path], tmp_path: Path
) -> None:
    """Asked together, because the server stood still while they came."""
    from rate_agent import RateAgent
    from triton_process import paused_server
    from waiting import wait_until

    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import grpc_addresses
    from swiftqueue.studies.rate.client import RateClient
    from swiftqueue.studies.rate.commands import KIND

    register(network(2))
    deploy_version(None, kind=KIND)
    path, bad = tmp_path / "agent.sock", patient(5)
    bad[4, NAMES.index("snd_cwnd")] = 2**24 + 2  # packets: more than the limits allow
    flows = [patient(5), patient(5), bad, patient(5), patient(5)]
    with (
        RateAgent("--listen", path, "--server", grpc_addresses()[0]) as agent,
        RateClient(path) as client,
    ):

        def together() -> dict[int, str]:
            with paused_server():
                for connection, flow in enumerate(flows):
                    tell(client, connection, flow)
            answers = [client.take(30) for _ in flows]
            return {one.connection: one.outcome for one in answers if one is not None}

        wait_until(lambda: asked(client, 5).outcome == "forecast", "Triton does not forecast")
        expected = dict.fromkeys(range(5), "forecast") | {2: "none"}
        wait_until(lambda: together() == expected, lambda: f"not {expected} but {together()}", 60)
        agent.complained("connection 2: ")


def test_a_server_that_hangs_is_asked_last(
    champion: int, network: Callable[[int], Path], tmp_path: Path
) -> None:
    from rate_agent import RateAgent
    from waiting import wait_until

    from swiftqueue.serving.deploy.deployment import deploy_version
    from swiftqueue.serving.triton.endpoint import grpc_addresses
    from swiftqueue.studies.rate.client import RateClient
    from swiftqueue.studies.rate.commands import KIND

    register(network(2))
    deploy_version(None, kind=KIND)
    path, ended = tmp_path / "agent.sock", threading.Event()

    def hang(listener: socket.socket) -> None:
        connections = []
        while not ended.is_set():
            connections.append(listener.accept()[0])
            connections[-1].sendall(b"\0\0\0\4\0\0\0\0\0")  # HTTP/2's SETTINGS: it is there, and says no more

    with socket.create_server(("127.0.0.1", 0)) as listener:
        hangs = f"127.0.0.1:{listener.getsockname()[1]}"
        thread = threading.Thread(target=hang, args=[listener])
        thread.start()
        servers = ("--server", hangs, "--server", grpc_addresses()[0])
        with RateAgent("--listen", path, *servers), RateClient(path) as client:
            wait_until(lambda: asked(client, 5).outcome == "forecast", "the other is not asked", 60)
        ended.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()


@pytest.mark.long
def test_a_round_ends_in_a_served_version(
    champion: int, network: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new head for the served network, by the whole way: flows, gate, registry, Triton."""
    from rate_flows import write_flows

    from swiftqueue.common.section import read
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.serving.deploy.deployment import deploy_version, rollback_champion
    from swiftqueue.serving.deploy.hold import release
    from swiftqueue.serving.triton.endpoint import Triton
    from swiftqueue.studies.rate.commands import KIND, MODEL, PARAMS_FILE
    from swiftqueue.studies.rate.model import networks
    from swiftqueue.studies.rate.model.tuning import RateRoundParams
    from swiftqueue.studies.rate.samples.definition import inputs
    from swiftqueue.studies.rate.stages.rounds import RateRounds

    first = register(network(2))
    deploy_version(first, kind=KIND)
    write_flows(tmp_path / "flows", train=4, flows=24)
    rounds = RateRounds(tmp_path / "flows", read(PARAMS_FILE, RateRoundParams), MODEL)
    record = rounds.run()
    assert (record.outcome, record.parent) == ("pushed", first), record.reason
    assert "Python backend with ONNX Runtime" in capsys.readouterr().out
    loaded, _ = networks.load(Registry(MODEL).fetch(record.version or 0, tmp_path / "served"))
    with Triton() as triton:
        assert (triton.served_version(MODEL), served()) == (record.version, champion)
        answer = triton.infer(np.stack([networks.padded(inputs(raw(15)))]), MODEL)
        np.testing.assert_allclose(answer.y_BH[0], networks.forecast(loaded, raw(15)), rtol=1e-5)
        rollback_champion(and_hold=True, kind=KIND)
        try:
            held = rounds.run()
            assert (held.outcome, held.version) == ("declined", None)
            assert "is held, and no other takes its place until" in held.reason
        finally:
            assert release(KIND)
        assert triton.served_version(MODEL) == first
