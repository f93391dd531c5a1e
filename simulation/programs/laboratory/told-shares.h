// SPDX-License-Identifier: GPL-2.0-only
//
// A sender that is told how its router shares the link by the flows' ages: what a model that was
// taught under a standing share forecasts is corrected. simulation/doc/lab.md, "Told the shares".

#ifndef SWIFTQUEUE_LABORATORY_TOLD_SHARES_H
#define SWIFTQUEUE_LABORATORY_TOLD_SHARES_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <unordered_map>

#include "../../model/flow-ages.h"
#include "network.h"
#include "ns3/nstime.h"
#include "run.h"
#include "serving/agent/decision/sender.h"

namespace swiftqueue::lab {

class ToldShares {
 public:
  using Disc = ns3::DualPi2QueueDisc;

  /** Throws std::invalid_argument where there is not one bottleneck with a DualPI2. */
  ToldShares(const Told& told, const Run& run, const Network& network);
  ToldShares(const ToldShares&) = delete;
  ToldShares& operator=(const ToldShares&) = delete;

  /** A data packet of the sender's flow left in `queue` (kClassicQueue or kL4sQueue). */
  void Sent(uint16_t flow, uint8_t queue);
  void Acked(uint16_t flow, float latencyUs);

  /**
   * Corrects forecasts y_BHL, so many values of each (L): what a packet waits in a queue by the
   * share that the queue has if the packet's flow is in it, instead of the one under which the
   * model was taught.
   */
  void Correct(const agent::Question& question,
               const std::function<uint16_t(const Candidate&)>& flowOf, float* y_BHL,
               std::size_t outputs);

  /** C's share of the link if a flow of the sender, known or not yet, were in `queue`. */
  double ClassicShareWith(uint16_t flow, Disc::Queue queue) const;

 private:
  using Weights = std::array<double, 2>;  // by Disc::Queue

  Weights Own() const;
  /** Notes what the router's flows weigh beside the sender's own. */
  void Hear();

  ns3::Ptr<Disc> m_disc;
  double m_taughtShare;  // of C
  FlowAges m_ages;       // of the sender's own flows; groups are queues
  ns3::Time m_nextRest;
  std::unordered_map<uint16_t, float> m_leastUs;  // of each flow's latencies
  std::size_t m_heardTicks{0};                    // how old what it hears is; 0: it hears nothing
  std::deque<Weights> m_others;                   // the oldest first
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_TOLD_SHARES_H
