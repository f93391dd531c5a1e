"""`swiftqueue status` for the parts of the live loop: each judged by what it does, not by being there."""

from __future__ import annotations

import math
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from infra import processes
from infra.live import plan, ray_head
from infra.live.record import LOG_FILE, OUTCOMES
from infra.monitoring import prometheus
from infra.monitoring.query import QueryError, ask
from infra.pages import answers, page
from infra.stack import KEEPER, MLFLOW, PARTS, TRITON, duration
from models import json_lines
from models.state import state_dir
from serving.endpoint import LOOPBACK
from serving.ingest import server as ingest

GROWTH_WAIT_S: Final = 8.0  # a new pass of the sender takes a second or two to begin
LOOK_S: Final = 1.0
SCRAPED_S: Final = 30.0  # six scrapes: one that took too long is no failure
ROUND_LATE_S: Final = 600.0  # a round waits up to 300 s for its workers and 120 s for their work


@dataclass
class Judgement:
    """What became of a part's request."""

    well: bool
    line: str


def print_parts() -> bool:
    """Print a line for each part that runs or ought to; whether all of them are well."""
    live = plan.asked()
    running = {name: server for name in PARTS if (server := processes.running(name))}
    expected = plan.wanted() if live else []
    judged = {name: _JUDGES[name](server) for name, server in running.items() if name in _JUDGES}
    judged |= _judge_flow(running)
    well = True
    for name in PARTS:
        if name in judged:
            print(f"{name}: {judged[name].line}")
            well = well and judged[name].well
        elif name in expected and name not in running:
            heals = "the keeper starts it" if KEEPER in running else "swiftqueue up --live"
            print(f"{name}: was started and is gone (log {processes.log_path(name)}); {heals}")
            well = False
    idle = [name for name in PARTS if name not in (*running, MLFLOW, TRITON)]  # those two said so themselves
    if idle and not live:
        print(f"not started: {', '.join(idle)}; the whole loop: swiftqueue up --live")
    return well


def number(url: str, series: str) -> float | None:
    """A series' value on a page of metrics; None where page or series is not there."""
    return _value(page(url) or "", series)


def _value(text: str, series: str) -> float | None:
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == series or (name.startswith(f"{series}{{") and "{" not in series):
            return float(value)
    return None


def last_round() -> dict[str, Any] | None:
    """The last finished round of `var/live/rounds.jsonl`."""
    return next(json_lines.newest_first(state_dir() / "live" / LOG_FILE), None)


def ingest_check(url: str) -> bool:
    """Whether the ingest writes into its store and reads it back."""
    return answers(urllib.request.Request(f"{url}/v1/check", b"", method="POST"))  # noqa: S310


def _ray(server: processes.Server) -> Judgement:
    return Judgement(*ray_head.check(f"{LOOPBACK}:{server.ports['gcs']}"))


def _ingest(server: processes.Server) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['http']}"
    begin = time.perf_counter()
    well = ingest_check(url)
    took_ms = (time.perf_counter() - begin) * 1e3
    return Judgement(well, f"{f'a write and a read in {took_ms:.0f} ms' if well else 'no answer'} at {url}")


def _scheduler(server: processes.Server) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['metrics']}/metrics"
    told = page(url)
    if told is None or _value(told, "swiftqueue_served_version") is None:
        return Judgement(False, f"no answer at {url} (log {server.log})")
    ended = sum(_value(told, f'swiftqueue_rounds_total{{outcome="{outcome}"}}') or 0 for outcome in OUTCOMES)
    last = last_round() if ended else None  # else it is of a scheduler before this one
    live = plan.asked()
    if last is None or last.get("ended_boot_s") is None:
        late = live is not None and server.age_s > live.every_s + ROUND_LATE_S
        return Judgement(not late, f"no round has ended yet; metrics at {url}")
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - last["ended_boot_s"]
    version = f" version {last['version']}" if last["version"] else ""
    line = f"round {last['number']} {last['outcome']}{version}, ended {duration(age_s)} ago: {last['reason']}"
    late = live is not None and age_s > live.every_s + ROUND_LATE_S
    return Judgement(last["outcome"] != "failed" and not late, line)


def _prometheus(server: processes.Server) -> Judgement:
    """Whether every part that can be scraped was, of late; one that was just started has time."""
    url = f"http://{LOOPBACK}:{server.ports['http']}"
    try:
        found = ask(url, "query", query=f"max_over_time(up[{SCRAPED_S:.0f}s])")["result"]
    except QueryError:
        return Judgement(False, f"no answer at {url}")
    well = {one["metric"]["instance"] for one in found if one["value"][1] == "1"}
    down = [
        f"{part.name} ({address})"
        for part, address in prometheus.targets()
        if address not in well and min(part.age_s, server.age_s) > SCRAPED_S
    ]
    line = f"{len(well)} of {len(found)} targets answer its scrapes, {url}"
    return Judgement(not down, f"{line}; not scraped: {', '.join(down)}" if down else line)


def _keeper(server: processes.Server) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['metrics']}/metrics"
    series = [f'swiftqueue_part_restarts_total{{part="{name}"}}' for name in plan.wanted()]
    told = page(url)
    if told is None:
        return Judgement(False, f"no answer at {url} (log {server.log})")
    restarts = sum(_value(told, one) or 0 for one in series)
    return Judgement(True, f"{restarts:.0f} parts started again so far (log {server.log})")


_JUDGES: Final[dict[str, Callable[[processes.Server], Judgement]]] = {
    "ray": _ray,
    "ingest": _ingest,
    "scheduler": _scheduler,
    "prometheus": _prometheus,
    KEEPER: _keeper,
}


class _Growth:
    """A count of a page, looked at until it has grown."""

    def __init__(self, url: str, *series: str) -> None:
        self._url, self._series = url, series
        self._base: float | None = None
        self._since = 0.0
        self.per_s = math.nan  # until it has grown

    def look(self) -> None:
        """Look once more; a count that is smaller belongs to a process that was started again."""
        found = [value for one in self._series if (value := number(self._url, one)) is not None]
        now = time.monotonic()
        if not found or not math.isnan(self.per_s):
            return
        if self._base is None or sum(found) < self._base:
            self._base, self._since = sum(found), now
        elif sum(found) > self._base:
            self.per_s = (sum(found) - self._base) / (now - self._since)

    @property
    def seen(self) -> bool:
        """Whether the page answered at all."""
        return self._base is not None


def _judge_flow(running: dict[str, processes.Server]) -> dict[str, Judgement]:
    """Agent and forwarder serve nobody but each other: are batches decided, do events reach the store?"""
    watched: dict[str, _Growth] = {}
    if agent := running.get("agent"):
        page = f"http://{LOOPBACK}:{agent.ports['metrics']}/metrics"
        watched["agent"] = _Growth(page, 'swiftqueue_agent_batches_total{outcome="decided"}')
    local = running.get("ingest")
    if "forwarder" in running and agent and (local or ingest.elsewhere()):
        url = f"http://{LOOPBACK}:{local.ports['http']}" if local else ingest.address()
        events = (f'swiftqueue_ingest_events_total{{kind="{kind}"}}' for kind in ("ack", "send"))
        watched["forwarder"] = _Growth(f"{url}/metrics", *events)
    deadline = time.monotonic() + GROWTH_WAIT_S
    while watched:
        for growth in watched.values():
            growth.look()
        if not any(math.isnan(growth.per_s) for growth in watched.values()) or time.monotonic() > deadline:
            break
        time.sleep(LOOK_S)
    judged = {}
    for name, what in (("agent", "batches decided"), ("forwarder", "events stored by the ingest")):
        if name not in running:
            continue
        found = watched.get(name)
        if found is not None and not math.isnan(found.per_s):
            judged[name] = Judgement(True, f"{found.per_s:,.0f} {what} per second{_version(running, name)}")
        else:
            why = (
                f"no {what} for {GROWTH_WAIT_S:.0f} s"
                if found and found.seen
                else "no metrics to judge it by"
            )
            judged[name] = Judgement(False, f"{why} (log {processes.log_path(name)})")
    return judged


def _version(running: dict[str, processes.Server], name: str) -> str:
    if name != "agent":
        return ""
    page = f"http://{LOOPBACK}:{running[name].ports['metrics']}/metrics"
    version = number(page, "swiftqueue_agent_server_version")
    return "" if version is None else f", by version {version:.0f}"
