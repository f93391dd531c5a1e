"""The manifests: Kubernetes' own schemas, what refers to what, and settings that the code really reads."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from swiftqueue.common.settings import Settings, variable
from swiftqueue.infra.monitoring.metrics import OURS

K8S = Path(__file__).resolve().parents[2] / "infra" / "k8s"
VERSIONS = ("1.29", "1.34", kubernetes_validate.latest_version())
Object = dict[str, Any]
TOOLS = K8S.parents[1] / "build" / "tools"

# Of KubeRay's operator in the version that infra/README.md asks for.
KUBERAY = TOOLS / "kuberay"


def _closed(required: list[str], **properties: object) -> Object:
    return {
        "type": "object",
        "required": required,
        "properties": properties,
        "additionalProperties": False,
    }


# Ray's own check of it lets pass what it does not know.
SERVE_CONFIG = _closed(
    ["http_options", "applications"],
    http_options=_closed(["host", "port"], host={"type": "string"}, port={"type": "integer", "minimum": 1}),
    applications={
        "type": "array",
        "items": _closed(
            ["name", "import_path", "route_prefix"],
            name={"type": "string"},
            import_path={"type": "string", "pattern": r"^[\w.]+:\w+$"},
            route_prefix={"type": "string", "pattern": "^/"},
            args={"type": "object"},
        ),
    },
)


def objects() -> list[Object]:
    """Every object of every manifest that `kustomization.yaml` lists."""
    listed = yaml.safe_load((K8S / "kustomization.yaml").read_text())["resources"]
    return [o for name in listed for o in yaml.safe_load_all((K8S / name).read_text())]


OBJECTS = objects()
EXAMPLE = list(yaml.safe_load_all((K8S / "sender.yaml").read_text()))
NAMES = [f"{o['kind']}/{o['metadata']['name']}" for o in OBJECTS]


def find(kind: str, name: str) -> Object:
    return OBJECTS[NAMES.index(f"{kind}/{name}")]


def ray_pods(spec: Object) -> Iterator[Object]:
    for group in (spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])):
        yield group["template"]


def pods(obj: Object) -> list[Object]:
    """Pod templates of an object."""
    spec = obj.get("spec", {})
    if obj["kind"] == "RayCluster":
        return list(ray_pods(spec))
    if obj["kind"] == "RayService":
        return list(ray_pods(spec["rayClusterConfig"]))
    if obj["kind"] == "CronJob":
        return [spec["jobTemplate"]["spec"]["template"]]
    return [spec["template"]] if "template" in spec else []


PODS = {f"{name} {k}": pod for name, o in zip(NAMES, OBJECTS, strict=True) for k, pod in enumerate(pods(o))}
SENDER = next(pod for o in EXAMPLE for pod in pods(o))
CONTAINERS = {
    f"{where} {c['name']}": c
    for where, pod in PODS.items()
    for c in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
}


# Schemas --------------------------------------------------------------------------------------------


def test_every_file_is_listed() -> None:
    kustomization = yaml.safe_load((K8S / "kustomization.yaml").read_text())
    generated = {f for g in kustomization["configMapGenerator"] for f in g["files"]}
    files = {p.name for p in K8S.iterdir() if p.is_file()} - {
        "kustomization.yaml",
        "Containerfile",
        "ingest.py",  # part of the image, as are the next two
        "round.sh",
        "tls.py",
        "scrape.yaml",  # for a Prometheus elsewhere
        "sender.yaml",  # an example, for the senders' namespace
        "certificates.yaml",  # where there is cert-manager
    }
    assert files == set(kustomization["resources"]) | generated
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", NAMES)
def test_manifests_follow_kubernetes_schemas(name: str, version: str) -> None:
    """Strict: a field that Kubernetes does not know is an error, not dropped in silence."""
    obj = OBJECTS[NAMES.index(name)]
    if obj["apiVersion"].startswith("ray.io/"):
        for pod in pods(obj):
            whole = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod["spec"]}
            kubernetes_validate.validate(whole, version, strict=True)
    else:
        kubernetes_validate.validate(obj, version, strict=True)


def strict(schema: Object) -> Object:
    """A schema of a custom resource in which a field that it does not name is an error, not dropped."""
    inner = {
        name: {key: strict(one) for key, one in value.items()}
        if name == "properties"
        else strict(value)
        if name in ("items", "additionalProperties") and isinstance(value, dict)
        else value
        for name, value in schema.items()
    }
    open_ended = {"additionalProperties", "x-kubernetes-preserve-unknown-fields"} & schema.keys()
    return inner | ({"additionalProperties": False} if "properties" in schema and not open_ended else {})


def kuberay_schema(kind: str) -> Object:
    """The operator's own definition of a kind."""
    path = KUBERAY / f"ray.io_{kind.lower()}s.yaml"
    if not path.is_file():
        pytest.skip(f"KubeRay's {path.name} is not here (make setup-tests, with Go)")
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    definition = yaml.load(path.read_text(), fast)["spec"]  # noqa: S506 - a safe loader
    assert definition["names"]["kind"] == kind
    [version] = [one for one in definition["versions"] if one["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # Kubernetes' own
    return schema


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("Ray")])
def test_manifests_follow_kuberays_schemas(name: str) -> None:
    obj = OBJECTS[NAMES.index(name)]
    validator = jsonschema.Draft202012Validator(kuberay_schema(obj["kind"]))
    assert obj["apiVersion"] == "ray.io/v1"
    validator.validate(obj)
    for change in ({"rayVersoin": "2"}, {"headGroupSpec": {}}, {"authOptions": {"mode": "tokens"}}):
        broken = json.loads(json.dumps(obj))
        broken["spec"].get("rayClusterConfig", broken["spec"]).update(change)
        assert not validator.is_valid(broken)


def test_both_ray_clusters_ask_for_a_token() -> None:
    clusters = (find("RayCluster", "train")["spec"], find("RayService", "ingest")["spec"]["rayClusterConfig"])
    assert [cluster["authOptions"] for cluster in clusters] == [{"mode": "token"}] * 2


def test_a_misspelt_field_is_found() -> None:
    broken = json.loads(json.dumps(find("StatefulSet", "triton")))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(broken, "1.34", strict=True)


@pytest.mark.slow  # importing Ray Serve takes seconds
def test_the_ingest_is_a_valid_serve_application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = yaml.safe_load(find("RayService", "ingest")["spec"]["serveConfigV2"])
    jsonschema.validate(config, SERVE_CONFIG)
    from ray.serve.schema import ServeDeploySchema  # Ray's own check

    ServeDeploySchema.model_validate(config)
    # And what Ray would build from it.
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    [application] = config["applications"]
    module, name = application["import_path"].split(":")
    built = getattr(importlib.import_module(module), name)(application["args"])
    from ray.serve import Application

    assert isinstance(built, Application)
    assert (tmp_path / "telemetry").is_dir()


# What belongs together ------------------------------------------------------------------------------


def test_versions_are_those_of_the_lock(project: Path) -> None:
    ray = re.search(r"^ray==(\S+) ", (project / "requirements.lock").read_text(), re.M)
    assert ray
    assert find("RayCluster", "train")["spec"]["rayVersion"] == ray[1]
    assert find("RayService", "ingest")["spec"]["rayClusterConfig"]["rayVersion"] == ray[1]


def test_the_server_list_names_every_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    from swiftqueue.serving.triton.endpoint import grpc_addresses

    triton = find("StatefulSet", "triton")
    listed = find("ConfigMap", "swiftqueue-settings")["data"]["SWIFTQUEUE_TRITON_SERVERS"]
    monkeypatch.setenv("SWIFTQUEUE_TRITON_SERVERS", listed)
    servers = grpc_addresses()
    service = triton["spec"]["serviceName"]
    assert servers == [f"triton-{k}.{service}:8001" for k in range(triton["spec"]["replicas"])]
    headless = find("Service", service)["spec"]
    assert headless["clusterIP"] == "None"
    # A pod is ready once it serves; the first push must reach it before.
    assert headless["publishNotReadyAddresses"] is True
    assert triton["spec"]["podManagementPolicy"] == "Parallel"


def test_the_replicas_read_what_a_push_writes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the one volume, by the arguments that a local server has too."""
    from swiftqueue.infra.local.servers import triton_command
    from swiftqueue.infra.local.triton_environment import TritonEnvironment
    from swiftqueue.serving.triton.repository import ModelRepository

    state = find("ConfigMap", "swiftqueue-settings")["data"]["SWIFTQUEUE_STATE"]
    monkeypatch.setenv("SWIFTQUEUE_STATE", state)
    (tmp_path / "secret").write_text("of the test")
    (tmp_path / "secret").chmod(0o600)
    monkeypatch.setenv("SWIFTQUEUE_TRITON_SECRET", str(tmp_path / "secret"))
    for name in ("SWIFTQUEUE_TLS_SERVER_CERT", "SWIFTQUEUE_TLS_SERVER_KEY"):
        monkeypatch.delenv(name, raising=False)
    repository = ModelRepository().embedded
    [server] = find("StatefulSet", "triton")["spec"]["template"]["spec"]["containers"]
    assert CONTAINERS["StatefulSet/triton 0 repository"]["command"][-1] == str(repository)
    environment = TritonEnvironment(Path("tritonserver"), Path("backends"), {})
    local = set(triton_command(environment, repository, {})[1:])
    of_the_machine = {"--backend-directory", "--allow-gpu-metrics", "--exit-timeout-secs"}
    # HTTP is off, the secret lies elsewhere, and policies stand where a machine has the door.
    of_the_machine |= {"--allow-http", "--grpc-restricted-protocol", "--open-ports"}
    assert {word.partition("=")[0] for word in local - set(server["args"])} <= of_the_machine


def test_metrics_are_open_to_scrapes_and_to_those_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in find("ConfigMap", "swiftqueue-settings")["data"].items():
        monkeypatch.setenv(name, value)
    assert str(Settings().metrics_address) == "0.0.0.0"  # noqa: S104 - the policy below says who reaches it
    [head] = PODS["RayCluster/train 0"]["spec"]["containers"]
    [port] = [port["containerPort"] for port in head["ports"] if port["name"] == "metrics"]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    rules = [
        r for r in find("NetworkPolicy", "train")["spec"]["ingress"] if {"port": port} in r.get("ports", [])
    ]
    assert [rule["from"] for rule in rules] == [[monitoring]]
    assert f"--metrics-port {port}" in (K8S.parent / "README.md").read_text()


def test_services_budgets_and_policies_select_pods_that_exist() -> None:
    labels = [pod.get("metadata", {}).get("labels", {}) for pod in PODS.values()]
    # KubeRay's own
    labels += [{"ray.io/cluster": "train", "ray.io/node-type": node} for node in ("head", "worker")]
    for obj in OBJECTS:
        spec = obj.get("spec", {})
        wanted = {
            "Service": lambda s: s["selector"],
            "PodDisruptionBudget": lambda s: s["selector"]["matchLabels"],
            "NetworkPolicy": lambda s: s["podSelector"].get("matchLabels", {}),
        }.get(obj["kind"])
        if wanted is None:
            continue
        selected = wanted(spec)
        assert any(selected.items() <= have.items() for have in labels), obj["metadata"]["name"]


def test_ports_that_are_named_exist() -> None:
    for where, container in CONTAINERS.items():
        names = {port["name"] for port in container.get("ports", [])}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            assert port is None or port in names, (where, probe)
    for service in (o for o in OBJECTS if o["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        names = {
            port["name"]
            for pod in PODS.values()
            if selector <= pod.get("metadata", {}).get("labels", {}).items()
            for c in pod["spec"]["containers"]
            for port in c.get("ports", [])
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names


@pytest.mark.parametrize("where", PODS)
def test_volumes_are_those_that_are_mounted(where: str) -> None:
    spec = PODS[where]["spec"]
    mounted = {
        mount["name"]
        for c in (*spec.get("initContainers", []), *spec["containers"])
        for mount in c.get("volumeMounts", [])
    }
    assert mounted == {volume["name"] for volume in spec.get("volumes", [])}
    for volume in spec.get("volumes", []):
        if claim := volume.get("persistentVolumeClaim"):
            assert find("PersistentVolumeClaim", claim["claimName"])
    assert spec["automountServiceAccountToken"] is False


def test_pods_that_read_the_settings_mount_the_state() -> None:
    """Each of them: Ray may run what makes folders there, as building the ingest does, on any node."""
    settings = find("ConfigMap", "swiftqueue-settings")
    reads = {"configMapRef": {"name": settings["metadata"]["name"]}}
    of_the_settings = [
        (where, pod["spec"], c)
        for where, pod in PODS.items()
        for c in pod["spec"]["containers"]
        if reads in c.get("envFrom", [])
    ]
    assert {where for where, *_ in of_the_settings} == {where for where in PODS if where.startswith("Ray")}
    claim = find("PersistentVolumeClaim", "swiftqueue-state")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    volume = {"name": "state", "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]}}
    mount = {"name": "state", "mountPath": settings["data"]["SWIFTQUEUE_STATE"]}
    for where, spec, c in of_the_settings:
        assert mount in c.get("volumeMounts", []), where
        assert volume in spec["volumes"], where


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


# Pod Security and network ---------------------------------------------------------------------------


def judged(pods_there: list[Object]) -> list[str]:
    """What the library of the API server's own admission says of pods."""
    program = TOOLS / "podsecurity"
    if not program.is_file():
        pytest.skip("podsecurity is not built (make setup-tests, with Go)")
    done = subprocess.run(
        [program, "restricted"], input=json.dumps(pods_there), capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout.splitlines()


def as_pod(where: str, pod: Object) -> Object:
    name = re.sub("[^a-z0-9]+", "-", where.lower())
    return {"metadata": {**pod.get("metadata", {}), "name": name}, "spec": pod["spec"]}


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


# Image and metrics ----------------------------------------------------------------------------------


def test_an_image_is_made_of_what_git_has(project: Path, tmp_path: Path) -> None:
    """Docker's own reading of .dockerignore, on a checkout in which someone has worked."""
    from docker.utils.build import exclude_paths

    command = ["git", "-C", str(project), "ls-files", "--cached", "--others", "--exclude-standard"]
    has = set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
    ignored = {"var/ray/token", ".venv/bin/python", "data/models/finetuned/x", "serving/engine/_build/x.so"}
    for path in (name for name in has if Path(name).name == ".gitignore"):
        for line in (project / path).read_text().splitlines():
            if line and not line.startswith(("#", "!")):
                ignored.add(str(Path(path).parent / line.strip("/").replace("*", "x") / "x"))
                if "/" not in line.rstrip("/"):  # at any depth
                    ignored.add(str(Path(path).parent / "infra" / line.strip("/").replace("*", "x") / "x"))
    of_git = {".git/HEAD", ".git/index", ".git/objects/ab/x", ".git/refs/heads/main", ".git/packed-refs"}
    never = {".git/config", ".git/FETCH_HEAD", ".git/logs/HEAD", ".git/hooks/pre-commit"}
    for name in has | ignored | of_git | never:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    lines = (project / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    copied = exclude_paths(str(tmp_path), patterns, dockerfile="infra/k8s/Containerfile")
    assert {name for name in copied if (tmp_path / name).is_file()} == has | of_git


@pytest.mark.slow
def test_prometheus_names_what_it_scrapes_as_the_alerts_do(tmp_path: Path) -> None:
    """Its own tool applies the relabelling to what it would find of each pod."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (apt-get install prometheus)")
    annotated = {
        where: annotations
        for where, pod in PODS.items()
        if (annotations := pod.get("metadata", {}).get("annotations", {}))
    }
    for where, annotations in annotated.items():
        ports = {p["containerPort"] for c in PODS[where]["spec"]["containers"] for p in c.get("ports", [])}
        assert int(annotations["prometheus.io/port"]) in ports
    config = yaml.safe_load((K8S / "scrape.yaml").read_text())
    [job] = config["scrape_configs"]
    assert job.pop("kubernetes_sd_configs") == [{"role": "pod"}]

    def target(k: int, phase: str, annotations: Object) -> Object:
        found = {"pod_phase": phase, "pod_name": f"pod-{k}", "pod_ip": f"10.0.0.{k}"}
        found |= {f"pod_annotation_{re.sub('[^a-z]', '_', name)}": v for name, v in annotations.items()}
        labels = {f"__meta_kubernetes_{name}": value for name, value in found.items()}
        return {"targets": [f"10.0.0.{k}:1"], "labels": labels}

    others = [{}, {"prometheus.io/scrape": "true", "prometheus.io/port": "80"}, {"prometheus.io/job": "web"}]
    pods_there = [target(k, "Running", one) for k, one in enumerate([*annotated.values(), *others])]
    pods_there.append(target(9, "Failed", next(iter(annotated.values()))))
    job["static_configs"] = pods_there
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [program, "check", "service-discovery", "--timeout=2s", str(file), "swiftqueue"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    scraped = {(one["labels"]["job"], one["labels"]["__address__"]) for one in answer if one.get("labels")}
    assert scraped == {
        (a["prometheus.io/job"], f"10.0.0.{k}:{a['prometheus.io/port']}")
        for k, a in enumerate(annotated.values())
    }
    assert {name for name, _ in scraped} == {"triton", "ingest"} <= OURS.keys()


def test_the_alerts_that_cannot_fire_are_named(project: Path) -> None:
    rules = yaml.safe_load((project / "infra/monitoring/rules/alerts.yaml").read_text())["groups"]
    silent = OURS["scheduler"]
    needs_a_scheduler = {
        rule["alert"]
        for group in rules
        for rule in group["rules"]
        if any(re.search(rf"\b{name}\b", rule["expr"]) for name in silent)
    }
    text = (project / "infra/README.md").read_text()
    [named] = re.findall(r"before they are scraped: ([\w, \n]+), and PartDown", text)
    assert set(re.split(r",\s+", named)) == needs_a_scheduler


# Settings -------------------------------------------------------------------------------------------


def variables_of(root: Path) -> set[str]:
    """Names of the environment variables that the code reads: settings, and constants that look like one."""
    found = {variable(name) for name in Settings.model_fields}
    for room in ("feature_store", "models", "pipelines", "serving", "infra"):
        for path in (root / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= set(re.findall(r"^(?:MLFLOW|RAY|AWS)_[A-Z0-9_]+[A-Z0-9]$", node.value))
        for path in (root / room).rglob("*.cc"):
            if "_build" not in path.parts:
                found |= set(re.findall(r'getenv\("([A-Z0-9_]+)"\)', path.read_text()))
    return found


# Read by MLflow's server, boto3, Ray and DVC themselves.
OTHERS = {
    "MLFLOW_BACKEND_STORE_URI",
    "MLFLOW_S3_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_DEFAULT_REGION",
    "RAY_AUTH_MODE",
    "RAY_AUTH_TOKEN",
    "S3_BUCKET",  # used within the manifest itself
    "HOME",
}


@pytest.mark.slow
def test_every_setting_is_read_by_the_code(project: Path) -> None:
    known = variables_of(project)
    used = set(find("ConfigMap", "swiftqueue-settings")["data"])
    used |= {entry["name"] for c in CONTAINERS.values() for entry in c.get("env", [])}
    assert used - known - OTHERS == set()
    text = (project / "infra" / "README.md").read_text()
    named = set(re.findall(r"`((?:SWIFTQUEUE|MLFLOW|RAY|AWS)_[A-Z0-9_]+)[`=]", text))
    assert named - known - OTHERS == set()


def test_secrets_are_only_referred_to(project: Path) -> None:
    assert not [name for name in NAMES if name.startswith("Secret/")]
    text = (project / "infra" / "README.md").read_text()
    for where, container in CONTAINERS.items():
        for entry in container.get("env", []):
            reference = entry.get("valueFrom", {}).get("secretKeyRef")
            if reference and reference["name"] != "train":  # the operator makes that one
                assert f"generic {reference['name']}" in text, where
                assert re.search(rf"--from-(literal|file)={reference['key']}=", text), where
    for where in PODS:
        for volume in PODS[where]["spec"].get("volumes", []):
            if "secret" in volume:
                assert f"generic {volume['secret']['secretName']}" in text, where


def test_the_round_calls_a_command_that_exists() -> None:
    import typer

    from swiftqueue.cli.app import app

    words = (K8S / "round.sh").read_text().split()
    at = len(words) - 1 - words[::-1].index("swiftqueue")
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    options = {o for p in commands[words[at + 1]].params for o in p.opts}
    assert {w for w in words[at + 2 :] if w.startswith("--")} <= options


# kustomize ------------------------------------------------------------------------------------------


def test_kustomize_builds_the_same_objects() -> None:
    program = shutil.which("kustomize", path=f"{TOOLS}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("kustomize is not installed (make setup-tests)")
    built = subprocess.run([program, "build", K8S], capture_output=True, text=True, check=True).stdout
    found = [o for o in yaml.safe_load_all(built) if not o["metadata"]["name"].startswith("triton-probe")]
    assert sorted(f"{o['kind']}/{o['metadata']['name']}" for o in found) == sorted(NAMES)
    for obj in found:
        if obj["kind"] != "Namespace":
            assert obj["metadata"]["namespace"] == "swiftqueue"
        for pod in pods(obj):
            for c in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]):
                assert c["image"] != "swiftqueue", "an image without a tag"


def test_images_may_be_named_by_digest(tmp_path: Path) -> None:
    """As infra/README.md says how; every container of ours then has one, for Ray's kinds too."""
    program = shutil.which("kustomize", path=f"{TOOLS}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("kustomize is not installed (make setup-tests)")
    shutil.copytree(K8S, tmp_path / "k8s")
    digests = {
        "swiftqueue": "registry.example/swiftqueue",
        "nvcr.io/nvidia/tritonserver": "nvcr.io/nvidia/tritonserver",
    }
    for name, new in digests.items():
        command = [program, "edit", "set", "image", f"{name}={new}@sha256:{'ab' * 32}"]
        subprocess.run(command, cwd=tmp_path / "k8s", check=True)
    built = subprocess.run(
        [program, "build", tmp_path / "k8s"], capture_output=True, text=True, check=True
    ).stdout
    images = [
        c["image"]
        for obj in yaml.safe_load_all(built)
        for pod in pods(obj)
        for c in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    ]
    assert len(images) == len(CONTAINERS)
    assert all(re.search("@sha256:(ab){32}$", image) for image in images), images
