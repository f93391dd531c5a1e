"""Judgements of serving: each Triton by an inference, the registry by a read, the alias by the gate."""

from __future__ import annotations

import json
import os
import time
from functools import partial
from urllib.parse import unquote, urlencode, urlsplit, urlunsplit
from urllib.request import Request

import numpy as np

from swiftqueue.common.redaction import redacted
from swiftqueue.common.settings import settings
from swiftqueue.common.state import secret, state_dir
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.judgement import BOUND_S, Judgement, duration
from swiftqueue.infra.local.pages import answers, page
from swiftqueue.infra.local.parts import MLFLOW, TRITON
from swiftqueue.infra.local.servers import how_to_log_in, with_login
from swiftqueue.models.registry import decision
from swiftqueue.models.registry.registry import CHAMPION
from swiftqueue.models.registry.store import PASSWORD, USER, is_own_server, registry_exists, tracking_uri
from swiftqueue.serving.deploy.log import age_s, last_served
from swiftqueue.serving.triton.config import Backend
from swiftqueue.serving.triton.endpoint import LOOPBACK, Triton, TritonError
from swiftqueue.serving.triton.repository import LATENCY, MODELS
from swiftqueue.serving.triton.servers import connected, each


def judge_tritons(kind: str) -> list[Judgement]:
    """Judge each Triton by a real inference of a model; all are well if they answer with one version."""
    part = TRITON if kind == LATENCY else f"{TRITON}, {kind}"
    with connected() as servers:
        judged = each(servers, partial(_judge_triton, kind))
    last = last_served(kind=kind)
    newest = last["version"] if last else max((version or 0 for version, *_ in judged), default=0)
    one = len({version for version, *_ in judged}) == 1
    lines = []
    for server, (version, line, remedy) in zip(servers, judged, strict=True):
        lines.append(Judgement(one and version is not None, line, part, remedy))
        if version is not None and version != newest:
            old = f"version {newest} was deployed last, so {server.address} is not up to date"
            behind = f"{old}: {_deploy(kind)}"
            lines.append(Judgement(True, behind, part))
    return lines or [Judgement(False, "no server", part)]


def _judge_triton(kind: str, triton: Triton) -> tuple[int | None, str, str]:
    """Return the version that answers a real inference, or None, a line about the server, and its remedy."""
    try:
        triton.require_live()
    except TritonError as error:
        return None, str(error), ""
    try:
        config = triton.config(MODELS[kind])
        tokens, features = config.input[0].dims
        begin = time.perf_counter()
        answer = triton.infer(np.zeros((1, tokens, features), dtype=np.float32), MODELS[kind])
        took_us = (time.perf_counter() - begin) * 1e6
    except TritonError as error:
        remedy = _deploy(kind)
        return None, f"answers at {triton.address}, but serves no version ({error}): {remedy}", remedy
    age = age_s(answer.version, kind)
    old = "not deployed from here" if age is None else f"{duration(age)} old"
    line = (
        f"serves version {answer.version} by the {Backend(config.backend).label} "
        f"at {triton.address}, {old}, inference {took_us:.0f} µs"
    )
    return answer.version, line, _deploy(kind)


def _deploy(kind: str) -> str:
    return "swiftqueue deploy" + ("" if kind == LATENCY else f" --model {kind}")


def _mlflow_url() -> str | None:
    """Return the address of the MLflow server, if there is one."""
    if settings().mlflow_tracking_uri:
        url = tracking_uri().rstrip("/")
        return url if url.startswith("http") else None
    server = processes.running(MLFLOW)
    return f"http://{LOOPBACK}:{server.ports['http']}" if server else None


def judge_mlflow() -> list[Judgement]:
    """Judge the MLflow server, if there is one, by a read of the registry."""
    url = _mlflow_url()
    if url is None:
        if settings().mlflow_tracking_uri:
            return []
        return [Judgement(True, f"no server (the registry is read from {state_dir() / 'mlflow'})", MLFLOW)]
    begin = time.perf_counter()
    well = answers(_asking(url, "search", max_results=1), BOUND_S)
    took_ms = (time.perf_counter() - begin) * 1e3
    log_in = f" ({how_to_log_in()})" if _is_own(url) else ""
    said = f"a registry read in {took_ms:.0f} ms" if well else "no answer"
    return [Judgement(well, f"{said} at {redacted(url)}{log_in}", MLFLOW)]


def _is_own(url: str) -> bool:
    return processes.running(MLFLOW) is not None and is_own_server(url)


def _asking(url: str, what: str, **options: str | int) -> Request:
    """Make a request about registered models, with the credentials that the server at `url` needs."""
    path = f"api/2.0/mlflow/registered-models/{what}?{urlencode(options)}"
    return _with_credentials(f"{url}/{path}", _is_own(url))


def _with_credentials(url: str, own: bool) -> Request:
    """Make a request with the password of our own server, or the credentials that the user set."""
    parts = urlsplit(url)
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if own:
        user, password = USER, secret(PASSWORD)
    elif parts.username is not None:
        user, password = unquote(parts.username), unquote(parts.password or "")
    plain = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    if user is not None and password is not None:
        return with_login(plain, user, password)
    request = Request(plain)  # noqa: S310 - http(s)
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_header("Authorization", f"Bearer {token}")
    return request


def judge_alias(kind: str) -> list[Judgement]:
    """Return a bad judgement where the champion alias names a version that may not be served."""
    served = last_served(kind=kind)
    if served is None or "model" not in served or not registry_exists():
        return []
    if (url := _mlflow_url()) and _may_be_served(url, served["model"]):
        return []
    from swiftqueue.models.registry.registry import Registry  # importing MLflow takes seconds
    from swiftqueue.serving.deploy.champion import find_champion

    try:
        astray = find_champion(Registry(served["model"]), kind).astray
    except OSError as error:
        astray = str(error)
    remedy = f"{_deploy(kind)} --version N: a version that may be served"
    return [Judgement(False, astray, "registry", remedy)] if astray else []


def _may_be_served(url: str, model: str) -> bool:
    """Return whether the champion alias names a version that the gate passed, by HTTP without MLflow."""
    try:
        asking = _asking(url, "alias", name=model, alias=CHAMPION)
        named = json.loads(page(asking, BOUND_S) or "")["model_version"]
        tags = {tag["key"]: tag["value"] for tag in named["tags"]}
        return not decision.refusal(model, int(named["version"]), tags)
    except (ValueError, KeyError, TypeError, OSError):
        return False  # a request through MLflow says why
