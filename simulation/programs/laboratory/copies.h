// SPDX-License-Identifier: GPL-2.0-only
//
// Which of the calls' packets leave over both uplinks: simulation/doc/lab.md.

#ifndef SWIFTQUEUE_LABORATORY_COPIES_H
#define SWIFTQUEUE_LABORATORY_COPIES_H

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

#include "control.h"

namespace swiftqueue::lab {

/**
 * Copies the frames that are predicted to be late: over the uplink that was chosen for the first of
 * a frame's packets, the prediction is among the share of the latest ones that is largest. Of all
 * packets so far, no more than this share is ever copied.
 */
class Copies {
 public:
  explicit Copies(double share) : m_share(share) {}

  /** Whether a call's packet, which leaves over `uplink` and belongs to frame `frame`, is copied.
   */
  bool Next(const DataPacket& packet, uint8_t uplink, int64_t frame);

  /** A packet of any flow left over `uplink`. */
  void Sent(const DataPacket& packet, uint8_t uplink);

  /** The first ACK that covers it came; `latencyUs` is NaN where unknown. */
  void Acked(int64_t packet, uint8_t uplink, float latencyUs);

 private:
  struct Path {
    double lastUs{0};                    // last latency
    std::map<int64_t, int64_t> unacked;  // packets, in send order, and when they left, ns
  };
  struct Decided {
    int64_t frame{-1};
    bool copied{false};
  };

  /** The last latency, or how long the oldest packet has been under way if that is more. */
  double PredictedUs(uint8_t uplink) const;
  bool IsLate(double predictedUs);

  double m_share;
  double m_allowed{0};                              // packets that may be copied now
  std::array<Path, 2> m_paths;                      // by uplink
  std::deque<double> m_predictedUs;                 // latest predictions
  std::vector<double> m_sortedUs;                   // the same, partly sorted
  uint64_t m_packets{0};                            // calls' packets so far
  double m_lateUs{0};                               // prediction from which a packet is late
  std::unordered_map<uint16_t, Decided> m_decided;  // by the flow's number
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_COPIES_H
