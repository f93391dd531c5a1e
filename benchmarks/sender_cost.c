/* SPDX-License-Identifier: Apache-2.0
 *
 * Measures what the calls of swiftqueue.h cost a sender at 200 Mbit/s, beside the send() of a
 * packet's own datagram: `swiftqueue bench linerate`. Prints medians over the batches, in ns a packet.
 *
 * sender_cost SOCKET BATCHES */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "swiftqueue.h"

enum {
  kBatch = SWIFTQUEUE_BATCH,
  kAhead = 5,   /* batches from asking to sending */
  kFlight = 84, /* batches from sending to the ACK, 40 ms */
  kFlows = 4,
  kGapNs = 480000, /* between batches of 1,500-byte packets */
  kPayload = 1472
};

static double* column(long batches) {
  double* values = calloc((size_t)batches, sizeof *values);
  if (values == NULL) exit(1);
  return values;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double median(double* values, long count) {
  qsort(values, (size_t)count, sizeof *values, ascending);
  return values[count / 2] / kBatch;
}

/* Returns a socket that sends to `*sink` over loopback. */
static int datagrams(int* sink) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof to;
  const int from = socket(AF_INET, SOCK_DGRAM, 0);
  *sink = socket(AF_INET, SOCK_DGRAM, 0);
  if (bind(*sink, (struct sockaddr*)&to, length) != 0 ||
      getsockname(*sink, (struct sockaddr*)&to, &length) != 0 ||
      connect(from, (struct sockaddr*)&to, length) != 0) {
    perror("sender_cost: loopback");
    exit(1);
  }
  return from;
}

static void sleep_until(int64_t ns) {
  const struct timespec until = {ns / 1000000000, ns % 1000000000};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

int main(int argc, char** argv) {
  const long batches = argc == 3 ? atol(argv[2]) : 0;
  if (batches < 1) return fprintf(stderr, "usage: sender_cost SOCKET BATCHES\n"), 2;
  swiftqueue_agent* agent = swiftqueue_open(argv[1], "cost");
  if (agent == NULL) return fprintf(stderr, "sender_cost: %s\n", swiftqueue_error(NULL)), 1;
  swiftqueue_decision decision;
  const int64_t greeted_ns = swiftqueue_now_ns() + 5000000000;
  do {
    sleep_until(swiftqueue_now_ns() + 1000000);
    swiftqueue_next(agent, &decision);
  } while (*swiftqueue_error(agent) != '\0' && swiftqueue_now_ns() < greeted_ns);
  if (*swiftqueue_error(agent) != '\0') {
    return fprintf(stderr, "sender_cost: %s\n", swiftqueue_error(agent)), 1;
  }
  swiftqueue_packet batch[kBatch];
  for (int i = 0; i < kBatch; ++i) {
    batch[i] =
        (swiftqueue_packet){kPayload + 28, i % kFlows, 0, SWIFTQUEUE_L4S, SWIFTQUEUE_ECT1, 0, 0};
  }
  int sink;
  const int udp = datagrams(&sink);
  char payload[kPayload] = {0};
  double *frames = column(batches), *question = column(batches), *answer = column(batches);
  double *all = column(batches), *sending = column(batches);
  long decided = 0, answered = 0;
  int64_t due_ns = swiftqueue_now_ns();
  for (long k = 0; k < batches; ++k, due_ns += kGapNs) {
    sleep_until(due_ns);
    const int64_t begin_ns = swiftqueue_now_ns();
    for (int i = 0; k >= kAhead && i < kBatch; ++i) {
      swiftqueue_sent(agent, (k - kAhead) * kBatch + i, begin_ns, &batch[i]);
    }
    for (int i = 0; k >= kFlight && i < kBatch; ++i) {
      swiftqueue_acked(agent, (k - kFlight) * kBatch + i, begin_ns, 40e3F);
    }
    const int64_t told_ns = swiftqueue_now_ns();
    swiftqueue_ask(agent, k * kBatch, batch, due_ns + kAhead * kGapNs);
    const int64_t asked_ns = swiftqueue_now_ns();
    while (swiftqueue_next(agent, &decision) == 1) {
      ++answered;
      decided += decision.outcome == SWIFTQUEUE_DECIDED;
    }
    const int64_t end_ns = swiftqueue_now_ns();
    for (int i = 0; i < kBatch; ++i) send(udp, payload, sizeof payload, 0);
    sending[k] = (double)(swiftqueue_now_ns() - end_ns);
    frames[k] = (double)(told_ns - begin_ns);
    question[k] = (double)(asked_ns - told_ns);
    answer[k] = (double)(end_ns - asked_ns);
    all[k] = (double)(end_ns - begin_ns);
    while (recv(sink, payload, sizeof payload, MSG_DONTWAIT) >= 0) {
    }
  }
  printf(
      "{\"all\": %.1f, \"frames\": %.1f, \"question\": %.1f, \"answer\": %.1f, "
      "\"datagram\": %.1f, \"answered\": %ld, \"decided\": %ld}\n",
      median(all, batches), median(frames, batches), median(question, batches),
      median(answer, batches), median(sending, batches), answered, decided);
  swiftqueue_close(agent);
  return 0;
}
