// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// The kernel's BBR under another name, which tells what it knows at each ACK: the 28 fields of
// feature_store/rate/tcp_sample.h. BBR itself is called, and nothing of it is changed.
#include <linux/bpf.h>
// What libbpf's headers need of it.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>

#include "rate.h"

// Of the kernel's structures what is read here; CO-RE finds where it is in the one that runs.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock_common {
  __be32 skc_daddr;
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
};
struct rate_sample {
  int losses;
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

const volatile __u32 tick_us = 4000;  // a jiffy; the loader knows it

struct known {
  __u64 flow;
  __u64 since_ns;
  __u64 acks;
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
  x[AT_bbr_bw] = bbr->bw.s[0].v * mss * US_PER_S >> BW_SCALE;
  x[AT_bbr_minrtt] = bbr->min_rtt_us;
  x[AT_dsack_dups] = tp->dsack_dups;
  x[AT_delivered] = tp->delivered;
  x[AT_bytes_sent] = tp->bytes_sent;
  x[AT_segs_out] = tp->segs_out;
}

SEC("struct_ops")
void BPF_PROG(sq_rate_init, struct sock* sk) {
  struct known* known = bpf_sk_storage_get(&sq_rate_known, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
  struct sq_rate_counts* all = counts();
  if (known && all) {
    known->flow = __sync_fetch_and_add(&all->flows, 1);
    known->since_ns = bpf_ktime_get_ns();
    known->acks = 0;
  }
  bbr_init(sk);
}

SEC("struct_ops")
void BPF_PROG(sq_rate_main, struct sock* sk, u32 ack, int flag, const struct rate_sample* rs) {
  bbr_main(sk, ack, flag, rs);
  // The SYN's ACK comes before `init`: nothing is known of the connection yet.
  struct known* known = bpf_sk_storage_get(&sq_rate_known, sk, 0, 0);
  struct sq_rate_counts* all = counts();
  if (!known || !all) return;
  __sync_fetch_and_add(&all->acks, 1);
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
  record->reserved = 0;
  fill(record->fields, sk, known->since_ns);
  bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);  // the loader looks by itself
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
  char name[16];
};

SEC(".struct_ops")
struct tcp_congestion_ops sq_rate = {
    .init = (void*)sq_rate_init,
    .cong_control = (void*)sq_rate_main,
    .sndbuf_expand = (void*)sq_rate_sndbuf,
    .undo_cwnd = (void*)sq_rate_undo,
    .cwnd_event = (void*)sq_rate_event,
    .ssthresh = (void*)sq_rate_ssthresh,
    .min_tso_segs = (void*)sq_rate_tso,
    .set_state = (void*)sq_rate_state,
    .name = "sq_rate",
};

char _license[] SEC("license") = "GPL";
