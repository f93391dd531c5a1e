"""Mutual TLS between sender and server with certificates made here: who may ask, what others are told."""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from agent_program import AgentProgram, LiveSender
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from infra.bench.served_models import IDENTITY, PROJECT, build, served, write_model
from infra.triton_tls import SERVER_CERT, SERVER_KEY, tls_flags
from models import artifact
from serving import agent_process
from serving.client import SenderAgent
from serving.endpoint import LOOPBACK, TLS_CA, TLS_CERT, TLS_KEY, connect
from serving.triton_repository import MODEL

pytestmark = pytest.mark.slow


class Authority:
    """Signs certificates; each is PEM files `NAME.pem` and `NAME.key` in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {folder.name}")])
        self.certificate = self._sign(self.name, self.key, x509.BasicConstraints(ca=True, path_length=0))
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key for a program on loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
        certificate, files = self._sign(subject, key, address), (f"{name}.pem", f"{name}.key")
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
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
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
    from feature_store.windows import schema_hash
    from infra.bench.inference_references import make_model

    subprocess.run(["make", "-s", "-C", str(PROJECT / "serving/triton/identity")], check=True)
    subprocess.run(["make", "-s", "-C", str(PROJECT / "serving/triton/native")], check=True)
    ours, stranger = (Authority(tmp_path_factory.mktemp(name)) for name in ("ours", "stranger"))
    root = tmp_path_factory.mktemp("secured")
    source = root / "artifact"
    artifact.save(source, make_model(), artifact.Description(64, schema_hash(), "acked"))
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
    if case == "trusts another authority":
        return secured.stranger.file, *secured.ours.issue("sender")
    return None, None, None  # no TLS


# By gRPC a server that refuses a certificate looks like one that closes the connection.
CLOSED = "does it want TLS and a certificate of its authority?"
REFUSED = {
    "no certificate": CLOSED,
    "a stranger's certificate": CLOSED,
    "trusts another authority": "TLS: the server's certificate is not signed by the authority we trust",
    "no TLS": CLOSED,
}


def run_cpp(secured: Secured, case: str) -> subprocess.CompletedProcess[str]:
    files = zip(("--tls-ca", "--tls-cert", "--tls-key"), shown(secured, case), strict=True)
    return subprocess.run(
        [str(build("round_trip") / "round_trip"), "--server", secured.address, "--connect-ms", "1000"]
        + [word for option, file in files if file for word in (option, str(file))],
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_right_client_is_answered_in_cpp(secured: Secured) -> None:
    ran = run_cpp(secured, "right")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout.splitlines()[-1])["in_time"] == 3000


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_refused_in_cpp_with_one_line(secured: Secured, case: str) -> None:
    ran = run_cpp(secured, case)
    assert ran.returncode == 1
    assert REFUSED[case] in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def use(secured: Secured, case: str, patch: pytest.MonkeyPatch) -> None:
    for variable, file in zip((TLS_CA, TLS_CERT, TLS_KEY), shown(secured, case), strict=True):
        patch.setenv(variable, str(file or ""))


def test_the_right_client_is_answered_in_python(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    use(secured, "right", monkeypatch)
    with SenderAgent(deadline_us=1_000_000, address=secured.address) as agent:
        assert agent.wait_for_model(10), agent.problem
        decision = agent.decide(0, time.monotonic_ns(), [1500] * 8, [0] * 8, [0] * 8, [1] * 8)
        assert decision.outcome == "decided", agent.problem


@pytest.mark.skipif(agent_process.why_not_built() is not None, reason=str(agent_process.why_not_built()))
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
        sender.until("decided", 15)
        sender.socket.close()
        assert agent.end()["decided"] >= 1


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_refused_in_python_with_one_line(
    secured: Secured, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(secured, case, monkeypatch)
    with SenderAgent(deadline_us=100_000, address=secured.address) as agent:
        assert not agent.wait_for_model(1)
        assert REFUSED[case] in agent.problem
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
