"""TCP over a loopback whose egress marks, in a network namespace of its own; prints what was on the wire.

    unshare --net python marked_tcp.py MARKER OBJECT 4|6

What is seen is seen at the receiving side, by a packet socket: the codepoint and the DSCP of every data
packet, and whether the checksum of its IP header is right.
"""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

MARKER, OBJECT, FAMILY = sys.argv[1], sys.argv[2], sys.argv[3]
SO_COOKIE = 57
PACKET_HOST, ETH_P_ALL = 0, 3
PORT = 5001
SEEN_S = 20.0


def marker(*arguments: object) -> dict[str, Any]:
    ran = subprocess.run([MARKER, *map(str, arguments)], capture_output=True, text=True, check=True)
    return dict(json.loads(ran.stdout))


def checksum_is_right(header: bytes) -> bool:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total == 0xFFFF


class Wire(threading.Thread):
    """Codepoint and DSCP of each TCP data packet to PORT, in order, by source port."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        self.seen: dict[int, list[int]] = {}
        self.dscps: dict[int, list[int]] = {}
        self.wrong_checksums = 0
        self.start()

    def since(self, source: int, begin: int, packets: int) -> list[int]:
        """What was seen of a flow from its packet `begin` on, once that is so many."""
        until = time.monotonic() + SEEN_S
        while len(self.seen.get(source, ())) < begin + packets and time.monotonic() < until:
            time.sleep(0.01)
        return self.seen[source][begin:]

    def run(self) -> None:
        while True:
            frame, address = self.socket.recvfrom(1 << 16)
            if address[2] != PACKET_HOST:
                continue
            if FAMILY == "4":
                ip, field, at = frame[14:34], frame[15], 34
                total, protocol = struct.unpack("!H", frame[16:18])[0], frame[23]
            else:
                ip, field, at = b"", (frame[14] << 4 | frame[15] >> 4) & 0xFF, 54
                total, protocol = 40 + struct.unpack("!H", frame[18:20])[0], frame[20]
            if protocol != 6:
                continue
            source, destination = struct.unpack("!HH", frame[at : at + 4])
            if destination != PORT or total <= at - 14 + (frame[at + 12] >> 4) * 4:
                continue
            self.wrong_checksums += bool(ip) and not checksum_is_right(ip)
            self.dscps.setdefault(source, []).append(field >> 2)
            self.seen.setdefault(source, []).append(field & 3)


def write_sysctl(name: str, value: str) -> None:
    (Path("/proc/sys/net") / name).write_text(value)


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "mtu", "1500", "up"], check=True)
    write_sysctl("ipv4/tcp_ecn", "1")
    marker("attach", "lo", OBJECT)
    host = "127.0.0.1" if FAMILY == "4" else "::1"
    family = socket.AF_INET if FAMILY == "4" else socket.AF_INET6
    listener = socket.create_server((host, PORT), family=family)
    wire = Wire()

    def connect() -> tuple[socket.socket, socket.socket, int]:
        near = socket.create_connection((host, PORT))
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far, _ = listener.accept()
        cookie = struct.unpack("=Q", near.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8))[0]
        return near, far, cookie

    def send(near: socket.socket, far: socket.socket, packets: int) -> None:
        """One packet after the other, so that each has its number."""
        for _ in range(packets):
            near.sendall(b"x" * 1000)
            left = 1000
            while left:
                left -= len(far.recv(left))

    def bulk(near: socket.socket, far: socket.socket, count: int) -> None:
        threading.Thread(target=near.sendall, args=(b"x" * count,), daemon=True).start()
        while count:
            count -= len(far.recv(min(count, 1 << 16)))

    out: dict[str, Any] = {}
    near, far, cookie = connect()
    other = connect()
    marker("set", "lo", cookie, "12012012", 600_000)
    send(near, far, 64)
    send(*other[:2], 16)
    source = near.getsockname()[1]
    out["decided"] = wire.since(source, 0, 64)
    out["unregistered"] = wire.since(other[0].getsockname()[1], 0, 16)

    # The agent dies: its last decision runs out.
    marker("set", "lo", cookie, "22222222", 1_000)
    send(near, far, 8)
    out["before_the_end"] = wire.since(source, 64, 8)
    while marker("status", "lo")["flows"][0]["valid"]:
        time.sleep(0.05)
    send(near, far, 16)
    out["stale"] = wire.since(source, 72, 16)

    # Full segments as fast as they go: no super-packet, each marked.
    marker("set", "lo", cookie, "12121212", 600_000)
    flow = marker("status", "lo")["flows"][0]
    begin = len(wire.seen[source])
    bulk(near, far, 20_000_000)
    time.sleep(0.5)
    after = marker("status", "lo")["flows"][0]
    out["bulk"] = {key: after[key] - flow[key] for key in after if key not in ("cookie", "valid")}
    seen = wire.seen[source][begin:]
    out["bulk_seen"] = [seen.count(codepoint) for codepoint in range(4)]
    out["wrong_checksums"] = wire.wrong_checksums
    marker("forget", "lo", cookie)
    out["flows_after_forget"] = len(marker("status", "lo")["flows"])

    def follow_until(end: signal.Signals) -> dict[str, Any]:
        """What is marked, and what is refused, with a follower and after its end."""
        words = [MARKER, "follow", "lo", "", "--last-latency-ms=1000", f"--cookie={cookie}"]
        decide = [MARKER, "set", "lo", str(cookie), "22222222", "60000"]
        ways = (decide, [MARKER, "forget", "lo", str(cookie)])
        begin = len(wire.seen[source])
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as follower:
            assert follower.stdout is not None
            follower.stdout.readline()
            refused = [subprocess.run(w, capture_output=True, text=True, check=False) for w in ways]
            send(near, far, 8)
            follower.send_signal(end)
        send(near, far, 8)
        tries, until = 1, time.monotonic() + SEEN_S
        while subprocess.run(decide, capture_output=True, check=False).returncode != 0:
            assert time.monotonic() < until
            time.sleep(0.1)
            tries += 1
        flows = [flow["followed"] for flow in marker("status", "lo")["flows"]]
        send(near, far, 8)
        marker("forget", "lo", cookie)
        left = len(marker("status", "lo")["flows"])
        said = [ran.stderr.splitlines() for ran in refused]
        marked = wire.since(source, begin, 24)
        return {"refused": said, "marked": marked, "tries": tries, "followed": flows, "left": left}

    out["follower_ended"] = follow_until(signal.SIGTERM)
    out["follower_killed"] = follow_until(signal.SIGKILL)
    marker("detach", "lo")
    begin = len(wire.seen[source])
    send(near, far, 8)
    out["detached"] = wire.since(source, begin, 8)
    qdiscs = subprocess.run(["tc", "qdisc", "show", "dev", "lo"], capture_output=True, text=True, check=True)
    out["qdiscs"] = qdiscs.stdout

    # With a DSCP for each alternative: a decided flow, one that is not registered, and one without ECN.
    marker("attach", "lo", OBJECT, "--dscp=63,46")
    write_sysctl("ipv4/tcp_ecn", "0")
    plain = connect()
    for each in (cookie, plain[2]):
        marker("set", "lo", each, "12012012", 600_000)
    out["dscp"] = {}
    for name, (from_, to, _) in {
        "decided": (near, far, 0),
        "unregistered": other,
        "without_ecn": plain,
    }.items():
        source = from_.getsockname()[1]
        begin = len(wire.seen.get(source, ()))
        send(from_, to, 8)
        codepoints = wire.since(source, begin, 8)
        out["dscp"][name] = {"codepoints": codepoints, "dscps": wire.dscps[source][begin:]}
    marker("set", "lo", cookie, "22222222", 0)
    source, begin = near.getsockname()[1], len(wire.seen[near.getsockname()[1]])
    send(near, far, 8)
    out["dscp"]["stale"] = {"codepoints": wire.since(source, begin, 8), "dscps": wire.dscps[source][begin:]}
    status = marker("status", "lo")
    out["dscp"]["said"] = status["dscp"]
    out["dscp"]["counts"] = {
        name: [flow[f"alternative_{i}"] for i in (0, 1)]
        for name, each in {"decided": cookie, "without_ecn": plain[2]}.items()
        for flow in status["flows"]
        if flow["cookie"] == each
    }
    out["dscp"]["wrong_checksums"] = wire.wrong_checksums
    print(json.dumps(out))


main()
