"""The objects of the manifests of infra/k8s, as the tests look at them."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

K8S = Path(__file__).resolve().parents[1] / "infra" / "k8s"
VERSIONS = ("1.29", "1.34", kubernetes_validate.latest_version())
Object = dict[str, Any]
TOOLS = K8S.parents[1] / "build" / "tools"

# Of KubeRay's operator in the version that infra/README.md asks for.
KUBERAY = TOOLS / "kuberay"


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
