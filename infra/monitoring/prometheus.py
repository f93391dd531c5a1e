"""A local Prometheus that scrapes whatever of the loop runs here, on loopback only.

    python -m infra.monitoring.prometheus start|targets|stop

What to scrape comes from the servers' own records (`var/NAME/server.json`, infra/processes.py): each one
that lists a port named `metrics` is a target, and the ingest. `targets` writes the list anew; Prometheus
sees it within 10 s. The port is SWIFTQUEUE_PROMETHEUS_PORT (9090), state and log lie under `var/prometheus`.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Final

from infra import processes
from infra.pages import answers
from models.state import state_dir
from serving.endpoint import LOOPBACK

NAME: Final = "prometheus"
HERE: Final = Path(__file__).parent
PORT_VARIABLE: Final = "SWIFTQUEUE_PROMETHEUS_PORT"
PORT: Final = 9090
START_TIMEOUT_S: Final = 60.0


def start() -> str:
    """Start Prometheus if it is not up, and return its address.

    Raises:
        OSError: it is not installed, or its port is taken.
        ValueError: the port is not a number.
        RuntimeError: it ended or did not answer.
    """
    if server := processes.running(NAME):
        write_targets()
        return f"http://{LOOPBACK}:{server.ports['http']}"
    program = shutil.which("prometheus")
    if program is None:
        raise OSError("prometheus is not installed; on Debian: apt-get install prometheus")
    port = processes.chosen_port(PORT_VARIABLE, PORT)
    processes.check_port(port, PORT_VARIABLE)
    folder = write_configuration(port)
    write_targets()
    url = f"http://{LOOPBACK}:{port}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=7d",
        f"--web.listen-address={LOOPBACK}:{port}",
        "--web.enable-lifecycle",
        "--log.level=warn",
    ]
    ready = f"{url}/-/ready"
    processes.start(NAME, command, {"http": port}, {}, lambda: answers(ready), START_TIMEOUT_S)
    return url


def write_configuration(port: int) -> Path:
    """Put configuration and rules into `var/prometheus`; returns that folder."""
    folder = state_dir() / NAME
    shutil.copytree(HERE / "rules", folder / "rules", dirs_exist_ok=True)
    text = (HERE / "prometheus.yaml").read_text().replace("${PORT}", str(port))
    (folder / "prometheus.yaml").write_text(text)
    return folder


def targets() -> list[tuple[processes.Server, str]]:
    """The servers that run here and can be scraped, each with its address."""
    found = []
    for record in sorted(state_dir().glob("*/server.json")):
        server = processes.running(record.parent.name)
        if server is None or server.name == NAME:
            continue
        # The ingest answers scrapes at the port where it takes telemetry.
        kind = "http" if _job(server.name) == "ingest" and "metrics" not in server.ports else "metrics"
        if kind in server.ports:
            found.append((server, f"{LOOPBACK}:{server.ports[kind]}"))
    return found


def write_targets() -> list[dict[str, object]]:
    """Write `targets.json` from the records of the servers that run, and return its content."""
    found: list[dict[str, object]] = [
        {"targets": [address], "labels": {"job": _job(server.name)}} for server, address in targets()
    ]
    path = state_dir() / NAME / "targets.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(found, indent=1) + "\n")
    partial.replace(path)
    return found


def _job(name: str) -> str:
    """Job of a server: `agent-2` and `agent` are both agents."""
    return name.split("-")[0]


def main(action: str) -> None:
    """Do what the command line says."""
    if action == "start":
        print(f"prometheus is up at {start()}")
    elif action == "targets":
        for target in write_targets():
            print(json.dumps(target))
    elif action == "stop":
        server = processes.stop(NAME)
        print(f"prometheus: stopped (pid {server.pid})" if server else "prometheus: not running")
    else:
        raise ValueError(f"{action!r} is not start, targets or stop")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) == 2 else "")
    except (ValueError, OSError, RuntimeError) as error:
        sys.exit(f"monitoring: {error}")
