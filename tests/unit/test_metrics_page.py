"""The page of metrics of scheduler and keeper, in a process of its own, and its clients."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from crowd import DEAF, IDLE, MANY, SLOW, check_a_crowd_costs_only_its_places
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from swiftqueue.common.page_server import MOST_CLIENTS
from swiftqueue.infra.local import pages

PROGRAM = """
import sys, time
from prometheus_client import CollectorRegistry, Gauge
from swiftqueue.common import metrics_page
registry = CollectorRegistry()
Gauge("shown", "", registry=registry).set(7)
Gauge("large", "x" * 100_000, registry=registry)
print(metrics_page.serve(registry, "127.0.0.1", 0), flush=True)
time.sleep(3600)
"""


@pytest.fixture
def served() -> Iterator[tuple[int, int]]:
    """Process and port of a page."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("say", [IDLE, SLOW, DEAF], ids=["idle", "slow", "deaf"])
def test_clients_that_say_nothing_or_read_nothing_keep_nobody_out(
    served: tuple[int, int], say: bytes
) -> None:
    check_a_crowd_costs_only_its_places(*served, 300, say, MOST_CLIENTS, b"shown 7.0")


@pytest.mark.long
@pytest.mark.parametrize("say", [IDLE, SLOW], ids=["idle", "slow"])
def test_ten_thousand_clients_cost_only_their_places(served: tuple[int, int], say: bytes) -> None:
    check_a_crowd_costs_only_its_places(*served, MANY, say, MOST_CLIENTS, b"shown 7.0")


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"GET /metrics?x=1 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200"),
        (b"GET /else HTTP/1.1\r\n\r\n", b"HTTP/1.1 404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"HTTP/1.1 405"),
        (b"\0\xff\r\n\r\n", b"HTTP/1.1 405"),
        (b"GET /" + b"x" * 10_000, b""),  # too long: it is not read to its end
    ],
)
def test_what_is_no_scrape_is_refused(served: tuple[int, int], request_line: bytes, answer: bytes) -> None:
    with socket.create_connection(("127.0.0.1", served[1]), timeout=60) as client:
        client.sendall(request_line)
        try:
            assert client.recv(12) == answer
        except ConnectionResetError:
            assert answer == b""


def test_what_is_served_is_read_back_by_name_and_labels() -> None:
    registry = CollectorRegistry()
    gauge = Gauge("swiftqueue_x", "Some", ["file", "part"], registry=registry)
    gauge.labels("a b", "one").set(5)
    gauge.labels('"{c}"', "two").set(6)
    found = pages.samples(generate_latest(registry).decode())
    assert pages.sample(found, 'swiftqueue_x{file="a b",part="one"}') == 5
    assert pages.sample(found, "swiftqueue_x") == 5  # the first, whatever its labels
    assert sorted(found.values()) == [5, 6]
    assert pages.sample(found, 'swiftqueue_x{file="a"}') is None
    assert pages.sample(found, "swiftqueue") is None


def test_commands_that_read_no_metrics_start_without_the_parser() -> None:
    line = "import sys, swiftqueue.infra.local.status; print('prometheus_client' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"
