"""`swiftqueue up --live`: starts every part of the live loop on this machine; `down` stops and cleans up.

    mlflow, triton, ray head, ingest, forwarder, agent with a replaying sender, scheduler, prometheus,
    live page, keeper

The keeper restarts parts that end without being told to. Each part has its record and log in `var/NAME/`.
The options stand in `var/live/up.json`: the keeper and a second `up --live` start missing parts by it,
`status` reports the missing ones, and `down` removes it.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from swiftqueue.common import door
from swiftqueue.common.local_ray import ALONE, LOOPBACK
from swiftqueue.common.program import SWIFTQUEUE
from swiftqueue.common.section import read_all
from swiftqueue.common.settings import settings, variable
from swiftqueue.common.state import drop_scratch, make_scratch, private_file, state_dir
from swiftqueue.infra.local import live_options, live_page, processes, ray_head, status, under_way
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.parts import KEEPER, MLFLOW, OPTIONAL, PAGE, PARTS, PROMETHEUS, TRITON
from swiftqueue.infra.local.servers import start_mlflow, start_stack
from swiftqueue.pipelines.live import DRIFT

ON_RAY: Final = ("ingest", "scheduler")
PARAMS_FILE: Final = Path("params.yaml")
TIMEOUT_S: Final = 420.0  # longest start of a part; 302 s were seen on two cores that 35 programs wanted
PORT_WAIT_S: Final = 3.0  # a killed part's child needs a moment to let go of its port


class NoChampionError(OSError):
    """The registry has no champion to serve yet."""


def start_loop(
    trace: str | None,
    *,
    speed: float,
    every_s: float,
    learn_s: float,
    judge_s: float,
    drift: float = DRIFT,
    retrain: bool = False,
    bed: bool = False,
    make_champion: Callable[[], None] | None = None,
    keeper: bool = True,
) -> None:
    """Start every part that does not run, in order, each when the one before it answers.

    The numbers are those of `LiveOptions`. Without a trace, the one of section `register` is replayed.
    Without a champion, `make_champion` makes and serves one. Without `keeper` the caller becomes the keeper.

    Raises:
        ValueError: a number is out of range.
        NoChampionError: there is no champion and no `make_champion`; nothing was started.
        OSError: trace or agent is missing, or a port is taken; the line says what to do.
        RuntimeError: a part did not start; the parts before it stay up until `down`.
    """
    sections = read_all(PARAMS_FILE)
    params, makes = sections["register"], sections["extract"]["traces"]
    live = live_options.LiveOptions(
        trace or params["trace"], speed, every_s, learn_s, judge_s, drift, retrain, bed
    )
    with under_way.under_way():
        before = live_options.read()
        if before not in (None, live) and any(map(processes.running, ("agent", "scheduler"))):
            print(
                f"the loop was started with {before}; it goes on so (`swiftqueue down` first to change that)"
            )
            live = before or live
        try:
            _check_what_it_needs(live, str(params["model_name"]), makes)
        except NoChampionError:
            if make_champion is None:
                raise
            make_champion()
            _check_what_it_needs(live, str(params["model_name"]), makes)
        if live != before:
            live_options.write(live)
        names = [name for name in PARTS if name != KEEPER or keeper]
        first_s = time.monotonic()
        for number, name in enumerate(names, 1):
            begin_s, place = time.monotonic(), f"[{number}/{len(names)}] {name}"
            if not processes.running(name):
                print(f"{place}: starting", flush=True)
            try:
                start_part(name, live)
            except (OSError, RuntimeError) as error:
                if name not in OPTIONAL:
                    print("what is up stays; to go on, give the same command again", flush=True)
                    raise
                print(f"{name} does not run, the loop does: {error}", flush=True)  # the keeper tries again
            else:
                if name == PROMETHEUS and not _has_prometheus():
                    continue  # its own line said so
                print(f"{place}: up after {time.monotonic() - begin_s:.1f} s", flush=True)
    print(f"the loop is up after {time.monotonic() - first_s:.0f} s", flush=True)
    print("`swiftqueue status` judges it, `swiftqueue down` ends it, `make logs` shows logs")
    print(live_page.where())


def start_part(name: str, live: live_options.LiveOptions) -> None:
    """Start one part unless it runs or is elsewhere; the parts that it needs must run.

    Raises:
        OSError: its port is taken, or a program or file is missing.
        RuntimeError: it did not start.
    """
    starters: dict[str, Callable[[], object]] = {
        MLFLOW: start_mlflow,
        TRITON: start_stack,
        ray_head.NAME: _start_ray,
        "ingest": _start_ingest,
        "forwarder": _start_forwarder,
        "agent": lambda: _start_agent(live),
        "scheduler": lambda: _start_scheduler(live),
        PROMETHEUS: _start_prometheus,
        PAGE: _start_page,
        KEEPER: _start_keeper,
    }
    starters[name]()


def outlived(name: str) -> bool:
    """Return whether a part was started on a Ray head that is gone while another runs by now."""
    server, ray = processes.running(name), processes.running(ray_head.NAME)
    on_ray = name in ON_RAY and not ray_elsewhere()
    return on_ray and server is not None and ray is not None and server.ticks < ray.ticks


def ray_elsewhere() -> bool:
    """Return whether RAY_ADDRESS names a Ray, so that none is started here."""
    return settings().ray_address is not None


def stop_stack() -> None:
    """Stop everything that `up` started, the newest part first, and end an `up` that is under way.

    Raises:
        LockHeldError: another `down` does not end.
    """
    under_way.end_what_is_under_way()
    keeper = processes.stop(KEEPER)  # it may be starting a part
    idle = []
    with under_way.starting(under_way.DOWN_WAIT_S, lambda pid: print(f"another `down` (pid {pid}): waiting")):
        for name in reversed(PARTS):
            if server := keeper if name == KEEPER else processes.stop(name):
                print(f"{name}: stopped (pid {server.pid})", flush=True)
            else:
                idle.append(name)
        clean_up()
    if idle:
        print(f"not running: {', '.join(idle)}")


def clean_up() -> None:
    """Remove the files of the loop once every part has been stopped."""
    drop_scratch()
    (state_dir() / "agent" / "pass.frames").unlink(missing_ok=True)
    live_options.file().unlink(missing_ok=True)


def ray_environment() -> dict[str, str]:
    """Return the variables that lead a part to the loop's Ray: RAY_ADDRESS, or the head of this machine."""
    if address := settings().ray_address:
        return {"RAY_ADDRESS": address}
    server = processes.running("ray")
    number = server.ports["gcs"] if server else settings().ray_port
    ours = door.variables(settings().ingest_port, settings().scheduler_metrics)  # a driver listens, too
    return {"RAY_ADDRESS": f"{LOOPBACK}:{number}", **ALONE, **ours}


def _check_what_it_needs(live: live_options.LiveOptions, model: str, makes: Container[str]) -> None:
    """Check champion, trace, agent and an ingest elsewhere before anything is started.

    The champion is checked last: making it takes minutes, and makes the traces `makes`.

    Raises:
        NoChampionError: only the champion is missing.
        OSError: something else is missing.
    """
    from swiftqueue.models.registry.registry import Registry
    from swiftqueue.models.registry.store import registry_exists
    from swiftqueue.serving.agent import process as agent_process
    from swiftqueue.serving.agent.io.packet_log import open_log
    from swiftqueue.serving.deploy.champion import find_champion
    from swiftqueue.serving.ingest import server as ingest

    if ingest.elsewhere() and not status.ingest_check(ingest.address()):
        raise OSError(f"{ingest.ADDRESS_VARIABLE}: no ingest answers at {ingest.address()}")
    if reason := agent_process.why_not_built():
        raise OSError(f"the loop's sender needs the C++ agent: {reason}")
    champion = registry_exists() and find_champion(Registry(model)).version is not None
    if live.bed:
        from swiftqueue.testbed.host import tcp

        if reason := tcp.why_not():
            raise OSError(f"--bed: {reason}; `swiftqueue bed check` says what this machine can do")
    elif champion or live.trace not in makes:
        open_log(live.trace, 0, None)
    if not champion:
        raise NoChampionError("the registry has no champion; `make run` makes and serves the first one")


def _start_process(
    name: str,
    command: Sequence[str],
    *,
    ready: Callable[[], bool],
    ports: Mapping[str, int] | None = None,
    env: Mapping[str, str] | None = None,
    nice: int = 0,
) -> None:
    """Start a part's process unless it is up."""
    if server := processes.running(name):
        print(f"{name} is up already (pid {server.pid})")
        return
    environment = {**_environment(name), **(env or {})}
    server = processes.start(name, command, ports or {}, environment, ready, TIMEOUT_S, nice=nice)
    where = "".join(f", {kind} {LOOPBACK}:{number}" for kind, number in server.ports.items())
    print(f"{name} is up (pid {server.pid}{where}, log {server.log})", flush=True)


def _environment(name: str) -> dict[str, str]:
    """Return the environment variables that every part gets."""
    return {
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(live_options.temporary()),
        variable("heartbeat"): str(live_options.heartbeat(name)),
    }


def _port(name: str, setting: str) -> int:
    """Return the port of a part by its setting. If the part does not run, the port is checked to be free.

    Raises:
        OSError: another program has the port.
    """
    number: int = getattr(settings(), setting)
    deadline = time.monotonic() + PORT_WAIT_S
    while not processes.running(name):
        try:
            processes.check_port(number, setting)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"{name}: {error}") from error
            time.sleep(0.2)
    return number


def _start_ray() -> None:
    """Start the Ray head, unless RAY_ADDRESS names another."""
    if ray_elsewhere():
        print(f"RAY_ADDRESS is set, so no local Ray is started: {settings().ray_address}")
        return
    if server := processes.running(ray_head.NAME):
        print(f"ray is up already (pid {server.pid})")
        return
    folder = make_scratch() / "ray"
    processes.stop(ray_head.NAME)  # a killed head may have left processes
    shutil.rmtree(folder, ignore_errors=True)
    _port(ray_head.NAME, "ray_port")
    server = ray_head.start(folder, live_options.temporary())
    print(f"ray is up (pid {server.pid}, {ray_environment()['RAY_ADDRESS']}, log {server.log})", flush=True)


def _stop_outlived(name: str) -> None:
    if outlived(name):
        print(f"{name} was on the Ray before this one: started again", flush=True)
        processes.stop(name)


def _start_ingest() -> None:
    from swiftqueue.serving.ingest import server as ingest

    url = ingest.address()
    if ingest.elsewhere():
        print(f"{ingest.ADDRESS_VARIABLE} is set, so no local ingest is started: {url}")
        return
    _stop_outlived("ingest")
    number = settings().ingest_port
    # Ray Serve outlives the program that started it. Another loop's ingest may answer, too.
    ours = ray_elsewhere() or processes.listens(ray_head.NAME, number)
    if not (ours and status.ingest_check(url)):
        number = _port("ingest", "ingest_port")
    _start_process(
        "ingest",
        [SWIFTQUEUE, "part", "ingest"],
        ports={"http": number},
        env={
            **ray_environment(),
            variable("ingest_port"): str(number),
            **dict.fromkeys(ingest.LISTEN_VARIABLES, ""),  # the loop's own listens on loopback, without TLS
        },
        ready=lambda: status.ingest_check(url),
    )


def _start_forwarder() -> None:
    from swiftqueue.serving.ingest.own_socket import listens
    from swiftqueue.serving.ingest.server import address

    _start_process(
        "forwarder",
        [SWIFTQUEUE, "part", "forwarder", str(live_options.telemetry_socket()), address()],
        ready=lambda: listens(live_options.telemetry_socket()),
    )


def _start_agent(live: live_options.LiveOptions) -> None:
    port = _port("agent", "agent_metrics")
    url = f"http://{LOOPBACK}:{port}/metrics"
    options = [f"--telemetry=unix:{live_options.telemetry_socket()}", f"--metrics-port={port}"]
    sender = ["bed"] if live.bed else ["agent", live.trace, f"--speed={live.speed}"]
    _start_process(
        "agent",
        [SWIFTQUEUE, "part", *sender, *options],
        ports={"metrics": port},
        ready=lambda: (status.number(url, 'swiftqueue_agent_batches_total{outcome="decided"}') or 0) > 0,
        nice=processes.AHEAD,
    )


def _start_scheduler(live: live_options.LiveOptions) -> None:
    from swiftqueue.serving.agent.io.frames import heard_name
    from swiftqueue.serving.agent.io.packet_log import open_log
    from swiftqueue.serving.ingest.forwarder import sender_id
    from swiftqueue.serving.ingest.server import telemetry_dir

    _stop_outlived("scheduler")
    port = _port("scheduler", "scheduler_metrics")
    name = f"{live_options.BED}-0" if live.bed else heard_name(open_log(live.trace, 0, None).trace)
    options = {
        "--telemetry": telemetry_dir(),
        "--sender": sender_id(name),
        "--every": live.every_s,
        "--learn": live.learn_s,
        "--judge": live.judge_s,
        "--drift": live.drift,
        "--retrain": "start" if live.retrain else "propose",
        "--metrics-port": port,
    }
    _start_process(
        "scheduler",
        [SWIFTQUEUE, "schedule", *(f"{option}={value}" for option, value in options.items())],
        ports={"metrics": port},
        env={**ray_environment(), variable("metrics_address"): ""},
        ready=lambda: answers(f"http://{LOOPBACK}:{port}/metrics"),
        nice=processes.BEHIND,  # like Ray: a round takes every core for seconds
    )


def _has_prometheus() -> bool:
    return shutil.which("prometheus") is not None


def _start_prometheus() -> None:
    from swiftqueue.infra.local import prometheus

    if not _has_prometheus():
        print("no prometheus here (Debian: apt-get install prometheus): no metrics are kept")
        return
    print(f"prometheus is up at {prometheus.start()}")


def _start_page() -> None:
    port = _port(PAGE, "page_port")
    _start_process(
        PAGE,
        [SWIFTQUEUE, "part", PAGE, f"--port={port}"],
        ports={"http": port},
        env=door.variables(),
        ready=lambda: answers(f"http://{LOOPBACK}:{port}/health"),
        nice=processes.BEHIND,
    )


def keeper_command(metrics_port: int) -> list[str]:
    """Return the command of the keeper and its supervisor."""
    files = str(live_options.file()), str(live_options.heartbeat(KEEPER))
    program = [SWIFTQUEUE, "part", "keeper", f"--metrics-port={metrics_port}"]
    return [sys.executable, "-m", "swiftqueue.infra.local.supervisor", *files, *program]


def stay_as_keeper(child: int) -> NoReturn:
    """Wait for the child that brings the loop up, then become its keeper in this process.

    A signal before the loop is up stops the parts that run.
    """
    told: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        told.append(number)
        os.kill(child, signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    _, ended = os.waitpid(child, 0)
    if told:
        stop_stack()
    if told or ended:
        sys.exit(os.waitstatus_to_exitcode(ended) or 1)
    from swiftqueue.infra.local import prometheus

    processes.stop(KEEPER)  # the keeper of an `up` without systemd
    ports = {"metrics": _port(KEEPER, "keeper_metrics")}
    processes.record(KEEPER, os.getpid(), ports)
    prometheus.update_targets()
    for handle in (1, 2):
        os.dup2(os.open(private_file(processes.log_path(KEEPER)), os.O_WRONLY | os.O_APPEND), handle)
    environment = {**os.environ, **_environment(KEEPER), **processes.marked(KEEPER, ports)}
    command = [SWIFTQUEUE, "part", "keeper", f"--metrics-port={ports['metrics']}"]
    os.execve(command[0], command, environment)  # noqa: S606 - our own program


def _start_keeper() -> None:
    from swiftqueue.infra.local import prometheus

    port = _port(KEEPER, "keeper_metrics")
    _start_process(
        KEEPER,
        keeper_command(port),
        ports={"metrics": port},
        ready=lambda: answers(f"http://{LOOPBACK}:{port}/metrics"),
    )
    prometheus.update_targets()
