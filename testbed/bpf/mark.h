// SPDX-License-Identifier: Apache-2.0
//
// What mark.bpf.c and its loader share. Times are CLOCK_MONOTONIC in ns.
#ifndef SWIFTQUEUE_TESTBED_BPF_MARK_H_
#define SWIFTQUEUE_TESTBED_BPF_MARK_H_

#include <linux/types.h>

#define SWIFTQUEUE_HORIZON 8
#define SWIFTQUEUE_FLOWS 65536
#define SWIFTQUEUE_FOLLOWED 256  // flows: as many senders as an agent takes
#define SWIFTQUEUE_BATCHES 8     // of a followed flow, decided and not sent yet
#define SWIFTQUEUE_PORTS 16
#define SWIFTQUEUE_EVENT_BYTES (1 << 20)  // of the ring of events

// Of one flow, by socket cookie: its packet n, counted from 0 among those that carry data, gets
// codepoints[n % 8]; plain ECT(1) once the decision is no longer valid.
struct sq_decision {
  __u64 valid_until_ns;
  __u8 codepoints[SWIFTQUEUE_HORIZON];
};

// Of a flow that `follow` follows, by socket cookie: packet n gets of[n / 8 % 8].codepoints[n % 8],
// if that is its batch's, both times are to come, and the follower lives. Else plain ECT(1).
struct sq_batches {
  struct sq_batch {
    __u64 valid_until_ns;
    __u64 first;  // packet, a multiple of 8
    __u8 codepoints[SWIFTQUEUE_HORIZON];
  } of[SWIFTQUEUE_BATCHES];
};

// What `follow` keeps saying.
struct sq_follower {
  __u64 listens_until_ns;  // events are written, and flows to its ports registered
  __u64 alive_until_ns;    // its decisions count
  __u32 ports;
  __u32 plain_ports;
  __u16 port[SWIFTQUEUE_PORTS];        // in the machine's byte order
  __u16 plain_port[SWIFTQUEUE_PORTS];  // what goes there is ECT(1), and nobody is asked
};

// Addresses and ports of a connection, in the network's byte order; IPv4: the first word, else 0.
struct sq_tuple {
  __u32 local[4], remote[4];
  __u16 local_port, remote_port;
};

struct sq_followed {
  __u64 packets;  // with data
  struct sq_tuple tuple;
  __u32 acked;  // the last number that was acknowledged
  __u32 any_acked;
  __u32 known;  // the tuple is there
};

enum sq_kind { SQ_SENT, SQ_ACKED, SQ_ENDED };

struct sq_event {
  __u64 time_ns;
  __u64 cookie;
  __u64 packet;         // number in the flow; of SQ_SENT
  __u32 sequence;       // of its first byte; of SQ_ACKED what is acknowledged
  __u32 payload_bytes;  // of SQ_SENT, as the rest
  __u32 ip_bytes;
  __u8 kind;
  __u8 codepoint;
  __u8 decided;
  __u8 alternative;  // by its DSCP where one is set, else by its codepoint
};

struct sq_counts {
  __u64 packets;  // with data
  __u64 by_codepoint[4];
  __u64 by_alternative[2];
  __u64 decided;     // as a valid decision says; the others are plain
  __u64 stale;       // plain because the decision's time was over
  __u64 left_alone;  // the kernel sent them without ECT, as Cubic's retransmissions: their
                     // codepoint stays
  __u64 gso;         // super-packets, plain: they must not come (gso_max_segs 1)
  __u64 unsaid;      // events that found no room in the ring
};

// Constants of a loaded program.
struct sq_constants {
  __u32 link_header_bytes;  // 0 on a TUN
  __u8 sets_dscp;           // packets that may be marked get the DSCP of their alternative
  __u8 dscp[2];             // by alternative
  __u8 zero;
  __u64 bench_cookie;  // of a test run, whose socket has one that nobody knows
};

// Of the attachment, for whoever detaches it.
struct sq_settings {
  __u32 former_gso_max_segs;
  __u32 made_clsact;
};

#endif  // SWIFTQUEUE_TESTBED_BPF_MARK_H_
