// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// A sample of a TCP connection, taken at an ACK: what Linux tells in tcp_info and in BBR's own
// bbr_info. The 28 fields, their order, their units and which of them become increments stand here
// and only here (Luebben, "Forecasting TCP's Rate to Speed up Slow Start", table 1). A BPF program,
// which is C, takes the list of fields and nothing else.

#ifndef SWIFTQUEUE_TCP_SAMPLE_H
#define SWIFTQUEUE_TCP_SAMPLE_H

// X(name, unit, kind). `value`: the model sees it as it is. `count`: it never falls, and the model
// sees what the ACK added. `flag`: 0 or 1, and the model sees the change (-1, 0 or 1), as in the
// paper.
#define SWIFTQUEUE_TCP_SAMPLE(X)                                                                  \
  X(ts, us, count)         /* since the connection was established */                             \
  X(ca_state, code, value) /* 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss */                    \
  X(total_retrans, packets, count)                                                                \
  X(probes, packets, value) /* zero-window probes without an answer */                            \
  X(rto, us, value)                                                                               \
  X(last_data_sent, ms, value) /* since the last data packet left */                              \
  X(last_data_rcv, ms, value)                                                                     \
  X(last_ack_rcv, ms, value)                                                                      \
  X(rtt, us, value) /* smoothed, RFC 6298 */                                                      \
  X(rttvar, us, value)                                                                            \
  X(snd_cwnd, packets, value)                                                                     \
  X(pacing_rate, bytes_per_s, value)                                                              \
  X(bytes_acked, bytes, count)                                                                    \
  X(notsent_bytes, bytes, value)                                                                  \
  X(min_rtt, us, value)                                                                           \
  X(delivery_rate, bytes_per_s, value)                                                            \
  X(busy_time, us, count)                                                                         \
  X(sndbuf_limited, us, count)                                                                    \
  X(delivery_rate_app_limited, code, flag)                                                        \
  X(bytes_retrans, bytes, value)                                                                  \
  X(reord_seen, packets, value)                                                                   \
  X(bbr_bw, bytes_per_s, value) /* BBR's estimate: the most of ten rounds; the truth, later on */ \
  X(bbr_minrtt, us, value)      /* the least of ten seconds */                                    \
  X(dsack_dups, packets, value)                                                                   \
  X(rwnd_limited, us, count)                                                                      \
  X(delivered, packets, count) /* acknowledged, cumulatively or by SACK */                        \
  X(bytes_sent, bytes, count)                                                                     \
  X(segs_out, packets, count)

#ifdef __cplusplus
#include <array>
#include <cstdint>
#include <string>

namespace swiftqueue::rate {

enum class Kind { value, count, flag };

struct Field {
  const char* name;
  const char* unit;
  Kind kind;
};

#define SWIFTQUEUE_FIELD(name, unit, kind) Field{#name, #unit, Kind::kind},
inline constexpr std::array kFields{SWIFTQUEUE_TCP_SAMPLE(SWIFTQUEUE_FIELD)};
#undef SWIFTQUEUE_FIELD
inline constexpr int kFieldCount = static_cast<int>(kFields.size());
static_assert(kFieldCount == 28);

/** Where a field stands, as `At::bbr_bw`. */
struct At {
#define SWIFTQUEUE_INDEX(name, unit, kind) name,
  enum Index : int { SWIFTQUEUE_TCP_SAMPLE(SWIFTQUEUE_INDEX) };
#undef SWIFTQUEUE_INDEX
};

/** One sample, in the units above. */
using Sample = std::array<std::int64_t, kFieldCount>;

// A forecast is made from the first samples of a flow, and is of BBR's estimate where so many
// packets have been delivered.
inline constexpr std::array kPrefixes{5, 15, 35};
inline constexpr int kMostSamples = 35;
inline constexpr std::array kHorizons{62, 125, 250, 500, 1000, 2000};

/** Turns a flow's samples into a model's inputs, one ACK at a time; its state is the last sample.
 */
class SampleStream {
 public:
  /**
   * Inputs of the next sample, in raw units (a model scales them itself). Those of the first sample
   * are counted from 0; its `ts` is 0. False, and nothing changed, where a field is negative, a
   * count falls, or a flag is neither 0 nor 1.
   */
  bool push(const std::int64_t* raw, float* x_F) {
    for (int f = 0; f < kFieldCount; ++f) {
      const Kind kind = kFields[f].kind;
      if (raw[f] < 0 || (kind == Kind::flag && raw[f] > 1) ||
          (kind == Kind::count && m_any && raw[f] < m_last[f])) {
        return false;
      }
    }
    for (int f = 0; f < kFieldCount; ++f) {
      const bool increment = kFields[f].kind != Kind::value;
      x_F[f] = static_cast<float>(increment ? raw[f] - m_last[f] : raw[f]);
      m_last[f] = raw[f];
    }
    if (!m_any) {
      x_F[At::ts] = 0;
    }
    m_any = true;
    return true;
  }

 private:
  bool m_any{false};
  Sample m_last{};
};

/** All of the definition, as text; a model remembers its hash. */
inline std::string schema_text() {
  constexpr std::array kKinds{"value", "count", "flag"};
  std::string text = "swiftqueue tcp sample 1\nprefixes";
  for (const int n : kPrefixes) {
    text += ' ' + std::to_string(n);
  }
  text += "\nhorizons";
  for (const int n : kHorizons) {
    text += ' ' + std::to_string(n);
  }
  for (const Field& field : kFields) {
    text += std::string("\n") + field.name + ' ' + field.unit + ' ' +
            kKinds[static_cast<std::size_t>(field.kind)];
  }
  return text + '\n';
}

}  // namespace swiftqueue::rate
#endif  // __cplusplus

#endif  // SWIFTQUEUE_TCP_SAMPLE_H
