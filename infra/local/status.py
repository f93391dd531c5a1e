"""`swiftqueue status`: judges each part by what it does, not by its presence."""

from __future__ import annotations

import contextlib
import json
import math
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from threading import Thread
from typing import Any, Final

from swiftqueue.common.state import state_dir
from swiftqueue.infra.local import live_options, parts, processes, prometheus, ray_head, under_way
from swiftqueue.infra.local.disk import disk
from swiftqueue.infra.local.judgement import BOUND_S, Alert, Judgement, duration
from swiftqueue.infra.local.pages import answers, metrics, sample
from swiftqueue.infra.local.parts import KEEPER, MLFLOW, PAGE, PARTS, TRITON
from swiftqueue.infra.local.prometheus_query import QueryError, ask
from swiftqueue.infra.local.served import judge_alias, judge_mlflow, judge_tritons
from swiftqueue.infra.local.status_screen import ALERT, CAUSE, show, watching
from swiftqueue.pipelines.live.rounds_log import LOG_FILE, OUTCOMES, newest_first
from swiftqueue.serving.deploy.hold import held
from swiftqueue.serving.deploy.log import last_served
from swiftqueue.serving.ingest import server as ingest
from swiftqueue.serving.triton.endpoint import LOOPBACK, START_IT, elsewhere
from swiftqueue.serving.triton.repository import LATENCY, MODELS

FLOWS: Final = {"agent": "batches decided", "forwarder": "events stored by the ingest"}
NEEDS: Final = {"forwarder": ("ray", "ingest")}  # parts that store what a flow counts
GROWTH_WAIT_S: Final = 8.0  # a new pass of the sender takes a second or two to begin
# Wait beyond BOUND_S for counts that must grow, and for Ray's judge, which a busy machine starts slowly.
LONGER_S: Final = {**dict.fromkeys(FLOWS, GROWTH_WAIT_S), ray_head.NAME: ray_head.CHECK_TIMEOUT_S}
LOOK_S: Final = 1.0
# Parts that a part depends on, the causes first: the top line names the first unwell one.
RESTS_ON: Final[dict[str, tuple[str, ...]]] = {
    TRITON: (),
    MLFLOW: (),
    ray_head.NAME: (),
    "ingest": (ray_head.NAME,),
    "forwarder": ("ingest",),
    "agent": (TRITON,),
    "scheduler": (ray_head.NAME, "ingest", "forwarder", "agent", MLFLOW, TRITON),
    "prometheus": (),
    PAGE: (),
    KEEPER: (),
}
LOOP: Final = "loop"  # part name of the line that nothing runs
SEVERITIES: Final = ("page", "ticket")
# Alerts that others follow from, as the rest of the table in docs/OPERATIONS.md follows from these.
CAUSES: Final = (
    "TritonDown",
    "DiskFull",
    "PartDown",
    "PartSilent",
    "PartCannotStart",
    "DiskFills",
    "NoTelemetry",
)
WATCH_S: Final = 2.0  # seconds between two judgements of `--watch`
RAY_AGAIN_S: Final = 30.0  # seconds in which a watched Ray that answers is not tried by a write again
SCRAPED_S: Final = 30.0  # six scrapes: a single slow one is no failure
ROUND_LATE_S: Final = 600.0  # a round waits up to 300 s for its workers and 120 s for their work


def print_status(*, as_json: bool = False, kind: str = "") -> int:
    """Print what is not well, what to do, and what is well; return 0 if all that run are well.

    With a `kind`, as `--model` names it, only what serves that model.
    """
    judged = judge(kind)
    well = all(one.well for one in judged)
    if as_json:
        keys = {Judgement: ("part", "well", "line"), Alert: ("name", "severity", "line")}
        said: dict[type, list[dict[str, Any]]] = {Judgement: [], Alert: []}
        for one in judged:
            said[type(one)].append({key: getattr(one, key) for key in keys[type(one)]})
        told = {"well": well, "parts": said[Judgement], "alerts": said[Alert], "do": what_to_do(judged)}
        print(json.dumps(told))
    else:
        show(judged, what_to_do(judged))
    return 0 if well else 1


def watch_status(kind: str = "") -> None:
    """Show the status again and again, WATCH_S after the one before has been judged, until Ctrl-C."""
    with contextlib.suppress(KeyboardInterrupt), watching() as redraw:
        while True:
            judged = judge(kind)
            redraw(judged, what_to_do(judged))
            time.sleep(WATCH_S)


def judge(kind: str = "") -> list[Judgement]:
    """Return the judgement of each part, and first the one that explains the rest, if there is one."""
    kinds = [kind] if kind else [one for one in MODELS if one == LATENCY or last_served(kind=one)]
    asking: list[Callable[[], Sequence[Judgement]]] = []
    for which in kinds:
        asking += [partial(judge_tritons, which), partial(_hold, which)]
    asking += [judge_mlflow] if kind else [_under_way, judge_mlflow, firing]
    with ThreadPoolExecutor() as pool:  # no silent part delays another
        judging_parts = None if kind else pool.submit(judge_parts)
        asked_all = [pool.submit(ask_one) for ask_one in asking]
        judged = [one for answer in asked_all for one in answer.result()]
        of_parts = judging_parts.result() if judging_parts else []
    missing = {one.part for one in of_parts if not one.well}
    judged = [one for one in judged if one.part.split(",")[0] not in missing] + of_parts
    if processes.running(KEEPER):
        mends = "the keeper restarts it if it stays silent"
        judged = [replace(one, line=one.line.replace(START_IT, mends)) for one in judged]
    if not kind and (nothing := _nothing_runs(judged)):
        return explain(judged) + nothing
    if all(one.well for one in judged if one.part == MLFLOW):  # without an answer the alias is unknown
        judged += [one for which in kinds for one in judge_alias(which)]
    return ([] if kind else explain(judged)) + judged


def _nothing_runs(judged: list[Judgement]) -> list[Judgement]:
    """Return the one line that says all where nothing was started, or `down` has ended it."""
    unwell = any(one.part == TRITON and not one.well for one in judged) and not elsewhere()
    if not unwell or live_options.read() or any(map(processes.running, (*PARTS, under_way.NAME))):
        return []
    ended = "" if under_way.last_down() == "none" else " (`swiftqueue down` ended it)"
    return [Judgement(False, f"nothing runs{ended}", LOOP, "start it: swiftqueue up --live")]


def what_to_do(judged: list[Judgement]) -> list[str]:
    """Return the next steps where something is unwell, the first one first."""
    unwell = [one.part for one in judged if not one.well]
    if not unwell:
        return []
    roots = [one for one in judged if not one.well and one.part != CAUSE and not _follows(one.part, unwell)]
    remedies = list(dict.fromkeys(one.remedy for one in roots if one.remedy))
    if any(one.part == under_way.NAME for one in judged):
        return ["wait: an `up` is under way, and starts what is missing"]
    if disk().full:
        return [f"make room on the disk: du -sh {state_dir()}/*"]
    root = next((name for name in RESTS_ON if any(one.split(",")[0] == name for one in unwell)), "")
    log = processes.log_path(root) if root else None
    steps = [f"read why: tail -50 {log}"] if log and log.is_file() else []
    if all(one.remedy for one in roots):
        return [*remedies, *steps]
    if live_options.read() is None:
        only_served = all(one.split(",")[0] in (TRITON, "registry") for one in unwell)
        return [*steps, f"start it: swiftqueue up{'' if only_served else ' --live'}"]
    if processes.running(KEEPER) is None:
        return ["start the keeper and what is missing: swiftqueue up --live", *steps]
    waits = "the keeper starts what has ended within seconds, and what is silent after a minute"
    return [
        f"wait: {waits}",
        *remedies,
        *steps,
        "start it anew if it stays so: swiftqueue down; swiftqueue up --live",
    ]


def explain(judged: list[Judgement]) -> list[Judgement]:
    """Return one line that explains the rest where something is unwell: a full disk, or a part below."""
    unwell = {one.part for one in judged if not one.well}
    here = disk()
    if here.full:
        return [Judgement(False, f"the disk is full: {here}", CAUSE)]
    for name in RESTS_ON:
        # Triton's lines name their server and model.
        below = sorted(other for other in unwell & RESTS_ON.keys() if _rests_on(other, name))
        if below and any(part == name or part.startswith(f"{name},") for part in unwell):
            line = f"{name}, below; what rests on it is mended with it: {', '.join(below)}"
            return [Judgement(False, line, CAUSE)]
    return []


def _follows(part: str, unwell: list[str]) -> bool:
    return any(_rests_on(part, other.split(",")[0]) for other in unwell)


def _rests_on(part: str, other: str) -> bool:
    return any(one == other or _rests_on(one, other) for one in RESTS_ON.get(part, ()))


def judge_parts() -> list[Judgement]:
    """Judge each part that runs or ought to, all at the same time.

    A silent part is waited for BOUND_S; counts that must grow, and a Ray that is there, get LONGER_S more.
    """
    live = live_options.read()
    running = {name: server for name in PARTS if (server := processes.running(name))}
    expected = parts.wanted() if live else []
    judges = {name: partial(_JUDGES[name], server) for name, server in running.items() if name in _JUDGES}
    judges |= {name: partial(_judge_flow, name, running) for name in FLOWS if name in running}
    judged = _in_time(judges)
    lines = []
    for name in PARTS:
        if name in judged:
            lines.append(judged[name])
        elif name in expected and name not in running:
            lines.append(Judgement(False, _why_missing(name, KEEPER in running), name))
    idle = [name for name in PARTS if name not in (*running, MLFLOW, TRITON)]  # those two said so themselves
    if idle and not live:
        line = f"{', '.join(idle)}; the whole loop: swiftqueue up --live"
        lines.append(Judgement(True, line, "not started"))
    return lines


def _why_missing(name: str, kept: bool) -> str:
    stolen = _stolen(name)
    if kept and not stolen:
        return f"the keeper is starting it (log {processes.log_path(KEEPER)})"
    if not processes.record_path(name).exists():
        if processes.running(under_way.NAME):
            return "not started yet"
        return f"was never started, or did not start (log {processes.log_path(name)}); swiftqueue up --live"
    heals = "the keeper starts it" if kept else "swiftqueue up --live"
    return f"was started and is gone{stolen} (log {processes.log_path(name)}); {heals}"


def _stolen(name: str) -> str:
    """Return which ports of a lost part a stranger's program has, as the end of a sentence; empty if none."""
    try:
        ports = processes.read_record(processes.record_path(name)).ports
    except (OSError, ValueError):
        return ""
    taken = [
        f"{port}"
        for port in ports.values()
        if not processes.is_free(port) and not any(processes.listens(one, port) for one in PARTS)
    ]
    return f", and another program has its port {' and '.join(taken)}" if taken else ""


def _in_time(judges: Mapping[str, Callable[[], Judgement]]) -> dict[str, Judgement]:
    """Run all judges at the same time; a judge without an answer within its bound counts as unwell."""
    found: dict[str, Judgement] = {}

    def judge(name: str, one: Callable[[], Judgement]) -> None:
        found[name] = one()

    threads = {name: Thread(target=judge, args=(name, one), daemon=True) for name, one in judges.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + BOUND_S
    for name in sorted(threads, key=lambda name: name in FLOWS):  # these judges watch a count grow
        asked_too = [other for other in NEEDS.get(name, ()) if other in judges]
        stuck = [other for other in asked_too if not found[other].well]
        wait_s = 0.0 if stuck else LONGER_S.get(name, 0.0)
        threads[name].join(max(0.0, deadline + wait_s - time.monotonic()))
        late = f"no answer within {BOUND_S + wait_s:g} s"
        if stuck:
            late = f"cannot be judged while {stuck[0]} does not answer"
        # A late answer that comes while others are waited for takes its place.
        found.setdefault(name, Judgement(False, late))
    return {name: replace(found[name], part=name) for name in judges}


def number(url: str, series: str) -> float | None:
    """Return a series' value on a page of metrics; None where page or series is missing."""
    return sample(metrics(url) or {}, series)


def last_rounds() -> list[dict[str, Any]]:
    """Return the last two finished rounds of `var/live/rounds.jsonl`, the newest first."""
    return list(islice(newest_first(state_dir() / "live" / LOG_FILE), 2))


def ingest_check(url: str, timeout_s: float = 10) -> bool:
    """Return whether the ingest writes into its store and reads it back."""
    return answers(urllib.request.Request(f"{url}/v1/check", b"", method="POST"), timeout_s)  # noqa: S310


_ray_tried: dict[tuple[int, int], tuple[float, Judgement]] = {}  # last good judgement of a Ray head


def _ray(server: processes.ServerProcess) -> Judgement:
    address = f"{LOOPBACK}:{server.ports['gcs']}"
    if not ray_head.alive(address, BOUND_S):
        return Judgement(False, f"no answer at {address}")
    head = server.pid, server.ticks
    tried_s, before = _ray_tried.get(head, (-math.inf, None))
    if before is None or time.monotonic() - tried_s > RAY_AGAIN_S:  # a write costs five seconds of a core
        before = Judgement(*ray_head.check(address))
        _ray_tried.clear()
        if before.well:
            _ray_tried[head] = time.monotonic(), before
    return before


def _page(server: processes.ServerProcess) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['http']}"
    if not answers(f"{url}/health", BOUND_S):
        return Judgement(False, f"no answer at {url} (log {server.log})")
    return Judgement(True, f"answers at {url}; `swiftqueue monitor page` prints the address with its key")


def _ingest(server: processes.ServerProcess) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['http']}"
    begin = time.perf_counter()
    well = ingest_check(url, BOUND_S)
    took_ms = (time.perf_counter() - begin) * 1e3
    return Judgement(well, f"{f'a write and a read in {took_ms:.0f} ms' if well else 'no answer'} at {url}")


def _scheduler(server: processes.ServerProcess) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['metrics']}/metrics"
    told = metrics(url)
    if told is None or sample(told, "swiftqueue_served_version") is None:
        return Judgement(False, f"no answer at {url} (log {server.log})")
    ended = sum(sample(told, f'swiftqueue_rounds_total{{outcome="{outcome}"}}') or 0 for outcome in OUTCOMES)
    rounds = last_rounds() if ended else []  # otherwise the last round belongs to an earlier scheduler
    live = live_options.read()
    if not rounds or rounds[0].get("ended_boot_s") is None:
        late = live is not None and server.age_s > live.every_s + ROUND_LATE_S
        return Judgement(not late, f"no round has ended yet; metrics at {url}")
    last = rounds[0]
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - last["ended_boot_s"]
    version = f" version {last['version']}" if last["version"] else ""
    reason = last["reason"].removesuffix(f"; {START_IT}")  # the advice is out of date
    line = f"round {last['number']} {last['outcome']}{version}, ended {duration(age_s)} ago: {reason}"
    late = live is not None and age_s > live.every_s + ROUND_LATE_S
    failing = {one["outcome"] for one in rounds} == {"failed"}  # one after a good one may be chance
    soon = f" within {duration(live.every_s)}" if live else ""
    again = (
        "" if late else f"wait: the next round tries again{soon}; the failed one's reason says what it needs"
    )
    return Judgement(not failing and not late, line, remedy=again)


def _prometheus(server: processes.ServerProcess) -> Judgement:
    """Judge whether every target was scraped of late; a Prometheus that has just started has time."""
    url = f"http://{LOOPBACK}:{server.ports['http']}"
    try:
        query = f"max_over_time(up[{SCRAPED_S:.0f}s])"
        found = ask(url, "query", timeout_s=BOUND_S, query=query)["result"]
    except QueryError:
        return Judgement(False, f"no answer at {url}")
    well = {one["metric"]["instance"] for one in found if one["value"][1] == "1"}
    down = [
        f"{part.name} ({address})"
        for part, address in prometheus.targets()
        if address not in well and min(part.age_s, server.age_s) > SCRAPED_S
    ]
    line = f"{len(well)} of {len(found)} targets answer its scrapes, {url}"
    if not found:
        young = f"has scraped nothing yet, {duration(server.age_s)} after its start, {url}"
        return Judgement(server.age_s < SCRAPED_S, young)
    return Judgement(not down, f"{line}; not scraped: {', '.join(down)}" if down else line)


def _keeper(server: processes.ServerProcess) -> Judgement:
    url = f"http://{LOOPBACK}:{server.ports['metrics']}/metrics"
    series = [f'swiftqueue_part_restarts_total{{part="{name}"}}' for name in parts.wanted()]
    told = metrics(url)
    if told is None:
        waits = "wait: the keeper itself is started again within seconds, one that hangs after 90 s"
        return Judgement(False, f"no answer at {url} (log {server.log})", remedy=waits)
    restarts = sum(sample(told, one) or 0 for one in series)
    said = "1 restart" if restarts == 1 else f"{restarts:.0f} restarts"
    return Judgement(True, f"{said} of parts so far (log {server.log})")


_JUDGES: Final[dict[str, Callable[[processes.ServerProcess], Judgement]]] = {
    "ray": _ray,
    "ingest": _ingest,
    "scheduler": _scheduler,
    "prometheus": _prometheus,
    PAGE: _page,
    KEEPER: _keeper,
}


class _Growth:
    """A watch on counts of a metrics page until one of them has grown."""

    def __init__(self, url: str, *series: str) -> None:
        self._url, self._series = url, series
        self._base: float | None = None
        self._since = 0.0
        self.per_s = math.nan  # NaN until it has grown

    def look(self) -> None:
        """Read the page once more; a smaller count belongs to a restarted process."""
        told = metrics(self._url, BOUND_S) or {}
        found = [value for one in self._series if (value := sample(told, one)) is not None]
        now = time.monotonic()
        if not found or not math.isnan(self.per_s):
            return
        if self._base is None or sum(found) < self._base:
            self._base, self._since = sum(found), now
        elif sum(found) > self._base:
            self.per_s = (sum(found) - self._base) / (now - self._since)

    @property
    def seen(self) -> bool:
        """Return whether the page answered at all."""
        return self._base is not None


def _judge_flow(name: str, running: Mapping[str, processes.ServerProcess]) -> Judgement:
    """Judge agent or forwarder by a count that must grow: decided batches, or stored events."""
    what, url = FLOWS[name], ""
    series: tuple[str, ...] = ()
    agent, local = running.get("agent"), running.get("ingest")
    if name == "agent":
        url = f"http://{LOOPBACK}:{running[name].ports['metrics']}/metrics"
        series = ('swiftqueue_agent_batches_total{outcome="decided"}',)
    elif agent and (local or ingest.elsewhere()):
        base = f"http://{LOOPBACK}:{local.ports['http']}" if local else ingest.address()
        url = f"{base}/metrics"
        series = tuple(f'swiftqueue_ingest_events_total{{kind="{kind}"}}' for kind in ("ack", "send"))
    log = f"(log {processes.log_path(name)})"
    growth = _Growth(url, *series)
    deadline = time.monotonic() + GROWTH_WAIT_S
    while url and math.isnan(growth.per_s) and time.monotonic() < deadline:
        growth.look()
        if not growth.seen:
            break
        time.sleep(LOOK_S if math.isnan(growth.per_s) else 0.0)
    if not math.isnan(growth.per_s):
        return Judgement(True, f"{growth.per_s:,.0f} {what} per second{_version(running, name)}")
    if not growth.seen:
        return Judgement(False, f"no metrics to judge it by {log}")
    since = f", the last {ago}" if name == "forwarder" and (ago := _last_stored()) else ""
    return Judgement(False, f"no {what} in the {GROWTH_WAIT_S:.0f} s that it was watched{since} {log}")


def _last_stored() -> str:
    """Return how long ago telemetry was stored last; empty where none is, or the store is elsewhere."""
    manifests = (ingest.telemetry_dir() / "packets").glob("trace=*/manifest.json")
    stored_s = [file.stat().st_mtime for file in manifests]
    return f"{duration(max(0.0, time.time() - max(stored_s)))} ago" if stored_s else ""


def _version(running: Mapping[str, processes.ServerProcess], name: str) -> str:
    if name != "agent":
        return ""
    page = f"http://{LOOPBACK}:{running[name].ports['metrics']}/metrics"
    version = number(page, "swiftqueue_agent_server_version")
    return "" if version is None else f", by version {version:.0f}"


def _under_way() -> list[Judgement]:
    server = processes.running(under_way.NAME)
    line = f"an `up` or `run` is under way (pid {server.pid}) for {duration(server.age_s)}" if server else ""
    return [Judgement(True, line, under_way.NAME)] if server else []


def _hold(kind: str) -> list[Judgement]:
    try:
        kept = held(kind)
    except ValueError as error:
        return [Judgement(False, str(error), "hold")]
    return [Judgement(True, f"{kept} (for {duration(time.time() - kept.time)})", "hold")] if kept else []


def firing() -> list[Alert]:
    """Return the firing alerts of the local Prometheus, the worst first and causes before their effects.

    Alerts do not change the parts' own judgements.
    """
    server = processes.running("prometheus")
    if server is None:
        return []
    try:
        found = ask(f"http://{LOOPBACK}:{server.ports['http']}", "alerts", timeout_s=BOUND_S)["alerts"]
        firing = sorted((one for one in found if one["state"] == "firing"), key=_rank)
        return [_alert(one["labels"], one["annotations"]) for one in firing]
    except (QueryError, LookupError, TypeError):  # Prometheus' own line says so
        return []


def _alert(labels: Mapping[str, str], told: Mapping[str, str]) -> Alert:
    name, severity = labels["alertname"], labels.get("severity", "")
    do = told.get("action", "docs/OPERATIONS.md says what to do")
    line = f"{name} ({severity}): {told.get('summary', '')}; {do}"
    return Alert(True, line, ALERT, name=name, severity=severity)


def _rank(alert: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return an alert's sort key: its severity, whether it is a cause of others, then its name."""
    labels = alert["labels"]
    severity, name = labels.get("severity"), labels["alertname"]
    worst = SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)
    return worst, CAUSES.index(name) if name in CAUSES else len(CAUSES), name
