"""`swiftqueue bed check`: tries what this machine can do for the test bed, and gives each reason.

A check that needs a network runs in a namespace of its own, which ends with its process.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from swiftqueue.testbed.host import dscp_rules
from swiftqueue.testbed.host.programs import (
    DCTCP,
    DCTCP_OBJECT,
    HOLDER,
    MARK_OBJECT,
    MARKER,
    ROUTER,
    why_not_built,
)

BTF: Final = Path("/sys/kernel/btf/vmlinux")
TRY_S: Final = 60.0
_OPEN_TUN: Final = """
import fcntl, os, struct
fcntl.ioctl(os.open("/dev/net/tun", os.O_RDWR), 0x400454CA, struct.pack("16sH22x", b"sqtry", 0x1001))
"""


@dataclass(frozen=True)
class Capability:
    """A capability of this machine, with the reason why it has it or not."""

    name: str
    what_for: str
    can: bool
    reason: str

    @property
    def why_not(self) -> str | None:
        """Return the reason if the machine cannot, None if it can."""
        return None if self.can else f"{self.name}: {self.reason}"


def own_network() -> list[str]:
    """Return the words that start a command in its own network namespace, as root there."""
    return ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def check() -> list[Capability]:
    """Try every capability; this takes a few seconds."""
    return [capability(name) for name in _TRIALS]


@functools.cache
def capability(name: str) -> Capability:
    """Try one capability, once in a process.

    Raises:
        KeyError: there is no capability of this name.

    """
    what_for, trial = _TRIALS[name]
    can, reason = trial()
    return Capability(name, what_for, can, reason)


def _runs(command: Sequence[str], well: str) -> tuple[bool, str]:
    """Return whether a command succeeds, with `well` or its last line."""
    if shutil.which(command[0]) is None and not Path(command[0]).is_file():
        return False, f"no {command[0]} here"
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TRY_S, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{command[0]} did not end in {TRY_S:.0f} s"
    if ran.returncode == 0:
        return True, well
    said = (ran.stderr.strip() or ran.stdout.strip() or f"exit code {ran.returncode}").splitlines()[-1]
    return False, said


def _namespace() -> tuple[bool, str]:
    how = "as root" if os.geteuid() == 0 else "in a user namespace"
    return _runs([*own_network(), "true"], f"made {how}")


def _tun() -> tuple[bool, str]:
    return _runs([*own_network(), sys.executable, "-c", _OPEN_TUN], "made in a namespace of its own")


def _router() -> tuple[bool, str]:
    if reason := why_not_built(ROUTER):
        return False, reason
    can, reason = _tun()
    return (True, "built, and has its devices") if can else (False, reason)


def _tc_bpf() -> tuple[bool, str]:
    if reason := why_not_built(MARKER, MARK_OBJECT):
        return False, reason
    script = 'ip link set lo up && "$0" attach lo "$1" && "$0" detach lo'
    command = [*own_network(), "sh", "-c", script, str(MARKER), str(MARK_OBJECT)]
    return _runs(command, "attached to a loopback and taken off")


def _btf() -> tuple[bool, str]:
    return (True, str(BTF)) if os.access(BTF, os.R_OK) else (False, f"{BTF} is not readable")


def _dctcp() -> tuple[bool, str]:
    if reason := why_not_built(HOLDER, DCTCP_OBJECT):
        return False, reason
    return _runs([str(HOLDER), "check", str(DCTCP_OBJECT), DCTCP], "the kernel takes ours, by struct_ops")


def _dualpi2() -> tuple[bool, str]:
    add = ["tc", "qdisc", "add", "dev", "lo", "root", "dualpi2"]
    return _runs([*own_network(), *add], "Linux's own queue takes a loopback")


def _real_time() -> tuple[bool, str]:
    return _runs(["chrt", "-f", "1", "true"], "SCHED_FIFO is given")


def _uplinks() -> tuple[bool, str]:
    can, reason = _router()
    if not can:
        return can, reason
    script = 'ip link add sqtry type veth peer name sqtry2 && "$0" "$1" 0 100 46 101'
    command = [*own_network(), "sh", "-c", script, sys.executable, dscp_rules.__file__]
    return _runs(command, "the kernel routes by DSCP, and joins namespaces")


def _compiler() -> tuple[bool, str]:
    clang = shutil.which("clang")
    if clang is None:
        return False, "no clang here; on Debian: apt-get install clang libbpf-dev libelf-dev"
    return True, clang


def _ecn() -> tuple[bool, str]:
    script = "echo 1 > /proc/sys/net/ipv4/tcp_ecn"
    can, reason = _runs([*own_network(), "sh", "-c", script], "tcp_ecn=1 is taken")
    if not can:
        return can, reason
    controls = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    return True, f"tcp_ecn=1 is taken; congestion controls: {', '.join(controls)}"


_TRIALS: Final[dict[str, tuple[str, Callable[[], tuple[bool, str]]]]] = {
    "namespaces": ("two hosts on this one", _namespace),
    "tun": ("the links of the router", _tun),
    "router": ("bed selfcheck, bed run", _router),
    "real_time": ("a router that is on time beside other work", _real_time),
    "ecn": ("TCP that is marked instead of dropped", _ecn),
    "compiler": ("building the BPF programs", _compiler),
    "tc_bpf": ("swiftqueue mark: TCP packets marked one by one", _tc_bpf),
    "btf": ("BPF programs that read the kernel's structures", _btf),
    "dualpi2": ("Linux's own queue beside ours; nothing uses it yet", _dualpi2),
    "uplinks": ("bed run uplinks: two links that a DSCP chooses between", _uplinks),
    "dctcp": ("bed run figure8: L4S flows that answer marks", _dctcp),
}
