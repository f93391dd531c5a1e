"""A local Prometheus that scrapes every part of the loop that runs here, on loopback only.

    swiftqueue monitor prometheus start|targets|stop

The scrape targets come from the servers' own records (`var/NAME/server.json`, infra/local/processes.py): each
record with a port named `metrics` is a target, and so is the ingest. `targets` writes the list anew, and
Prometheus sees it within 10 s. SWIFTQUEUE_PROMETHEUS_PORT sets the port (9090); state and log lie under
`var/prometheus`. Alerts go to the Alertmanager that SWIFTQUEUE_ALERTMANAGER names (HOST:PORT).

Prometheus answers only requests with user `swiftqueue` and the password in `var/secrets/prometheus`: its
`/debug/pprof` cannot be switched off and shows its memory to any user, and a query may take all memory.
"""

from __future__ import annotations

import ctypes
import json
import re
import secrets
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import yaml

from swiftqueue.common.atomic import write_file
from swiftqueue.common.settings import settings, variable
from swiftqueue.common.state import private_dir, private_file, secret, secret_file, state_dir
from swiftqueue.infra.local import processes
from swiftqueue.infra.local.pages import answers
from swiftqueue.infra.local.parts import PROMETHEUS
from swiftqueue.infra.local.prometheus_query import PASSWORD, USER, own_request
from swiftqueue.serving.triton.endpoint import LOOPBACK

CONFIGURATION: Final = Path(__file__).resolve().parents[1] / "monitoring"
ALERTMANAGER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):([1-9][0-9]{0,4})")
START_TIMEOUT_S: Final = 60.0
WEB: Final = "web.yaml"  # file with the user and the password's hash
PART: Final = "__part"  # a label that Prometheus drops, like any label with this prefix


def start() -> str:
    """Start Prometheus if it is not up, and return its address.

    Raises:
        OSError: Prometheus is not installed, or its port is taken.
        ValueError: SWIFTQUEUE_ALERTMANAGER is no address.
        RuntimeError: Prometheus ended or did not answer.
    """
    if server := processes.running(PROMETHEUS):
        write_targets()
        return f"http://{LOOPBACK}:{server.ports['http']}"
    program = shutil.which("prometheus")
    if program is None:
        raise OSError("prometheus is not installed; on Debian: apt-get install prometheus")
    port = settings().prometheus_port
    processes.check_port(port, "prometheus_port")
    folder = write_configuration(port)
    write_targets()
    url = f"http://{LOOPBACK}:{port}"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        "--storage.tsdb.retention.time=7d",
        f"--web.listen-address={LOOPBACK}:{port}",
        f"--web.config.file={folder / WEB}",
        "--web.read-timeout=10s",  # longest silence of a client
        "--log.level=warn",
    ]
    processes.start(PROMETHEUS, command, {"http": port}, {}, lambda: is_ready(url), START_TIMEOUT_S)
    return url


def is_ready(url: str) -> bool:
    """Return whether our Prometheus at an address answers."""
    return answers(own_request(f"{url}/-/ready"))


def write_configuration(port: int) -> Path:
    """Write configuration and rules into `var/prometheus`, and return that folder.

    Raises:
        ValueError: SWIFTQUEUE_ALERTMANAGER is no address.
        OSError: the password cannot be made, or others may read it.
    """
    alerting = _alerting()
    folder = private_dir(state_dir() / PROMETHEUS)
    rules = folder / "rules"
    shutil.copytree(CONFIGURATION / "rules", rules, copy_function=shutil.copyfile, dirs_exist_ok=True)
    text = (CONFIGURATION / "prometheus.yaml").read_text().replace("${PORT}", str(port))
    text = text.replace("${PASSWORD_FILE}", str(secret_file(PASSWORD)))
    (folder / "prometheus.yaml").write_text(text + alerting)
    users = {"basic_auth_users": {USER: _bcrypt(secret(PASSWORD))}}
    private_file(folder / WEB).write_text(yaml.safe_dump(users))
    return folder


def _bcrypt(password: str) -> str:
    """Return a password's bcrypt hash for Prometheus; a random password of 256 bits needs no slow hash.

    Raises:
        OSError: this machine's libcrypt has no bcrypt.
    """
    library = ctypes.CDLL("libcrypt.so.1")
    library.crypt.restype = ctypes.c_char_p
    salt = b"$2b$04$" + secrets.token_hex(11).encode()[:21] + b"u"  # the last digit has two bits that count
    hashed: bytes | None = library.crypt(password.encode(), salt)
    if hashed is None or not hashed.startswith(salt[:7]):
        raise OSError("libcrypt.so.1 has no bcrypt, which Prometheus' password needs; Debian: libcrypt1")
    return hashed.decode()


def _alerting() -> str:
    """Return the configuration's section about alerts; empty where no Alertmanager is named."""
    address = settings().alertmanager
    if not address:
        return ""
    if not ALERTMANAGER.fullmatch(address):
        raise ValueError(f"{variable('alertmanager')}={address!r} is not HOST:PORT")
    managers = [{"static_configs": [{"targets": [address]}]}]
    return "\n" + yaml.safe_dump({"alerting": {"alertmanagers": managers}})


def targets() -> list[tuple[processes.ServerProcess, str]]:
    """Return the servers that run here and can be scraped, each with its address."""
    found = []
    for record in sorted(state_dir().glob("*/server.json")):
        server = processes.running(record.parent.name)
        if server is None or server.name == PROMETHEUS:
            continue
        # The ingest answers scrapes at its telemetry port.
        kind = "http" if _job(server.name) == "ingest" and "metrics" not in server.ports else "metrics"
        if kind in server.ports:
            found.append((server, f"{LOOPBACK}:{server.ports[kind]}"))
    return found


def write_targets(*, keep: bool = False) -> list[dict[str, object]]:
    """Write `targets.json` from the records of the servers that run, and return its content.

    With `keep` the previous targets stay: an ended server is still scraped, so that an alert reports it. A
    port is dropped when its server runs again elsewhere, or when another server has it now.
    """
    file = state_dir() / PROMETHEUS / "targets.json"
    up = targets()
    found: list[dict[str, object]] = [
        {"targets": [address], "labels": {"job": _job(server.name), PART: server.name}}
        for server, address in up
    ]
    if keep and file.is_file():
        taken = {server.name for server, _ in up} | {address for _, address in up}
        former = json.loads(file.read_text())
        found += [one for one in former if not taken & {one["labels"].get(PART), *one["targets"]}]
    write_file(file, json.dumps(found, indent=1) + "\n")
    return found


def update_targets() -> None:
    """Add the servers that started since the list was written, if Prometheus runs."""
    if processes.running(PROMETHEUS):
        write_targets(keep=True)


def _job(name: str) -> str:
    """Return the job of a server: `agent-2` and `agent` both belong to job `agent`."""
    return name.split("-")[0]


class Action(StrEnum):
    """An action of `swiftqueue monitor prometheus`."""

    start = "start"
    targets = "targets"
    stop = "stop"


def main(
    action: Annotated[Action, typer.Argument(help="action; `targets` follows a server's start or stop")],
) -> None:
    """Start or stop the local Prometheus, or rewrite its list of targets.

    Example: swiftqueue monitor prometheus start
    """
    match action:
        case Action.start:
            print(f"prometheus is up at {start()}")
        case Action.targets:
            for target in write_targets():
                print(json.dumps(target))
        case Action.stop:
            server = processes.stop(PROMETHEUS)
            print(f"prometheus: stopped (pid {server.pid})" if server else "prometheus: not running")
