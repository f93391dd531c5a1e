// SPDX-License-Identifier: Apache-2.0
//
// What mark.bpf.c and its loader share. Times are CLOCK_MONOTONIC in ns.
#ifndef SWIFTQUEUE_TESTBED_BPF_MARK_H_
#define SWIFTQUEUE_TESTBED_BPF_MARK_H_

#include <linux/types.h>

#define SWIFTQUEUE_HORIZON 8
#define SWIFTQUEUE_FLOWS 65536
#define SWIFTQUEUE_ALL 0xffffffffu

// Of one flow, by socket cookie: its packets `first` to `first + packets - 1`, counted from 0 among
// those that carry data, get codepoints[(n - first) % 8]. Others, and all once it is no longer
// valid, are plain ECT(1).
struct sq_decision {
  __u64 valid_until_ns;
  __u32 first;
  __u32 packets;  // SWIFTQUEUE_ALL: from `first` on
  __u8 codepoints[SWIFTQUEUE_HORIZON];
};

struct sq_counts {
  __u64 packets;  // with data
  __u64 by_codepoint[4];
  __u64 decided;  // as a valid decision says; the others are plain
  __u64 stale;    // plain because the decision's time was over
  __u64 not_ect;  // left alone: the kernel sent them without ECT, as it does a retransmission
  __u64 gso;      // super-packets, plain: they must not come (gso_max_segs 1)
};

// Of the attachment, for whoever detaches it.
struct sq_settings {
  __u32 former_gso_max_segs;
  __u32 made_clsact;
};

#endif  // SWIFTQUEUE_TESTBED_BPF_MARK_H_
