"""The manifests before the real API server of Kubernetes: its schemas, CEL rules and admission.

`make apiserver` builds it. It has KubeRay's definitions and no controllers, so nothing is started.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import PROJECT
from waiting import wait_until

from swiftqueue.infra.local.processes import free_ports

sys.path.append(str(Path(__file__).resolve().parents[1] / "unit"))
from k8s_objects import EXAMPLE, KUBERAY, PODS, SENDER, TOOLS, as_pod

pytestmark = pytest.mark.slow

Object = dict[str, Any]
MISSING = [name for name in ("kube-apiserver", "etcd", "kustomize", "kuberay") if not (TOOLS / name).exists()]


@dataclass
class Server:
    """The API server, asked as its administrator."""

    url: str
    token: str
    authority: ssl.SSLContext

    def ask(self, method: str, path: str, body: Object | None = None) -> Object:
        """Its answer; AssertionError with its own words where it refuses."""
        request = urllib.request.Request(  # noqa: S310 - https
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            answered = urllib.request.urlopen(request, context=self.authority, timeout=30)  # noqa: S310
            with answered as response:
                answer: Object = json.load(response)
                return answer | {"warnings": response.headers.get_all("Warning") or []}
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["message"]) from None

    def create(self, obj: Object, *, dry: bool = False) -> Object:
        """Give it an object, strictly: what it does not know, or would warn of, is an error."""
        group = obj["apiVersion"]
        base = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        listed = self.ask("GET", base)["resources"]
        [resource] = [r for r in listed if r["kind"] == obj["kind"] and "/" not in r["name"]]
        if resource["namespaced"]:
            base += f"/namespaces/{obj['metadata'].get('namespace', 'swiftqueue')}"
        query = "fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        made = self.ask("POST", f"{base}/{resource['name']}?{query}", obj)
        assert made["warnings"] == []
        return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if MISSING:
        pytest.skip(f"build/tools has no {', '.join(MISSING)} (make setup-tests apiserver)")
    folder = tmp_path_factory.mktemp("kubernetes")
    client, peer, secure = free_ports(3)
    certificate = [
        "-x509",
        "-subj",
        "/CN=127.0.0.1",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-out",
        "cert.pem",
    ]
    command = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", *certificate]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (folder / "tokens.csv").write_text("of-the-test,admin,1,system:masters\n")
    etcd = [
        f"{TOOLS}/etcd",
        f"--data-dir={folder}/etcd",
        *(f"--{what}-client-urls=http://127.0.0.1:{client}" for what in ("listen", "advertise")),
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        "--log-level=error",
        "--unsafe-no-fsync",
    ]
    api = [
        f"{TOOLS}/kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{client}",
        f"--secure-port={secure}",
        "--bind-address=127.0.0.1",
        "--tls-cert-file=cert.pem",
        "--tls-private-key-file=key.pem",
        *(f"--service-account-{what}=key.pem" for what in ("key-file", "signing-key-file")),
        "--service-account-issuer=https://kubernetes.default.svc",
        "--token-auth-file=tokens.csv",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--disable-admission-plugins=ServiceAccount",  # whose accounts a controller would make
    ]
    with (folder / "log").open("wb") as log:
        running = [subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) for command in (etcd, api)]
        try:
            authority = ssl.create_default_context(cafile=str(folder / "cert.pem"))
            yield _ready(Server(f"https://127.0.0.1:{secure}", "of-the-test", authority), folder)
        finally:
            for process in reversed(running):
                process.terminate()
            for process in running:
                process.wait(30)


def _ready(server: Server, folder: Path) -> Server:
    def answers() -> bool:
        with contextlib.suppress(OSError, AssertionError, ValueError):
            server.ask("GET", "/apis/apiextensions.k8s.io/v1")
            return True
        return False

    wait_until(answers, (folder / "log").read_text)
    for file in sorted(KUBERAY.iterdir()):
        server.create(yaml.safe_load(file.read_text()))
    for kind in ("rayclusters", "rayservices"):
        wait_until(lambda of=kind: any(r["name"] == of for r in _resources(server, "/apis/ray.io/v1")), kind)
    return server


def _resources(server: Server, path: str) -> list[Object]:
    try:
        found: list[Object] = server.ask("GET", path)["resources"]
    except (AssertionError, ValueError):  # not yet
        return []
    return found


@pytest.fixture(scope="module")
def applied(server: Server) -> dict[str, Object]:
    """Everything that `kubectl apply -k` would give it, in its order."""
    built = subprocess.run(
        [f"{TOOLS}/kustomize", "build", str(PROJECT / "infra/k8s")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {f"{o['kind']}/{o['metadata']['name']}": server.create(o) for o in yaml.safe_load_all(built)}


def test_the_api_server_takes_every_object(applied: dict[str, Object]) -> None:
    kinds = {name.partition("/")[0] for name in applied}
    assert {
        "Namespace",
        "StatefulSet",
        "Deployment",
        "CronJob",
        "NetworkPolicy",
        "RayCluster",
        "RayService",
    } <= kinds


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize("where", PODS)
def test_it_admits_every_pod(server: Server, where: str) -> None:
    server.create({"apiVersion": "v1", "kind": "Pod", **as_pod(where, PODS[where])}, dry=True)


@pytest.mark.usefixtures("applied")
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"runAsNonRoot": False}, "runAsNonRoot"),
        ({"runAsUser": 0}, "runAsUser=0"),
        ({"allowPrivilegeEscalation": True}, "allowPrivilegeEscalation"),
        ({"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}}, "NET_ADMIN"),
        ({"seccompProfile": {"type": "Unconfined"}}, "seccompProfile"),
    ],
)
def test_it_refuses_pods_with_more_rights(server: Server, change: Object, why: str) -> None:
    where = "CronJob/round 0"
    pod = json.loads(json.dumps(as_pod(where, PODS[where])))
    pod["spec"]["containers"][0]["securityContext"] |= change
    with pytest.raises(AssertionError, match=f"violates PodSecurity.*{why}"):
        server.create({"apiVersion": "v1", "kind": "Pod", **pod}, dry=True)


@pytest.mark.usefixtures("applied")
def test_it_refuses_what_it_does_not_know(server: Server) -> None:
    broken = {"metadata": {"name": "x"}, "spec": {**PODS["CronJob/round 0"]["spec"], "hostNetwrok": True}}
    with pytest.raises(AssertionError, match="hostNetwrok"):
        server.create({"apiVersion": "v1", "kind": "Pod", **broken}, dry=True)


def test_it_takes_the_example_of_a_sender(server: Server) -> None:
    for obj in EXAMPLE:
        server.create(obj)
    pod = {"apiVersion": "v1", "kind": "Pod", **as_pod("sender", SENDER)}
    pod["metadata"]["namespace"] = "senders"
    server.create(pod, dry=True)
