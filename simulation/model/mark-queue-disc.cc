// SPDX-License-Identifier: GPL-2.0-only

#include "mark-queue-disc.h"

#include <utility>

#include "ns3/abort.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/tcp-header.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/udp-header.h"
#include "ns3/udp-l4-protocol.h"

namespace swiftqueue {

using ns3::Ipv4Header;
using ns3::Ipv4QueueDiscItem;
using ns3::Ptr;
using ns3::QueueDiscItem;

NS_OBJECT_ENSURE_REGISTERED(MarkQueueDisc);

namespace {

Outgoing Describe(Ptr<QueueDiscItem> item) {
  Outgoing out{item->GetPacket(), Ipv4Header::ECN_NotECT, Ipv4Header::DscpDefault, false, 0, 0, 0,
               item->GetSize()};
  const auto ipv4Item = ns3::DynamicCast<Ipv4QueueDiscItem>(item);
  if (!ipv4Item) {
    return out;
  }
  const Ipv4Header& ip = ipv4Item->GetHeader();
  out.ecn = ip.GetEcn();
  out.dscp = ip.GetDscp();
  if (ip.GetProtocol() == ns3::TcpL4Protocol::PROT_NUMBER) {
    ns3::TcpHeader tcp;
    out.payloadBytes = out.packet->GetSize() - out.packet->PeekHeader(tcp);
    out.destinationPort = tcp.GetDestinationPort();
    out.sequence = tcp.GetSequenceNumber().GetValue();
  } else if (ip.GetProtocol() == ns3::UdpL4Protocol::PROT_NUMBER) {
    ns3::UdpHeader udp;
    out.payloadBytes = out.packet->GetSize() - out.packet->PeekHeader(udp);
    out.destinationPort = udp.GetDestinationPort();
    out.udp = true;
  }
  return out;
}

}  // namespace

ns3::TypeId MarkQueueDisc::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::MarkQueueDisc")
                               .SetParent<ns3::QueueDisc>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<MarkQueueDisc>();
  return tid;
}

MarkQueueDisc::MarkQueueDisc() : QueueDisc(ns3::QueueDiscSizePolicy::SINGLE_INTERNAL_QUEUE) {}

void MarkQueueDisc::SetMarker(std::shared_ptr<Marker> marker) { m_marker = std::move(marker); }

bool MarkQueueDisc::DoEnqueue(Ptr<QueueDiscItem> item) {
  if (!GetInternalQueue(0)->Enqueue(item)) {
    return false;
  }
  m_waiting.push_back(Describe(item));
  return true;
}

Ptr<QueueDiscItem> MarkQueueDisc::DoDequeue() {
  Ptr<QueueDiscItem> item = GetInternalQueue(0)->Dequeue();
  if (!item) {
    return nullptr;
  }
  const Outgoing leaving = m_waiting.front();
  m_waiting.pop_front();
  const Ipv4Header::EcnType ecn =
      leaving.payloadBytes > 0 ? m_marker->Mark(leaving, m_waiting) : leaving.ecn;
  const Ipv4Header::DscpType dscp = m_marker->Label(leaving);
  if (ecn == leaving.ecn && dscp == leaving.dscp) {
    return item;
  }
  // A queue disc item's header cannot be changed, so the packet gets a new item.
  Ipv4Header ip = ns3::DynamicCast<Ipv4QueueDiscItem>(item)->GetHeader();
  ip.SetEcn(ecn);
  ip.SetDscp(dscp);
  auto marked =
      ns3::Create<Ipv4QueueDiscItem>(leaving.packet, item->GetAddress(), item->GetProtocol(), ip);
  marked->SetTimeStamp(item->GetTimeStamp());
  marked->SetTxQueueIndex(item->GetTxQueueIndex());
  return marked;
}

bool MarkQueueDisc::CheckConfig() {
  NS_ABORT_MSG_UNLESS(m_marker, "MarkQueueDisc: SetMarker was not called");
  if (GetNInternalQueues() == 0) {
    AddInternalQueue(ns3::CreateObjectWithAttributes<ns3::DropTailQueue<QueueDiscItem>>(
        "MaxSize", ns3::QueueSizeValue(ns3::QueueSize("100000p"))));
  }
  return GetNInternalQueues() == 1 && GetNQueueDiscClasses() == 0;
}

void MarkQueueDisc::InitializeParams() {}

BurstChooser::BurstChooser(double share, uint32_t burstPackets, int64_t stream)
    : m_share(share),
      m_burstPackets(burstPackets),
      m_uniform(ns3::CreateObject<ns3::UniformRandomVariable>()) {
  m_uniform->SetStream(stream);
}

bool BurstChooser::Next() {
  if (m_packets++ % m_burstPackets == 0) {
    m_chosen = m_uniform->GetValue() < m_share;
  }
  return m_chosen;
}

}  // namespace swiftqueue
