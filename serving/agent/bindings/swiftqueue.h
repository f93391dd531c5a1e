/* SPDX-License-Identifier: Apache-2.0
 *
 * The agent for programs that send: ask about the next 8 packets, take the decision, and say what
 * was sent and acknowledged. C99; `pkg-config swiftqueue` has the flags, examples/sender.c is a
 * whole program, docs/how-to/mark-packets.md explains it.
 *
 * No call waits. Without an agent, or when it goes, nothing is decided and packets keep their
 * default queue; the library connects again within a second. A call that returns -1 changed
 * nothing, and `swiftqueue_error` says why in one line. Times are CLOCK_MONOTONIC. A connection
 * serves one thread.
 */
#ifndef SWIFTQUEUE_H_
#define SWIFTQUEUE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SWIFTQUEUE_VERSION "0.1.0"
#define SWIFTQUEUE_BATCH 8 /* packets */

/* A mark chooses a queue of one link, or one of two uplinks (`swiftqueue_set_dscp`). */
enum swiftqueue_queue { SWIFTQUEUE_CLASSIC, SWIFTQUEUE_L4S };
enum swiftqueue_ecn { SWIFTQUEUE_NOT_ECT, SWIFTQUEUE_ECT1, SWIFTQUEUE_ECT0 };
enum swiftqueue_outcome {
  SWIFTQUEUE_DECIDED,
  SWIFTQUEUE_LATE,    /* no answer had come when the batch was due */
  SWIFTQUEUE_ERROR,   /* the server is gone, or refused */
  SWIFTQUEUE_NO_MODEL /* none is served */
};

typedef struct swiftqueue_agent swiftqueue_agent; /* a connection with the agent: one sender */

typedef struct swiftqueue_packet {
  int32_t size_bytes; /* IP length */
  int32_t flow_id;    /* the sender's own number, as `receiver_id` */
  int32_t receiver_id;
  uint8_t queue; /* in a question its default, in `swiftqueue_sent` the one it is marked for */
  uint8_t ecn;   /* codepoint as sent; a question ignores it, and the next one */
  uint8_t retransmitted; /* 1: its data was sent before */
  uint8_t zero;
} swiftqueue_packet;

typedef struct swiftqueue_decision {
  int64_t first_packet;
  int64_t version;     /* version of the model; -1 unless decided */
  float round_trip_us; /* time that the agent waited for the model; NaN unless decided */
  uint8_t outcome;
  uint8_t zero[3];
  uint8_t queue[SWIFTQUEUE_BATCH]; /* queue for each packet; unless decided its default */
  float
      classic_us[SWIFTQUEUE_BATCH]; /* predicted latency in the classic queue; NaN unless decided */
  float default_us[SWIFTQUEUE_BATCH]; /* the same in its default queue */
} swiftqueue_decision;

/* Returns the library's version, as SWIFTQUEUE_VERSION. */
const char* swiftqueue_version(void);

/* Returns a connection with the agent that listens at the socket `path`, for a sender of this name;
 * the agent may come later. Returns NULL where the path or the name cannot be one. */
swiftqueue_agent* swiftqueue_open(const char* path, const char* name);

/* Writes what the agent's socket takes, and ends the connection. NULL is allowed. */
void swiftqueue_close(swiftqueue_agent* agent);

/* Asks about packets `first_packet` to `first_packet` + 7, a multiple of 8, before the first one is
 * sent at `due_ns`. Returns 1, or 0 if there is no agent; -1 for a wrong order or a wrong value. */
int swiftqueue_ask(swiftqueue_agent* agent, int64_t first_packet,
                   const swiftqueue_packet packets[SWIFTQUEUE_BATCH], int64_t due_ns);

/* Takes the next answer. Returns 1, or 0 if there is none yet: only then wait for the descriptor.
 */
int swiftqueue_next(swiftqueue_agent* agent, swiftqueue_decision* decision);

/* Says that a packet was sent. Packets are numbered in send order. Returns 0 or -1. */
int swiftqueue_sent(swiftqueue_agent* agent, int64_t packet, int64_t sent_ns,
                    const swiftqueue_packet* what);

/* Says that the first ACK that covers a packet came. `latency_us` is NaN where it is unknown, as
 * for data that was sent twice. Returns 0 or -1. */
int swiftqueue_acked(swiftqueue_agent* agent, int64_t packet, int64_t acked_ns, float latency_us);

/* Has `swiftqueue_ds_field` give packets of alternative 0 (SWIFTQUEUE_CLASSIC) and of alternative 1
 * (SWIFTQUEUE_L4S) these two DSCPs, by which a gateway routes them to its uplinks. Returns 0, or -1
 * where one is not 0 to 63, or both are the same. */
int swiftqueue_set_dscp(swiftqueue_agent* agent, int classic, int l4s);

/* Returns the DS field (IP_TOS, IPV6_TCLASS) of a packet in this queue with this codepoint; its
 * DSCP is 0 unless `swiftqueue_set_dscp` said another. */
int swiftqueue_ds_field(const swiftqueue_agent* agent, uint8_t queue, uint8_t ecn);

/* Returns a descriptor, the same until the end, that is readable when the agent has said something.
 */
int swiftqueue_fd(const swiftqueue_agent* agent);

/* Returns in one line why the last call returned -1, or why there is no agent; empty if neither is
 * so. NULL asks about this thread's last `swiftqueue_open`. It is valid until the next call. */
const char* swiftqueue_error(const swiftqueue_agent* agent);

/* Returns CLOCK_MONOTONIC in ns. */
int64_t swiftqueue_now_ns(void);

#ifdef __cplusplus
}
#endif

#endif /* SWIFTQUEUE_H_ */
