// SPDX-License-Identifier: GPL-2.0-only
//
// Records what a DualPi2QueueDisc does and writes it as one JSON object.

#ifndef DUAL_PI2_PROBE_H
#define DUAL_PI2_PROBE_H

#include <array>
#include <cstdint>
#include <ostream>
#include <vector>

#include "../model/dual-pi2-queue-disc.h"

namespace ns3 {

/**
 * Listens to a disc's trace sources from a given time on (so that start-up can be left out); counts
 * are those of the whole run, but for what stands under "later".
 */
class DualPi2Probe {
 public:
  DualPi2Probe(Ptr<DualPi2QueueDisc> disc, Time from);
  DualPi2Probe(const DualPi2Probe&) = delete;
  DualPi2Probe& operator=(const DualPi2Probe&) = delete;

  /**
   * Write `"sojourn_us": {…}, "counts": {…}, "marks": {…}, "drops": {…}, "controller": {…}` and
   * `"departures"`, a hash of every departure's time, queue and delay: equal hashes, equal runs.
   */
  void WriteJson(std::ostream& out);

 private:
  struct Mean {
    void Add(double value) { sum += value, ++count; }
    double Value() const { return count ? sum / static_cast<double>(count) : 0; }
    double sum{0};
    uint64_t count{0};
  };

  void Departed(DualPi2QueueDisc::Queue queue, Time sojourn);
  void Updated(Time delay, double pBase, double pCoupled, double pClassic);
  void WriteQueue(std::ostream& out, DualPi2QueueDisc::Queue queue);

  Ptr<DualPi2QueueDisc> m_disc;
  Time m_from;
  std::array<DualPi2QueueDisc::QueueCounts, 2> m_before;  // until m_from
  double m_coupling;                                      // k
  std::array<std::vector<double>, 2> m_sojournUs;         // waits of each packet sent
  uint64_t m_departures{14695981039346656037ULL};         // FNV-1a, 64 bits
  Mean m_pBase;
  Mean m_pCoupled;
  Mean m_pClassic;
  double m_couplingError{0};  // greatest |p_C - (p_CL / k)^2| of all updates
};

}  // namespace ns3

#endif  // DUAL_PI2_PROBE_H
