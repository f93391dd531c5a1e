// SPDX-License-Identifier: Apache-2.0
//
// What the sampler in the kernel (rate.bpf.c) tells its loader: one record an ACK, and the end of a
// flow that a forecast may still be asked for; they differ in size.
#ifndef SWIFTQUEUE_TESTBED_RATE_H
#define SWIFTQUEUE_TESTBED_RATE_H

#include <linux/types.h>

#include "../samples/tcp_sample.h"

#define SWIFTQUEUE_RATE_RING_BYTES (4 << 20)
#define SWIFTQUEUE_RATE_FIELDS 28
#define SWIFTQUEUE_RATE_FORECASTS 4096 /* flows that have one at once */

// In host order; the same in the ring and in the file that the loader writes.
struct sq_rate_record {
  __u64 flow;     /* by when it was established */
  __u64 number;   /* of the ACK, from 0 */
  __u64 since_ns; /* when the connection was established, CLOCK_MONOTONIC */
  __u32 receiver; /* IPv4 address, host order */
  __u32 port;     /* of the receiver, host order */
  __s64 fields[SWIFTQUEUE_RATE_FIELDS];
};

struct sq_rate_ended {
  __u64 flow;
};

struct sq_rate_counts {
  __u64 flows;
  __u64 acks;
  __u64 lost;      /* records that found no room in the ring */
  __u64 bbr_ns;    /* of BBR's own work, at the ACKs at which it was timed */
  __u64 bbr_runs;  /* how many these were */
  __u64 judged[6]; /* forecasts, by sq_verdict of samples/feedback.h */
  __u64 ended[5];  /* forecasts that were followed, by sq_end there */
};

/* Of a flow's rate in bytes/s, as the loader says it once. */
struct sq_rate_forecast {
  __u64 rate;
  __u64 dispersion; /* of its first ACKs */
  __u64 sampled_ns; /* when the sample came that it was made from, CLOCK_MONOTONIC */
};

#endif /* SWIFTQUEUE_TESTBED_RATE_H */
