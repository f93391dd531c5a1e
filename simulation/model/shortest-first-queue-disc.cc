// SPDX-License-Identifier: GPL-2.0-only

#include "shortest-first-queue-disc.h"

#include <algorithm>

#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

NS_OBJECT_ENSURE_REGISTERED(ShortestFirstQueueDisc);

ns3::TypeId ShortestFirstQueueDisc::GetTypeId() {
  using This = ShortestFirstQueueDisc;
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::ShortestFirstQueueDisc")
          .SetParent<FlowQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<This>()
          // PIAS sets thresholds by its workload's sizes; web objects here are 100 B to 100 KB.
          .AddAttribute("FirstThreshold", "Bytes after which a flow leaves the first queue.",
                        ns3::UintegerValue(10'000),
                        ns3::MakeUintegerAccessor(&This::m_firstThreshold),
                        ns3::MakeUintegerChecker<uint64_t>(1))
          .AddAttribute("ThresholdGrowth",
                        "Each further threshold is so many times the one before.",
                        ns3::UintegerValue(4), ns3::MakeUintegerAccessor(&This::m_growth),
                        ns3::MakeUintegerChecker<uint64_t>(2, 100))
          .AddAttribute("ForgetAfter", "A flow without a packet for so long is a new one.",
                        ns3::TimeValue(ns3::Seconds(1)),
                        ns3::MakeTimeAccessor(&This::m_forgetAfter),
                        ns3::MakeTimeChecker(ns3::Time(1)));
  return tid;
}

void ShortestFirstQueueDisc::InitializeParams() {
  FlowQueueDisc::InitializeParams();
  m_flows.resize(Buckets());
  uint64_t threshold = m_firstThreshold;
  for (uint64_t& bytes : m_thresholds) {
    bytes = threshold;
    threshold *= m_growth;
  }
}

bool ShortestFirstQueueDisc::DoEnqueue(Item item) {
  if (IsFull()) {
    const auto last = std::find_if(m_queues.rbegin(), m_queues.rend(),
                                   [](const auto& queue) { return !queue.empty(); });
    Drop(last->back(), kOverLimit);
    last->pop_back();
  }
  Flow& flow = m_flows[BucketOf(item)];
  const ns3::Time now = ns3::Simulator::Now();
  if (now - flow.seen > m_forgetAfter) {
    flow.bytes = 0;
  }
  flow.seen = now;
  const auto queue = std::upper_bound(m_thresholds.begin(), m_thresholds.end(), flow.bytes);
  flow.bytes += item->GetSize();
  m_queues[static_cast<std::size_t>(queue - m_thresholds.begin())].push_back(Add(item));
  return true;
}

ShortestFirstQueueDisc::Item ShortestFirstQueueDisc::DoDequeue() {
  for (auto& queue : m_queues) {
    if (!queue.empty()) {
      Item item = Take(queue.front());
      queue.pop_front();
      return item;
    }
  }
  return nullptr;
}

}  // namespace swiftqueue
