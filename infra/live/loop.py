"""`swiftqueue up --live`: every part of the live loop on this machine, and what `down` has to clean up.

    mlflow, triton, ray head, ingest, forwarder, agent with a replaying sender, scheduler, prometheus, keeper

The keeper starts again what ends without having been told to. Each part has its record and log in
`var/NAME/`. What was asked for is in `var/live/up.json`: keeper and a second `up --live` start what is
missing of it, `status` misses what does not run, `down` removes it.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import yaml

from infra import processes
from infra.live import health, plan, ray_head
from infra.pages import answers
from infra.stack import KEEPER, MLFLOW, PARTS, TRITON, start_mlflow, start_stack
from models.state import state_dir
from serving.endpoint import LOOPBACK

AGENT_VARIABLE: Final = "SWIFTQUEUE_AGENT_METRICS"
AGENT_PORT: Final = 9200
SCHEDULER_VARIABLE: Final = "SWIFTQUEUE_SCHEDULER_METRICS"
SCHEDULER_PORT: Final = 9201
KEEPER_VARIABLE: Final = "SWIFTQUEUE_KEEPER_METRICS"
KEEPER_PORT: Final = 9202
ON_RAY: Final = ("ingest", "scheduler")
PARAMS_FILE: Final = Path("params.yaml")
TIMEOUT_S: Final = 180.0  # of a part's start; 30 s were seen on a busy machine
PORT_WAIT_S: Final = 3.0  # a killed part's child needs a moment to let go of its port


class NoChampionError(OSError):
    """There is nothing to serve yet."""


def start_loop(
    trace: str | None,
    *,
    speed: float,
    every_s: float,
    learn_s: float,
    judge_s: float,
    drift: float = plan.DRIFT,
    retrain: bool = False,
) -> None:
    """Start every part that does not run, in order, each when the one before it answers.

    Raises:
        ValueError: a number out of range.
        NoChampionError: there is none yet; nothing was started.
        OSError: no trace or agent, or a port is taken; the line says what to do.
        RuntimeError: a part did not start; those before it stay, `down` stops them.
    """
    params = yaml.safe_load(PARAMS_FILE.read_text())["register"]
    live = plan.Live(trace or params["trace"], speed, every_s, learn_s, judge_s, drift, retrain)
    with plan.starting():
        before = plan.asked()
        if before not in (None, live) and any(map(processes.running, ("agent", "scheduler"))):
            print(
                f"the loop was started with {before}; it goes on so (`swiftqueue down` first to change that)"
            )
            live = before or live
        _check_what_it_needs(live, str(params["model_name"]))
        if live != before:
            plan.write_asked(live)
        plan.make_scratch()
        for name in PARTS:
            start_part(name, live)
    print(
        "the loop is up: `swiftqueue status` judges it, `make logs` shows its logs, `swiftqueue down` ends it"
    )


def start_part(name: str, live: plan.Live) -> None:
    """Start one part unless it runs, or is elsewhere; those that it needs are to run.

    Raises:
        OSError: its port is taken, or something is not here.
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
        "prometheus": _start_prometheus,
        KEEPER: _start_keeper,
    }
    starters[name]()


def outlived(name: str) -> bool:
    """Whether a part was started on a Ray head that is gone, and another runs by now."""
    server, ray = processes.running(name), processes.running(ray_head.NAME)
    on_ray = name in ON_RAY and not os.environ.get("RAY_ADDRESS")
    return on_ray and server is not None and ray is not None and server.ticks < ray.ticks


def clean_up() -> None:
    """Remove what is not to stay once every part has been stopped."""
    shutil.rmtree(plan.scratch(), ignore_errors=True)
    (state_dir() / "agent" / "pass.frames").unlink(missing_ok=True)
    plan.asked_file().unlink(missing_ok=True)


def ray_address() -> str:
    """Address of the Ray that the loop uses: RAY_ADDRESS, or the head of this machine."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address
    server = processes.running("ray")
    number = server.ports["gcs"] if server else processes.chosen_port(ray_head.PORT_VARIABLE, ray_head.PORT)
    return f"{LOOPBACK}:{number}"


def _check_what_it_needs(live: plan.Live, model: str) -> None:
    """Look for champion, trace, agent and an ingest elsewhere before anything is started.

    Raises:
        OSError: one of them is missing.
    """
    from models.registry import CHAMPION, Registry, registry_exists
    from serving import agent_process
    from serving.ingest import server as ingest
    from serving.packet_log import open_log

    if ingest.elsewhere() and not health.ingest_check(ingest.address()):
        raise OSError(f"{ingest.ADDRESS_VARIABLE}: no ingest answers at {ingest.address()}")
    if reason := agent_process.why_not_built():
        raise OSError(f"the loop's sender needs the C++ agent: {reason}")
    if not registry_exists() or Registry(model).alias(CHAMPION) is None:
        raise NoChampionError("the registry has no champion; `make run` makes and serves the first one")
    open_log(live.trace, 0, None)


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
    environment = {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(plan.temporary())}
    environment |= env or {}
    server = processes.start(name, command, ports or {}, environment, ready, TIMEOUT_S, nice=nice)
    where = "".join(f", {kind} {LOOPBACK}:{number}" for kind, number in server.ports.items())
    print(f"{name} is up (pid {server.pid}{where}, log {server.log})", flush=True)


def _port(name: str, variable: str, default: int) -> int:
    """Port of a part; where the part does not run, one that is free.

    Raises:
        OSError: another program has it.
    """
    number = processes.chosen_port(variable, default)
    deadline = time.monotonic() + PORT_WAIT_S
    while not processes.running(name):
        try:
            processes.check_port(number, variable)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise OSError(f"{name}: {error}") from error
            time.sleep(0.2)
    return number


def _start_ray() -> None:
    """Start the Ray head, unless RAY_ADDRESS names another."""
    if os.environ.get("RAY_ADDRESS"):
        print(f"RAY_ADDRESS is set, so no local Ray is started: {ray_address()}")
        return
    if server := processes.running(ray_head.NAME):
        print(f"ray is up already (pid {server.pid})")
        return
    folder = plan.scratch() / "ray"
    processes.stop(ray_head.NAME)  # what a killed head left
    shutil.rmtree(folder, ignore_errors=True)
    _port(ray_head.NAME, ray_head.PORT_VARIABLE, ray_head.PORT)
    server = ray_head.start(folder, plan.temporary())
    print(f"ray is up (pid {server.pid}, {ray_address()}, log {server.log})", flush=True)


def _stop_outlived(name: str) -> None:
    if outlived(name):
        print(f"{name} was on the Ray before this one: started again", flush=True)
        processes.stop(name)


def _start_ingest() -> None:
    from serving.ingest import server as ingest

    url = ingest.address()
    if ingest.elsewhere():
        print(f"{ingest.ADDRESS_VARIABLE} is set, so no local ingest is started: {url}")
        return
    _stop_outlived("ingest")
    number = ingest.port()
    if not health.ingest_check(url):  # Ray Serve goes on where only the program that started it was killed
        number = _port("ingest", ingest.PORT_VARIABLE, ingest.PORT)
    _start_process(
        "ingest",
        [sys.executable, "-m", "serving.ingest.server"],
        ports={"http": number},
        env={"RAY_ADDRESS": ray_address(), ingest.PORT_VARIABLE: str(number)},
        ready=lambda: health.ingest_check(url),
    )


def _start_forwarder() -> None:
    from serving.ingest.server import address

    if not processes.running("forwarder"):
        plan.telemetry_socket().unlink(missing_ok=True)  # of one that was killed: nobody listens at it
    _start_process(
        "forwarder",
        [sys.executable, "-m", "serving.ingest.forwarder", str(plan.telemetry_socket()), address()],
        ready=plan.telemetry_socket().is_socket,
    )


def _start_agent(live: plan.Live) -> None:
    port = _port("agent", AGENT_VARIABLE, AGENT_PORT)
    url = f"http://{LOOPBACK}:{port}/metrics"
    options = [f"--speed={live.speed}", f"--telemetry={plan.telemetry_socket()}", f"--metrics-port={port}"]
    _start_process(
        "agent",
        [sys.executable, "-m", "infra.live.sender", live.trace, *options],
        ports={"metrics": port},
        ready=lambda: (health.number(url, 'swiftqueue_agent_batches_total{outcome="decided"}') or 0) > 0,
        nice=processes.AHEAD,
    )


def _start_scheduler(live: plan.Live) -> None:
    from serving.ingest.forwarder import sender_id
    from serving.ingest.server import telemetry_dir
    from serving.packet_log import open_log

    _stop_outlived("scheduler")
    port = _port("scheduler", SCHEDULER_VARIABLE, SCHEDULER_PORT)
    options = {
        "--telemetry": telemetry_dir(),
        "--sender": sender_id(open_log(live.trace, 0, None).trace),
        "--every": live.every_s,
        "--learn": live.learn_s,
        "--judge": live.judge_s,
        "--drift": live.drift,
        "--retrain": "start" if live.retrain else "propose",
        "--metrics-port": port,
    }
    program = Path(sys.executable).with_name("swiftqueue")
    _start_process(
        "scheduler",
        [str(program), "schedule", *(f"{option}={value}" for option, value in options.items())],
        ports={"metrics": port},
        env={"RAY_ADDRESS": ray_address()},
        ready=lambda: answers(f"http://{LOOPBACK}:{port}/metrics"),
        nice=processes.BEHIND,  # as Ray is: a round takes every core for seconds
    )


def _start_prometheus() -> None:
    from infra.monitoring import prometheus

    if shutil.which("prometheus") is None:
        print(
            "no prometheus here (Debian: apt-get install prometheus): metrics are served, nobody keeps them"
        )
        return
    print(f"prometheus is up at {prometheus.start()}")


def _start_keeper() -> None:
    port = _port(KEEPER, KEEPER_VARIABLE, KEEPER_PORT)
    _start_process(
        KEEPER,
        [sys.executable, "-m", "infra.live.keeper", f"--metrics-port={port}"],
        ports={"metrics": port},
        ready=lambda: answers(f"http://{LOOPBACK}:{port}/metrics"),
    )
    if processes.running("prometheus"):
        from infra.monitoring import prometheus

        prometheus.write_targets()
