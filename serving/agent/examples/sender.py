"""Send 800 datagrams, each marked for the queue that the agent decides, and print the decisions.

swiftqueue udp echo --port 4433 & python serving/agent/examples/sender.py var/agent.sock 4433
"""

import socket
import struct
import sys
import time
from contextlib import suppress

from swiftqueue.serving.agent.bindings.agent_link import ECT0, ECT1, L4S, AgentLink, LinkPacket

HEADER = struct.Struct("=4sIq")  # SQU1, the flow, the packet: `swiftqueue udp echo` answers it
sent_ns = [0] * 800
with AgentLink(sys.argv[1], "example") as agent, socket.socket(type=socket.SOCK_DGRAM) as udp:
    udp.connect(("127.0.0.1", int(sys.argv[2])))
    for first in range(0, 800, 8):
        due_ns = time.monotonic_ns() + 10_000_000
        if not agent.ask(first, [LinkPacket(1228)] * 8, due_ns):
            print(agent.problem)
        queues, version = tuple([L4S] * 8), -1
        while time.monotonic_ns() < due_ns:  # decisions and ACKs until it is due
            if (decision := agent.next(0.001)) and decision.first_packet == first:
                queues, version = decision.queues, decision.version
            with suppress(BlockingIOError):
                while answer := udp.recv(1200, socket.MSG_DONTWAIT):
                    packet, now_ns = HEADER.unpack_from(answer)[2], time.monotonic_ns()
                    agent.acked(packet, now_ns, (now_ns - sent_ns[packet]) / 1e3)
        for packet, queue in enumerate(queues, first):
            ecn = ECT1 if queue == L4S else ECT0
            udp.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ecn)
            sent_ns[packet] = time.monotonic_ns()
            udp.send(HEADER.pack(b"SQU1", 0, packet).ljust(1200))
            agent.sent(packet, sent_ns[packet], LinkPacket(1228, queue=queue, ecn=ecn))
            print(f"packet {packet}: queue {queue} by version {version}")
