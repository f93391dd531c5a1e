"""Mutual TLS between sender and server with certificates made here: who may ask, what others are told."""

from __future__ import annotations

import datetime
import ipaddress
import json
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_program import AgentProgram, LiveSender, needs_agent
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from test_triton_predictor import Asking, Replica
from tritonclient.utils import InferenceServerException
from waiting import wait_until

from swiftqueue.benchmarks.inference_references import save
from swiftqueue.benchmarks.served_models import IDENTITY, PROJECT, backends, build, served, write_model
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.local.servers import triton_command
from swiftqueue.infra.local.triton_tls import SERVER_CERT, SERVER_KEY, tls_flags
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.agent.predictors.reference_client import SenderAgent
from swiftqueue.serving.triton.endpoint import (
    CONTROL_SECRET,
    LOOPBACK,
    TLS_CA,
    TLS_CERT,
    TLS_KEY,
    Triton,
    TritonError,
    connect,
)
from swiftqueue.serving.triton.repository import MODEL

pytestmark = pytest.mark.slow


NO_TIME = datetime.timedelta()
STOPPING_S = 2.0
EXPIRED = datetime.timedelta(hours=2)


class Authority:
    """Signs certificates; each is PEM files `NAME.pem` and `NAME.key` in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
        self.certificate = self._sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=0))
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, age: datetime.timedelta = NO_TIME) -> tuple[Path, Path]:
        """Certificate and key for a program on loopback, made so long ago; it is good for an hour."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        certificate, files = self._sign(subject, key, address, age), (f"{name}.pem", f"{name}.key")
        (self.folder / files[0]).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        (self.folder / files[1]).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return self.folder / files[0], self.folder / files[1]

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        age: datetime.timedelta = NO_TIME,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC) - age
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=False)
            .sign(self.key, hashes.SHA256())
        )


@dataclass(frozen=True)
class Secured:
    """A server that wants certificates, and files of ours and of a stranger."""

    address: str
    ours: Authority
    stranger: Authority


@pytest.fixture(scope="module")
def secured(serving_state: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    subprocess.run(["make", "-s", "-C", str(PROJECT / "serving/triton/identity")], check=True)
    subprocess.run(["make", "-s", "-C", str(PROJECT / "serving/triton/native")], check=True)
    ours, stranger = (Authority(tmp_path_factory.mktemp(name)) for name in ("ours", "stranger"))
    root = tmp_path_factory.mktemp("secured")
    source = save(root / "artifact")
    write_model(root / "repository", MODEL, source, IDENTITY)
    server = ours.issue("server")
    client = ours.issue("client")
    with pytest.MonkeyPatch.context() as patch:
        for variable, file in zip(
            (SERVER_CERT, SERVER_KEY, TLS_CA, TLS_CERT, TLS_KEY), (*server, ours.file, *client), strict=True
        ):
            patch.setenv(variable, str(file))
        with served(root, [MODEL], name="triton-mtls") as address:
            yield Secured(address, ours, stranger)


def shown(secured: Secured, case: str) -> tuple[Path | None, Path | None, Path | None]:
    """Authority, certificate and key of a client, by what it has."""
    if case == "right":
        return secured.ours.file, *secured.ours.issue("sender")
    if case == "no certificate":
        return secured.ours.file, None, None
    if case == "a stranger's certificate":
        return secured.ours.file, *secured.stranger.issue("sender")
    if case == "an expired certificate":
        return secured.ours.file, *secured.ours.issue("late", age=EXPIRED)
    if case == "trusts another authority":
        return secured.stranger.file, *secured.ours.issue("sender")
    return None, None, None  # no TLS


# By gRPC a server that refuses a certificate looks like one that closes the connection.
CLOSED = "does it want TLS and a certificate of its authority that has not expired?"
NOT_TRUSTED = "TLS: the server's certificate is not signed by the authority we trust, or has expired"
REFUSED = {
    "no certificate": CLOSED,
    "a stranger's certificate": CLOSED,
    "an expired certificate": CLOSED,
    "trusts another authority": NOT_TRUSTED,
    "no TLS": CLOSED,
}


def run_cpp(
    secured: Secured, case: str, address: str = "", connect_s: float = 60
) -> subprocess.CompletedProcess[str]:
    files = zip(("--tls-ca", "--tls-cert", "--tls-key"), shown(secured, case), strict=True)
    words = ["--server", address or secured.address, "--connect-ms", f"{connect_s * 1000:.0f}"]
    words += [word for option, file in files if file for word in (option, str(file))]
    program = str(build("round_trip") / "round_trip")
    return subprocess.run([program, *words], capture_output=True, text=True, check=False)


def check_refused_in_cpp(secured: Secured, case: str, line: str, address: str = "") -> None:
    """The program says why in one line. It asks until its time is over; a busy machine needs more of it."""
    for connect_s in (1, 10, 60):
        ran = run_cpp(secured, case, address, connect_s)
        if line in ran.stderr:
            break
    assert line in ran.stderr
    assert (ran.returncode, len(ran.stderr.splitlines())) == (1, 1)


@pytest.mark.long
def test_the_right_client_is_answered_in_cpp(secured: Secured) -> None:
    ran = run_cpp(secured, "right")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["in_time"] == 3000


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_refused_in_cpp_with_one_line(secured: Secured, case: str) -> None:
    check_refused_in_cpp(secured, case, REFUSED[case])


def use(secured: Secured, case: str, patch: pytest.MonkeyPatch) -> None:
    for variable, file in zip((TLS_CA, TLS_CERT, TLS_KEY), shown(secured, case), strict=True):
        patch.setenv(variable, str(file or ""))


def test_the_right_client_is_answered_in_python(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    use(secured, "right", monkeypatch)
    with SenderAgent(deadline_us=1_000_000, address=secured.address) as agent:
        assert agent.wait_for_model(60), agent.problem
        decision = agent.decide(0, time.monotonic_ns(), [1500] * 8, [0] * 8, [0] * 8, [1] * 8)
        assert decision.outcome == "decided", agent.problem


@needs_agent
def test_the_agent_decides_with_the_files_of_the_environment(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use(secured, "right", monkeypatch)
    path = tmp_path / "agent.sock"
    options = agent_process.server_options([secured.address])
    with (
        AgentProgram("--listen", path, *options) as agent,
        LiveSender(path, deadline_us=1_000_000) as sender,
    ):
        sender.until_decided()
        sender.socket.close()
        assert agent.end()["decided"] >= 1


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_refused_in_python_with_one_line(
    secured: Secured, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(secured, case, monkeypatch)
    with SenderAgent(deadline_us=100_000, address=secured.address) as agent:
        wait_until(lambda: REFUSED[case] in agent.problem, lambda: f"it says: {agent.problem}")
        assert not agent.wait_for_model(0)
        assert "\n" not in agent.problem


def test_files_that_do_not_go_together_are_named(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(TLS_KEY)
    with pytest.raises(ValueError, match=f"{TLS_CERT} and {TLS_KEY} go together"):
        connect(secured.address)
    monkeypatch.setenv(TLS_KEY, str(tmp_path / "none.key"))
    with pytest.raises(OSError, match=f"{TLS_KEY}=.*none.key: no such file"):
        connect(secured.address)
    monkeypatch.delenv(SERVER_KEY)
    with pytest.raises(ValueError, match=f"{SERVER_KEY} is not set"):
        tls_flags()
    program = str(build("round_trip") / "round_trip")
    for options, line in (
        (["--tls-ca", "none.pem"], "none.pem: cannot be read"),
        (["--tls-ca", __file__], "not a PEM file"),
        (["--tls-cert", "a.pem"], "certificate and its key go together"),
        (["--tls-cert", "a.pem", "--tls-key", "a.key"], "needs the authority"),
    ):
        ran = subprocess.run(
            [program, "--server", secured.address, *options], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 1
        assert line in ran.stderr


def told(address: str) -> str:
    """What the Python client is told of a server that it does not take."""
    with Triton(address, call_timeout_s=60) as triton, pytest.raises(TritonError) as refused:
        triton.config()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_server_of_another_name_is_refused(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its certificate is for 127.0.0.1: under any other name it could be somebody else."""
    use(secured, "right", monkeypatch)
    address = secured.address.replace(LOOPBACK, "localhost")
    line = "TLS: the server's certificate is not for the name in its address"
    assert line in told(address)
    check_refused_in_cpp(secured, "right", line, address)


class Rotated:
    """A secured server at a port of its own, whose certificate is in files that are replaced."""

    def __init__(self, name: str, root: Path, source: Path, version: int) -> None:
        write_model(root / "repository", MODEL, source, IDENTITY, version)
        self.replica = Replica(name, root, dict(zip(("grpc", "metrics"), free_ports(2), strict=True)))
        self.address = self.replica.address

    def start(self, ours: Authority, certificate: tuple[Path, Path]) -> None:
        """Start it with a certificate, which it shows until it is started again."""
        environment = backends(self.replica.root / "backends")
        with pytest.MonkeyPatch.context() as patch:
            for variable, file in zip(
                (SERVER_CERT, SERVER_KEY, TLS_CA), (*certificate, ours.file), strict=True
            ):
                patch.setenv(variable, str(file))
            command = triton_command(environment, self.replica.root / "repository", self.replica.ports)
        log, variables = processes.log_path(self.replica.name), environment.variables
        log.unlink(missing_ok=True)
        command.append(f"--load-model={MODEL}")

        def ready() -> bool:  # no client takes one whose certificate has expired
            return "Started GRPCInferenceService" in log.read_text()

        processes.start(self.replica.name, command, self.replica.ports, variables, ready, 60)

    def stop(self) -> None:
        """Ask it to end, as `down` does; what it still waits for after its models are gone is cut short."""
        if processes.running(self.replica.name):
            self.replica.signal(signal.SIGTERM)
            time.sleep(STOPPING_S)
            self.replica.kill()

    def serial(self, client: tuple[Path, Path]) -> int:
        """Number of the certificate that it shows now."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(*client)
        context.set_alpn_protocols(["h2"])
        at = (LOOPBACK, self.replica.ports["grpc"])
        with socket.create_connection(at) as plain, context.wrap_socket(plain) as secured:
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"").serial_number


@pytest.fixture
def rotated(secured: Secured, tmp_path: Path) -> Iterator[tuple[Rotated, Rotated]]:
    """Two servers, not started."""
    source = save(tmp_path / "artifact")
    first, second = (Rotated(f"triton-rotated-{n}", tmp_path / str(n), source, n) for n in (1, 2))
    yield first, second
    for one in (first, second):
        one.stop()


def test_a_server_whose_certificate_has_expired_is_refused(
    secured: Secured, rotated: tuple[Rotated, Rotated], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = rotated
    server.start(secured.ours, secured.ours.issue("old-server", age=EXPIRED))
    use(secured, "right", monkeypatch)
    assert NOT_TRUSTED in told(server.address)
    check_refused_in_cpp(secured, "right", NOT_TRUSTED, server.address)


@pytest.mark.long
def test_certificates_are_changed_one_server_after_the_other_and_no_question_fails(
    secured: Secured, rotated: tuple[Rotated, Rotated]
) -> None:
    client = secured.ours.issue("rotating-client")
    for server in rotated:
        server.start(secured.ours, secured.ours.issue("rotated-server"))
    old = [server.serial(client) for server in rotated]
    files = ("--tls-ca", str(secured.ours.file), "--tls-cert", str(client[0]), "--tls-key", str(client[1]))
    program = build("round_trip") / "round_trip"
    # While one server ends, the other must not be taken for silent: a busy machine stops it for 100 ms.
    addresses = [server.address for server in rotated]
    asking = Asking(program, addresses, *files, deadline_us=1_000_000)
    time.sleep(1)
    new = secured.ours.issue("rotated-server")  # in the same two files
    assert [server.serial(client) for server in rotated] == old  # each has read its files at its start
    for server in rotated:
        server.stop()
        server.start(secured.ours, new)
        time.sleep(2)
    numbers = {server.serial(client) for server in rotated}
    assert len(numbers) == 1
    assert numbers.isdisjoint(old)
    found = asking.stop()
    assert found["failed"] == 0, found["error"]
    assert set(found["versions"]) == {"1", "2"}
    assert found["silent_ms"] < 1000


def test_an_agents_certificate_loads_and_unloads_nothing(
    secured: Secured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any certificate of the authority may ask; only the secret lets its owner control the server."""
    use(secured, "right", monkeypatch)
    guess = tmp_path / "guess"
    guess.write_text("0" * 64)
    guess.chmod(0o600)
    with Triton(secured.address) as triton:
        assert triton.config().name == MODEL
        for headers in ({}, {"triton-grpc-protocol-swiftqueue": ""}):
            for call in (triton._client.load_model, triton._client.unload_model):
                with pytest.raises(InferenceServerException, match="This protocol is restricted"):
                    call(MODEL, headers=headers)
        with monkeypatch.context() as patch:
            patch.setenv(CONTROL_SECRET, str(guess))
            with pytest.raises(TritonError, match="wants another control secret"):
                triton.unload(MODEL)
        triton.load(MODEL)  # who has the secret as well
        assert triton.config().name == MODEL
