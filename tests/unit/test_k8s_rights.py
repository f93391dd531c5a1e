"""The manifests: who may write, read, reach and control what, and what the senders' example asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from k8s_objects import (
    CONTAINERS,
    EXAMPLE,
    K8S,
    OBJECTS,
    PODS,
    SENDER,
    VERSIONS,
    Object,
    as_pod,
    find,
    judged,
)

# Who may write what Triton loads, and who may tell Triton to load it.
HEAD = "RayCluster/train 0"


def mounts(where: str) -> dict[str, Object]:
    """Volumes of a pod by what they are of, each with its mounts."""
    spec = PODS[where]["spec"]
    found: dict[str, Object] = {}
    for volume in spec.get("volumes", []):
        [source] = [v for k, v in volume.items() if k != "name"]
        name = source.get("claimName") or source.get("secretName") or volume["name"]
        found[name] = [
            mount
            for c in (*spec.get("initContainers", []), *spec["containers"])
            for mount in c.get("volumeMounts", [])
            if mount["name"] == volume["name"]
        ]
    return found


def test_only_the_round_writes_what_triton_loads() -> None:
    """And Triton's own first step, which makes the folder; its server and all workers do not."""
    has = {
        where: mounts(where)["swiftqueue-repository"]
        for where in PODS
        if "swiftqueue-repository" in mounts(where)
    }
    assert set(has) == {HEAD, "StatefulSet/triton 0"}
    assert [mount["mountPath"] for mount in has[HEAD]] == ["/state/triton"]
    server = CONTAINERS["StatefulSet/triton 0 triton"]
    [mount] = [m for m in server["volumeMounts"] if m["name"] == "repository"]
    assert mount["readOnly"] is True
    settings = find("ConfigMap", "swiftqueue-settings")["data"]
    assert Path(mount["mountPath"]) == Path(settings["SWIFTQUEUE_STATE"]) / "triton"
    assert f"--model-repository={mount['mountPath']}/repository" in server["args"]


def test_only_the_round_has_what_controls_triton() -> None:
    """And Triton itself, which has not the key that signs the gate's decisions."""
    triton = "StatefulSet/triton 0"
    assert {where for where in PODS if "swiftqueue-control" in mounts(where)} == {HEAD, triton}
    assert {where for where in PODS if "swiftqueue-control-tls" in mounts(where)} == {HEAD}
    volumes = {v["name"]: v for v in PODS[triton]["spec"]["volumes"]}
    assert [item["key"] for item in volumes["control"]["secret"]["items"]] == ["triton"]
    assert "swiftqueue-control" not in json.dumps([c.get("env") for c in CONTAINERS.values()])


def test_senders_reach_triton_by_a_certificate_and_do_not_control_it() -> None:
    server = CONTAINERS["StatefulSet/triton 0 triton"]
    options = dict(word.partition("=")[::2] for word in server["args"])
    assert options["--grpc-use-ssl-mutual"] == "true"
    assert {options[f"--grpc-{what}"] for what in ("server-cert", "server-key", "root-cert")} == {
        "/tls/tls.crt",
        "/tls/tls.key",
        "/tls/ca.crt",
    }
    protocols, _, pair = options["--grpc-restricted-protocol"].partition(":")
    assert {"model-repository", "shared-memory", "trace", "logging"} <= set(protocols.split(","))
    assert pair.endswith("=@/control/triton")  # a file: every user of a node may read arguments
    assert options["--http-address"] == "127.0.0.1"
    assert {port["containerPort"] for port in server["ports"]} == {8001, 8002}
    for service in ("triton", "predictions"):
        assert 8000 not in {port["port"] for port in find("Service", service)["spec"]["ports"]}


def test_pods_are_what_restricted_asks_for() -> None:
    assert judged([as_pod(where, pod) for where, pod in PODS.items()]) == []
    assert (
        find("Namespace", "swiftqueue")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "restricted"
    )


@pytest.mark.parametrize(
    "key",
    ["allowPrivilegeEscalation", "capabilities", "runAsNonRoot", "seccompProfile"],
)
def test_a_pod_that_lacks_one_of_them_is_refused(key: str) -> None:
    for where, pod in PODS.items():
        broken = json.loads(json.dumps(as_pod(where, pod)))
        broken["spec"]["securityContext"].pop(key, None)
        broken["spec"]["containers"][0]["securityContext"].pop(key, None)
        assert len(judged([broken])) == 1, where


@pytest.mark.parametrize("where", CONTAINERS)
def test_a_container_writes_only_where_it_was_given_a_place(where: str) -> None:
    container = CONTAINERS[where]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    pod = PODS[where.rsplit(" ", 1)[0]]["spec"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["enableServiceLinks"] is False
    for volume in pod.get("volumes", []):
        assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], "a node's disk has an end"
        assert "hostPath" not in volume


def test_nothing_is_reached_that_no_policy_names() -> None:
    closed = find("NetworkPolicy", "closed")["spec"]
    assert closed == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    for obj in (o for o in OBJECTS if o["kind"] == "NetworkPolicy" and o["metadata"]["name"] != "closed"):
        spec = obj["spec"]
        for direction, peer in (("ingress", "from"), ("egress", "to")):
            for rule in spec.get(direction, []):
                assert rule.get(peer), (obj["metadata"]["name"], "from or to anywhere")
                assert {}.items() != rule, obj["metadata"]["name"]
            assert (direction in spec) <= (direction.capitalize() in spec["policyTypes"])
    # Both ends of each way within the namespace are open.
    ways = {
        (json.dumps(peer["podSelector"]["matchLabels"], sort_keys=True), port.get("port"))
        for obj in OBJECTS
        if obj["kind"] == "NetworkPolicy"
        for rule in obj["spec"].get("egress", [])
        for peer in rule["to"]
        if set(peer) == {"podSelector"}
        for port in rule.get("ports", [{}])
    }
    for target, port in ways:
        assert any(
            o["kind"] == "NetworkPolicy"
            and o["spec"]["podSelector"].get("matchLabels", {"-": ""}).items() <= json.loads(target).items()
            and any(p.get("port") == port for r in o["spec"].get("ingress", []) for p in r.get("ports", [{}]))
            for o in OBJECTS
        ), (target, port)
    senders = {"namespaceSelector": {"matchLabels": {"swiftqueue/senders": "true"}}}
    reach = {
        (obj["metadata"]["name"], port["port"])
        for obj in OBJECTS
        if obj["kind"] == "NetworkPolicy"
        for rule in obj["spec"].get("ingress", [])
        if senders in rule["from"]
        for port in rule["ports"]
    }
    assert reach == {("triton", 8001), ("ingest", 8443)}


@pytest.mark.parametrize("where", CONTAINERS)
def test_every_container_says_what_it_needs(where: str) -> None:
    container = CONTAINERS[where]
    every = {"cpu", "memory", "ephemeral-storage"}
    assert set(container["resources"]["requests"]) == every
    # Where a prediction waits for it, a limit of its cores would throttle it.
    free = {"cpu"} if where == "StatefulSet/triton 0 triton" else set()
    assert set(container["resources"]["limits"]) == every - free
    assert container["image"] in {"swiftqueue", "nvcr.io/nvidia/tritonserver:24.10-py3"}


def run_round_pod(now_s: int, folder: Path) -> list[str]:
    """What the round's pod submits to Ray where its clock says `now_s`."""
    for name, line in {"date": f"echo {now_s}", "ray": 'printf "%s\\n" "$@"'}.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    [container] = PODS["CronJob/round 0"]["spec"]["containers"]
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    words = [*container["command"], *container["args"]]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.split()


def test_rounds_never_overlap_and_end_before_the_next(tmp_path: Path) -> None:
    spec = find("CronJob", "round")["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("*/5 * * * *", "Forbid")
    # Whatever starts in the pod starts before the next round is due,
    latest_s = spec["startingDeadlineSeconds"] + spec["jobTemplate"]["spec"]["activeDeadlineSeconds"]
    assert latest_s + PODS["CronJob/round 0"]["spec"]["terminationGracePeriodSeconds"] < 300
    # and ends before it, while the pod still waits.
    due_s = 1_800_000_000
    for start_s in (0, 1, 150, latest_s):
        submitted = run_round_pod(due_s + start_s, tmp_path)
        assert submitted[:2] == ["job", "submit"]
        assert int(submitted[-1]) - due_s == 270 <= spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] - 5


@pytest.mark.parametrize(("left_s", "code"), [(2, 124), (0, 1), (-40, 1)])
def test_a_round_ends_when_its_time_is_over(left_s: int, code: int, tmp_path: Path) -> None:
    """However late Ray starts it; `swiftqueue` is one that would not end."""
    (tmp_path / "swiftqueue").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "swiftqueue").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    until_s = int(time.time()) + left_s
    done = subprocess.run(["sh", K8S / "round.sh", str(until_s)], env=environment, check=False, timeout=30)
    assert done.returncode == code


def test_the_operator_reaches_what_it_asks() -> None:
    """Ray's dashboard, and Serve's proxy at the head's own address (`updateHeadPodServeLabel` in KubeRay)."""
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kuberay-operator"}}}
    rules = [r for r in find("NetworkPolicy", "ingest")["spec"]["ingress"] if operator in r["from"]]
    [head] = PODS["RayService/ingest 0"]["spec"]["containers"]
    asked = {p["containerPort"] for p in head["ports"] if p["name"] in ("dashboard", "serve")}
    assert {port["port"] for rule in rules for port in rule["ports"]} == asked


# The senders' side ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_the_example_of_a_sender_is_sound(version: str) -> None:
    for obj in EXAMPLE:
        kubernetes_validate.validate(obj, version, strict=True)
    namespace, deployment = EXAMPLE
    assert deployment["metadata"]["namespace"] == namespace["metadata"]["name"]
    assert namespace["metadata"]["labels"]["swiftqueue/senders"] == "true"
    assert judged([as_pod("sender", SENDER)]) == []


def test_the_agent_of_the_example_takes_its_options(project: Path) -> None:
    """And asks what the cluster has, over TLS."""
    [agent] = [c for c in SENDER["spec"]["initContainers"] if c["name"] == "agent"]
    binary = project / Path(agent["command"][0]).relative_to("/opt/swiftqueue")
    if not binary.is_file():
        pytest.skip(f"{binary} is not built")
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True).stdout
    options = dict(word.split("=", 1) for word in agent["args"])
    assert not {name for name in options if f" {name} " not in text}
    host, _, number = options["--server"].partition(":")
    service = find("Service", host.split(".")[0])
    assert int(number) in {port["port"] for port in service["spec"]["ports"]}
    assert host == f"{service['metadata']['name']}.swiftqueue.svc"
    assert {"--tls-ca", "--tls-cert", "--tls-key"} <= set(options)
    files = (project / "infra/k8s/Containerfile").read_text()
    assert "make -C serving/agent" in files


def test_the_agent_of_the_example_reaches_its_forwarder() -> None:
    """By a socket in a folder that the forwarder makes: it takes no other, the volume is the group's too."""
    made = {c["name"]: c for c in SENDER["spec"]["initContainers"]}
    path = Path(made["forwarder"]["args"][0])
    assert f"--telemetry=unix:{path}" in made["agent"]["args"]
    for container in made.values():
        shared = [Path(m["mountPath"]) for m in container["volumeMounts"] if m["name"] == "run"]
        assert path.parent.parent in shared


def test_the_forwarder_of_the_example_speaks_tls_to_what_has_it() -> None:
    [forwarder] = [c for c in SENDER["spec"]["initContainers"] if c["name"] == "forwarder"]
    _, url, authority = forwarder["args"]
    service = find("Service", "telemetry")
    [port] = service["spec"]["ports"]
    assert url == f"https://telemetry.swiftqueue.svc:{port['port']}"
    assert authority == "--ca=/tls/ca.crt"
    front = CONTAINERS["RayService/ingest 1 tls"]
    assert [p["name"] for p in front["ports"]] == [port["targetPort"]]
    options = dict(word.split("=") for word in front["args"])
    assert options["--listen"] == f"0.0.0.0:{front['ports'][0]['containerPort']}"
    serve = find("RayService", "ingest")["spec"]["serveConfigV2"]
    assert options["--to"] == f"127.0.0.1:{yaml.safe_load(serve)['http_options']['port']}"
    labels = PODS["RayService/ingest 1"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_certificates_name_what_is_asked() -> None:
    made = [
        o for o in yaml.safe_load_all((K8S / "certificates.yaml").read_text()) if o["kind"] == "Certificate"
    ]
    by_secret = {o["spec"]["secretName"]: o["spec"] for o in made}
    used = {
        v["secret"]["secretName"]
        for p in PODS.values()
        for v in p["spec"].get("volumes", [])
        if "secret" in v
    }
    assert {name for name in used if name.endswith("-tls")} == set(by_secret) - {"swiftqueue-authority"}
    listed = find("ConfigMap", "swiftqueue-settings")["data"]["SWIFTQUEUE_TRITON_SERVERS"]
    hosts = {address.partition(":")[0] for address in listed.split(",")} | {"predictions.swiftqueue.svc"}
    assert set(by_secret["swiftqueue-triton-tls"]["dnsNames"]) == hosts
    assert by_secret["swiftqueue-ingest-tls"]["dnsNames"] == ["telemetry.swiftqueue.svc"]


def test_what_bounds_tritons_messages_is_in_the_image_and_before_its_main(project: Path) -> None:
    """The image's build tries it on that very Triton; test_several_servers.py runs these arguments."""
    made = (project / "infra/k8s/Containerfile").read_text()
    [library] = re.findall(r"/build/serving/triton/front/_build/(\S+\.so) triton-backend/", made)
    makefile = (project / "serving/triton/front/Makefile").read_text()
    assert f"LIBRARY := _build/{library}" in makefile
    copied = CONTAINERS["StatefulSet/triton 0 backend"]
    assert copied["command"][-2:] == ["/opt/swiftqueue/triton-backend/.", "/backend/"]
    server = CONTAINERS["StatefulSet/triton 0 triton"]
    folders = {m["name"]: m["mountPath"] for m in server["volumeMounts"]}
    assert server["command"] == ["env", f"LD_PRELOAD={folders['backend']}/{library}", "tritonserver"]
    assert f"LD_PRELOAD=/build/serving/triton/front/_build/{library}" in made
