"""The live loop as a systemd unit of this user: started at boot, bounded in memory, ended whole.

The unit brings the loop up and then becomes its keeper, which tells systemd that it lives and is restarted
when it does not. The control group holds every part. The keeper mends the loop also where the kernel kills a
part for memory: systemd's OOMPolicy would stop all of it, and so would its KillMode where the keeper ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Final

from swiftqueue.common.settings import PREFIX, variable
from swiftqueue.common.state import state_dir
from swiftqueue.infra.local.under_way import UP_WAIT_S

NAME: Final = "swiftqueue.service"
MEMORY: Final = re.compile(r"[1-9][0-9]*[KMGT]?|[1-9][0-9]?%|100%")
STOP_S: Final = 300
WATCHDOG_S: Final = 90  # the keeper gives a sign of life each second
INHERITED: Final = (PREFIX, "MLFLOW_", "RAY_", "AWS_")  # prefixes of the variables that the unit inherits
TEMPLATE: Final = """\
# Written by `swiftqueue units`; written anew by the same command.
[Unit]
Description=SwiftQueue: the live loop
After=network.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
WatchdogSec={watchdog_s}
KillMode=process
WorkingDirectory={folder}
{environment}
ExecStart={program} up --live --foreground{options}
ExecStop={program} down
TimeoutStartSec={start_s:.0f}
TimeoutStopSec={stop_s}
Restart=always
RestartSec=5
# `swiftqueue down` ends the keeper in order: that is to stay so.
RestartPreventExitStatus=0
MemoryMax={memory}
OOMPolicy=continue

[Install]
WantedBy=default.target
"""


def write_unit(memory: str, options: list[str]) -> Path:
    """Write the unit into this user's systemd folder, and return its path.

    Args:
        memory: most memory of all parts together, as systemd takes it: 12G, 75%.
        options: options of `up --live`.

    Raises:
        ValueError: `memory` is no such amount, or a value holds a character that a unit file cannot.
        OSError: the file cannot be written.
    """
    if not MEMORY.fullmatch(memory):
        raise ValueError(f"--memory {memory!r}: must be as 12G, or as 75%")
    program = Path(sys.executable).with_name("swiftqueue")
    settings = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
    settings = {"PATH": os.environ.get("PATH", os.defpath), **settings, variable("state"): str(state_dir())}
    settings.pop(variable("down"), None)  # set by the `make` that called us
    text = TEMPLATE.format(
        folder=_escaped(str(Path.cwd())),
        environment="\n".join(f"Environment={_quoted(f'{n}={v}')}" for n, v in sorted(settings.items())),
        program=_quoted(str(program)),
        options="".join(f" {_quoted(one)}" for one in options).replace("$", "$$"),  # systemd.service(5)
        start_s=UP_WAIT_S,
        stop_s=STOP_S,
        watchdog_s=WATCHDOG_S,
        memory=memory,
    )
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    path = Path(home) / "systemd" / "user" / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)  # settings may hold a password or a key
    partial.write_text(text)
    partial.replace(path)
    return path


def notify(state: str) -> None:
    """Tell systemd a state, such as READY=1 (sd_notify(3)); do nothing where none asked for it or listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        to.setblocking(False)
        to.sendto(state.encode(), address.replace("@", "\0", 1))


def _quoted(text: str) -> str:
    """Return a word quoted for a unit file (systemd.syntax(7))."""
    return '"' + _escaped(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    if not text.isprintable():
        raise ValueError(f"{text!r}: a systemd unit cannot hold this")
    return text.replace("%", "%%")
