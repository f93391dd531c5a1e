"""What a whole live loop shows to a real Prometheus."""

from __future__ import annotations

import time

from infra.monitoring.dashboard import ROWS
from infra.monitoring.picture import series_of
from infra.monitoring.query import ask

SCRAPED = {"triton", "agent", "ingest", "scheduler", "keeper"}
FILLED = ("Telemetry", "Rounds")  # rows of the dashboard
FILLED_S = 90.0  # targets are read every 10 s, and a rate needs two scrapes


def check_prometheus(server: str) -> None:
    """Every part of the loop is scraped, and each panel about telemetry and rounds shows something.

    After a round; waits until it is so.
    """
    deadline = time.monotonic() + FILLED_S
    while missing := _not_scraped(server) + _empty_panels(server):
        assert time.monotonic() < deadline, missing
        time.sleep(1)


def _not_scraped(server: str) -> list[str]:
    up = {
        one["metric"]["job"] for one in ask(server, "query", query="up")["result"] if one["value"][1] == "1"
    }
    return sorted(SCRAPED - up)


def _empty_panels(server: str) -> list[str]:
    end = time.time()
    return [
        panel.title
        for row in FILLED
        for panel in ROWS[row]
        if not any(series_of(server, query, end - 30, end) for query in panel.queries)
    ]
