"""The main job behind `make run`: it runs the pipeline, deploys, replays a trace, says where to look next."""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from swiftqueue.infra.local.under_way import under_way

AGENT_DEADLINE_US = 2_000
PYTHON_DEADLINE_US = 20_000  # a Python client on a busy core needs it
REPLAY_SECONDS = 20.0  # long enough to see sharp changes
SHORT_REPLAY_SECONDS = 8.0  # seconds of a replay of a version that an earlier run already replayed


def run_main_job(*, speed: float) -> int:
    """Run every step in order; return the exit code of the first that fails, or 0.

    Each step is idempotent: DVC skips stages whose inputs did not change, `up` leaves a running server
    alone, and a version that is served already is not pushed again.
    """
    from swiftqueue.serving.agent import process as agent_process
    from swiftqueue.serving.agent.replay import replay_trace

    if not (math.isfinite(speed) and speed >= 0):
        raise ValueError(f"--speed {speed}: must be 0 (as fast as possible) or above")
    console, root, begun = Console(), Path.cwd(), time.monotonic()
    before = _registered(root)
    with under_way():
        code = _make_and_serve(console, root, steps=4)
    if code:
        return code
    registered = _registered(root)
    trace = registered["trace"]
    seconds = SHORT_REPLAY_SECONDS if registered == before else REPLAY_SECONDS
    duration_s = json.loads((root / "data/split.json").read_text())["traces"][trace]["duration_s"]
    console.rule("4/4  a sender replays the end of a trace against it, at the trace's own pace")
    start = max(0.0, duration_s - seconds)  # past the slices that the encoder was trained on
    # The agent asks one deadline before a batch is due: the shorter the deadline, the more ACKs it has seen.
    deadline_us = PYTHON_DEADLINE_US if agent_process.why_not_built() else AGENT_DEADLINE_US
    code = replay_trace(
        trace, speed=speed, deadline_us=deadline_us, start=start, seconds=seconds, as_json=False
    )
    console.print(what_served_it())
    _print_where_to_look(console, time.monotonic() - begun)
    return code


def _registered(root: Path) -> dict[str, Any]:
    """Return what stage `register` last said of trace and version; nothing before its first run."""
    path = root / "data/models/registered.json"
    said = json.loads(path.read_text()) if path.is_file() else {}
    return {name: said.get(name) for name in ("trace", "version")} if said else {}


def make_first_champion() -> None:
    """Run the main job up to a served champion; exit with the pipeline's code if it fails."""
    print("the registry has no champion: the main job makes the first one (minutes)", flush=True)
    if code := _make_and_serve(Console(), Path.cwd(), steps=3):
        sys.exit(code)


def _make_and_serve(console: Console, root: Path, steps: int) -> int:
    """Run pipeline, server and deployment, which are the first three of `steps` steps."""
    from swiftqueue.common.section import read
    from swiftqueue.infra.local.servers import start_stack
    from swiftqueue.pipelines.experiments.dvc_command import reproduce_side_by_side, run_dvc
    from swiftqueue.pipelines.simulate import SimulateParams
    from swiftqueue.serving.deploy.deployment import deploy_version

    if not (root / "dvc.yaml").is_file():
        console.print(f"{root} holds no dvc.yaml: run this in the project's folder")
        return 2
    console.rule(f"1/{steps}  pipeline: traces to a registered model (DVC)")
    simulations = [f"simulate@{seed}" for seed in read(root / "params.yaml", SimulateParams).seeds]
    if code := reproduce_side_by_side(simulations, root) or run_dvc(["repro"], root):
        console.print("The pipeline stopped at the stage named above; mend it and run this again.")
        return code
    console.rule(f"2/{steps}  local Triton server")
    start_stack(none_yet="no version is served yet; the next step serves one")
    console.rule(f"3/{steps}  deploy")
    deploy_version(None)
    return 0


def what_served_it() -> str:
    """Return a line that names the backend that answered and the agent that asked, with each fallback."""
    from swiftqueue.serving.agent import process as agent_process
    from swiftqueue.serving.deploy import log as deploy_log
    from swiftqueue.serving.triton.config import Backend
    from swiftqueue.serving.triton.endpoint import Triton

    with Triton() as triton:
        version = triton.served_version()
        if version is None:
            return f"No version is served at {triton.address} any more"
        backend = Backend(triton.config().backend)
    reason = (deploy_log.last_served(version) or {}).get("reason", "")
    why = f" ({reason})" if reason and backend is not Backend.NATIVE else ""
    missing = agent_process.why_not_built()
    agent = f"the Python client ({missing})" if missing else "the C++ agent"
    return f"Version {version} was served by the {backend.label}{why} and asked by {agent}."


def _print_where_to_look(console: Console, seconds: float) -> None:
    title = f"Done in {seconds:,.0f} s. Where to look next:"
    table = Table(title=title, title_justify="left", show_header=False)
    for what, command in (
        ("report: what the model gains and where it loses", "data/evaluation/report/report.html"),
        ("figures, and how they changed", "data/evaluation/metrics.json   |   .venv/bin/dvc metrics diff"),
        (
            "MLflow: runs, versions, lineage",
            ".venv/bin/swiftqueue up --mlflow   (prints the address to open)",
        ),
        ("Triton: version served, a real inference", ".venv/bin/swiftqueue status"),
        ("replay again, faster", ".venv/bin/swiftqueue replay TRACE --speed 4"),
        ("your own capture", ".venv/bin/swiftqueue trace add FILE   then   make run"),
        ("stop the servers", "make down"),
    ):
        table.add_row(what, command)
    console.print(table)
