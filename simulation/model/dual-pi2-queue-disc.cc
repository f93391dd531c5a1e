// SPDX-License-Identifier: GPL-2.0-only

#include "dual-pi2-queue-disc.h"

#include <algorithm>
#include <limits>

#include "ns3/abort.h"
#include "ns3/double.h"
#include "ns3/drop-tail-queue.h"
#include "ns3/enum.h"
#include "ns3/log.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace ns3 {

NS_LOG_COMPONENT_DEFINE("DualPi2QueueDisc");
NS_OBJECT_ENSURE_REGISTERED(DualPi2QueueDisc);

namespace {

constexpr uint32_t kUnlimited = std::numeric_limits<uint32_t>::max();
constexpr uint8_t kEcnMask = 0b11;
constexpr uint8_t kNotEct = 0b00;

uint8_t EcnField(Ptr<const QueueDiscItem> item) {
  uint8_t dsField = 0;
  return item->GetUint8Value(QueueItem::IP_DSFIELD, dsField) ? dsField & kEcnMask : kNotEct;
}

}  // namespace

TypeId DualPi2QueueDisc::GetTypeId() {
  using Self = DualPi2QueueDisc;
  static TypeId tid =
      TypeId("ns3::DualPi2QueueDisc")
          .SetParent<QueueDisc>()
          .SetGroupName("TrafficControl")
          .AddConstructor<DualPi2QueueDisc>()
          // the buffer
          .AddAttribute("MaxSize",
                        "Bytes that both queues hold together, RFC 9332 A.1 'limit': 250 ms of the "
                        "link's rate (default: of 100 Mbit/s)",
                        QueueSizeValue(QueueSize("3125000B")),
                        MakeQueueSizeAccessor(&QueueDisc::SetMaxSize, &QueueDisc::GetMaxSize),
                        MakeQueueSizeChecker())
          .AddAttribute("LMaxBytes",
                        "Bytes that L holds at most besides (none of its own in RFC 9332)",
                        UintegerValue(kUnlimited), MakeUintegerAccessor(&Self::m_lMaxBytes),
                        MakeUintegerChecker<uint32_t>(1))
          .AddAttribute("CMaxBytes",
                        "Bytes that C holds at most besides (none of its own in RFC 9332)",
                        UintegerValue(kUnlimited), MakeUintegerAccessor(&Self::m_cMaxBytes),
                        MakeUintegerChecker<uint32_t>(1))
          .AddAttribute("Mtu",
                        "A packet is refused if one of this many bytes would not fit, so that a "
                        "full queue treats all sizes alike (RFC 9332 A.1, dualpi2_enqueue)",
                        UintegerValue(1500), MakeUintegerAccessor(&Self::m_mtuBytes),
                        MakeUintegerChecker<uint32_t>(68))
          // the base controller
          .AddAttribute("Target", "Queueing delay that C is held at (RFC 9332 A.1, target)",
                        TimeValue(MilliSeconds(15)), MakeTimeAccessor(&Self::m_target),
                        MakeTimeChecker(Time(0)))
          .AddAttribute("Tupdate",
                        "Interval of the PI controller (RFC 9332 A.1, Tupdate; its formula gives "
                        "15 ms for a target of 15 ms, Linux takes 16)",
                        TimeValue(MilliSeconds(16)), MakeTimeAccessor(&Self::m_tUpdate),
                        MakeTimeChecker(MicroSeconds(1)))
          .AddAttribute(
              "Alpha", "Integral gain in Hz (RFC 9332 A.1, alpha = 0.1 Tupdate / RTT_max^2)",
              DoubleValue(0.16), MakeDoubleAccessor(&Self::m_alphaHz), MakeDoubleChecker<double>(0))
          .AddAttribute(
              "Beta", "Proportional gain in Hz (RFC 9332 A.1, beta = 0.3 / RTT_max, 3; Linux 3.2)",
              DoubleValue(3.2), MakeDoubleAccessor(&Self::m_betaHz), MakeDoubleChecker<double>(0))
          .AddAttribute("DelayInput",
                        "The controller's input: the greater of both queues' delays (RFC 9332 A.2) "
                        "or C's alone (A.1)",
                        EnumValue(kGreater), MakeEnumAccessor<DelayInput>(&Self::m_delayInput),
                        MakeEnumChecker(kGreater, "Greater", kClassicOnly, "Classic"))
          .AddAttribute("CouplingFactor",
                        "k of p_CL = k p' (RFC 9332 2.1 and appendix C); 0 uncouples the queues",
                        DoubleValue(2), MakeDoubleAccessor(&Self::m_coupling),
                        MakeDoubleChecker<double>(0, 255))
          .AddAttribute("MinBacklogBytes",
                        "With fewer bytes left in both queues p_C and p_CL are not applied (none "
                        "in RFC 9332; Linux: 2 MTU)",
                        UintegerValue(0), MakeUintegerAccessor(&Self::m_minBacklogBytes),
                        MakeUintegerChecker<uint32_t>())
          // the native AQM of L
          .AddAttribute("LAqm", "Native AQM of L: RFC 9332 A.1's ramp, or a step as in Linux",
                        EnumValue(kRamp), MakeEnumAccessor<LAqm>(&Self::m_lAqm),
                        MakeEnumChecker(kRamp, "Ramp", kStep, "Step"))
          .AddAttribute("LMinThreshold",
                        "Ramp: queueing delay at which marking begins (RFC 9332 A.1, minTh)",
                        TimeValue(MicroSeconds(800)), MakeTimeAccessor(&Self::m_lMinThreshold),
                        MakeTimeChecker(Time(0)))
          .AddAttribute("LRange",
                        "Ramp: from minTh to where everything is marked (RFC 9332 A.1, range)",
                        TimeValue(MicroSeconds(400)), MakeTimeAccessor(&Self::m_lRange),
                        MakeTimeChecker(Time(0)))
          .AddAttribute("LStep",
                        "Step: queueing delay above which everything is marked (RFC 9332 A.1: the "
                        "ramp's alternative; Linux: 1 ms)",
                        TimeValue(MilliSeconds(1)), MakeTimeAccessor(&Self::m_lStep),
                        MakeTimeChecker(Time(0)))
          .AddAttribute("LMinPackets",
                        "The native AQM spares a packet that found L with no more packets than "
                        "this, itself counted: at low rates one packet alone takes longer than the "
                        "threshold (RFC 9332 A.1, Th_len)",
                        UintegerValue(1), MakeUintegerAccessor(&Self::m_lMinPackets),
                        MakeUintegerChecker<uint32_t>())
          .AddAttribute("LMaxProbability",
                        "p_CL from which L is overloaded (RFC 9332 A.1 and A.2, p_Lmax)",
                        DoubleValue(1), MakeDoubleAccessor(&Self::m_lMaxProbability),
                        MakeDoubleChecker<double>(0, 1))
          // the scheduler
          .AddAttribute("Scheduler",
                        "Weighted round robin, or a FIFO in which L's packets are TimeShift older "
                        "(RFC 9332 A.1, scheduler())",
                        EnumValue(kWeightedRoundRobin),
                        MakeEnumAccessor<Scheduler>(&Self::m_scheduler),
                        MakeEnumChecker(kWeightedRoundRobin, "WeightedRoundRobin", kTimeShiftedFifo,
                                        "TimeShiftedFifo"))
          .AddAttribute("CWeight",
                        "Weighted round robin: C's share of the bytes while both queues wait (RFC "
                        "9332 4.2's example is 1/16; Linux: 0.1)",
                        DoubleValue(1.0 / 16), MakeDoubleAccessor(&Self::m_cWeight),
                        MakeDoubleChecker<double>(0, 1))
          .AddAttribute(
              "TimeShift",
              "Time-shifted FIFO: head start of L's packets (RFC 9332 4.2 leaves its length "
              "open)",
              TimeValue(MilliSeconds(50)), MakeTimeAccessor(&Self::m_timeShift),
              MakeTimeChecker(Time(0)))
          // overload, and how a likelihood becomes a decision
          .AddAttribute(
              "Overload",
              "At saturation: Drop from both queues with p_C (RFC 9332 A.2), or let Delay "
              "grow to the limit with p_CL capped at 1 (4.2; Linux: overflow)",
              EnumValue(kDrop), MakeEnumAccessor<Overload>(&Self::m_overload),
              MakeEnumChecker(kDrop, "Drop", kDelay, "Delay"))
          .AddAttribute("Draw",
                        "Decide by evenly spaced signals (RFC 9332 A.1, recur()) or at random "
                        "(Linux)",
                        EnumValue(kRecur), MakeEnumAccessor<Draw>(&Self::m_draw),
                        MakeEnumChecker(kRecur, "Recur", kRandom, "Random"))
          // traces
          .AddTraceSource("BaseProbability", "p', after each update",
                          MakeTraceSourceAccessor(&Self::m_pBase),
                          "ns3::TracedValueCallback::Double")
          .AddTraceSource("CoupledProbability", "p_CL = k p', after each update",
                          MakeTraceSourceAccessor(&Self::m_pCoupled),
                          "ns3::TracedValueCallback::Double")
          .AddTraceSource("ClassicProbability", "p_C = p'^2, after each update",
                          MakeTraceSourceAccessor(&Self::m_pClassic),
                          "ns3::TracedValueCallback::Double")
          .AddTraceSource("L4sProbability", "p_L of a packet leaving L",
                          MakeTraceSourceAccessor(&Self::m_pL4s),
                          "ns3::TracedValueCallback::Double")
          .AddTraceSource("Update", "Controller's input, p', p_CL and p_C at each update",
                          MakeTraceSourceAccessor(&Self::m_updateTrace),
                          "ns3::DualPi2QueueDisc::UpdateTracedCallback")
          .AddTraceSource("LSojourn", "Queueing delay of each packet sent from L",
                          MakeTraceSourceAccessor(&Self::m_lSojournTrace),
                          "ns3::Time::TracedCallback")
          .AddTraceSource("CSojourn", "Queueing delay of each packet sent from C",
                          MakeTraceSourceAccessor(&Self::m_cSojournTrace),
                          "ns3::Time::TracedCallback");
  return tid;
}

DualPi2QueueDisc::DualPi2QueueDisc()
    : QueueDisc(QueueDiscSizePolicy::MULTIPLE_QUEUES, QueueSizeUnit::BYTES),
      m_random(CreateObject<UniformRandomVariable>()) {
  NS_LOG_FUNCTION(this);
}

int64_t DualPi2QueueDisc::AssignStreams(int64_t stream) {
  m_random->SetStream(stream);
  return 1;
}

DualPi2QueueDisc::Queue DualPi2QueueDisc::ClassifyItem(Ptr<const QueueDiscItem> item) {
  // ECT(1) is 01 and CE is 11: the low bit alone decides.
  return EcnField(item) & 1 ? kL4s : kClassic;
}

const DualPi2QueueDisc::QueueCounts& DualPi2QueueDisc::GetQueueCounts(Queue queue) const {
  return m_counts[queue];
}

double DualPi2QueueDisc::GetBaseProbability() const { return m_pBase; }
double DualPi2QueueDisc::GetCoupledProbability() const { return m_pCoupled; }
double DualPi2QueueDisc::GetClassicProbability() const { return m_pClassic; }

bool DualPi2QueueDisc::CheckConfig() {
  NS_ABORT_MSG_IF(GetNQueueDiscClasses() > 0, "DualPi2QueueDisc has no classes");
  NS_ABORT_MSG_IF(GetNPacketFilters() > 0,
                  "DualPi2QueueDisc takes no packet filter: the ECN field decides");
  NS_ABORT_MSG_IF(GetMaxSize().GetValue() < m_mtuBytes,
                  "DualPi2QueueDisc: MaxSize " << GetMaxSize() << " is less than one packet of Mtu "
                                               << m_mtuBytes << " bytes");
  if (GetNInternalQueues() == 0) {
    // The limits are this disc's own, so that both queues can share one; these never fill.
    for (int i = 0; i < 2; ++i) {
      AddInternalQueue(CreateObjectWithAttributes<DropTailQueue<QueueDiscItem>>(
          "MaxSize", QueueSizeValue(QueueSize(QueueSizeUnit::BYTES, kUnlimited))));
    }
  }
  NS_ABORT_MSG_IF(GetNInternalQueues() != 2, "DualPi2QueueDisc needs two internal queues, L and C");
  return true;
}

void DualPi2QueueDisc::InitializeParams() {
  m_previousDelay = Time(0);
  ResetCredit();
  m_updateEvent = Simulator::Schedule(m_tUpdate, &DualPi2QueueDisc::Update, this);
}

void DualPi2QueueDisc::DoDispose() {
  m_updateEvent.Cancel();
  m_random = nullptr;
  QueueDisc::DoDispose();
}

// --- in -----------------------------------------------------------------------------------------

const char* DualPi2QueueDisc::LimitReached(Queue queue, uint32_t itemBytes) const {
  const uint64_t lBytes = GetInternalQueue(kL4s)->GetNBytes();
  const uint64_t cBytes = GetInternalQueue(kClassic)->GetNBytes();
  const uint64_t needed = std::max(itemBytes, m_mtuBytes);
  if (lBytes + cBytes + needed > GetMaxSize().GetValue()) {
    return kSharedLimitDrop;
  }
  if (queue == kL4s && lBytes + needed > m_lMaxBytes) {
    return kLLimitDrop;
  }
  if (queue == kClassic && cBytes + needed > m_cMaxBytes) {
    return kCLimitDrop;
  }
  return nullptr;
}

bool DualPi2QueueDisc::DoEnqueue(Ptr<QueueDiscItem> item) {
  const Queue queue = ClassifyItem(item);
  QueueCounts& counts = m_counts[queue];
  if (const char* reason = LimitReached(queue, item->GetSize())) {
    ++counts.refusedPackets;
    counts.refusedBytes += item->GetSize();
    DropBeforeEnqueue(item, reason);
    return false;
  }
  item->SetTimeStamp(Simulator::Now());
  const bool enqueued = GetInternalQueue(queue)->Enqueue(item);
  NS_ABORT_MSG_UNLESS(enqueued, "DualPi2QueueDisc: an internal queue is smaller than the limits");
  ++counts.enqueuedPackets;
  counts.enqueuedBytes += item->GetSize();
  return true;
}

// --- the scheduler ------------------------------------------------------------------------------

Time DualPi2QueueDisc::HeadDelay(Queue queue) const {
  Ptr<const QueueDiscItem> head = GetInternalQueue(queue)->Peek();
  return head ? Simulator::Now() - head->GetTimeStamp() : Time(0);
}

DualPi2QueueDisc::Queue DualPi2QueueDisc::Schedule() const {
  if (GetInternalQueue(kL4s)->IsEmpty()) {
    return kClassic;
  }
  if (GetInternalQueue(kClassic)->IsEmpty()) {
    return kL4s;
  }
  if (m_scheduler == kTimeShiftedFifo) {
    return HeadDelay(kL4s) + m_timeShift >= HeadDelay(kClassic) ? kL4s : kClassic;
  }
  return m_credit <= 0 ? kL4s : kClassic;
}

void DualPi2QueueDisc::Charge(Queue queue, uint32_t bytes, bool contended) {
  // A queue alone on the link neither gains nor loses a claim. The credit stays within one packet
  // of 0, so an idle queue keeps no more than that.
  if (contended) {
    m_credit += queue == kL4s ? m_cWeight * bytes : -(1 - m_cWeight) * bytes;
  }
}

void DualPi2QueueDisc::ResetCredit() {
  // As in Linux: after an idle time L goes first if its weight is the greater.
  m_credit = m_mtuBytes * (m_cWeight - (1 - m_cWeight));
}

// --- out ----------------------------------------------------------------------------------------

Ptr<QueueDiscItem> DualPi2QueueDisc::DoDequeue() {
  for (;;) {
    const bool contended =
        !GetInternalQueue(kL4s)->IsEmpty() && !GetInternalQueue(kClassic)->IsEmpty();
    const Queue queue = Schedule();
    const uint32_t packetsFound = GetInternalQueue(queue)->GetNPackets();
    Ptr<QueueDiscItem> item = GetInternalQueue(queue)->Dequeue();
    if (!item) {
      ResetCredit();
      return nullptr;
    }
    const Time sojourn = Simulator::Now() - item->GetTimeStamp();
    const bool passed = queue == kL4s ? PassL4s(item, sojourn, packetsFound) : PassClassic(item);
    if (!passed) {
      continue;  // a dropped packet takes no share of the link
    }
    Charge(queue, item->GetSize(), contended);
    ++m_counts[queue].dequeuedPackets;
    m_counts[queue].dequeuedBytes += item->GetSize();
    queue == kL4s ? m_lSojournTrace(sojourn) : m_cSojournTrace(sojourn);
    return item;
  }
}

bool DualPi2QueueDisc::Chooser::Choose(double likelihood, Draw draw,
                                       UniformRandomVariable& random) {
  if (draw == kRandom) {
    return random.GetValue() < likelihood;
  }
  // A.1's recur(), with p_CL > 1 clamped, as otherwise the sum would grow without bound.
  m_sum += std::min(likelihood, 1.0);
  if (m_sum < 1) {
    return false;
  }
  m_sum -= 1;
  return true;
}

bool DualPi2QueueDisc::IsSaturated() const { return m_pCoupled >= m_lMaxProbability; }

bool DualPi2QueueDisc::IsShort() const {
  return GetInternalQueue(kL4s)->GetNBytes() + GetInternalQueue(kClassic)->GetNBytes() <
         m_minBacklogBytes;
}

double DualPi2QueueDisc::NativeProbability(Time sojourn, uint32_t packetsFound) const {
  if (packetsFound <= m_lMinPackets) {
    return 0;
  }
  if (m_lAqm == kStep) {
    return sojourn > m_lStep ? 1 : 0;
  }
  if (sojourn >= m_lMinThreshold + m_lRange) {
    return 1;
  }
  return std::max(0.0, (sojourn - m_lMinThreshold).GetSeconds() / m_lRange.GetSeconds());
}

bool DualPi2QueueDisc::PassL4s(Ptr<QueueDiscItem> item, Time sojourn, uint32_t packetsFound) {
  const double pCoupled = IsShort() ? 0 : GetCoupledProbability();
  const char* reason = nullptr;
  if (m_overload == kDrop && IsSaturated() && !IsShort()) {
    if (m_lDrops.Choose(m_pClassic, m_draw, *m_random)) {
      return Drop(item, kL4s, kLOverloadDrop);
    }
    m_pL4s = std::min(pCoupled, 1.0);
    reason = kLOverloadMark;
  } else {
    const double pNative = NativeProbability(sojourn, packetsFound);
    m_pL4s = std::min(std::max(pNative, pCoupled), 1.0);
    reason = pNative > pCoupled ? kLNativeMark : kLCoupledMark;
  }
  if (m_lMarks.Choose(m_pL4s, m_draw, *m_random) && Mark(item, reason)) {
    ++m_counts[kL4s].markedPackets;
  }
  return true;
}

bool DualPi2QueueDisc::PassClassic(Ptr<QueueDiscItem> item) {
  if (IsShort() || !m_cSignals.Choose(m_pClassic, m_draw, *m_random)) {
    return true;
  }
  // p_Cmax = min(1 / k^2, 1), where p_CL reaches 1; above it marks have lost their effect (A.2).
  const double pClassicMax = m_coupling > 1 ? 1 / (m_coupling * m_coupling) : 1;
  if (m_overload == kDrop && m_pClassic >= pClassicMax && EcnField(item) != kNotEct) {
    return Drop(item, kClassic, kCOverloadDrop);
  }
  if (!Mark(item, kCMark)) {
    return Drop(item, kClassic, kCDrop);
  }
  ++m_counts[kClassic].markedPackets;
  return true;
}

bool DualPi2QueueDisc::Drop(Ptr<QueueDiscItem> item, Queue queue, const char* reason) {
  ++m_counts[queue].droppedPackets;
  m_counts[queue].droppedBytes += item->GetSize();
  DropAfterDequeue(item, reason);
  return false;
}

// --- the controller -----------------------------------------------------------------------------

void DualPi2QueueDisc::Update() {
  Time delay = HeadDelay(kClassic);
  if (m_delayInput == kGreater) {
    delay = std::max(delay, HeadDelay(kL4s));
  }
  // 1 = Hz · s + Hz · s
  const double change = m_alphaHz * (delay - m_target).GetSeconds() +
                        m_betaHz * (delay - m_previousDelay).GetSeconds();
  // Where overload may only delay, p_CL ends at 1: more would push C further without moving L.
  const double pBaseMax = m_overload == kDelay && m_coupling > 1 ? 1 / m_coupling : 1;
  m_pBase = std::clamp(GetBaseProbability() + change, 0.0, pBaseMax);
  m_pCoupled = m_coupling * m_pBase;
  m_pClassic = m_pBase * m_pBase;
  m_previousDelay = delay;
  m_updateTrace(delay, m_pBase, m_pCoupled, m_pClassic);
  m_updateEvent = Simulator::Schedule(m_tUpdate, &DualPi2QueueDisc::Update, this);
}

}  // namespace ns3
