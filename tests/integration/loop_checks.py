"""What a whole live loop shows to a real Prometheus."""

from __future__ import annotations

import time

from waiting import wait_until

from swiftqueue.infra.local.prometheus_query import ask
from swiftqueue.infra.monitoring.dashboard import rows
from swiftqueue.infra.monitoring.picture import series_of

SCRAPED = {"triton", "agent", "ingest", "scheduler", "keeper"}
FILLED = ("Telemetry", "Rounds")  # rows of the dashboard


def check_prometheus(server: str) -> None:
    """Every part of the loop is scraped, and each panel about telemetry and rounds shows something.

    After a round; waits until it is so.
    """
    wait_until(
        lambda: not _not_scraped(server) + _empty_panels(server),
        lambda: _not_scraped(server) + _empty_panels(server),
    )


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
        for panel in rows()[row]
        if not any(series_of(server, query, end - 30, end) for query in panel.queries)
    ]
