"""The live page's real server on prepared state: what it tells, to whom, and what damage does to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import Browser, browser, keep
from crowd import SLOW, check_a_crowd_costs_only_its_places
from page_world import SENDER, damage, get, make_world, port, start_counting, stop_world, view
from strangers import as_nobody, stranger_at
from toy_world import bottleneck_table, write_table
from waiting import wait_until

from swiftqueue.common.page_server import MOST_CLIENTS
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.state import drop_scratch, secret, secret_file
from swiftqueue.infra.local import live_options, live_page, loop, parts, processes
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.parts import PAGE
from swiftqueue.infra.monitoring.page.server import ASSETS, MOST_REQUEST_BYTES
from swiftqueue.infra.monitoring.page.view import WATCHED_S, LiveView
from swiftqueue.serving.agent import process as agent_process

pytestmark = [pytest.mark.slow, pytest.mark.long("live page")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The state folder of a loop whose page runs."""
    state = tmp_path_factory.mktemp("state")
    (port,) = processes.free_ports(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWIFTQUEUE_STATE", str(state))
        patch.setenv("SWIFTQUEUE_PAGE_PORT", str(port))
        try:
            make_world(state)
            loop.start_part(PAGE, live_options.LiveOptions("toy", 1, 60, 30, 8))
            yield state
        finally:
            stop_world()
            drop_scratch()


def seen(*names: str) -> dict[str, Any]:
    """The view, once these entries of it have something in them."""

    def look() -> dict[str, Any] | None:
        found = view()
        return found if all(found.get(name) for name in names) else None

    found: dict[str, Any] = wait_until(look, lambda: f"{names} are missing in {view()}")
    return found


def test_it_tells_what_the_loop_does(world: Path) -> None:
    found = wait_until(
        lambda: (now := seen("rounds", "parts", "judged")) and len(now["rates"]["at_s"]) > 2 and now
    )
    assert found["problems"] == []
    assert found["sender"] == SENDER
    latency = found["latency"]
    assert set(latency["median_ms"][1:-1]) == {8.0}
    assert set(latency["p99_ms"][1:-1]) == {40.0}
    assert all(0 <= found["time"] - at_s < 600 for at_s in latency["at_s"])
    rates = found["rates"]
    assert rates["in_time"][-1] == pytest.approx(0.9, abs=0.02)
    assert rates["moved"][-1] == pytest.approx(0.25, abs=0.02)
    assert 1 < rates["error_median_ms"][-1] < 2  # the bucket of what is counted
    assert 10 < rates["predicted_median_ms"][-1] <= rates["predicted_p99_ms"][-1] < 20
    assert rates["batches_per_s"][-1] > 0
    assert found["versions"] == [7]
    assert found["served"]["version"] == 7
    assert found["served"]["age_s"] > 110
    newest, before = found["rounds"]
    assert (newest["number"], newest["outcome"], newest["version"]) == (2, "kept", 8)
    assert newest["reason"].startswith("worse <b>than</b> the champion")
    assert newest["took_s"] == 4.0
    assert (before["number"], before["outcome"]) == (1, "pushed")
    assert [one["version"] for one in found["switches"]] == [7, 6]
    (sender,) = found["senders"]
    assert (sender["name"], sender["sends"], sender["acks"], sender["missing"]) == (SENDER, 1800, 1800, 0)
    by_name = {one["name"]: one for one in found["parts"]}
    assert (by_name["agent"]["up"], by_name["agent"]["restarts"]) == (True, 3)
    assert (by_name["scheduler"]["up"], by_name["scheduler"]["pid"]) == (False, None)
    judged = {one["part"]: one for one in found["judged"]["parts"]}
    assert judged["page"]["well"], judged["page"]
    assert not judged["scheduler"]["well"]
    assert found["judged"]["do"]


def test_a_lost_part_is_seen_before_the_next_judgement(world: Path) -> None:
    seen("parts", "judged")
    processes.stop("agent")
    gone = wait_until(lambda: [one for one in view()["parts"] if one["name"] == "agent" and not one["up"]])
    assert gone
    points = len(view()["rates"]["at_s"])
    start_counting("agent")  # it counts from 0
    found = wait_until(lambda: (now := view()) and len(now["rates"]["at_s"]) > points and now)
    assert min(found["rates"]["batches_per_s"]) >= 0


def test_the_key_is_wanted_and_is_its_owners_alone(world: Path) -> None:
    key = secret(PAGE)
    for headers in ({}, {"Authorization": f"Bearer {key[:-1]}"}, {"Authorization": key}, {"Cookie": key}):
        status, body, answered = get("/state.json", **headers)
        assert (status, answered["www-authenticate"]) == (401, "Bearer")
        assert b"swiftqueue monitor page" in body
        assert b"rounds" not in body
    assert get(f"/state.json?key={key}")[0] == 401
    assert stat.S_IMODE(secret_file(PAGE).stat().st_mode) == 0o600
    assert key not in processes.log_path(PAGE).read_text()
    server = processes.running(PAGE)
    assert server is not None
    process = server.process()
    assert process is not None
    assert not any(key in word for word in process.cmdline())


def test_pages_are_of_this_machine_alone(world: Path) -> None:
    """No font, script or frame from elsewhere, and no other site's page shows this one."""
    for path in (
        "/",
        "/page.js",
        "/page.css",
        "/uplot/uPlot.iife.min.js",
        "/uplot/uPlot.min.css",
        "/icon.svg",
    ):
        status, body, answered = get(path)
        assert status == 200, path
        assert body
        policy = answered["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answered["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answered
    for path in ("/uplot/LICENSE", "/../server.py", "/%2e%2e/server.py", "/var/secrets/page", "//etc/passwd"):
        assert get(path)[0] == 404, path
    for file in (ASSETS / "index.html", ASSETS / "page.css", ASSETS / "page.js"):
        assert "//" not in file.read_text().replace("// ", ""), f"{file} names another host"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8080", 200),  # through a tunnel
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("127.0.0.1:9203@evil.example", 421),
        ("", 421),
    ],
)
def test_a_name_that_leads_here_is_no_address_of_it(world: Path, host: str, status: int) -> None:
    """DNS rebinding: a site whose name resolves to loopback asks as if the page were its own."""
    assert get("/state.json", Host=host, Authorization=f"Bearer {secret(PAGE)}")[0] == status
    assert get("/", Host=host)[0] == status


def test_two_hosts_are_none(world: Path) -> None:
    with socket.create_connection(("127.0.0.1", port()), timeout=60) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 421"


def test_another_user_is_not_let_in_even_with_the_key(world: Path) -> None:
    key, number = secret(PAGE), port()

    def ask() -> str:
        with socket.create_connection(("127.0.0.1", number), timeout=60) as client:
            try:
                client.sendall(
                    f"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
                )
                return client.recv(100).decode()
            except ConnectionError:
                return ""

    assert as_nobody(ask) == ""
    assert get("/")[0] == 200


def test_slow_clients_and_large_requests_cost_only_their_places(world: Path) -> None:
    server = processes.running(PAGE)
    assert server is not None
    check_a_crowd_costs_only_its_places(server.pid, port(), 300, SLOW, MOST_CLIENTS, b"ok", path="/health")
    with (
        socket.create_connection(("127.0.0.1", port()), timeout=60) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(b"GET /" + b"x" * 2 * MOST_REQUEST_BYTES)
        assert client.recv(12) == b""
    connection = http.client.HTTPConnection("127.0.0.1", port(), timeout=60)
    connection.request("POST", "/state.json", headers={"Authorization": f"Bearer {secret(PAGE)}"})
    assert connection.getresponse().status == 405
    connection.close()


def test_many_viewers_share_one_view(world: Path) -> None:
    seen("rounds")
    times = [view()["time"] for _ in range(20)]
    assert len(set(times)) < len(times)


def test_who_comes_back_is_not_shown_what_was_true_before(world: Path) -> None:
    """The first look after a while without anybody begins anew; it shows no old state as if it were now."""
    one = LiveView()
    one.content()
    one.look()
    assert b'"parts"' in one.content()
    one._watched_s -= 2 * WATCHED_S
    assert one.content() == b"{}"


def test_the_address_is_told_with_its_key_and_to_no_stranger(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live_page.print_address()
    told = capsys.readouterr().out.strip()
    assert told == f"http://127.0.0.1:{port()}/#key={secret(PAGE)}"
    assert secret(PAGE) not in live_page.where()  # what is no terminal may be a log
    with monkeypatch.context() as terminal:
        terminal.setattr(live_page.sys.stdout, "isatty", lambda: True)
        assert live_page.where() == f"the live page: {told}"
    (free,) = processes.free_ports(1)
    with stranger_at(free), pytest.raises(PermissionError, match="another user listens"):
        live_page.address(free)


def answering(part: str, kind: str, body: bytes) -> HTTPServer:
    """A part that answers everything with this; its process is another one."""

    class Same(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Same)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sleeper = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
    processes.start(part, sleeper, {kind: server.server_port}, {}, lambda: True, 10)
    return server


def test_a_real_agent_is_understood(world: Path) -> None:
    """One without a server, so no batch is decided in time; the whole loop is in test_live_faults.py."""
    if reason := agent_process.why_not_built():
        pytest.skip(reason)
    seen("parts")
    packets = world / "toy"
    write_table(packets, bottleneck_table("live", seconds=2))
    (metrics,) = processes.free_ports(1)
    command = [SWIFTQUEUE, "part", "agent", str(packets), f"--telemetry=unix:{world}/t"]
    command.append(f"--metrics-port={metrics}")
    processes.stop("agent")
    url = f"http://127.0.0.1:{metrics}/metrics"
    nowhere = {"SWIFTQUEUE_TRITON_SERVERS": "127.0.0.1:1"}
    processes.start("agent", command, {"metrics": metrics}, nowhere, lambda: answers(url), 120)

    def figures() -> dict[str, Any]:
        return {name: values[-1] for name, values in view()["rates"].items() if values}

    try:
        wait_until(lambda: figures().get("in_time") == 0.0 and figures()["batches_per_s"] > 0, figures)
        assert figures()["moved"] is not None
        assert figures()["error_median_ms"] is None
        assert [one for one in view()["problems"] if "agent" in one] == []
    finally:
        processes.stop("agent")
        start_counting("agent")


def test_alerts_that_fire_are_shown(world: Path) -> None:
    """As Prometheus tells them (integration/test_monitoring.py asks a real one)."""
    labels = {"alertname": "TritonDown", "severity": "page"}
    fires = {
        "state": "firing",
        "labels": labels,
        "annotations": {"summary": "no Triton <answers>", "action": "do"},
    }
    pending = {"state": "pending", "labels": {"alertname": "DiskFills"}, "annotations": {}}
    told = {"status": "success", "data": {"alerts": [pending, fires]}}
    server = answering(parts.PROMETHEUS, "http", json.dumps(told).encode())
    try:
        (alert,) = seen("alerts")["alerts"]
        assert alert.startswith("TritonDown (page): no Triton <answers>; do")
    finally:
        processes.stop(parts.PROMETHEUS)
        server.shutdown()
        server.server_close()
    wait_until(lambda: view()["alerts"] == [], "an alert of a Prometheus that has ended is still shown")


# In a browser -------------------------------------------------------------------------------------------

TAB = 9
FOCUSED = "document.activeElement.id || document.activeElement.getAttribute('aria-labelledby') || 'skip'"


@pytest.fixture(scope="module")
def shown(world: Path) -> Iterator[Browser]:
    """A browser that has opened the page by its address."""
    seen("rounds", "judged")
    with browser() as one:
        one.size(1280, 900)
        one.scheme("light")
        one.open(live_page.address(port()))
        wait_until(lambda: "kept" in one.text("#rounds"), lambda: one.text())
        wait_until(lambda: one.run("document.querySelectorAll('canvas').length") == 4, "no charts")
        yield one


def test_a_browser_shows_it(shown: Browser) -> None:
    assert "Not well: " in shown.text("#verdict")
    assert "scheduler" in shown.text("#verdict")
    now = shown.text("#now").replace("\n", " ")
    assert "Version served 7" in now
    assert "Latency, median 8.00 ms" in now
    assert "Latency, 99th percentile 40.0 ms" in now
    wait_until(lambda: "Batches in time 9" in shown.text("#now").replace("\n", " "))
    rounds = shown.text("#rounds")
    assert "worse <b>than</b> the champion by 3 % of the log-error" in rounds  # text, not markup
    assert shown.run("document.querySelectorAll('#rounds b').length") == 0
    assert SENDER in shown.text("#senders")
    assert "wait" in shown.text("#todo") or "start" in shown.text("#todo")
    parts_told = shown.text("#parts")
    assert all(name in parts_told for name in ("triton", "agent", "scheduler", "keeper", "page"))
    drawn = shown.run("document.querySelector('#latency').getAttribute('aria-label')")
    measured = r"median 8\.00 ms, 99th percentile 40\.0 ms"
    assert re.search(rf" {measured}, predicted median 1\d\.\d ms, predicted 99th percentile 1", drawn)
    cut = """[...document.querySelectorAll(".chart")].filter((one) => {
      const [legend, card] = [one.querySelector(".u-legend"), one.closest("section")];
      const [inner, outer] = [legend.getBoundingClientRect(), card.getBoundingClientRect()];
      return inner.bottom > outer.bottom || inner.right > outer.right || inner.height < 10;
    }).map((one) => one.id)"""
    assert shown.run(cut) == []


def test_what_was_said_of_a_part_that_is_gone_since_is_not_shown(shown: Browser) -> None:
    rows = "[...document.querySelectorAll('#parts tr')]"
    row = f"{rows}.find((one) => one.textContent.startsWith('keeper')).textContent"
    wait_until(lambda: "so far" in shown.run(row), lambda: shown.run(row))
    processes.stop("keeper")
    try:
        wait_until(lambda: "gone" in shown.run(row), lambda: shown.run(row))
        assert "so far" not in shown.run(row)
    finally:
        start_counting("keeper")


def test_the_key_leaves_the_address_and_lasts_for_the_tab(shown: Browser) -> None:
    assert shown.run("location.href") == f"http://127.0.0.1:{port()}/"
    assert shown.run("document.cookie") == ""
    shown.call("Page.reload")
    wait_until(lambda: "kept" in shown.text("#rounds"), "a reload has lost the key")


def test_it_asks_nobody_else_and_complains_of_nothing(shown: Browser) -> None:
    began = len(shown.requests)
    wait_until(lambda: shown.run("1") and len(shown.requests) > began + 2, "it does not ask again")
    assert {urlsplit(one).netloc for one in shown.requests} == {f"127.0.0.1:{port()}"}
    assert secret(PAGE) not in "".join(one.split("#")[0] for one in shown.requests)
    assert shown.complaints == []


def test_it_is_used_by_keyboard(shown: Browser) -> None:
    shown.run("document.activeElement.blur()")
    shown.call("Page.reload")
    wait_until(lambda: "kept" in shown.text("#rounds"))
    order = []
    for _ in range(7):
        shown.press("Tab", TAB)
        order.append(shown.run(FOCUSED))
    regions = ["parts-title", "senders-title", "rounds-title", "switches-title"]
    assert order == ["skip", "pause", "span", *regions]
    assert shown.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    shown.run("document.getElementById('pause').focus()")
    shown.press(" ", 32)
    assert shown.run("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    paused = shown.run("last.time")
    began = len(shown.requests)
    time.sleep(2.5)  # two polls
    assert shown.run("last.time") == paused
    assert len(shown.requests) <= began + 1  # one may have been under way
    shown.press(" ", 32)
    wait_until(lambda: shown.run("last.time") > paused, "it does not go on")


def test_both_colour_schemes(shown: Browser) -> None:
    """Ground and ink change places, each text keeps the contrast that WCAG asks for, and charts follow."""
    colours = {}
    for scheme in ("light", "dark"):
        shown.scheme(scheme)
        assert contrasts(shown) == []
        colours[scheme] = shown.run("getComputedStyle(document.body).backgroundColor")
        stroke = shown.run("drawn.latency.axes[0].stroke()")
        assert stroke == shown.run("colour('--quiet')")
        keep(shown, scheme)
    assert colours["light"] != colours["dark"]
    shown.scheme("light")


def test_a_phone_shows_it_without_scrolling_sideways(shown: Browser) -> None:
    shown.size(390, 844, phone=True)
    try:
        wait_until(lambda: shown.run("document.querySelector('#latency canvas').clientWidth") < 390)
        assert shown.run("document.documentElement.scrollWidth") <= 390
        keep(shown, "phone")
    finally:
        shown.size(1280, 900)


def test_without_the_key_it_says_where_to_get_it(world: Path) -> None:
    with browser() as stranger:
        stranger.open(f"http://127.0.0.1:{port()}/")
        wait_until(lambda: "swiftqueue monitor page" in stranger.text("#verdict"), stranger.text)
        assert "kept" not in stranger.text()


def contrasts(shown: Browser) -> list[str]:
    """Return the texts whose contrast with their ground is below 4.5."""
    script = """(() => {
      const light = (text) => { const [r, g, b] = text.match(/[0-9.]+/g).map((one) => {
        const v = one / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const ground = (one) => { for (; one; one = one.parentElement) {
        const is = getComputedStyle(one).backgroundColor;
        if (!/, 0\\)$/.test(is) && is !== "transparent") return is; } return "rgb(255, 255, 255)"; };
      return [...document.querySelectorAll("body *")].filter((one) => one.children.length === 0 &&
        one.textContent.trim() && one.getClientRects().length).flatMap((one) => {
        const both = [light(getComputedStyle(one).color), light(ground(one))].sort((a, b) => b - a);
        const ratio = (both[0] + 0.05) / (both[1] + 0.05);
        return ratio < 4.5 ? [`${one.tagName} ${one.textContent.trim().slice(0, 30)}: ${ratio}`] : []; });
    })()"""
    found: list[str] = shown.run(script)
    return found


def test_damaged_files_and_a_foreign_agent_do_no_harm(world: Path) -> None:
    """The last test: what it damages stays so."""
    seen("rounds", "senders")
    damage(world)

    processes.stop("agent")
    foreign = answering("agent", "metrics", b'\xff{"no": "metrics"} }}}\n')
    found = wait_until(
        lambda: (
            (now := view())
            and any("agent's metrics" in one for one in now["problems"])
            and len(now["senders"]) == 2
            and now
        ),
        lambda: view()["problems"],
    )
    assert [one["number"] for one in found["rounds"]] == [3, 2, 1]
    assert found["rounds"][0]["version"] is None
    assert found["rounds"][0]["triggered"] is None
    assert [one["version"] for one in found["switches"]] == [7, 6]
    by_name = {one["name"]: one for one in found["senders"]}
    assert by_name[SENDER]["sends"] == 1800
    assert "not a telemetry manifest" in by_name["damaged"]["problem"]
    before_s = found["time"]
    wait_until(lambda: view()["time"] > before_s + 1, "it looks no more")
    foreign.shutdown()
    foreign.server_close()
    assert time.time() - before_s < 3600
