"""The manifests: Kubernetes' own schemas, what refers to what, and settings that the code really reads."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from k8s_objects import (
    CONTAINERS,
    K8S,
    KUBERAY,
    NAMES,
    OBJECTS,
    PODS,
    TOOLS,
    VERSIONS,
    Object,
    find,
    pods,
)

from swiftqueue.common.settings import Settings, variable
from swiftqueue.infra.monitoring.metrics import OURS


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
