"""`swiftqueue agent`: runs the C++ agent for programs that send, and keeps its local model fresh."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from swiftqueue.common import lock
from swiftqueue.common.atomic import new_folder
from swiftqueue.common.settings import settings
from swiftqueue.common.state import private_dir, state_dir
from swiftqueue.models.registry.decision import FILES_TAG
from swiftqueue.models.registry.registry import Registry
from swiftqueue.models.registry.saving import sha256
from swiftqueue.models.registry.store import RegistryError
from swiftqueue.serving.agent import process as agent_process
from swiftqueue.serving.deploy.champion import find_champion
from swiftqueue.serving.deploy.served_models import served_model
from swiftqueue.serving.triton.endpoint import grpc_addresses
from swiftqueue.serving.triton.repository import LATENCY

PARAMS_FILE: Final = Path("params.yaml")
REFRESH_S: Final = 2.0  # seconds between looks at the registry
FETCH_S: Final = 60.0  # longest time that another agent may take to fetch the same version
KEPT: Final = 2  # versions on disk: the served one and the one before it


class LocalChampion:
    """The registry's champion as a folder of this machine: `var/agent/champion`, a link to `var/agent/N`.

    A version appears by one rename and is served by moving the link, so the agent never sees half of one. A
    registry that was made anew may give the same number to other files, so the files are compared, too.
    """

    def __init__(self, registry: Registry, folder: Path, kind: str = LATENCY) -> None:
        self._registry = registry
        self._folder = folder
        self._kind = kind
        self._files = ""  # FILES_TAG of the linked version, once it was looked at
        self.name = "champion" if kind == LATENCY else f"champion of {kind}s"
        self.link = folder / "champion"

    def refresh(self) -> int:
        """Fetch the champion if it is a new one; return its version.

        Raises:
            RegistryError: the registry does not answer, or has no champion that may be served.

        """
        found = find_champion(self._registry, self._kind)
        version = found.version
        if version is None:
            makes = "`swiftqueue run` or `swiftqueue deploy` makes one"
            if self._kind != LATENCY:
                makes = f"`swiftqueue deploy --model {self._kind}` makes one"
            raise RegistryError(found.astray or f"the registry has no {self.name}; {makes}")
        files = self._registry.tags(version)[FILES_TAG]
        if (self.version(), self._files) != (version, files):
            private_dir(self._folder)
            target = self._folder / str(version)
            with lock.held(self._folder / "lock", "another agent", FETCH_S):
                if not _holds(target, json.loads(files)):
                    with new_folder(target) as partial:
                        self._registry.fetch(version, partial)
            link = self._folder / f".champion.{os.getpid()}"
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)
            link.replace(self.link)
            self._files = files
            self._remove_old(version)
        return version

    def version(self) -> int | None:
        """Return the version that the link names; None before the first."""
        return int(self.link.readlink().name) if self.link.is_symlink() else None

    def _remove_old(self, serving: int) -> None:
        versions = [path for path in self._folder.iterdir() if path.name.isdigit() and path.is_dir()]
        newest_first = sorted(versions, key=lambda path: path.stat().st_mtime, reverse=True)
        others = [path for path in newest_first if path.name != str(serving)]
        for path in others[KEPT - 1 :]:
            shutil.rmtree(path)

    def keep_fresh(self, closing: threading.Event) -> None:
        """Refresh every two seconds; print one line while the registry is silent, and keep the model."""
        said = ""
        while not closing.wait(REFRESH_S):
            before = self.version()
            try:
                version = self.refresh()
                line = f"{self.name} is version {version}" if version != before else ""
            except Exception as error:  # whatever the registry's client raises, the agent goes on
                line = f"the registry: {error}; {self.name} {before} goes on"
            if line and line != said:
                print(line, flush=True)
            said = line


def _holds(folder: Path, files: dict[str, str]) -> bool:
    """Return whether a folder has these files, by name and SHA-256."""
    return all((folder / name).is_file() and sha256(folder / name) == files[name] for name in files)


def run_agent(
    listen: Path,
    *,
    servers: Sequence[str],
    local: bool,
    rule: str | None = None,
    deadline_us: int,
    metrics_port: int | None,
    telemetry: str | None,
    guard: bool | None = None,
    guard_growth: float | None = None,
    guard_advantage: float | None = None,
    max_moved_unacked: int | None = None,
    max_moved_share: float | None = None,
    rule_stands_in: bool = False,
) -> int:
    """Run the agent until it ends or is told to; return its exit code.

    Args:
        listen: unix socket for senders (docs/AGENT.md).
        servers: Triton servers in order of preference (default: those that `swiftqueue deploy` pushes to).
        local: whether to ask no server but the engine in the agent's process, with the registry's champion.
        rule: rule that decides in a model's place, `last-latency`; None asks a model.
        deadline_us: longest wait in µs for batches that name no due time.
        metrics_port: port of its Prometheus endpoint, at SWIFTQUEUE_METRICS_ADDRESS; 0 takes a
            free one, None means no endpoint.
        telemetry: `unix:PATH` of a socket, or a file, that gets its senders' packets and ACKs.
        guard: whether moving stops where it is not settled to help; None: unless there is a rule.
        guard_growth: most growth of the rate while packets are moved, as a share; None is the agent's own.
        guard_advantage: most growth of a moved flow's rate beside that of a classic one, likewise.
        max_moved_unacked: most packets moved and not acknowledged yet; None is the agent's own.
        max_moved_share: or this share of the packets in flight, where that is more; None is the agent's own.
        rule_stands_in: whether the virtual queue decides batches that have no answer.

    Raises:
        ValueError: options exclude each other or are out of range.
        OSError: there is no champion to begin with.
        RuntimeError: the agent is not built.

    """
    if reason := agent_process.why_not_built():
        raise RuntimeError(reason)
    if bool(servers) + local + (rule is not None) > 1:
        raise ValueError("--server, --local and --rule exclude each other")
    options: dict[str, Any] = {"--listen": listen, "--deadline-us": deadline_us}
    options |= {"--metrics-port": metrics_port, "--telemetry": telemetry}
    options |= {"--guard": None if guard is None else "on" if guard else "off"}
    options |= {"--guard-growth": guard_growth, "--guard-advantage": guard_advantage}
    options |= {"--max-moved-unacked": max_moved_unacked, "--max-moved-share": max_moved_share}
    if metrics_port is not None:
        options["--metrics-address"] = str(settings().metrics_address)
    arguments = [f"{name}={value}" for name, value in options.items() if value is not None]
    if rule_stands_in:
        arguments.append("--rule-stands-in")
    champion = None
    if local:
        champion = LocalChampion(Registry(served_model(LATENCY).params().model_name), state_dir() / "agent")
        print(f"{champion.name} is version {champion.refresh()}", flush=True)
        arguments += [f"--local={champion.link}", f"--arithmetic={settings().arithmetic}"]
    elif rule is not None:
        arguments.append(f"--rule={rule}")
    else:
        arguments += agent_process.server_options(servers or grpc_addresses())
    return attend([str(agent_process.BINARY), *arguments], champion)


def attend(command: Sequence[str], champion: LocalChampion | None) -> int:
    """Run an agent until it ends or is told to, and keep its local model fresh; return its exit code."""
    closing = threading.Event()
    with subprocess.Popen(command) as agent:
        # Told to end, this program tells the agent; the terminal's Ctrl-C reaches both.
        signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        keeper = None
        if champion:
            keeper = threading.Thread(target=champion.keep_fresh, args=(closing,), name=champion.name)
            keeper.start()
        code = agent.wait()
    closing.set()
    if keeper:
        keeper.join()
    return code
