// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// tc egress: gives each packet of a registered TCP flow the codepoint that its decision says
// (mark.h). Only packets that the kernel sent as ECT are touched: the connection has negotiated
// ECN, and it is no retransmission.
#include "mark.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <linux/bpf.h>

#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd
#define TCP 6
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

const volatile __u32 link_header_bytes = 14;  // 0 on a TUN
const volatile __u64 bench_cookie = 0;  // of a test run, whose socket has one that nobody knows

SEC("tc")
int sq_mark(struct __sk_buff* skb) {
  const __u32 at = link_header_bytes;
  __u32 ip_bytes, header_bytes;
  __u8 ecn, head[40];
  const int v4 = skb->protocol == bpf_htons(ETH_P_IP);
  if (v4) {
    if (bpf_skb_load_bytes(skb, at, head, 20)) return 0;
    if (head[9] != TCP || (head[6] & 0x1f) || head[7]) return 0;  // a fragment has no TCP header
    header_bytes = (head[0] & 0xf) * 4;
    ip_bytes = head[2] << 8 | head[3];
    ecn = head[1] & 3;
  } else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
    if (bpf_skb_load_bytes(skb, at, head, 40)) return 0;
    if (head[6] != TCP) return 0;
    header_bytes = 40;
    ip_bytes = 40 + (head[4] << 8 | head[5]);
    ecn = head[1] >> 4 & 3;
  } else {
    return 0;
  }
  __u8 offset;
  if (bpf_skb_load_bytes(skb, at + header_bytes + 12, &offset, 1)) return 0;
  header_bytes += (offset >> 4) * 4;
  if (skb->gso_segs <= 1 && ip_bytes <= header_bytes) return 0;  // no data

  __u64 cookie = bpf_get_socket_cookie(skb);
  if (bench_cookie) cookie = bench_cookie;
  const struct sq_decision* decision = bpf_map_lookup_elem(&sq_decisions, &cookie);
  if (!decision) return 0;
  struct sq_counts* counts = bpf_map_lookup_elem(&sq_flow_counts, &cookie);
  if (!counts) {
    struct sq_counts none = {};
    bpf_map_update_elem(&sq_flow_counts, &cookie, &none, BPF_NOEXIST);
    counts = bpf_map_lookup_elem(&sq_flow_counts, &cookie);
    if (!counts) return 0;
  }
  const __u32 n = (__u32)__sync_fetch_and_add(&counts->packets, 1) - decision->first;
  if (ecn == 0 || ecn == CE) {
    __sync_fetch_and_add(&counts->not_ect, 1);
    return 0;
  }
  __u8 wanted = ECT1;
  if (skb->gso_segs > 1) {
    __sync_fetch_and_add(&counts->gso, 1);
  } else if (bpf_ktime_get_ns() >= decision->valid_until_ns) {
    __sync_fetch_and_add(&counts->stale, 1);
  } else if ((__s32)n >= 0 && n < decision->packets) {
    const __u8 says = decision->codepoints[n % SWIFTQUEUE_HORIZON];
    if (says < CE) {
      wanted = says;
      __sync_fetch_and_add(&counts->decided, 1);
    }
  }
  __sync_fetch_and_add(&counts->by_codepoint[wanted & 3], 1);
  if (wanted == ecn) return 0;
  if (v4) {
    const __u8 tos = (head[1] & 0xfc) | wanted;
    bpf_l3_csum_replace(skb, at + 10, bpf_htons(head[0] << 8 | head[1]),
                        bpf_htons(head[0] << 8 | tos), 2);
    bpf_skb_store_bytes(skb, at + 1, &tos, 1, 0);
  } else {
    const __u8 second = (head[1] & 0xcf) | wanted << 4;
    bpf_skb_store_bytes(skb, at + 1, &second, 1, 0);
  }
  return 0;
}

char _license[] SEC("license") = "GPL";
