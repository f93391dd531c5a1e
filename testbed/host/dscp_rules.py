"""Has the kernel route packets by their DSCP: `ip rule add dscp 46 lookup 101`, for IPv4 and IPv6.

    dscp_rules.py DSCP TABLE [DSCP TABLE]

Linux has the selector since 6.13. So has iproute2, and Debian 12's is older: hence the kernel is asked here.
An older kernel would take the rule without its selector, for every packet: so the rule is read back.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

NEW_RULE, GET_RULE = 32, 34
REQUEST, ACK, EXCLUSIVE, CREATE, DUMP = 1, 4, 0x200, 0x400, 0x300
PRIORITY, TABLE, DSCP = 6, 15, 25  # attributes of linux/fib_rules.h
LOOKUP: Final = 1
HEADER: Final = struct.Struct("=IHHII")  # nlmsghdr
RULE: Final = struct.Struct("=8BI")  # fib_rule_hdr
FIRST_PRIORITY: Final = 100
ERROR, DONE = 2, 3


def add(family: int, dscp: int, table: int) -> None:
    """Add one rule, and check that it has its selector.

    Raises:
        OSError: the kernel refuses it, or does not know the selector.

    """
    priority = FIRST_PRIORITY + dscp
    attributes = b"".join(
        (
            struct.pack("=HHI", 8, PRIORITY, priority),
            struct.pack("=HHI", 8, TABLE, table),
            struct.pack("=HHB3x", 5, DSCP, dscp),
        )
    )
    rule = RULE.pack(family, 0, 0, 0, 0, 0, 0, LOOKUP, 0) + attributes
    for _kind, answer in _ask(NEW_RULE, REQUEST | ACK | EXCLUSIVE | CREATE, rule):
        (error,) = struct.unpack_from("=i", answer)
        if error:
            raise OSError(-error, f"a rule for DSCP {dscp}: {os.strerror(-error)}")
    wanted = {PRIORITY: struct.pack("=I", priority), DSCP: bytes([dscp])}
    for kind, answer in _ask(GET_RULE, REQUEST | DUMP, RULE.pack(family, *[0] * 8)):
        if kind == NEW_RULE and wanted.items() <= dict(_attributes(answer[RULE.size :])).items():
            return
    raise OSError("the kernel takes no rule by DSCP; Linux 6.13 and later do")


def _ask(kind: int, flags: int, body: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of the kernel's answer, each with its type, until its end."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW) as netlink:
        netlink.send(HEADER.pack(HEADER.size + len(body), kind, flags, 1, 0) + body)
        while True:
            data = netlink.recv(1 << 16)
            while data:
                length, found, *_ = HEADER.unpack_from(data)
                yield found, data[HEADER.size : length]
                if found in (ERROR, DONE):
                    return
                data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        yield kind, data[4:length]
        data = data[(length + 3) & ~3 :]


if __name__ == "__main__":
    families = [socket.AF_INET] + [socket.AF_INET6] * Path("/proc/sys/net/ipv6").is_dir()
    words = list(map(int, sys.argv[1:]))
    try:
        for each_dscp, each_table in zip(words[::2], words[1::2], strict=True):
            for each_family in families:
                add(each_family, each_dscp, each_table)
    except OSError as problem:
        sys.exit(str(problem.strerror or problem))
