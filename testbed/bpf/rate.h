// SPDX-License-Identifier: Apache-2.0
//
// What the sampler in the kernel (rate.bpf.c) tells its loader: one record an ACK.
#ifndef SWIFTQUEUE_TESTBED_RATE_H
#define SWIFTQUEUE_TESTBED_RATE_H

#include <linux/types.h>

#include "../../feature_store/rate/tcp_sample.h"

#define SWIFTQUEUE_RATE_RING_BYTES (4 << 20)
#define SWIFTQUEUE_RATE_FIELDS 28

// In host order; the same in the ring and in the file that the loader writes.
struct sq_rate_record {
  __u64 flow;     /* by when it was established */
  __u64 number;   /* of the ACK, from 0 */
  __u64 since_ns; /* when the connection was established, CLOCK_MONOTONIC */
  __u32 receiver; /* IPv4 address, host order */
  __u32 reserved;
  __s64 fields[SWIFTQUEUE_RATE_FIELDS];
};

struct sq_rate_counts {
  __u64 flows;
  __u64 acks;
  __u64 lost; /* records that found no room in the ring */
};

#endif /* SWIFTQUEUE_TESTBED_RATE_H */
