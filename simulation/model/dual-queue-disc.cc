// SPDX-License-Identifier: GPL-2.0-only

#include "dual-queue-disc.h"

#include <algorithm>

#include "ns3/double.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/ipv4-header.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

using ns3::DoubleValue;
using ns3::MilliSeconds;
using ns3::Ptr;
using ns3::QueueDiscItem;
using ns3::Simulator;
using ns3::Time;
using ns3::TimeValue;
using ns3::UintegerValue;

NS_OBJECT_ENSURE_REGISTERED(DualQueueDisc);

ns3::TypeId DualQueueDisc::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::DualQueueDisc")
          .SetParent<ns3::QueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<DualQueueDisc>()
          .AddAttribute("LStep", "Waiting time above which L marks CE (RFC 9332 A.1 default: 1 ms)",
                        TimeValue(MilliSeconds(20)), ns3::MakeTimeAccessor(&DualQueueDisc::m_lStep),
                        ns3::MakeTimeChecker(Time(0)))
          .AddAttribute("LWeight", "Share of the bytes served from L while both queues wait",
                        DoubleValue(0.5), ns3::MakeDoubleAccessor(&DualQueueDisc::m_lWeight),
                        ns3::MakeDoubleChecker<double>(0.01, 0.99))
          .AddAttribute("LLimitBytes", "Bytes that L holds at most", UintegerValue(1'000'000),
                        ns3::MakeUintegerAccessor(&DualQueueDisc::SetLLimit),
                        ns3::MakeUintegerChecker<uint32_t>(1514))
          .AddAttribute("CLimitBytes", "Bytes that C holds at most", UintegerValue(1'000'000),
                        ns3::MakeUintegerAccessor(&DualQueueDisc::SetCLimit),
                        ns3::MakeUintegerChecker<uint32_t>(1514))
          .AddAttribute("Target", "Waiting time that C is held at (RFC 9332 A.1: 15 ms)",
                        TimeValue(MilliSeconds(15)),
                        ns3::MakeTimeAccessor(&DualQueueDisc::m_target),
                        ns3::MakeTimeChecker(Time(0)))
          .AddAttribute("UpdateInterval", "Between two steps of the PI controller (16 ms)",
                        TimeValue(MilliSeconds(16)),
                        ns3::MakeTimeAccessor(&DualQueueDisc::m_updateInterval),
                        ns3::MakeTimeChecker(MilliSeconds(1)))
          .AddAttribute("Alpha", "Integral gain in Hz (RFC 9332 A.1: 0.16)", DoubleValue(0.16),
                        ns3::MakeDoubleAccessor(&DualQueueDisc::m_alphaHz),
                        ns3::MakeDoubleChecker<double>(0))
          .AddAttribute("Beta", "Proportional gain in Hz (RFC 9332 A.1: 3.2)", DoubleValue(3.2),
                        ns3::MakeDoubleAccessor(&DualQueueDisc::m_betaHz),
                        ns3::MakeDoubleChecker<double>(0));
  return tid;
}

DualQueueDisc::DualQueueDisc()
    : QueueDisc(ns3::QueueDiscSizePolicy::MULTIPLE_QUEUES, ns3::QueueSizeUnit::BYTES),
      m_uniform(ns3::CreateObject<ns3::UniformRandomVariable>()) {}

int64_t DualQueueDisc::AssignStreams(int64_t stream) {
  m_uniform->SetStream(stream);
  return 1;
}

void DualQueueDisc::SetLLimit(uint32_t bytes) { m_limitBytes[kL4s] = bytes; }
void DualQueueDisc::SetCLimit(uint32_t bytes) { m_limitBytes[kClassic] = bytes; }

DualQueueDisc::Queue DualQueueDisc::Classify(Ptr<const QueueDiscItem> item) {
  uint8_t dsField = 0;
  item->GetUint8Value(ns3::QueueItem::IP_DSFIELD, dsField);
  const int ecn = dsField & 0b11;
  return ecn == ns3::Ipv4Header::ECN_ECT1 || ecn == ns3::Ipv4Header::ECN_CE ? kL4s : kClassic;
}

bool DualQueueDisc::DoEnqueue(Ptr<QueueDiscItem> item) {
  const Queue queue = Classify(item);
  if (GetInternalQueue(queue)->GetNBytes() + item->GetSize() > m_limitBytes[queue]) {
    DropBeforeEnqueue(item, kFullDrop);
    return false;
  }
  return GetInternalQueue(queue)->Enqueue(item);
}

DualQueueDisc::Queue DualQueueDisc::ChooseQueue() const {
  if (GetInternalQueue(kL4s)->IsEmpty()) {
    return kClassic;
  }
  if (GetInternalQueue(kClassic)->IsEmpty()) {
    return kL4s;
  }
  return m_lCreditBytes <= 0 ? kL4s : kClassic;
}

Ptr<QueueDiscItem> DualQueueDisc::DoDequeue() {
  for (;;) {
    const Queue queue = ChooseQueue();
    const bool contended =
        !GetInternalQueue(kL4s)->IsEmpty() && !GetInternalQueue(kClassic)->IsEmpty();
    Ptr<QueueDiscItem> item = GetInternalQueue(queue)->Dequeue();
    if (!item) {
      return nullptr;
    }
    const Time wait = Simulator::Now() - item->GetTimeStamp();

    if (queue == kClassic && m_uniform->GetValue() < m_probability * m_probability) {
      if (!Mark(item, kPi2Mark)) {
        DropAfterDequeue(item, kPi2Drop);
        continue;  // a dropped packet takes no share of the link
      }
    }
    if (queue == kL4s && wait > m_lStep) {
      Mark(item, kStepMark);
    }

    // bytes beyond L's share = bytes from L · C's weight - bytes from C · L's weight; a queue that
    // was idle keeps no claim on the past.
    const double size = item->GetSize();
    if (contended) {
      m_lCreditBytes += queue == kL4s ? size * (1 - m_lWeight) : -size * m_lWeight;
    } else {
      m_lCreditBytes = 0;
    }
    return item;
  }
}

Time DualQueueDisc::HeadWait(Queue queue) const {
  Ptr<const QueueDiscItem> head = GetInternalQueue(queue)->Peek();
  return head ? Simulator::Now() - head->GetTimeStamp() : Time(0);
}

void DualQueueDisc::UpdateProbability() {
  const Time wait = HeadWait(kClassic);
  // probability = Hz · s + Hz · s
  m_probability += m_alphaHz * (wait - m_target).GetSeconds();
  m_probability += m_betaHz * (wait - m_lastWait).GetSeconds();
  m_probability = std::clamp(m_probability, 0.0, 1.0);
  m_lastWait = wait;
  m_update = Simulator::Schedule(m_updateInterval, &DualQueueDisc::UpdateProbability, this);
}

bool DualQueueDisc::CheckConfig() {
  if (GetNInternalQueues() == 0) {
    // The byte limits of the two queues are ours; the queues themselves never fill.
    for (int i = 0; i < 2; ++i) {
      AddInternalQueue(ns3::CreateObjectWithAttributes<ns3::DropTailQueue<QueueDiscItem>>(
          "MaxSize", ns3::QueueSizeValue(ns3::QueueSize("1000000p"))));
    }
  }
  return GetNInternalQueues() == 2 && GetNQueueDiscClasses() == 0;
}

void DualQueueDisc::InitializeParams() {
  m_update = Simulator::Schedule(m_updateInterval, &DualQueueDisc::UpdateProbability, this);
}

void DualQueueDisc::DoDispose() {
  m_update.Cancel();
  QueueDisc::DoDispose();
}

}  // namespace swiftqueue
