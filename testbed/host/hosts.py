"""Two hosts and the router between them, for the duration of a `with` block.

Namespaces and devices have no names: they are gone when the last process in them is, and each process ends
with its parent. So nothing stays but a killed run's folder, which `clean` removes, whichever process is
killed, and several beds on one machine do not meet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from swiftqueue.common.process_start import state_and_start
from swiftqueue.testbed.host.programs import ROUTER, why_not_built

ADDRESS_B: Final = "10.77.0.2"
DEVICE: Final = "tun0"
PRIORITY: Final = 20  # SCHED_FIFO priority of the router, where it is given
TRAFFIC_PRIORITY: Final = 10  # below the router's, which takes the core from a sender that shares it
# Waking up takes 30 to 60 us, so the program waits awake for the last moment before a packet is due. The
# kernel takes the core from a real-time program that never sleeps for 50 ms of each second
# (sched_rt_runtime_us): hence a share of a packet's time.
SPIN_SHARE: Final = 0.4
MOST_SPIN_US: Final = 250.0
STOP_S: Final = 10.0
OWNER: Final = "OWNER_OF_THE_BED"  # variable in a router's environment: the process that it is to end with
PREFIX: Final = "sq-bed "  # prefix of a run folder's name; its owner follows


class Bed:
    """The router as a child process; `a` and `b` start commands on its hosts."""

    def __init__(
        self,
        *,
        rate_mbps: float,
        delay_ms: float = 10.0,
        jitter_ms: float = 0.0,
        cross_mbps: float = 0.0,
        seed: int = 1,
        log: Path | None = None,
        queue: Mapping[str, object] | None = None,
        rule: Mapping[str, object] | None = None,
        more: Sequence[str] = (),
    ) -> None:
        """Keep the parameters of the router.

        Args:
            rate_mbps: rate of the link from host a to host b, Mbit/s.
            delay_ms: one-way delay in both directions, ms.
            jitter_ms: largest random additional delay from a to b, in order, ms.
            cross_mbps: classic Poisson traffic that shares the queue, Mbit/s.
            seed: seed of jitter, cross traffic and random marks.
            log: file that gets every packet (`router_log.py`).
            queue: parameters of the queue by name, as `l_step_ms` (docs/TESTBED.md).
            rule: rule for moving packets to the classic queue: `rule-port`, `move-share` or `move-margin-us`.
            more: further words of the router's command.

        Raises:
            RuntimeError: the router is not built.
            ValueError: a rate is not above 0.

        """
        if not rate_mbps > 0:
            raise ValueError(f"rate_mbps {rate_mbps:g}: must be above 0")
        if reason := why_not_built(ROUTER):
            raise RuntimeError(reason)
        options: dict[str, object] = {"rate-mbps": rate_mbps, "delay-ms": delay_ms, "jitter-ms": jitter_ms}
        options |= {
            "spin-us": min(SPIN_SHARE * 1500 * 8 / rate_mbps, MOST_SPIN_US),
            "cross-mbps": cross_mbps,
            "seed": seed,
            "priority": PRIORITY,
            "log": log,
        } | dict(rule or {})
        given = [f"--{name}={value}" for name, value in options.items() if value is not None]
        queue_options = [f"--set={name}={value}" for name, value in (queue or {}).items()]
        self._command = [str(ROUTER), *given, *queue_options, *more]
        self.summary: dict[str, Any] = {}

    def __enter__(self) -> Bed:
        self._complaints = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self._command,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env=os.environ | {OWNER: _owner()},
        )
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            self.process.wait()
            self._complaints.seek(0)
            reason = self._complaints.read().strip() or f"it ended with {self.process.returncode}"
            self._complaints.close()
            raise RuntimeError(f"the router: {reason}")
        self.ready: dict[str, Any] = json.loads(line)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            out, _err = self.process.communicate(timeout=STOP_S)
            with contextlib.suppress(ValueError):
                self.summary = json.loads(out)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
        self._complaints.close()

    def now_ns(self) -> int:
        """Return the time of the router's clock, as its log has it."""
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def a(self, *command: object) -> list[str]:
        """Return the words that start a command on host a."""
        return self._on("a", command)

    def b(self, *command: object) -> list[str]:
        """Return the words that start a command on host b."""
        return self._on("b", command)

    def _on(self, host: str, command: tuple[object, ...]) -> list[str]:
        pid = self.ready["pid"]
        enter = ["nsenter", f"--net=/proc/{pid}/fd/{self.ready[host]}"]
        if os.geteuid() != 0:
            enter += [f"--user=/proc/{pid}/ns/user", "--preserve-credentials"]
        # Set after entering the namespace, which clears it: the command ends with its parent.
        return [*enter, "setpriv", "--pdeathsig", "KILL", *map(str, command)]


def _owner() -> str:
    """Return an identity of this process that no later process or other container shares."""
    return f"{os.readlink('/proc/self/ns/pid')} {os.getpid()} {_began(os.getpid())}"


def _is_gone(owner: str) -> bool:
    """Return whether the process that `_owner` named has ended; another PID namespace's counts as alive."""
    namespace, pid, began = owner.rsplit(" ", 2)
    return namespace == os.readlink("/proc/self/ns/pid") and _began(int(pid)) != began


def _began(pid: int) -> str:
    """Return when a process began, in ticks since boot; empty if it ended."""
    try:
        state, ticks = state_and_start(pid)
    except OSError:
        return ""
    return "" if state == "Z" else str(ticks)


def run_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder for a run's files, after removing those of killed runs (`clean`)."""
    clean()
    return tempfile.TemporaryDirectory(prefix=f"{PREFIX}{_owner()} ")


def leftovers() -> list[int | Path]:
    """Return the folders of killed runs, and the routers of this project whose owner is gone.

    A router outlives its owner only in rare cases, whoever adopted it: PID 1, or a subreaper. A router whose
    owner is PID 1 itself is no leftover.
    """
    import psutil

    found: list[int | Path] = [
        folder
        for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}pid:*")
        if os.access(folder, os.W_OK) and _is_gone(folder.name.removeprefix(PREFIX).rpartition(" ")[0])
    ]
    for process in psutil.process_iter(["exe"]):
        if process.info["exe"] != str(ROUTER.resolve()):
            continue
        with contextlib.suppress(psutil.Error):
            owner = process.environ().get(OWNER)
            if owner is not None and _is_gone(owner):
                found.append(process.pid)
    return found


def clean() -> list[int | Path]:
    """End and remove everything that `leftovers` finds; return it."""
    import psutil

    found = leftovers()
    for one in found:
        if isinstance(one, Path):
            shutil.rmtree(one, ignore_errors=True)
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(one).kill()
    return found
