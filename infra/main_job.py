"""The main job behind `make run`: pipeline, deploy, replay, and where to look next."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

AGENT_DEADLINE_US = 2_000
PYTHON_DEADLINE_US = 20_000  # a Python client on a busy core needs it
REPLAY_SECONDS = 20.0  # long enough to see sharp changes, short enough for a second run in under a minute


def run_main_job(*, speed: float) -> int:
    """Run every step in order and return the exit code of the first that fails, or 0.

    Each step is idempotent: DVC skips stages whose inputs did not change, `up` leaves a running server
    alone, and a version that is served already is not pushed again.
    """
    from serving import agent_process
    from serving.replay import replay_trace

    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(f"--speed {speed}: must be 0 (as fast as possible) or above")
    console, root, begun = Console(), Path.cwd(), time.monotonic()
    if code := _make_and_serve(console, root, steps=4):
        return code
    trace = json.loads((root / "data/models/registered.json").read_text())["trace"]
    duration_s = json.loads((root / "data/windows/meta.json").read_text())["traces"][trace]["duration_s"]
    console.rule("4/4  a sender replays the end of a trace against it, at the trace's own pace")
    start = max(0.0, duration_s - REPLAY_SECONDS)  # past the slices that the encoder was trained on
    # The agent asks its deadline before a batch is due: the sooner, the less it sees of what came before.
    deadline_us = PYTHON_DEADLINE_US if agent_process.why_not_built() else AGENT_DEADLINE_US
    code = replay_trace(
        trace, speed=speed, deadline_us=deadline_us, start=start, seconds=REPLAY_SECONDS, as_json=False
    )
    console.print(what_served_it())
    _print_where_to_look(console, time.monotonic() - begun)
    return code


def make_first_champion() -> int:
    """Run the main job up to a served champion; return 0, or what the pipeline ended with."""
    return _make_and_serve(Console(), Path.cwd(), steps=3)


def _make_and_serve(console: Console, root: Path, steps: int) -> int:
    """Pipeline, server and deployment, the first three of so many steps."""
    from infra.dvc_command import run_dvc
    from infra.stack import start_stack
    from serving.deploy import deploy_version

    if not (root / "dvc.yaml").is_file():
        console.print(f"{root} holds no dvc.yaml: run this in the project's folder")
        return 2
    console.rule(f"1/{steps}  pipeline: traces to a registered model (DVC)")
    if code := run_dvc(["repro"], root):
        console.print("The pipeline stopped at the stage named above; mend it and run this again.")
        return code
    console.rule(f"2/{steps}  local Triton server")
    start_stack(mlflow=False)
    console.rule(f"3/{steps}  deploy")
    deploy_version(None)
    return 0


def what_served_it() -> str:
    """Return a line: which backend answered, which agent asked, and why where it is not the usual one."""
    from serving import agent_process, deploy_log
    from serving.endpoint import Triton
    from serving.push import served_version
    from serving.triton_config import Backend

    with Triton() as triton:
        version = served_version(triton)
        if version is None:
            return f"No version is served at {triton.address} any more"
        backend = Backend(triton.config().backend)
    reason = (deploy_log.last_served(version) or {}).get("reason", "")
    why = f" ({reason})" if reason and backend is not Backend.NATIVE else ""
    missing = agent_process.why_not_built()
    agent = f"the Python client ({missing})" if missing else "the C++ agent"
    return f"Version {version} was served by the {backend.label}{why} and asked by {agent}."


def _print_where_to_look(console: Console, seconds: float) -> None:
    table = Table(
        title=f"Done in {seconds:,.0f} s. Where to look next:", title_justify="left", show_header=False
    )
    for what, command in (
        ("report: what the model gains and where it loses", "data/evaluation/report/report.html"),
        ("figures, and how they changed", ".venv/bin/dvc metrics show   |   .venv/bin/dvc plots show"),
        (
            "MLflow: runs, versions, lineage",
            ".venv/bin/swiftqueue up --mlflow   (it prints the address to open)",
        ),
        ("Triton: version served, a real inference", ".venv/bin/swiftqueue status"),
        ("replay again, faster", ".venv/bin/swiftqueue replay TRACE --speed 4"),
        ("your own capture", ".venv/bin/swiftqueue trace add FILE   then   make run"),
        ("stop the servers", "make down"),
    ):
        table.add_row(what, command)
    console.print(table)
