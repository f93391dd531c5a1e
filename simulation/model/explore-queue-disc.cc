// SPDX-License-Identifier: GPL-2.0-only

#include "explore-queue-disc.h"

#include "ns3/double.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

using ns3::Ipv4Header;
using ns3::Ipv4QueueDiscItem;
using ns3::Ptr;
using ns3::QueueDiscItem;

NS_OBJECT_ENSURE_REGISTERED(ExploreQueueDisc);

ns3::TypeId ExploreQueueDisc::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::ExploreQueueDisc")
          .SetParent<ns3::QueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<ExploreQueueDisc>()
          .AddAttribute("Share", "Probability that a batch's L4S packets are sent as classic",
                        ns3::DoubleValue(0), ns3::MakeDoubleAccessor(&ExploreQueueDisc::m_share),
                        ns3::MakeDoubleChecker<double>(0, 1))
          .AddAttribute("BatchPackets", "Data packets decided at once (SwiftQueue, section 4: 8)",
                        ns3::UintegerValue(8),
                        ns3::MakeUintegerAccessor(&ExploreQueueDisc::m_batchPackets),
                        ns3::MakeUintegerChecker<uint32_t>(1));
  return tid;
}

ExploreQueueDisc::ExploreQueueDisc()
    : QueueDisc(ns3::QueueDiscSizePolicy::SINGLE_INTERNAL_QUEUE),
      m_uniform(ns3::CreateObject<ns3::UniformRandomVariable>()) {}

int64_t ExploreQueueDisc::AssignStreams(int64_t stream) {
  m_uniform->SetStream(stream);
  return 1;
}

bool ExploreQueueDisc::DoEnqueue(Ptr<QueueDiscItem> item) {
  auto ipv4Item = ns3::DynamicCast<Ipv4QueueDiscItem>(item);
  if (!ipv4Item || ipv4Item->GetHeader().GetProtocol() != ns3::TcpL4Protocol::PROT_NUMBER) {
    return GetInternalQueue(0)->Enqueue(item);
  }
  ns3::TcpHeader tcp;
  const uint32_t tcpHeaderBytes = item->GetPacket()->PeekHeader(tcp);
  if (item->GetPacket()->GetSize() > tcpHeaderBytes) {
    if (m_dataPackets++ % m_batchPackets == 0) {
      m_exploring = m_uniform->GetValue() < m_share;
    }
    Ipv4Header ip = ipv4Item->GetHeader();
    if (m_exploring && ip.GetEcn() == Ipv4Header::ECN_ECT1) {
      // A queue disc item's header cannot be changed, so the packet gets a new item.
      ip.SetEcn(Ipv4Header::ECN_NotECT);
      auto remarked = ns3::Create<Ipv4QueueDiscItem>(item->GetPacket(), item->GetAddress(),
                                                     item->GetProtocol(), ip);
      remarked->SetTimeStamp(item->GetTimeStamp());
      remarked->SetTxQueueIndex(item->GetTxQueueIndex());
      item = remarked;
    }
  }
  return GetInternalQueue(0)->Enqueue(item);
}

Ptr<QueueDiscItem> ExploreQueueDisc::DoDequeue() { return GetInternalQueue(0)->Dequeue(); }

bool ExploreQueueDisc::CheckConfig() {
  if (GetNInternalQueues() == 0) {
    AddInternalQueue(ns3::CreateObjectWithAttributes<ns3::DropTailQueue<QueueDiscItem>>(
        "MaxSize", ns3::QueueSizeValue(ns3::QueueSize("100000p"))));
  }
  return GetNInternalQueues() == 1 && GetNQueueDiscClasses() == 0;
}

void ExploreQueueDisc::InitializeParams() {}

}  // namespace swiftqueue
