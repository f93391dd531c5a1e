"""Collects what the live page shows, once for everybody who looks, and no faster than SECOND_S.

While nobody looks only the agent's metrics page is read, as seldom as by Prometheus, so that a page that is
opened has a history. Each source is read by itself: one that is damaged or silent leaves the others as
they are, and the page says which one it is.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import threading
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.redaction import redacted
from swiftqueue.common.say import say
from swiftqueue.common.state import state_dir
from swiftqueue.feature_store.telemetry.manifest import FILE as MANIFEST
from swiftqueue.feature_store.telemetry.manifest import load_manifest, sender_dir
from swiftqueue.feature_store.telemetry.recent import senders
from swiftqueue.infra.local import live_options, parts, processes, status
from swiftqueue.infra.local.pages import page, sample, samples
from swiftqueue.infra.monitoring.page.agent_rates import AgentRates
from swiftqueue.infra.monitoring.page.latency import LatencySeries
from swiftqueue.pipelines.live import rounds_log
from swiftqueue.serving.deploy import log as deploy_log
from swiftqueue.serving.ingest.server import telemetry_dir
from swiftqueue.serving.triton.endpoint import LOOPBACK

SECOND_S: Final = 1.0  # seconds from one look to the next while somebody looks
IDLE_S: Final = 5.0  # and while nobody does
SELDOM_S: Final = 5.0  # seconds between two looks at what changes slowly
JUDGE_S: Final = 30.0  # seconds between two judgements, which cost seconds of a core
JUDGE_SOON_S: Final = 5.0  # least seconds between two when a part came or went
WATCHED_S: Final = 10.0  # seconds after the last request in which somebody still looks
PAGE_S: Final = 1.0  # longest wait for a part's metrics
STATUS_S: Final = 120.0  # longest wait for the judgement
MOST_ROUNDS, MOST_SWITCHES, MOST_SENDERS = 20, 10, 12
MOST_TEXT: Final = 400  # characters of a reason


class LiveView:
    """The page's content as JSON, and the thread's loop that collects it."""

    def __init__(self) -> None:
        self._watched_s = -math.inf
        self._wake = threading.Event()
        self._rates = AgentRates()
        self._latency: LatencySeries | None = None
        self._latency_stored_s = 0.0
        self._slow: dict[str, Any] = {"rounds": [], "switches": [], "alerts": [], "senders": []}
        self._slow_s = -math.inf
        self._problems: dict[str, str] = {}
        self._judged: dict[str, Any] = {}
        self._judged_s = -math.inf
        self._judging = threading.Lock()
        self._seen_parts: list[Any] = []
        self._content = b"{}"

    def content(self) -> bytes:
        """Return the newest view as JSON; it is made more often while somebody asks for it."""
        first = not self.watched
        self._watched_s = time.monotonic()
        if first:  # nobody is shown what was true when somebody looked last
            self._content = b"{}"
            self._wake.set()
        return self._content

    @property
    def watched(self) -> bool:
        """Return whether somebody looks at the page."""
        return time.monotonic() - self._watched_s < WATCHED_S

    def run(self, beat: Callable[[], None]) -> None:
        """Look again and again until the process ends; `beat` is called each second."""
        due_s = -math.inf
        while True:
            beat()
            if time.monotonic() >= due_s:
                begin_s = time.monotonic()
                try:
                    self.look()
                except Exception as error:  # the page shows how old its content is
                    say(f"cannot look: {error}")
                due_s = begin_s + (SECOND_S if self.watched else IDLE_S)
            if self._wake.wait(min(SECOND_S, max(0.05, due_s - time.monotonic()))):
                self._wake.clear()
                due_s = -math.inf

    def look(self) -> None:
        """Read the sources that are due, and make the content anew."""
        self._from("agent's metrics", self._read_agent)
        if not self.watched:
            return
        running = {name: server for name in parts.PARTS if (server := processes.running(name))}
        shown = [self._part(name, running.get(name)) for name in parts.wanted()]
        self._from("keeper's metrics", lambda: self._read_keeper(running, shown))
        self._from("telemetry", self._read_latency)
        if time.monotonic() - self._slow_s > SELDOM_S:
            self._slow_s = time.monotonic()
            self._from("rounds log", lambda: self._keep("rounds", _rounds()))
            self._from("deploy log", lambda: self._keep("switches", _switches()))
            self._from("alerts", lambda: self._keep("alerts", _alerts()))
            self._from("senders", lambda: self._keep("senders", _senders()))
        self._judge([(one["name"], one["pid"], one["up"]) for one in shown])
        self._content = self._made(shown)

    def _made(self, shown: list[dict[str, Any]]) -> bytes:
        latency = self._latency.seconds() if self._latency else []
        options: Any = None
        with contextlib.suppress(ValueError, OSError):
            options = live_options.read()
        said = {
            "time": time.time(),
            "sender": self._latency.sender if self._latency else None,
            "latency": {
                "at_s": [one.at_s for one in latency],
                "median_ms": [one.median_ms for one in latency],
                "p99_ms": [one.p99_ms for one in latency],
            },
            "rates": self._rates.columns(),
            "versions": self._rates.versions,
            "every_s": options.every_s if options else None,
            "served": _served(),
            "parts": shown,
            "judged": self._judged,
            "judged_ago_s": time.monotonic() - self._judged_s if self._judged else None,
            "prometheus": processes.running(parts.PROMETHEUS) is not None,
            **self._slow,
            "problems": [f"{name}: {line}" for name, line in sorted(self._problems.items())],
        }
        return json.dumps(_plain(said), allow_nan=False).encode()

    def _from(self, source: str, read: Callable[[], None]) -> None:
        """Read a source; an error is noted, and what was read before stays."""
        try:
            read()
            self._problems.pop(source, None)
        except Exception as error:  # a file may hold anything, and this page goes on
            self._problems[source] = redacted(_text(str(error) or type(error).__name__))

    def _keep(self, name: str, found: Any) -> None:
        self._slow[name] = found

    def _read_agent(self) -> None:
        server = processes.running("agent")
        text = page(f"http://{LOOPBACK}:{server.ports['metrics']}/metrics", PAGE_S) if server else None
        if text is None:
            self._rates.forget()
        else:
            self._rates.look(text)

    def _part(self, name: str, server: processes.ServerProcess | None) -> dict[str, Any]:
        told = {"pid": server.pid, "age_s": server.age_s} if server else {"pid": None, "age_s": None}
        return {"name": name, **told, "up": server is not None, "restarts": None}

    def _read_keeper(self, running: dict[str, processes.ServerProcess], shown: list[dict[str, Any]]) -> None:
        """Add what the keeper says of each part: whether it answers, and how often it was started again."""
        server = running.get(parts.KEEPER)
        text = page(f"http://{LOOPBACK}:{server.ports['metrics']}/metrics", PAGE_S) if server else None
        found = samples(text or "")
        for part in shown:
            if part["name"] == parts.KEEPER:
                continue
            up = sample(found, f'swiftqueue_part_up{{part="{part["name"]}"}}')
            restarts = sample(found, f'swiftqueue_part_restarts_total{{part="{part["name"]}"}}')
            part["up"] = part["up"] and up in (None, 1)
            part["restarts"] = None if restarts is None else int(restarts)

    def _read_latency(self) -> None:
        """Follow the sender that was stored last, and stay with it while it is stored."""
        root = telemetry_dir()
        own = self._latency.sender if self._latency else ""
        stored_s = _stored(root, own) if own else None
        if stored_s is None or time.time() - stored_s > WATCHED_S:
            newest = _stored_last(root)
            if newest and newest[0][1] != own:
                self._latency = LatencySeries(root, newest[0][1])
        if self._latency:
            self._latency.look()

    def _judge(self, seen: list[Any]) -> None:
        """Begin a judgement by `swiftqueue status` where one is due and none is under way."""
        ago_s = time.monotonic() - self._judged_s
        changed, self._seen_parts = seen != self._seen_parts, seen
        if changed and ago_s > JUDGE_SOON_S:
            ago_s = math.inf
        if ago_s > JUDGE_S and self._judging.acquire(blocking=False):
            threading.Thread(target=self._ask_status, name="judge", daemon=True).start()

    def _ask_status(self) -> None:
        try:
            ran = subprocess.run(
                ["setpriv", "--pdeathsig", "TERM", SWIFTQUEUE, "status", "--json"],  # it goes with this page
                capture_output=True,
                text=True,
                timeout=STATUS_S,
                check=False,
            )
            self._judged = json.loads(ran.stdout.splitlines()[-1])
            self._problems.pop("judgement", None)
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
            self._problems["judgement"] = redacted(_text(str(error)))
        finally:
            self._judged_s = time.monotonic()
            self._judging.release()


def _rounds() -> list[dict[str, Any]]:
    """Return the newest rounds, each with its outcome, reason and figures of the gate."""
    log = state_dir() / "live" / rounds_log.LOG_FILE
    found = []
    for one in islice(rounds_log.newest_first(log), MOST_ROUNDS):
        seconds = one.get("seconds")
        found.append(
            {
                "number": one["number"],
                "outcome": one["outcome"],
                "reason": _text(one["reason"]),
                "version": one["version"] if isinstance(one["version"], int) else None,
                "parent": one.get("parent") if isinstance(one.get("parent"), int) else None,
                "triggered": _number(one.get("triggered")),
                "packets": _number(one.get("packets")),
                "took_s": _number(seconds.get("total")) if isinstance(seconds, dict) else None,
                "rolled_back": _text(one.get("rolled_back") or ""),
            }
        )
    return found


def _switches() -> list[dict[str, Any]]:
    """Return the newest entries of the deploy log."""
    return [
        {
            "time": _number(one.get("time")),
            "action": _text(one.get("action") or ""),
            "version": one["version"],
            "outcome": _text(one["outcome"]),
            "reason": _text(one["reason"]),
        }
        for one in islice(deploy_log.newest_first(), MOST_SWITCHES)
    ]


def _served() -> dict[str, Any] | None:
    """Return the version that was put in service last, and the seconds since it was registered."""
    try:
        last = deploy_log.last_served()
        return last and {"version": last["version"], "age_s": deploy_log.age_s(last["version"])}
    except (OSError, ValueError):
        return None


def _alerts() -> list[str]:
    return [_text(one.line) for one in status.firing()]


def _stored(root: Path, sender: str) -> float | None:
    """Return when a sender's packets were stored last."""
    try:
        return (sender_dir(root, sender) / MANIFEST).stat().st_mtime
    except OSError:
        return None


def _stored_last(root: Path) -> list[tuple[float, str]]:
    """Return the senders by the time when they were stored last, the newest first."""
    found = [(stored_s, name) for name in senders(root) if (stored_s := _stored(root, name)) is not None]
    return sorted(found, reverse=True)[:MOST_SENDERS]


def _senders() -> list[dict[str, Any]]:
    """Return the senders that were stored last, each with what the store has of it."""
    found = []
    for stored_s, name in _stored_last(telemetry_dir()):
        one: dict[str, Any] = {"name": name, "stored_ago_s": max(0.0, time.time() - stored_s)}
        try:
            manifest = load_manifest(telemetry_dir(), name)
            counts = manifest.counts
            one |= {"sends": counts.sends, "acks": counts.acks, "missing": counts.gaps}
            one |= {"session": newest[0] if (newest := manifest.newest()) else None, "problem": ""}
        except (OSError, ValueError) as error:
            one |= {"sends": None, "acks": None, "missing": None, "session": None}
            one["problem"] = _text(str(error))
        found.append(one)
    return found


def _text(found: object) -> str:
    text = str(found)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _number(found: object) -> float | None:
    """Return a number of a log, or None for anything else that a damaged line may hold."""
    return float(found) if isinstance(found, int | float) and abs(found) < 2**63 else None


def _plain(found: Any) -> Any:
    """Return a value with short numbers, and None for one that JSON has no word for."""
    if isinstance(found, float):
        return round(found, 4) if math.isfinite(found) else None
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_plain(value) for value in found]
    return found
