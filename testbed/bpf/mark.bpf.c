// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// tc egress: gives each packet of a registered TCP flow the codepoint that its decision says
// (mark.h). Only packets that the kernel sent as ECT get another codepoint: the connection has
// negotiated ECN, and it is no retransmission, unless its congestion control wants ECN on those
// too, as DCTCP does. Where DSCPs are set, each of the flow's packets with data gets the one of its
// alternative, ECT or not. Of followed flows it also says each packet, and tc ingress each
// acknowledgement.
#include "mark.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define TCP 6
#define FIN 0x01
#define RST 0x04
#define ACK 0x10
#define ECT1 1
#define CE 3

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, SWIFTQUEUE_FLOWS);
  __type(key, __u64);
  __type(value, struct sq_decision);
} sq_decisions SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_LRU_HASH);
  __uint(max_entries, SWIFTQUEUE_FLOWS);
  __type(key, __u64);
  __type(value, struct sq_counts);
} sq_flow_counts SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sq_settings);
} sq_attachment SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct sq_follower);
} sq_follower SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, SWIFTQUEUE_FOLLOWED);
  __type(key, __u64);
  __type(value, struct sq_followed);
} sq_followed SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, SWIFTQUEUE_FOLLOWED);
  __type(key, __u64);
  __type(value, struct sq_batches);
} sq_batches SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_HASH);
  __uint(max_entries, SWIFTQUEUE_FOLLOWED);
  __type(key, struct sq_tuple);
  __type(value, __u64);
} sq_tuples SEC(".maps");

struct {
  __uint(type, BPF_MAP_TYPE_RINGBUF);
  __uint(max_entries, SWIFTQUEUE_EVENT_BYTES);
} sq_events SEC(".maps");

const volatile struct sq_constants sq_constants = {.link_header_bytes = 14};

struct tcp_packet {
  __u32 v4;
  __u32 ip_bytes, header_bytes;  // header_bytes: of IP and TCP
  __u32 sequence, acknowledged;
  __u16 source_port, destination_port;  // the network's byte order, as the addresses
  __u32 source[4], destination[4];
  __u8 ecn, ds_field, flags;
  __u8 ip[2];  // the first two bytes of its header
};

// Whether this is a TCP packet with its header.
static __always_inline int read_packet(struct __sk_buff* skb, struct tcp_packet* p) {
  const __u32 at = sq_constants.link_header_bytes;
  __u8 head[40];
  __u32 ip_header_bytes;
  p->v4 = skb->protocol == bpf_htons(ETH_P_IP);
  if (p->v4) {
    if (bpf_skb_load_bytes(skb, at, head, 20)) return 0;
    if (head[9] != TCP || (head[6] & 0x1f) || head[7]) return 0;  // a fragment has no TCP header
    ip_header_bytes = (head[0] & 0xf) * 4;
    p->ip_bytes = head[2] << 8 | head[3];
    p->ds_field = head[1];
    __builtin_memcpy(p->source, head + 12, 4);
    __builtin_memcpy(p->destination, head + 16, 4);
  } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
    if (bpf_skb_load_bytes(skb, at, head, 40)) return 0;
    if (head[6] != TCP) return 0;
    ip_header_bytes = 40;
    p->ip_bytes = 40 + (head[4] << 8 | head[5]);
    p->ds_field = head[0] << 4 | head[1] >> 4;
    __builtin_memcpy(p->source, head + 8, 16);
    __builtin_memcpy(p->destination, head + 24, 16);
  } else {
    return 0;
  }
  p->ecn = p->ds_field & 3;
  p->ip[0] = head[0];
  p->ip[1] = head[1];
  struct {
    __u16 source, destination;
    __u32 sequence, acknowledged;
    __u8 offset, flags;
  } tcp;
  if (bpf_skb_load_bytes(skb, at + ip_header_bytes, &tcp, 14)) return 0;
  p->header_bytes = ip_header_bytes + (tcp.offset >> 4) * 4;
  p->source_port = tcp.source;
  p->destination_port = tcp.destination;
  p->sequence = bpf_ntohl(tcp.sequence);
  p->acknowledged = bpf_ntohl(tcp.acknowledged);
  p->flags = tcp.flags;
  return 1;
}

static __always_inline struct sq_counts* counts_of(__u64 cookie) {
  struct sq_counts* counts = bpf_map_lookup_elem(&sq_flow_counts, &cookie);
  if (counts) return counts;
  struct sq_counts none = {};
  bpf_map_update_elem(&sq_flow_counts, &cookie, &none, BPF_NOEXIST);
  return bpf_map_lookup_elem(&sq_flow_counts, &cookie);
}

static __always_inline struct sq_event* new_event(__u64 now_ns, __u64 cookie, __u8 kind) {
  struct sq_event* event = bpf_ringbuf_reserve(&sq_events, sizeof *event, 0);
  if (!event) return 0;
  __builtin_memset(event, 0, sizeof *event);
  event->time_ns = now_ns;
  event->cookie = cookie;
  event->kind = kind;
  return event;
}

static __always_inline int is_among(const __u16* ports, __u32 count, __u16 wanted) {
  int found = 0;
  for (__u32 i = 0; i < SWIFTQUEUE_PORTS; ++i) found |= i < count && bpf_htons(ports[i]) == wanted;
  return found;
}

// Gives the packet a codepoint and its alternative's DSCP, where one is set, and IPv4's checksum
// with it.
static __always_inline void rewrite(struct __sk_buff* skb, const struct tcp_packet* p,
                                    __u8 codepoint, __u8 alternative) {
  const __u32 at = sq_constants.link_header_bytes;
  const __u8 dscp = alternative ? sq_constants.dscp[1] : sq_constants.dscp[0];
  const __u8 wanted = (sq_constants.sets_dscp ? dscp << 2 : p->ds_field & 0xfc) | codepoint;
  if (wanted == p->ds_field) return;
  if (p->v4) {
    bpf_l3_csum_replace(skb, at + 10, bpf_htons(p->ip[0] << 8 | p->ip[1]),
                        bpf_htons(p->ip[0] << 8 | wanted), 2);
    bpf_skb_store_bytes(skb, at + 1, &wanted, 1, 0);
  } else {
    const __u8 begin[2] = {(p->ip[0] & 0xf0) | wanted >> 4, (p->ip[1] & 0x0f) | wanted << 4};
    bpf_skb_store_bytes(skb, at, begin, 2, 0);
  }
}

// The flow's record, made for the first packet of one that goes to a port that is followed.
static __always_inline struct sq_followed* followed_of(__u64 cookie, const struct tcp_packet* p,
                                                       int data,
                                                       const struct sq_follower* follower) {
  struct sq_followed* followed = bpf_map_lookup_elem(&sq_followed, &cookie);
  if (!follower) return followed;
  if (!followed) {
    if (!data) return 0;
    if (!sq_constants.sets_dscp && (p->ecn == 0 || p->ecn == CE)) return 0;  // not to be marked
    if (!is_among(follower->port, follower->ports, p->destination_port)) return 0;
    struct sq_followed fresh = {};
    bpf_map_update_elem(&sq_followed, &cookie, &fresh, BPF_NOEXIST);
    followed = bpf_map_lookup_elem(&sq_followed, &cookie);
    if (!followed) return 0;
  }
  if (!followed->known) {
    struct sq_tuple tuple = {};
    for (int i = 0; i < 4; ++i) {
      tuple.local[i] = p->source[i];
      tuple.remote[i] = p->destination[i];
    }
    tuple.local_port = p->source_port;
    tuple.remote_port = p->destination_port;
    followed->tuple = tuple;
    followed->known = !bpf_map_update_elem(&sq_tuples, &tuple, &cookie, BPF_ANY);
  }
  return followed;
}

SEC("tc")
int sq_mark(struct __sk_buff* skb) {
  struct tcp_packet p = {};
  if (!read_packet(skb, &p)) return 0;
  const int data = skb->gso_segs > 1 || p.ip_bytes > p.header_bytes;
  const int last = p.flags & (FIN | RST);
  if (!data && !last) return 0;

  __u64 cookie = bpf_get_socket_cookie(skb);
  if (sq_constants.bench_cookie) cookie = sq_constants.bench_cookie;
  const __u32 zero = 0;
  __u64 now_ns = 0;  // read where it is needed
  const struct sq_follower* follower = bpf_map_lookup_elem(&sq_follower, &zero);
  const int ect = p.ecn != 0 && p.ecn != CE;
  if (follower && follower->plain_ports &&
      is_among(follower->plain_port, follower->plain_ports, p.destination_port)) {
    if (data) rewrite(skb, &p, ect ? ECT1 : p.ecn, 1);
    return 0;
  }
  if (follower && follower->listens_until_ns) {
    now_ns = bpf_ktime_get_ns();
    if (follower->listens_until_ns <= now_ns) follower = 0;
  } else {
    follower = 0;
  }
  struct sq_followed* followed = followed_of(cookie, &p, data, follower);
  const struct sq_decision* decision = followed ? 0 : bpf_map_lookup_elem(&sq_decisions, &cookie);
  if (!followed && !decision) return 0;
  if (!now_ns) now_ns = bpf_ktime_get_ns();
  struct sq_counts* counts = counts_of(cookie);
  if (!counts) return 0;

  // By default alternative 1: that of ECT(1), and without DSCPs the codepoint is all there is.
  __u8 wanted = ect ? ECT1 : p.ecn, alternative = sq_constants.sets_dscp || (p.ecn & 1) || ect;
  __u8 decided = 0;
  if (data) {
    __u64 n = __sync_fetch_and_add(&counts->packets, 1);
    if (followed) n = __sync_fetch_and_add(&followed->packets, 1);
    if (!ect) __sync_fetch_and_add(&counts->left_alone, 1);
    if (!ect && !sq_constants.sets_dscp) {
      // nothing of it is ours
    } else if (skb->gso_segs > 1) {
      __sync_fetch_and_add(&counts->gso, 1);
    } else {
      __u64 until_ns = 0;
      __u8 says = CE;  // nothing
      if (followed) {
        const struct sq_batches* batches = bpf_map_lookup_elem(&sq_batches, &cookie);
        const __u32 at = n / SWIFTQUEUE_HORIZON % SWIFTQUEUE_BATCHES;
        if (batches && batches->of[at].first == n - n % SWIFTQUEUE_HORIZON &&
            batches->of[at].valid_until_ns) {
          until_ns = follower ? follower->alive_until_ns : 0;
          if (batches->of[at].valid_until_ns < until_ns) until_ns = batches->of[at].valid_until_ns;
          says = batches->of[at].codepoints[n % SWIFTQUEUE_HORIZON];
        }
      } else {
        until_ns = decision->valid_until_ns;
        says = decision->codepoints[n % SWIFTQUEUE_HORIZON];
      }
      if (says < CE) {
        decided = now_ns < until_ns;
        if (decided && ect) wanted = says;
        if (decided) alternative = says & 1;
        __sync_fetch_and_add(decided ? &counts->decided : &counts->stale, 1);
      }
    }
    if (ect) __sync_fetch_and_add(&counts->by_codepoint[wanted & 3], 1);
    __sync_fetch_and_add(alternative ? &counts->by_alternative[1] : &counts->by_alternative[0], 1);
    if (followed && follower && skb->gso_segs <= 1) {
      struct sq_event* event = new_event(now_ns, cookie, SQ_SENT);
      if (event) {
        event->packet = n;
        event->sequence = p.sequence;
        event->payload_bytes = p.ip_bytes - p.header_bytes;
        event->ip_bytes = p.ip_bytes;
        event->codepoint = wanted;
        event->decided = decided;
        event->alternative = alternative;
        bpf_ringbuf_submit(event, 0);
      } else {
        __sync_fetch_and_add(&counts->unsaid, 1);
      }
    }
  }
  if (last && followed && follower) {
    struct sq_event* event = new_event(now_ns, cookie, SQ_ENDED);
    if (event) bpf_ringbuf_submit(event, 0);
  }
  if (data) rewrite(skb, &p, wanted, alternative);
  return 0;
}

// What comes back of followed flows: each number that is acknowledged, once.
SEC("tc")
int sq_acknowledged(struct __sk_buff* skb) {
  const __u32 zero = 0;
  const struct sq_follower* follower = bpf_map_lookup_elem(&sq_follower, &zero);
  if (!follower || !follower->listens_until_ns) return 0;
  const __u64 now_ns = bpf_ktime_get_ns();
  if (follower->listens_until_ns <= now_ns) return 0;
  struct tcp_packet p = {};
  if (!read_packet(skb, &p) || !(p.flags & (ACK | RST))) return 0;
  struct sq_tuple tuple = {};
  for (int i = 0; i < 4; ++i) {
    tuple.local[i] = p.destination[i];
    tuple.remote[i] = p.source[i];
  }
  tuple.local_port = p.destination_port;
  tuple.remote_port = p.source_port;
  const __u64* found = bpf_map_lookup_elem(&sq_tuples, &tuple);
  if (!found) return 0;
  const __u64 cookie = *found;
  struct sq_followed* followed = bpf_map_lookup_elem(&sq_followed, &cookie);
  if (!followed) return 0;
  const int last = p.flags & RST;
  if (!last && followed->any_acked && (__s32)(p.acknowledged - followed->acked) <= 0) return 0;
  struct sq_event* event = new_event(now_ns, cookie, last ? SQ_ENDED : SQ_ACKED);
  if (!event) {
    struct sq_counts* counts = counts_of(cookie);
    if (counts) __sync_fetch_and_add(&counts->unsaid, 1);
    return 0;  // the next one covers it
  }
  event->sequence = p.acknowledged;
  bpf_ringbuf_submit(event, 0);
  followed->acked = p.acknowledged;
  followed->any_acked = 1;
  return 0;
}

char _license[] SEC("license") = "GPL";
