// SPDX-License-Identifier: GPL-2.0-only
//
// LFQ: fair queuing in which a network that has learned says each flow's limit. The signals and
// their averages are testbed/router/lfq.h, the network is dense.h.

#ifndef SWIFTQUEUE_LFQ_QUEUE_DISC_H
#define SWIFTQUEUE_LFQ_QUEUE_DISC_H

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dense.h"
#include "fair-queue-disc.h"
#include "ns3/nstime.h"
#include "ns3/traced-callback.h"
#include "testbed/router/lfq.h"

namespace swiftqueue {

/**
 * A flow begins with FlowLimit packets. At each 10th packet, or after 100 ms, the network is asked
 * for its limit. Where an input is beyond what the network was trained on, and a part of that
 * range more (Beyond), the limit is one bandwidth-delay product instead: what the flow's packets
 * leave with, times FallbackRtt. A limit below what waits drops nothing that has been taken.
 *
 * Without weights each flow keeps its limit: what a network learns from.
 */
class LfqQueueDisc : public FairQueueDisc {
 public:
  static ns3::TypeId GetTypeId();

  /** From now on every flow has this limit, and nothing is asked. */
  void Freeze(uint32_t limit) { m_frozen = limit; }

  uint32_t GetLimit(uint32_t bucket) const { return m_frozen.value_or(m_limits[bucket]); }
  lfq::Inputs GetInputs(uint32_t bucket) const { return m_known[bucket].inputs(); }
  uint64_t GetDecisions() const { return m_decisions; }
  /** Decisions of them in which an input was out of range. */
  uint64_t GetFallbacks() const { return m_fallbacks; }

 protected:
  void InitializeParams() override;
  uint32_t Admit(uint32_t bucket) override;
  void Departed(uint32_t bucket) override;
  void Lost(uint32_t bucket) override;

 private:
  /** Reads a weight file. Throws std::invalid_argument, one line with the file and the tensor. */
  void SetWeights(std::string path);
  std::string GetWeights() const { return m_path; }
  bool IsKnown(const lfq::Inputs& inputs) const;

  std::string m_path;
  double m_beyond{0};
  ns3::Time m_fallbackRtt;
  std::unique_ptr<Dense> m_network;
  std::vector<float> m_low, m_high;  // range of the training's inputs
  std::vector<lfq::Flow> m_known;
  std::vector<uint32_t> m_limits;
  std::optional<uint32_t> m_frozen;
  uint64_t m_decisions{0};
  uint64_t m_fallbacks{0};
  ns3::TracedCallback<uint32_t, uint32_t, bool> m_decided;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_LFQ_QUEUE_DISC_H
