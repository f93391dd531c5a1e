// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The kernel's BBR under another name, which tells what it knows at each ACK: the 28 fields of
// samples/tcp_sample.h. BBR itself is called. A flow that is told a forecast of its rate
// in time follows it by the rules of samples/feedback.h, as the simulator's does
// (ns3/forecast-bbr.h); of every other flow nothing is changed.
#include <linux/bpf.h>
// What libbpf's headers need of it.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>

#include "../samples/feedback.h"
#include "rate.h"

// Of the kernel's structures what is read here; CO-RE finds where it is in the one that runs.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
  __be32 skc_daddr;
  __be16 skc_dport;
};
struct sock {
  struct sock_common __sk_common;
  unsigned long sk_pacing_rate;
};
struct inet_connection_sock {
  __u32 icsk_rto;
  __u8 icsk_ca_state : 5;
  __u8 icsk_probes_out;
  struct {
    __u32 lrcvtime;
  } icsk_ack;
  __u64 icsk_ca_priv[13];
};
struct minmax_sample {
  __u32 t;
  __u32 v;
};
struct minmax {
  struct minmax_sample s[3];
};
struct tcp_sock {
  __u64 bytes_acked;
  __u64 bytes_sent;
  __u64 bytes_retrans;
  __u32 srtt_us;
  __u32 mdev_us;
  __u32 snd_cwnd;
  __u32 snd_wnd;
  __u32 snd_nxt;
  __u32 write_seq;
  __u32 total_retrans;
  __u32 lsndtime;
  __u32 rcv_tstamp;
  __u32 mss_cache;
  __u32 rate_delivered;
  __u32 rate_interval_us;
  __u32 delivered;
  __u32 dsack_dups;
  __u32 reord_seen;
  __u32 segs_out;
  __u32 chrono_start;
  __u32 chrono_stat[3];
  __u8 chrono_type : 2;
  __u8 rate_app_limited : 1;
  struct minmax rtt_min;
};
struct bbr {
  __u32 min_rtt_us;
  struct minmax bw;
  __u32 mode : 3;
  __u32 full_bw_reached : 1;
};
struct rate_sample {
  __u32 prior_delivered;
  long rtt_us;
};
#pragma clang attribute pop
enum tcp_ca_event { CA_EVENT_TX_START };
typedef __u8 u8;
typedef __u32 u32;

extern void bbr_init(struct sock* sk) __ksym;
extern void bbr_main(struct sock* sk, u32 ack, int flag, const struct rate_sample* rs) __ksym;
extern u32 bbr_sndbuf_expand(struct sock* sk) __ksym;
extern u32 bbr_undo_cwnd(struct sock* sk) __ksym;
extern void bbr_cwnd_event(struct sock* sk, enum tcp_ca_event event) __ksym;
extern u32 bbr_ssthresh(struct sock* sk) __ksym;
extern u32 bbr_min_tso_segs(struct sock* sk) __ksym;
extern void bbr_set_state(struct sock* sk, u8 state) __ksym;

#define US_PER_S 1000000ULL
#define BW_SCALE 24    // tcp_bbr.c: packets/us, times 2^24
#define CHRONO_BUSY 1  // enum tcp_chrono
#define CHRONO_RWND 2
#define CHRONO_SNDBUF 3

#define TIMED \
  16  // BBR's own work is timed at one ACK of so many, within the time of reading a clock

#define PACING_SHIFT 10   // sk_pacing_shift: a super-packet is a millisecond of the rate
#define HIGH_GAIN 739ULL  // tcp_bbr.c: STARTUP's, 2/ln 2
#define GAIN_SCALE 8
#define STARTUP 0            // tcp_bbr.c: BBR_STARTUP
#define RECOVERY 3           // enum tcp_ca_state
#define INITIAL_WINDOW 10    // packets
#define NO_TRIP 0xffffffffU  // no round trip is known
#define NON_RESTRICTED 1     // net/tcp.h: who is not root may choose it too, as the kernel's BBR

const volatile __u32 tick_us = 4000;     // a jiffy; the loader knows it
const volatile __u32 asked_samples = 0;  // a forecast is asked for with this sample; 0: none is
// Nobody is told of ACKs that come after so many of a flow, once so many packets are delivered.
const volatile __u32 told_samples = ~0U;
const volatile __u32 told_packets = 0;

struct known {
  __u64 flow;
  __u64 since_ns;
  __u64 acks;
  __u64 bounded;    // bytes/s; 0: no forecast is followed
  __u32 round_end;  // of `delivered`
  __s32 round;      // that were sent by the forecast
  __s32 whole;      // of these, since the receive window ruled last
  __u32 told;       // a forecast came
  __u32 least_us;   // round trip of this round so far
  __u32 before_us;  // least round trip of the round before
  __u32 delivered;  // packets, by the last ACK that was told of
};

struct {
  __uint(type, BPF_MAP_TYPE_SK_STORAGE);
  __uint(map_flags, BPF_F_NO_PREALLOC);
  __type(key, int);
  __type(value, struct known);
} sq_rate_known SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, SWIFTQUEUE_RATE_RING_BYTES);
} sq_rate_ring SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sq_rate_counts);
} sq_rate_counts SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, SWIFTQUEUE_RATE_FORECASTS);
  __type(key, __u64);
  __type(value, struct sq_rate_forecast);
} sq_rate_forecasts SEC(".maps");

enum {
#define SQ_INDEX(name, unit, kind) AT_##name,
  SWIFTQUEUE_TCP_SAMPLE(SQ_INDEX)
#undef SQ_INDEX
};

static __always_inline struct sq_rate_counts* counts(void) {
  const __u32 zero = 0;
  return bpf_map_lookup_elem(&sq_rate_counts, &zero);
}

static __always_inline __u64 chrono_us(struct tcp_sock* tp, __u32 which, __u32 now) {
  __u64 ticks = tp->chrono_stat[which - 1];
  if (BPF_CORE_READ_BITFIELD(tp, chrono_type) == which) ticks += now - tp->chrono_start;
  return ticks * tick_us;
}

static __always_inline __u64 own_rate(const struct bbr* bbr, const struct tcp_sock* tp) {
  return (__u64)bbr->bw.s[0].v * tp->mss_cache * US_PER_S >> BW_SCALE;
}

static __always_inline void fill(__s64* x, struct sock* sk, __u64 since_ns) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct inet_connection_sock* ic = (struct inet_connection_sock*)sk;
  struct bbr* bbr = (struct bbr*)ic->icsk_ca_priv;
  const __u32 now = (__u32)bpf_jiffies64();
  const __u64 mss = tp->mss_cache, interval = tp->rate_interval_us;
  const __s32 notsent = (__s32)(tp->write_seq - tp->snd_nxt);
  __builtin_memset(x, 0, SWIFTQUEUE_RATE_FIELDS * sizeof(*x));
  x[AT_ts] = (bpf_ktime_get_ns() - since_ns) / 1000;
  x[AT_ca_state] = BPF_CORE_READ_BITFIELD(ic, icsk_ca_state);
  x[AT_total_retrans] = tp->total_retrans;
  x[AT_probes] = ic->icsk_probes_out;
  x[AT_rto] = (__u64)ic->icsk_rto * tick_us;
  x[AT_last_data_sent] = (__u64)(now - tp->lsndtime) * tick_us / 1000;
  x[AT_last_data_rcv] = (__u64)(now - ic->icsk_ack.lrcvtime) * tick_us / 1000;
  x[AT_last_ack_rcv] = (__u64)(now - tp->rcv_tstamp) * tick_us / 1000;
  x[AT_rtt] = tp->srtt_us >> 3;
  x[AT_rttvar] = tp->mdev_us >> 2;
  x[AT_snd_cwnd] = tp->snd_cwnd;
  x[AT_pacing_rate] = sk->sk_pacing_rate;
  x[AT_bytes_acked] = tp->bytes_acked;
  x[AT_notsent_bytes] = notsent > 0 ? notsent : 0;
  x[AT_min_rtt] = tp->rtt_min.s[0].v;
  x[AT_delivery_rate] = interval ? tp->rate_delivered * mss * US_PER_S / interval : 0;
  x[AT_rwnd_limited] = chrono_us(tp, CHRONO_RWND, now);
  x[AT_sndbuf_limited] = chrono_us(tp, CHRONO_SNDBUF, now);
  x[AT_busy_time] = chrono_us(tp, CHRONO_BUSY, now) + x[AT_rwnd_limited] + x[AT_sndbuf_limited];
  x[AT_delivery_rate_app_limited] = BPF_CORE_READ_BITFIELD(tp, rate_app_limited);
  x[AT_bytes_retrans] = tp->bytes_retrans;
  x[AT_reord_seen] = tp->reord_seen;
  x[AT_bbr_bw] = own_rate(bbr, tp);
  x[AT_bbr_minrtt] = bbr->min_rtt_us;
  x[AT_dsack_dups] = tp->dsack_dups;
  x[AT_delivered] = tp->delivered;
  x[AT_bytes_sent] = tp->bytes_sent;
  x[AT_segs_out] = tp->segs_out;
}

// The pipe is full: with its next ACK BBR goes from STARTUP to DRAIN. libbpf 1.1 writes no bit.
static __always_inline void fill_pipe(struct bbr* bbr) {
  const unsigned shift =
      __CORE_RELO(bbr, full_bw_reached, RSHIFT_U64) - __CORE_RELO(bbr, full_bw_reached, LSHIFT_U64);
  __u32* word = (__u32*)((char*)bbr + __CORE_RELO(bbr, full_bw_reached, BYTE_OFFSET));
  *word |= 1U << shift;
}

// What is paced, and a window of a round trip of it.
static __always_inline void pace(struct sock* sk, __u64 rate, __u64 trip_us) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  const __u64 mss = tp->mss_cache, burst = (rate >> PACING_SHIFT) / mss;
  // BBR's own allowance: three super-packets.
  const __u64 window = rate * trip_us / US_PER_S / mss + 3 * (burst > 2 ? burst : 2);
  sk->sk_pacing_rate = rate;
  tp->snd_cwnd = window;
}

// BBR goes on in STARTUP, with a window that its own estimate bears out.
static __always_inline void go_on(struct sock* sk, __u64 own, __u64 trip_us) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  const __u64 fast = own * HIGH_GAIN >> GAIN_SCALE,
              most = fast * trip_us / US_PER_S / tp->mss_cache;
  const __u64 kept = tp->snd_cwnd < most ? tp->snd_cwnd : most;
  tp->snd_cwnd = kept > INITIAL_WINDOW ? kept : INITIAL_WINDOW;
  if (fast) sk->sk_pacing_rate = fast;
}

// A forecast that came, from its verdict to its end; behind BBR's own work.
static __always_inline void follow(struct sock* sk, struct known* known, struct sq_rate_counts* all,
                                   const struct rate_sample* rs) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct inet_connection_sock* ic = (struct inet_connection_sock*)sk;
  struct bbr* bbr = (struct bbr*)ic->icsk_ca_priv;
  const __u64 own = own_rate(bbr, tp), trip = bbr->min_rtt_us == NO_TRIP ? 0 : bbr->min_rtt_us;
  if (!known->told) {
    const struct sq_rate_forecast* f = bpf_map_lookup_elem(&sq_rate_forecasts, &known->flow);
    if (!f) return;
    known->told = 1;
    const __u64 now = bpf_ktime_get_ns();
    const struct sq_seen seen = {
        .own = own,
        .dispersion = f->dispersion,
        .age_us = now > f->sampled_ns ? (now - f->sampled_ns) / 1000 : 0,
        .min_rtt_us = trip,
        .in_startup = BPF_CORE_READ_BITFIELD(bbr, mode) == STARTUP,
    };
    const __u32 verdict = sq_judge(f->rate, &seen);
    if (verdict < sizeof(all->judged) / sizeof(all->judged[0])) {
      __sync_fetch_and_add(&all->judged[verdict], 1);
    }
    if (verdict != SQ_USED) return;
    known->bounded = sq_bounded(f->rate, f->dispersion);
    known->round_end = tp->delivered;
  } else if (known->bounded && (__s32)(rs->prior_delivered - known->round_end) >= 0) {
    known->round_end = tp->delivered;
    ++known->round;
    ++known->whole;
    known->before_us = known->least_us == NO_TRIP ? 0 : known->least_us;
    known->least_us = NO_TRIP;
  }
  if (!known->bounded || !trip) return;
  const __u64 paced = sq_pace(known->bounded, tp->snd_wnd, trip);
  if (paced < sq_pace(known->bounded, 0, trip)) known->whole = -1;
  // A receiver that waits for a second segment adds up to 40 ms to single ACKs: a queue is what all
  // of a round found.
  if (rs->rtt_us > 0 && rs->rtt_us < known->least_us) known->least_us = rs->rtt_us;
  const __u64 rtt = known->before_us ? known->before_us : trip;
  const __u32 end = sq_follow(known->bounded, own, known->round, known->whole,
                              BPF_CORE_READ_BITFIELD(ic, icsk_ca_state) >= RECOVERY, rtt, trip);
  if (end == SQ_GOES_ON) {
    pace(sk, paced, trip);
    return;
  }
  if (end < sizeof(all->ended) / sizeof(all->ended[0])) __sync_fetch_and_add(&all->ended[end], 1);
  known->bounded = 0;
  if (end == SQ_QUEUED || end == SQ_CONFIRMED) {
    fill_pipe(bbr);
  } else {
    go_on(sk, own, trip);
  }
}

SEC("struct_ops")
void BPF_PROG(sq_rate_init, struct sock* sk) {
  struct known* known = bpf_sk_storage_get(&sq_rate_known, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  struct sq_rate_counts* all = counts();
  if (known && all) {
    known->flow = __sync_fetch_and_add(&all->flows, 1);
    known->since_ns = bpf_ktime_get_ns();
    known->acks = known->bounded = 0;
    known->told = known->round_end = 0;
    known->round = known->whole = 0;
    known->least_us = NO_TRIP;
    known->before_us = known->delivered = 0;
  }
  bbr_init(sk);
}

SEC("struct_ops")
void BPF_PROG(sq_rate_main, struct sock* sk, u32 ack, int flag, const struct rate_sample* rs) {
  struct known* known = bpf_sk_storage_get(&sq_rate_known, sk, 0, 0);
  struct sq_rate_counts* all = counts();
  // The SYN's ACK comes before `init`: nothing is known of the connection yet.
  if (!known || !all) {
    bbr_main(sk, ack, flag, rs);
    return;
  }
  const __u64 timed_ns = known->acks % TIMED ? 0 : bpf_ktime_get_ns();
  bbr_main(sk, ack, flag, rs);
  if (timed_ns) {
    __sync_fetch_and_add(&all->bbr_ns, bpf_ktime_get_ns() - timed_ns);
    __sync_fetch_and_add(&all->bbr_runs, 1);
  }
  follow(sk, known, all, rs);
  __sync_fetch_and_add(&all->acks, 1);
  if (known->acks >= told_samples && known->delivered >= told_packets) {
    ++known->acks;
    return;
  }
  known->delivered = ((struct tcp_sock*)sk)->delivered;
  struct sq_rate_record* record = bpf_ringbuf_reserve(&sq_rate_ring, sizeof(*record), 0);
  if (!record) {
    __sync_fetch_and_add(&all->lost, 1);
    ++known->acks;
    return;
  }
  record->flow = known->flow;
  record->number = known->acks++;
  record->since_ns = known->since_ns;
  record->receiver = __builtin_bswap32(sk->__sk_common.skc_daddr);
  record->port = __builtin_bswap16(sk->__sk_common.skc_dport);
  fill(record->fields, sk, known->since_ns);
  // The loader looks by itself; what a forecast is made from wakes it.
  const __u64 flags = record->number < asked_samples ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
  bpf_ringbuf_submit(record, flags);
}

SEC("struct_ops")
void BPF_PROG(sq_rate_release, struct sock* sk) {
  const struct known* known = bpf_sk_storage_get(&sq_rate_known, sk, 0, 0);
  if (!known || !asked_samples || known->told) return;
  struct sq_rate_ended* ended = bpf_ringbuf_reserve(&sq_rate_ring, sizeof(*ended), 0);
  if (!ended) return;
  ended->flow = known->flow;
  bpf_ringbuf_submit(ended, BPF_RB_NO_WAKEUP);
}

SEC("struct_ops")
u32 BPF_PROG(sq_rate_sndbuf, struct sock* sk) { return bbr_sndbuf_expand(sk); }
SEC("struct_ops")
u32 BPF_PROG(sq_rate_undo, struct sock* sk) { return bbr_undo_cwnd(sk); }
SEC("struct_ops")
void BPF_PROG(sq_rate_event, struct sock* sk, enum tcp_ca_event event) {
  bbr_cwnd_event(sk, event);
}
SEC("struct_ops")
u32 BPF_PROG(sq_rate_ssthresh, struct sock* sk) { return bbr_ssthresh(sk); }
SEC("struct_ops")
u32 BPF_PROG(sq_rate_tso, struct sock* sk) { return bbr_min_tso_segs(sk); }
SEC("struct_ops")
void BPF_PROG(sq_rate_state, struct sock* sk, u8 state) { bbr_set_state(sk, state); }

// Of the kernel's structure what is given; libbpf matches the members by name.
struct tcp_congestion_ops {
  u32 (*ssthresh)(struct sock* sk);
  void (*set_state)(struct sock* sk, u8 state);
  void (*cwnd_event)(struct sock* sk, enum tcp_ca_event event);
  u32 (*min_tso_segs)(struct sock* sk);
  void (*cong_control)(struct sock* sk, u32 ack, int flag, const struct rate_sample* rs);
  u32 (*undo_cwnd)(struct sock* sk);
  u32 (*sndbuf_expand)(struct sock* sk);
  void (*init)(struct sock* sk);
  void (*release)(struct sock* sk);
  u32 flags;
  char name[16];
};

SEC(".struct_ops")
struct tcp_congestion_ops sq_rate = {
    .init = (void*)sq_rate_init,
    .release = (void*)sq_rate_release,
    .cong_control = (void*)sq_rate_main,
    .sndbuf_expand = (void*)sq_rate_sndbuf,
    .undo_cwnd = (void*)sq_rate_undo,
    .cwnd_event = (void*)sq_rate_event,
    .ssthresh = (void*)sq_rate_ssthresh,
    .min_tso_segs = (void*)sq_rate_tso,
    .set_state = (void*)sq_rate_state,
    .flags = NON_RESTRICTED,
    .name = "sq_rate",
};

char _license[] SEC("license") = "GPL";
