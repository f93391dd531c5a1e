// SPDX-License-Identifier: GPL-2.0-only
//
// In which of Confucius' classes each flow is, over time.

#ifndef SWIFTQUEUE_LABORATORY_CLASS_WATCH_H
#define SWIFTQUEUE_LABORATORY_CLASS_WATCH_H

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "../../model/confucius-queue-disc.h"
#include "json-text.h"
#include "network.h"
#include "sender-watch.h"

namespace swiftqueue::lab {

/** Asks the first bottleneck whose disc is Confucius; it must outlive the simulation. */
class ClassWatch {
 public:
  static constexpr double kEveryS = 0.1;

  /** Throws std::invalid_argument where no bottleneck has such a disc. */
  ClassWatch(const Network& network, const std::vector<std::shared_ptr<SenderWatch>>& senders,
             std::size_t flows);
  ClassWatch(const ClassWatch&) = delete;
  ClassWatch& operator=(const ClassWatch&) = delete;

  /** By flow: the class at 0.1 s, 0.2 s ..., null where the disc does not know the flow. */
  JsonArray Json() const;

 private:
  void Came(ns3::Ptr<const ns3::QueueDiscItem> item);
  void Look();

  ns3::Ptr<ConfuciusQueueDisc> m_disc;
  const std::vector<std::shared_ptr<SenderWatch>>& m_senders;
  std::vector<std::optional<uint32_t>> m_buckets;  // bucket of each flow, once a packet has come
  std::vector<std::vector<uint32_t>> m_classes;    // classes of each flow
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_CLASS_WATCH_H
