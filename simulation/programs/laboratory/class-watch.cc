// SPDX-License-Identifier: GPL-2.0-only

#include "class-watch.h"

#include <stdexcept>

#include "ns3/simulator.h"
#include "packet-log.h"

namespace swiftqueue::lab {

ClassWatch::ClassWatch(const Network& network,
                       const std::vector<std::shared_ptr<SenderWatch>>& senders, std::size_t flows)
    : m_senders(senders), m_buckets(flows), m_classes(flows) {
  for (const auto& disc : network.Bottlenecks()) {
    m_disc = ns3::DynamicCast<ConfuciusQueueDisc>(disc);
    if (m_disc) {
      break;
    }
  }
  if (!m_disc) {
    throw std::invalid_argument(
        "outputs: classes need a bottleneck whose disc is swiftqueue::ConfuciusQueueDisc");
  }
  m_disc->TraceConnectWithoutContext("Enqueue", ns3::MakeCallback(&ClassWatch::Came, this));
  ns3::Simulator::Schedule(ns3::Seconds(kEveryS), &ClassWatch::Look, this);
}

void ClassWatch::Came(ns3::Ptr<const ns3::QueueDiscItem> item) {
  PacketTag tag;
  if (item->GetPacket()->PeekPacketTag(tag)) {
    // Now: once it has left, its IP header hides the ports.
    m_buckets[m_senders[tag.sender]->Log()[tag.packet].flow] =
        m_disc->BucketOf(ns3::ConstCast<ns3::QueueDiscItem>(item));
  }
}

void ClassWatch::Look() {
  for (std::size_t flow = 0; flow < m_buckets.size(); ++flow) {
    const auto& bucket = m_buckets[flow];
    m_classes[flow].push_back(bucket ? m_disc->GetClassOf(*bucket) : ConfuciusQueueDisc::kUnknown);
  }
  ns3::Simulator::Schedule(ns3::Seconds(kEveryS), &ClassWatch::Look, this);
}

JsonArray ClassWatch::Json() const {
  JsonArray flows;
  for (const auto& classes : m_classes) {
    JsonArray json;
    for (const uint32_t one : classes) {
      json.Add(one == ConfuciusQueueDisc::kUnknown ? "null" : JsonNumber(one));
    }
    flows.Add(json.Text());
  }
  return flows;
}

}  // namespace swiftqueue::lab
