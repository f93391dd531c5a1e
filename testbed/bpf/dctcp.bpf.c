// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// DCTCP (RFC 8257) as a congestion control of BPF, `sq_dctcp`, for kernels that have none. Window
// growth is the kernel's Reno. The arithmetic is that of the RFC's section 3.3, in the units of
// Linux: alpha in 1024ths, a gain of 1/16. Both ends of a connection need it: the receiver echoes
// each change of CE at once (section 3.2).
#include <linux/bpf.h>
// What libbpf's headers need of it.
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>

typedef __u8 u8;
typedef __u32 u32;

// Of the kernel's structures what is read here; CO-RE finds where it is in the one that runs.
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sock {
  unsigned long sk_pacing_rate;
};
struct inet_connection_sock {
  struct {
    __u8 pending;
  } icsk_ack;
  __u64 icsk_ca_priv[13];
};
struct tcp_sock {
  __u32 rcv_nxt;
  __u32 snd_nxt;
  __u32 snd_una;
  __u32 snd_cwnd;
  __u32 snd_ssthresh;
  __u32 prior_cwnd;
  __u32 delivered;
  __u32 delivered_ce;
  __u8 ecn_flags;
};
#pragma clang attribute pop

enum tcp_ca_event {
  CA_EVENT_TX_START,
  CA_EVENT_CWND_RESTART,
  CA_EVENT_COMPLETE_CWR,
  CA_EVENT_LOSS,
  CA_EVENT_ECN_NO_CE,
  CA_EVENT_ECN_IS_CE,
};

extern void tcp_reno_cong_avoid(struct sock* sk, u32 ack, u32 acked) __ksym;

#define ALPHA_ONE 1024U
#define ALPHA_GAIN_SHIFT 4  // RFC 8257, 3.3: g = 1/16
#define LEAST_WINDOW 2U     // packets
#define RECOVERY 3          // enum tcp_ca_state
// inet_connection_sock.h, tcp.h
#define ACK_TIMER 2
#define ACK_NOW 16
#define ECN_DEMAND_CWR 4
#define NEEDS_ECN 2  // TCP_CONG_NEEDS_ECN

struct dctcp {
  __u32 old_delivered;
  __u32 old_delivered_ce;
  __u32 prior_rcv_nxt;
  __u32 alpha;
  __u32 next_seq;
  __u32 loss_cwnd;
  __u8 ce_state;
};

static __always_inline struct dctcp* own(struct sock* sk) {
  return (struct dctcp*)((struct inet_connection_sock*)sk)->icsk_ca_priv;
}

static __always_inline void begin_round(const struct tcp_sock* tp, struct dctcp* ca) {
  ca->next_seq = tp->snd_nxt;
  ca->old_delivered = tp->delivered;
  ca->old_delivered_ce = tp->delivered_ce;
}

SEC("struct_ops")
void BPF_PROG(sq_dctcp_init, struct sock* sk) {
  const struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct dctcp* ca = own(sk);
  ca->prior_rcv_nxt = tp->rcv_nxt;
  ca->alpha = ALPHA_ONE;  // RFC 8257, 4.2
  ca->loss_cwnd = 0;
  ca->ce_state = 0;
  begin_round(tp, ca);
}

SEC("struct_ops")
u32 BPF_PROG(sq_dctcp_ssthresh, struct sock* sk) {
  const struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct dctcp* ca = own(sk);
  ca->loss_cwnd = tp->snd_cwnd;
  const __u32 fewer = tp->snd_cwnd - (tp->snd_cwnd * ca->alpha >> 11);  // 1 - alpha / 2
  return fewer > LEAST_WINDOW ? fewer : LEAST_WINDOW;
}

static __always_inline void react_to_loss(struct sock* sk) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  own(sk)->loss_cwnd = tp->snd_cwnd;
  const __u32 half = tp->snd_cwnd >> 1;
  tp->snd_ssthresh = half > LEAST_WINDOW ? half : LEAST_WINDOW;
}

SEC("struct_ops")
void BPF_PROG(sq_dctcp_acked, struct sock* sk, u32 flags) {
  const struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct dctcp* ca = own(sk);
  if ((__s32)(tp->snd_una - ca->next_seq) < 0) return;
  __u32 alpha = ca->alpha, less = alpha >> ALPHA_GAIN_SHIFT;
  alpha -= less != 0 && less < alpha ? less : alpha;
  const __u32 marked = tp->delivered_ce - ca->old_delivered_ce;
  if (marked != 0) {
    const __u32 all = tp->delivered - ca->old_delivered;
    alpha += (marked << (10 - ALPHA_GAIN_SHIFT)) / (all != 0 ? all : 1);
  }
  ca->alpha = alpha < ALPHA_ONE ? alpha : ALPHA_ONE;
  begin_round(tp, ca);
}

static __always_inline void echo(struct tcp_sock* tp, __u8 ce) {
  if (ce) {
    tp->ecn_flags |= ECN_DEMAND_CWR;
  } else {
    tp->ecn_flags &= ~ECN_DEMAND_CWR;
  }
}

// RFC 8257, 3.2: an ACK that waits is sent first if what it says of CE would no longer hold.
static __always_inline void note(struct sock* sk, __u8 ce) {
  struct tcp_sock* tp = (struct tcp_sock*)sk;
  struct inet_connection_sock* ic = (struct inet_connection_sock*)sk;
  struct dctcp* ca = own(sk);
  if (ca->ce_state != ce) {
    if (ic->icsk_ack.pending & ACK_TIMER) {
      echo(tp, ca->ce_state);
      bpf_tcp_send_ack(tp, ca->prior_rcv_nxt);
    }
    ic->icsk_ack.pending |= ACK_NOW;
  }
  ca->prior_rcv_nxt = tp->rcv_nxt;
  ca->ce_state = ce;
  echo(tp, ce);
}

SEC("struct_ops")
void BPF_PROG(sq_dctcp_event, struct sock* sk, enum tcp_ca_event event) {
  if (event == CA_EVENT_ECN_IS_CE || event == CA_EVENT_ECN_NO_CE) {
    note(sk, event == CA_EVENT_ECN_IS_CE);
  } else if (event == CA_EVENT_LOSS) {
    react_to_loss(sk);
  } else if (event == CA_EVENT_TX_START) {
    begin_round((struct tcp_sock*)sk, own(sk));  // a pause says nothing of CE
  }
}

SEC("struct_ops")
void BPF_PROG(sq_dctcp_state, struct sock* sk, u8 state) {
  if (state == RECOVERY) react_to_loss(sk);
}

SEC("struct_ops")
u32 BPF_PROG(sq_dctcp_undo, struct sock* sk) {
  const __u32 now = ((struct tcp_sock*)sk)->snd_cwnd, lost = own(sk)->loss_cwnd;
  return now > lost ? now : lost;
}

SEC("struct_ops")
void BPF_PROG(sq_dctcp_avoid, struct sock* sk, u32 ack, u32 acked) {
  tcp_reno_cong_avoid(sk, ack, acked);
}

// Of the kernel's structure what is given; libbpf matches the members by name.
struct tcp_congestion_ops {
  u32 (*ssthresh)(struct sock* sk);
  void (*cong_avoid)(struct sock* sk, u32 ack, u32 acked);
  void (*set_state)(struct sock* sk, u8 state);
  void (*cwnd_event)(struct sock* sk, enum tcp_ca_event event);
  void (*in_ack_event)(struct sock* sk, u32 flags);
  u32 (*undo_cwnd)(struct sock* sk);
  void (*init)(struct sock* sk);
  u32 flags;
  char name[16];
};

SEC(".struct_ops")
struct tcp_congestion_ops sq_dctcp = {
    .init = (void*)sq_dctcp_init,
    .in_ack_event = (void*)sq_dctcp_acked,
    .cwnd_event = (void*)sq_dctcp_event,
    .ssthresh = (void*)sq_dctcp_ssthresh,
    .cong_avoid = (void*)sq_dctcp_avoid,
    .undo_cwnd = (void*)sq_dctcp_undo,
    .set_state = (void*)sq_dctcp_state,
    .flags = NEEDS_ECN,
    .name = "sq_dctcp",
};

char _license[] SEC("license") = "GPL";
