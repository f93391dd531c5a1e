"""Rules, dashboard, pictures: one list of names, promtool's own tests, a real Prometheus on a real Triton."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from waiting import wait_until

from swiftqueue.infra.local.processes import free_ports
from swiftqueue.infra.monitoring.dashboard import DATASOURCE, FILE, main, panels
from swiftqueue.infra.monitoring.dashboard import rows as dashboard_rows
from swiftqueue.infra.monitoring.metrics import OTHERS, OURS, exported, reference

HERE = Path(__file__).resolve().parents[2] / "infra" / "monitoring"
RULES = sorted((HERE / "rules").glob("[!.]*.yaml"))
AGENT = HERE.parents[1] / "serving" / "agent" / "_build" / "swiftqueue-agent"
ALWAYS = {"instance", "job", "le"}  # labels that Prometheus or a histogram brings
WITHOUT = "Debian's package `prometheus` is not installed (apt-get install prometheus), so {} is not here"


def rules(name: str) -> list[dict[str, Any]]:
    groups = yaml.safe_load((HERE / "rules" / name).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RECORDED = {rule["record"] for rule in rules("recording.yaml")}
QUERIES = {
    **{f"{panel.title} {k}": q.expr for panel in panels() for k, q in enumerate(panel.queries)},
    **{rule["record"]: rule["expr"] for rule in rules("recording.yaml")},
    **{rule["alert"]: rule["expr"] for rule in rules("alerts.yaml")},
}


@pytest.fixture(scope="module")
def promtool() -> str:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip(WITHOUT.format("promtool"))
    return program


# The one list of names ------------------------------------------------------------------------------


LABELS = OTHERS | {name: labels for names in OURS.values() for name, labels in names.items()}


def family(series: str) -> str:
    """Name of the metric that a series is of: a histogram has three."""
    return series if series in LABELS else re.sub(r"_(bucket|sum|count)$", "", series)


def test_the_list_is_what_the_code_exports(project: Path) -> None:
    listed, found = LABELS.keys() - OTHERS.keys(), exported(project).keys()
    assert found - listed == set(), "exported but not in infra/monitoring/metrics.py"
    assert listed - found == set(), "no code exports these"


def test_the_reference_page_is_current(project: Path) -> None:
    again = "run: python -m swiftqueue.infra.monitoring.metrics > docs/METRICS.md"
    assert (project / "docs/METRICS.md").read_text() == reference(project), again


def names_in(expr: str) -> set[str]:
    return set(
        re.findall(r"\b(?:swiftqueue|nv|process|up)\b[\w:]*|\b(?:swiftqueue|nv|process)_\w+", expr)
    ) - {"swiftqueue"}


@pytest.mark.parametrize("where", QUERIES)
def test_queries_use_listed_names_and_their_labels(where: str) -> None:
    expr = QUERIES[where]
    names = names_in(expr)
    assert names
    families = {family(name) for name in names - RECORDED}
    assert families <= LABELS.keys()
    bare = re.sub(r'"[^"]*"', '""', expr)
    used = set(re.findall(r"(\w+)\s*=~?\s*\"", bare))
    for group in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", bare):
        used |= {label.strip() for label in group.split(",")}
    known = {label for name in families for label in LABELS[name]}
    assert used <= known | ALWAYS


def test_every_metric_is_looked_at() -> None:
    """What nobody looks at need not be exported."""
    seen = {family(name) for expr in QUERIES.values() for name in names_in(expr)}
    unseen = (
        LABELS.keys()
        - OTHERS.keys()
        - seen
        - {
            "swiftqueue_windows_total",  # with `swiftqueue_refused_requests_total`, Triton's own per version
            "swiftqueue_refused_requests_total",
        }
    )
    assert unseen == set()


# The dashboard --------------------------------------------------------------------------------------


def test_the_command_writes_the_dashboard_where_it_is_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    main(tmp_path / "new" / "folder")
    written = tmp_path / "new" / "folder" / FILE.name
    assert written.read_text() == FILE.read_text()
    assert capfd.readouterr().out == f"{written}: {len(panels())} panels\n"


def test_grafanas_own_types_read_the_whole_dashboard() -> None:
    """What Grafana 11.6's types do not know would be lost on the way through them."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    written = json.loads(FILE.read_text())
    assert json.loads(json.dumps(Dashboard.from_json(written), cls=JSONEncoder)) == written
    misspelt = written | {"refrehs": "1s"}
    assert json.loads(json.dumps(Dashboard.from_json(misspelt), cls=JSONEncoder)) == written


def test_panels_do_not_overlap_and_have_all_they_need() -> None:
    board = json.loads(FILE.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + i, at["y"] + j) for i in range(at["w"]) for j in range(at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
        for target in panel.get("targets", []):
            assert target["datasource"] == {"type": "prometheus", "uid": DATASOURCE}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel.description and panel.queries for panel in panels())


def test_provisioning_names_the_same_data_source_and_the_page_the_folder(project: Path) -> None:
    provisioning = HERE / "grafana" / "provisioning"
    [source] = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["uid"], source["type"]) == (DATASOURCE, "prometheus")
    [provider] = yaml.safe_load((provisioning / "dashboards" / "swiftqueue.yaml").read_text())["providers"]
    assert provider["type"] == "file"
    page = (project / "docs/OPERATIONS.md").read_text()
    assert f"SWIFTQUEUE_DASHBOARDS=$PWD/{FILE.parent.resolve().relative_to(project)}\n" in page


# promtool -------------------------------------------------------------------------------------------


def test_promtool_accepts_rules_and_configuration(
    promtool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from swiftqueue.infra.local.prometheus import write_configuration, write_targets

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    folder = write_configuration(9090)
    assert write_targets() == []
    # Lint warnings are errors.
    subprocess.run([promtool, "check", "config", "--lint-fatal", folder / "prometheus.yaml"], check=True)
    subprocess.run(
        [
            promtool,
            "check",
            "rules",
            "--lint-fatal",
            *(HERE / "rules" / n for n in ("alerts.yaml", "recording.yaml")),
        ],
        check=True,
    )


@pytest.mark.slow
def test_alerts_go_to_the_alertmanager_that_is_named(
    promtool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real Prometheus names it as the one that it tells."""
    from swiftqueue.infra.local import prometheus
    from swiftqueue.infra.local.prometheus_query import ask

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    for wrong in ("127.0.0.1", "http://a:9093", "a b:1", "a:0"):
        monkeypatch.setenv("SWIFTQUEUE_ALERTMANAGER", wrong)
        with pytest.raises(ValueError, match=r"SWIFTQUEUE_ALERTMANAGER=.* is not HOST:PORT"):
            prometheus.start()
    own, manager = free_ports(2)
    monkeypatch.setenv("SWIFTQUEUE_PROMETHEUS_PORT", str(own))
    monkeypatch.setenv("SWIFTQUEUE_ALERTMANAGER", f"127.0.0.1:{manager}")
    url = prometheus.start()
    try:
        subprocess.run(
            [promtool, "check", "config", "--lint-fatal", tmp_path / "prometheus" / "prometheus.yaml"],
            check=True,
        )
        deadline = time.monotonic() + 60
        while not (told := ask(url, "alertmanagers")["activeAlertmanagers"]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert [one["url"] for one in told] == [f"http://127.0.0.1:{manager}/api/v2/alerts"]
        until(url, 'up{job="prometheus"} == 1')  # it knows its own password
        for path in ("debug/pprof/heap", "api/v1/query?query=up", "metrics", "-/ready"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(f"{url}/{path}", timeout=60)  # noqa: S310 - on loopback
    finally:
        prometheus.main("stop")


@pytest.mark.slow
def test_alerts_fire_when_they_should_and_only_then(promtool: str) -> None:
    subprocess.run([promtool, "test", "rules", "alerts_test.yaml"], cwd=HERE / "rules", check=True)


def test_every_alert_is_tested_both_ways() -> None:
    tested = yaml.safe_load((HERE / "rules" / "alerts_test.yaml").read_text())["tests"]
    cases = [case for test in tested for case in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in rules("alerts.yaml")}
    assert {c["alertname"] for c in cases if c["exp_alerts"]} == alerts
    quiet = {c["alertname"] for c in cases if not c["exp_alerts"]}
    assert quiet == alerts
    for rule in rules("alerts.yaml"):
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert set(rule["annotations"]) == {"summary", "action"}


def test_every_alert_has_its_line_in_the_runbook(project: Path) -> None:
    page = (project / "docs/OPERATIONS.md").read_text()
    page = page.partition("### At three in the morning")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in page.splitlines() if row.startswith("|")][2:]
    named = [name.strip() for row in rows for name in row[1].split(",")]
    assert sorted(named) == sorted(rule["alert"] for rule in rules("alerts.yaml"))
    assert all("`" in row[3] for row in rows)  # a command


# A real Prometheus on a real Triton -----------------------------------------------------------------


@pytest.fixture(scope="module")
def prometheus(champion: int) -> Iterator[str]:
    """A Prometheus that scrapes the Triton that serves the champion."""
    from swiftqueue.infra.local import prometheus

    if shutil.which("prometheus") is None:
        pytest.skip(WITHOUT.format("a server"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFTQUEUE_PROMETHEUS_PORT", str(free_ports(1)[0]))
        url = prometheus.start()
        assert prometheus.start() == url  # harmless when it is up
        yield url
        prometheus.main("stop")


def until(server: str, expr: str) -> list[dict[str, Any]]:
    """Result of an instant query as soon as it is not empty."""
    from swiftqueue.infra.local.prometheus_query import ask

    found: list[dict[str, Any]] = wait_until(
        lambda: ask(server, "query", query=expr)["result"], f"no data for {expr}"
    )
    return found


def rule_health(server: str) -> dict[str, str]:
    """`ok`, `err`, or `unknown` until it is evaluated, by the rule's name."""
    from swiftqueue.infra.local.prometheus_query import ask

    groups = ask(server, "rules")["groups"]
    return {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}


@pytest.mark.long
@pytest.mark.slow
def test_prometheus_scrapes_triton_and_every_panel_runs(
    prometheus: str, champion: int, tmp_path: Path
) -> None:
    from swiftqueue.infra.local.native_backend import LIBRARY
    from swiftqueue.infra.local.prometheus_query import QueryError, ask
    from swiftqueue.infra.monitoring.picture import draw, series_of
    from swiftqueue.serving.triton.endpoint import Triton

    until(prometheus, 'up{job="triton"} == 1')
    with Triton() as triton:
        tokens, features = triton.config().input[0].dims
        requests = 'rate(nv_inference_request_success{model="swiftqueue"}[1m]) > 0'

        def busy_now() -> list[dict[str, Any]]:
            triton.infer(np.zeros((2, tokens, features), dtype=np.float32))
            found: list[dict[str, Any]] = ask(prometheus, "query", query=requests)["result"]
            return found

        busy = wait_until(busy_now)
    assert busy[0]["metric"]["version"] == str(champion)
    until(prometheus, "swiftqueue:triton_request_seconds:mean_rate1m > 0")

    end = time.time()
    filled = set()
    for panel in panels():
        for query in panel.queries:
            if series_of(prometheus, query, end - 60, end + 5):
                filled.add(panel.title)
    python_only = set() if LIBRARY.is_file() else {"Versions in memory"}
    assert filled >= {panel.title for panel in dashboard_rows()["Server"]} - python_only | {"Up"}
    with pytest.raises(QueryError, match="parse error"):
        ask(prometheus, "query", query="sum by (")

    wait_until(lambda: "unknown" not in rule_health(prometheus).values())
    assert rule_health(prometheus) == dict.fromkeys(
        RECORDED | {rule["alert"] for rule in rules("alerts.yaml")}, "ok"
    )

    picture = tmp_path / "dashboard.png"
    # Its steps are longer: what is a few seconds old may lie between two of them.
    wait_until(lambda: draw(prometheus, picture, minutes=5) >= len(filled))
    assert 10_000 < picture.stat().st_size < 200_000


@pytest.mark.long
@pytest.mark.slow
def test_an_agent_fills_its_panels_and_its_end_is_seen(prometheus: str, serving_state: Path) -> None:
    """A server with a metrics port is a target by its record alone; its end raises the alert."""
    from swiftqueue.infra.local import processes
    from swiftqueue.infra.local.prometheus import write_targets
    from swiftqueue.infra.monitoring.picture import series_of
    from swiftqueue.serving.triton.endpoint import grpc_address

    if not AGENT.is_file():
        pytest.skip(f"{AGENT} is not built (make -C serving/agent)")
    port = free_ports(1)[0]
    words = ["--server", grpc_address(), "--deadline-us", "50000", "--metrics-port", str(port)]
    words += ["--synthetic-bps", "5e6", "--seconds", "600"]
    processes.start("agent-2", [str(AGENT), *words], {"metrics": port}, {}, lambda: True, 5)
    try:
        target = {"targets": [f"127.0.0.1:{port}"], "labels": {"job": "agent", "__part": "agent-2"}}
        assert target in write_targets()
        until(prometheus, "swiftqueue:agent_deadline_misses:ratio_rate1m")
        until(prometheus, "swiftqueue:agent_round_trip_seconds:p99_rate1m > 0")
        until(prometheus, "swiftqueue:agent_prediction_error_seconds:mean_rate5m > 0")
        end = time.time()
        for panel in dashboard_rows()["Prediction, as the sender sees it"]:
            for query in panel.queries:
                assert series_of(prometheus, query, end - 10, end), query.expr
        assert until(prometheus, "swiftqueue_agent_connected == 1")
    finally:
        processes.stop("agent-2")
    until(prometheus, 'up{job="agent"} == 0')
    until(prometheus, 'ALERTS{alertname="PartDown",job="agent",alertstate="pending"}')
    assert target not in write_targets()


@pytest.mark.slow
def test_status_names_a_part_that_is_not_scraped(
    prometheus: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that runs, and whose page nobody answers."""
    from swiftqueue.infra.local import processes, status
    from swiftqueue.infra.local.prometheus import write_targets

    monkeypatch.setattr(status, "SCRAPED_S", 8.0)
    until(prometheus, 'max_over_time(up{job="triton"}[8s]) == 1')

    def well() -> bool:
        return all(one.well for one in status.judge_parts())

    assert well()
    port = free_ports(1)[0]
    processes.start("scheduler-2", ["sleep", "600"], {"metrics": port}, {}, lambda: True, 5)
    try:
        write_targets()
        assert well()  # it was just started
        wait_until(lambda: not well())
        (said,) = [one.line for one in status.judge_parts() if one.part == "prometheus"]
        assert said.endswith(
            f"targets answer its scrapes, {prometheus}; not scraped: scheduler-2 (127.0.0.1:{port})"
        )
    finally:
        processes.stop("scheduler-2")
        write_targets()
    assert well()


def test_a_missing_or_misconfigured_prometheus_is_one_clear_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from swiftqueue.infra.local import prometheus

    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OSError, match="apt-get install prometheus"):
        prometheus.start()
    monkeypatch.undo()
    monkeypatch.setenv("SWIFTQUEUE_STATE", str(tmp_path))
    monkeypatch.setenv("SWIFTQUEUE_PROMETHEUS_PORT", "http")
    if shutil.which("prometheus"):
        with pytest.raises(ValueError, match="SWIFTQUEUE_PROMETHEUS_PORT='http': it must be a whole number"):
            prometheus.start()
