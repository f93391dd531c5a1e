"""`swiftqueue bed run uplinks`: a call's frames over two links that the kernel of a gateway chooses by DSCP.

Host a – veth – gateway – two TUNs – router – two TUNs – host b. The gateway forwards each packet by the rules
of `dscp_rules.py`, and so does host b with its answers. Each link has its own rate, delay and cross traffic,
and one queue for all packets. Where an uplink is down, its routes are gone, and its packets take the other.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from swiftqueue.serving.agent.marking.udp_command import why_not_built
from swiftqueue.testbed.host import dscp_rules, router_log
from swiftqueue.testbed.host.checks import capability
from swiftqueue.testbed.host.hosts import ADDRESS_B, Bed, run_folder
from swiftqueue.testbed.host.lateness import lateness
from swiftqueue.testbed.host.run import send

FIRST_TABLE: Final = 100  # routing table of uplink 0
CROSS_BURST: Final = 20  # packets of a message of the cross traffic
FIFO: Final[Mapping[str, object]] = {  # one queue that marks nothing, and drops at its end
    **{"alpha_hz": 0, "beta_hz": 0, "l_aqm": "step", "l_step_ms": 1e6},
    **{"scheduler": "time_shifted_fifo", "time_shift_ms": 0},
}
PINNED: Final[Mapping[str, tuple[object, ...]]] = {"pinned_0": ("--classic",), "pinned_1": ()}

# A host without IPv6 has a bed without it: `six` does nothing there.
_COMMON: Final = """
six() { if [ -d /proc/sys/net/ipv6 ]; then "$@"; fi; }
for each in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > "$each"; done
"""
_GATEWAY: Final = """
ip link add lan0 type veth peer name up0
ip link set up0 netns "$SENDER" && ip address add 10.77.8.2/24 dev lan0 && ip link set lan0 up
six ip address add fd78::2/64 dev lan0 nodad
echo 1 > /proc/sys/net/ipv4/ip_forward
six sh -c 'echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'
"""
_SENDER: Final = """
ip link set up0 name lan0 && ip address add 10.77.8.1/24 dev lan0 && ip link set lan0 up
six ip address add fd78::1/64 dev lan0 nodad
ip route add default via 10.77.8.2
six ip route add default via fd78::2
"""
_HOST_B: Final = """
ip address add 10.77.0.2/32 dev lo
six ip address add fd77::2/128 dev lo nodad
"""
_ROUTES: Final = """
for link in 0 1; do
  ip route add $TO dev tun$link table $((TABLE + link)) $FROM
  ip route add $TO dev tun$link metric $((10 + link)) $FROM
  six ip route add $TO6 dev tun$link table $((TABLE + link)) $FROM6
  six ip route add $TO6 dev tun$link metric $((10 + link)) $FROM6
done
"""


@dataclass(frozen=True)
class BedUplink:
    """One of the two links; rates are of IP packets."""

    rate_mbps: float
    delay_ms: float  # one way, in both directions
    cross_mbps: float  # cross traffic to host b, messages of CROSS_BURST packets


@dataclass(frozen=True)
class UplinkPlan:
    """The parameters of a run."""

    uplinks: tuple[BedUplink, BedUplink]
    dscp: tuple[int, int] = (0, 46)  # by alternative, for sender and gateway
    send_mbps: float = 2.4
    frame_packets: int = 8
    seconds: float = 10.0
    seeds: int = 1
    agent: Path | None = None
    cut: tuple[int, float] | None = None  # uplink, and the second of each run at which it dies

    def __post_init__(self) -> None:
        if not 0 < self.send_mbps < math.inf:
            raise ValueError(f"--send-mbps {self.send_mbps:g}: must be above 0, and finite")


def uplinks_of(texts: Sequence[str]) -> tuple[BedUplink, BedUplink]:
    """Return the uplinks of two texts `RATE:DELAY:CROSS`, in Mbit/s, ms and Mbit/s.

    Raises:
        ValueError: there are not two, or one is wrong; one line.

    """
    if len(texts) != 2:
        raise ValueError(
            f"--uplink: given {len(texts)} times; a mark chooses between two uplinks, give it twice"
        )
    first, second = map(_uplink, texts)
    return first, second


def _uplink(text: str) -> BedUplink:
    try:
        rate, delay, cross = map(float, text.split(":"))
    except ValueError:
        rate = math.nan
    if not (0 < rate < math.inf and 0 <= delay < math.inf and 0 <= cross < math.inf):
        raise ValueError(f"--uplink {text}: must be RATE:DELAY:CROSS in Mbit/s, ms and Mbit/s, as 20:10:12")
    return BedUplink(rate, delay, cross)


def dscp_of(text: str) -> tuple[int, int]:
    """Return the DSCPs of a text `0,46`.

    Raises:
        ValueError: they are not two different numbers from 0 to 63.

    """
    if not re.fullmatch(r"\d{1,2},\d{1,2}", text):
        raise ValueError(f"--dscp {text}: must be two numbers from 0 to 63, as 0,46")
    first, second = map(int, text.split(","))
    if max(first, second) > 63 or first == second:
        raise ValueError(f"--dscp {text}: must be two different numbers from 0 to 63, as 0,46")
    return first, second


def cut_of(text: str, seconds: float) -> tuple[int, float]:
    """Return the uplink and the second of a text `1@5`.

    Raises:
        ValueError: there is no such uplink, or the run is over by then.

    """
    found = re.fullmatch(r"([01])@(\d+(?:\.\d+)?)", text)
    if found is None or not float(found[2]) < seconds:
        raise ValueError(f"--cut {text}: must be an uplink, 0 or 1, and a second of the run, as 1@5")
    return int(found[1]), float(found[2])


class UplinkBed(Bed):
    """A bed with two uplinks; `a` and `b` start commands on its hosts, `gateway` between them."""

    def __init__(
        self,
        uplinks: tuple[BedUplink, BedUplink],
        dscp: tuple[int, int],
        *,
        seed: int = 1,
        log: Path | None = None,
    ) -> None:
        """Keep the parameters.

        Args:
            uplinks: the links, by alternative.
            dscp: DSCPs that are routed, by alternative; other packets take uplink 0.
            seed: seed of cross traffic.
            log: file that gets every packet (`router_log.py`).

        """
        second = uplinks[1]
        others: dict[str, float] = {"rate-mbps": second.rate_mbps, "delay-ms": second.delay_ms}
        others |= {"cross-mbps": second.cross_mbps, "cross-burst": CROSS_BURST}
        words = [f"--{name}={value}" for name, value in others.items()]
        more = (f"--cross-burst={CROSS_BURST}", "--next-uplink", *words)
        super().__init__(**asdict(uplinks[0]), seed=seed, log=log, queue=FIFO, more=more)
        self._dscp = dscp

    def __enter__(self) -> UplinkBed:
        super().__enter__()
        try:
            self._lay_out()
        except BaseException:
            self.__exit__()
            raise
        return self

    def gateway(self, *command: object) -> list[str]:
        """Return the words that start a command on the gateway."""
        return self._on("gateway", command)

    def cut(self, uplink: int) -> None:
        """Take an uplink down; what is on it is lost."""
        for host in (self.gateway, self.b):
            _run(host("ip", "link", "set", f"tun{uplink}", "down"))

    def _lay_out(self) -> None:
        sender = f"SENDER=/proc/{self.ready['pid']}/fd/{self.ready['a']}"
        there = {"TO": ADDRESS_B, "TO6": "fd77::2", "FROM": "", "FROM6": ""}
        back = {"TO": "10.77.8.0/24", "TO6": "fd78::/64", "FROM": f"src {ADDRESS_B}", "FROM6": "src fd77::2"}
        self._script(self.gateway, _GATEWAY + _ROUTES, sender, **there)
        self._script(self.a, _SENDER)
        self._script(self.b, _HOST_B + _ROUTES, **back)
        rules = [word for i, dscp in enumerate(self._dscp) for word in (dscp, FIRST_TABLE + i)]
        for host in (self.gateway, self.b):
            _run(host(sys.executable, dscp_rules.__file__, *rules))

    @staticmethod
    def _script(host: Any, script: str, *words: str, **variables: str) -> None:
        given = [f"TABLE={FIRST_TABLE}", *words, *(f"{name}={value}" for name, value in variables.items())]
        _run(host("env", *given, "sh", "-ec", _COMMON + script))


def _run(command: list[str]) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise RuntimeError(f"the gateway: {(ran.stderr.strip() or str(ran.returncode)).splitlines()[-1]}")


def run(plan: UplinkPlan) -> list[dict[str, Any]]:
    """Run every seed pinned to each uplink, and with the agent where there is one; return a row for each.

    Raises:
        RuntimeError: this machine cannot run it, or a program failed; the line says why.

    """
    if reason := why_not_built() or capability("uplinks").why_not:
        raise RuntimeError(reason)
    controls: dict[str, tuple[object, ...]] = {**PINNED, **({"agent": ()} if plan.agent else {})}
    return [
        _row(plan, seed, control, options)
        for seed in range(1, plan.seeds + 1)
        for control, options in controls.items()
    ]


def _row(plan: UplinkPlan, seed: int, control: str, options: tuple[object, ...]) -> dict[str, Any]:
    how = ("--frame-packets", plan.frame_packets, "--dscp", f"{plan.dscp[0]},{plan.dscp[1]}", "--seed", seed)
    agent = plan.agent if control == "agent" else None
    with run_folder() as folder:
        log = Path(folder) / "router"
        with UplinkBed(plan.uplinks, plan.dscp, seed=seed, log=log) as bed, ThreadPoolExecutor(1) as beside:
            cut = beside.submit(_cut_later, bed, plan.cut) if plan.cut else None
            sent = send(bed, plan.send_mbps, plan.seconds, *how, *options, agent=agent)
            if cut:
                cut.result()
        if not bed.summary:
            raise RuntimeError("the router ended before its time: its log is not whole")
        records = router_log.read(log)
    plain = {key: value for key, value in asdict(plan).items() if key not in ("agent", "seeds")}
    found = figures(records, plan)
    return {"source": "kernel", "scenario": "uplinks", "seed": seed, "control": control} | {
        **plain,
        **found,
        "lost": sent["packets"] - found["arrived"],
        "sender": sent,
    }


def _cut_later(bed: UplinkBed, cut: tuple[int, float]) -> None:
    time.sleep(cut[1])
    bed.cut(cut[0])


def figures(records: NDArray[Any], plan: UplinkPlan) -> dict[str, Any]:
    """Return the figures of our packets; a frame's time is from its first packet's arrival at the router.

    A packet is marked for the uplink whose DSCP it has. `diverted` ones took the other, as theirs was down;
    `unrouted` ones have a DSCP that no rule of the gateway routes.
    """
    forward_or_lost = np.isin(
        records["kind"], (router_log.FORWARD, router_log.DROPPED, router_log.REFUSED)
    ) & (records["packet"] >= 0)
    came = records[forward_or_lost]
    arrived = came[came["kind"] == router_log.FORWARD]
    waits_ms = (arrived["started_ns"] - arrived["arrived_ns"]) / 1e6
    each, diverted = [], 0
    for number, dscp in enumerate(plan.dscp):
        marked = came["dscp"] == dscp
        diverted += int((marked & (came["link"] != number)).sum())
        p50, p99 = _quantiles(waits_ms[arrived["link"] == number], (0.5, 0.99))
        carried = int((came["link"] == number).sum())
        each.append({"marked": int(marked.sum()), "carried": carried, "wait_p50_ms": p50, "wait_p99_ms": p99})
    frame_ms, frames = _frames(came, arrived, plan.frame_packets)
    p50, p99, longest = _quantiles(frame_ms, (0.5, 0.99, 1.0))
    order = arrived["packet"][np.argsort(arrived["written_ns"], kind="stable")]
    late = order < np.maximum.accumulate(order) if len(order) else np.zeros(0, bool)
    delay_ns = max(one.delay_ms for one in plan.uplinks) * 1e6
    return {
        "arrived": len(arrived),
        "by_uplink": each,
        "diverted": diverted,
        "unrouted": int((~np.isin(came["dscp"], plan.dscp)).sum()),
        "reordered_share": float(late.mean()) if len(late) else None,
        "frames": frames,
        "frames_whole": len(frame_ms),
        "frame_p50_ms": p50,
        "frame_p99_ms": p99,
        "frame_max_ms": longest,
        **lateness(arrived["written_ns"], arrived["due_ns"], records, delay_ns).columns(),
    }


def _frames(came: NDArray[Any], arrived: NDArray[Any], packets: int) -> tuple[NDArray[np.float64], int]:
    """Return the one-way time of each whole frame in ms, and how many frames came to the router."""
    frames, first_at = np.unique(came["packet"] // packets, return_inverse=True)
    begun_ns = np.full(len(frames), np.iinfo(np.int64).max)
    np.minimum.at(begun_ns, first_at, came["arrived_ns"])
    at = np.searchsorted(frames, arrived["packet"] // packets)
    count, ended_ns = np.zeros(len(frames), int), np.zeros(len(frames), np.int64)
    np.add.at(count, at, 1)
    np.maximum.at(ended_ns, at, arrived["written_ns"])
    whole = count == packets
    return np.asarray((ended_ns - begun_ns)[whole] / 1e6), len(frames)


def _quantiles(values: NDArray[np.float64], levels: tuple[float, ...]) -> list[float | None]:
    return [float(np.quantile(values, level)) if len(values) else None for level in levels]
