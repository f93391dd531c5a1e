// SPDX-License-Identifier: GPL-2.0-only

#include "dual-pi2-queue-disc.h"

#include <algorithm>

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

namespace dual_pi2 = swiftqueue::dual_pi2;
using dual_pi2::DelayInput;
using dual_pi2::Draw;
using dual_pi2::kNotEct;
using dual_pi2::kUnlimited;
using dual_pi2::LAqm;
using dual_pi2::Overload;
using dual_pi2::Refusal;
using dual_pi2::Verdict;

constexpr uint8_t kEcnMask = 0b11;
constexpr uint32_t kQueues = 2;
constexpr uint32_t kAgedFlows = 1024;          // buckets, as FlowQueueDisc has
const Time kRestInterval = MilliSeconds(100);  // Confucius 6

uint8_t EcnField(Ptr<const QueueDiscItem> item) {
  uint8_t dsField = 0;
  return item->GetUint8Value(QueueItem::IP_DSFIELD, dsField) ? dsField & kEcnMask : kNotEct;
}

const char* ReasonOf(Refusal refusal) {
  return refusal == Refusal::kLLimit   ? DualPi2QueueDisc::kLLimitDrop
         : refusal == Refusal::kCLimit ? DualPi2QueueDisc::kCLimitDrop
                                       : DualPi2QueueDisc::kSharedLimitDrop;
}

const char* ReasonOf(Verdict verdict) {
  using Disc = DualPi2QueueDisc;
  switch (verdict) {
    case Verdict::kLNativeMark:
      return Disc::kLNativeMark;
    case Verdict::kLCoupledMark:
      return Disc::kLCoupledMark;
    case Verdict::kLOverloadMark:
      return Disc::kLOverloadMark;
    case Verdict::kCMark:
      return Disc::kCMark;
    case Verdict::kLOverloadDrop:
      return Disc::kLOverloadDrop;
    case Verdict::kCDrop:
      return Disc::kCDrop;
    case Verdict::kCOverloadDrop:
      return Disc::kCOverloadDrop;
    case Verdict::kSend:
      break;
  }
  return "";
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
          .AddAttribute(
              "DelayInput",
              "The controller's input: the greater of both queues' delays (RFC 9332 A.2) "
              "or C's alone (A.1)",
              EnumValue(DelayInput::kGreater), MakeEnumAccessor<DelayInput>(&Self::m_delayInput),
              MakeEnumChecker(DelayInput::kGreater, "Greater", DelayInput::kClassicOnly, "Classic"))
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
                        EnumValue(LAqm::kRamp), MakeEnumAccessor<LAqm>(&Self::m_lAqm),
                        MakeEnumChecker(LAqm::kRamp, "Ramp", LAqm::kStep, "Step"))
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
          .AddAttribute(
              "Scheduler",
              "Weighted round robin, or a FIFO in which L's packets are TimeShift older "
              "(RFC 9332 A.1, scheduler())",
              EnumValue(dual_pi2::Scheduler::kWeightedRoundRobin),
              MakeEnumAccessor<dual_pi2::Scheduler>(&Self::m_scheduler),
              MakeEnumChecker(dual_pi2::Scheduler::kWeightedRoundRobin, "WeightedRoundRobin",
                              dual_pi2::Scheduler::kTimeShiftedFifo, "TimeShiftedFifo"))
          .AddAttribute("CWeight",
                        "Weighted round robin: C's share of the bytes while both queues wait (RFC "
                        "9332 4.2's example is 1/16; Linux: 0.1)",
                        DoubleValue(1.0 / 16), MakeDoubleAccessor(&Self::m_cWeight),
                        MakeDoubleChecker<double>(0, 1))
          .AddAttribute("CWeightBy",
                        "Fixed: CWeight. Age: each queue weighs as much as its flows, an old one 1 "
                        "and a new one by Confucius' age rule; C's share stays between CWeight and "
                        "1 - CWeight (none in RFC 9332)",
                        EnumValue(kFixed), MakeEnumAccessor<CWeightBy>(&Self::m_cWeightBy),
                        MakeEnumChecker(kFixed, "Fixed", kAge, "Age"))
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
              EnumValue(Overload::kDrop), MakeEnumAccessor<Overload>(&Self::m_overload),
              MakeEnumChecker(Overload::kDrop, "Drop", Overload::kDelay, "Delay"))
          .AddAttribute("Draw",
                        "Decide by evenly spaced signals (RFC 9332 A.1, recur()) or at random "
                        "(Linux)",
                        EnumValue(Draw::kRecur), MakeEnumAccessor<Draw>(&Self::m_draw),
                        MakeEnumChecker(Draw::kRecur, "Recur", Draw::kRandom, "Random"))
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
  return dual_pi2::queue_of(EcnField(item));
}

const DualPi2QueueDisc::QueueCounts& DualPi2QueueDisc::GetQueueCounts(Queue queue) const {
  return m_counts[queue];
}

double DualPi2QueueDisc::GetBaseProbability() const { return m_pBase; }
double DualPi2QueueDisc::GetCoupledProbability() const { return m_pCoupled; }
double DualPi2QueueDisc::GetClassicProbability() const { return m_pClassic; }
double DualPi2QueueDisc::GetClassicWeight() const {
  // Before the simulation begins the arithmetic has not the attributes yet.
  return m_cWeightBy == kAge ? m_arithmetic.parameters().c_weight : m_cWeight;
}

double DualPi2QueueDisc::GetFlowsWeight(Queue queue) const {
  // Before the simulation begins there is no flow.
  return GetNInternalQueues() == 0 ? 0 : m_ages.Weight(queue);
}
double DualPi2QueueDisc::ClassicShare(double l4sWeight, double classicWeight) const {
  // A flow's older packets may wait in a queue that none is in any more, so none has a share of 0.
  const double least = std::min(m_cWeight, 1 - m_cWeight);
  return std::clamp(classicWeight / (l4sWeight + classicWeight), least, 1 - least);
}

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
  m_arithmetic = dual_pi2::DualPi2({
      .max_bytes = GetMaxSize().GetValue(),
      .l_max_bytes = m_lMaxBytes,
      .c_max_bytes = m_cMaxBytes,
      .mtu_bytes = m_mtuBytes,
      .min_backlog_bytes = m_minBacklogBytes,
      .target_ns = m_target.GetNanoSeconds(),
      .t_update_ns = m_tUpdate.GetNanoSeconds(),
      .alpha_hz = m_alphaHz,
      .beta_hz = m_betaHz,
      .coupling = m_coupling,
      .delay_input = m_delayInput,
      .l_aqm = m_lAqm,
      .l_min_threshold_ns = m_lMinThreshold.GetNanoSeconds(),
      .l_range_ns = m_lRange.GetNanoSeconds(),
      .l_step_ns = m_lStep.GetNanoSeconds(),
      .l_min_packets = m_lMinPackets,
      .l_max_probability = m_lMaxProbability,
      .scheduler = m_scheduler,
      .c_weight = m_cWeight,
      .time_shift_ns = m_timeShift.GetNanoSeconds(),
      .overload = m_overload,
      .draw = m_draw,
  });
  m_ages.Reset(kAgedFlows, kQueues, {});
  m_waiting.assign(kAgedFlows, 0);
  m_updateEvent = Simulator::Schedule(m_tUpdate, &DualPi2QueueDisc::Update, this);
}

void DualPi2QueueDisc::DoDispose() {
  m_updateEvent.Cancel();
  m_random = nullptr;
  QueueDisc::DoDispose();
}

// --- in -----------------------------------------------------------------------------------------

dual_pi2::Backlog DualPi2QueueDisc::Waiting() const {
  dual_pi2::Backlog waiting;
  for (const Queue queue : {kL4s, kClassic}) {
    const Ptr<InternalQueue> packets = GetInternalQueue(queue);
    const Ptr<const QueueDiscItem> head = packets->Peek();
    waiting[queue] = {packets->GetNBytes(), packets->GetNPackets(),
                      head ? head->GetTimeStamp().GetNanoSeconds() : 0};
  }
  return waiting;
}

bool DualPi2QueueDisc::DoEnqueue(Ptr<QueueDiscItem> item) {
  const Queue queue = ClassifyItem(item);
  QueueCounts& counts = m_counts[queue];
  const Refusal refusal = m_arithmetic.refusal(queue, item->GetSize(), Waiting());
  if (refusal != Refusal::kNone) {
    ++counts.refusedPackets;
    counts.refusedBytes += item->GetSize();
    DropBeforeEnqueue(item, ReasonOf(refusal));
    return false;
  }
  item->SetTimeStamp(Simulator::Now());
  const bool enqueued = GetInternalQueue(queue)->Enqueue(item);
  NS_ABORT_MSG_UNLESS(enqueued, "DualPi2QueueDisc: an internal queue is smaller than the limits");
  ++counts.enqueuedPackets;
  counts.enqueuedBytes += item->GetSize();
  if (m_cWeightBy == kAge) {
    AgeIn(item, queue);
  }
  return true;
}

// --- out ----------------------------------------------------------------------------------------

Ptr<QueueDiscItem> DualPi2QueueDisc::DoDequeue() {
  if (m_cWeightBy == kAge) {
    Weigh();
  }
  for (;;) {
    const dual_pi2::Backlog found = Waiting();
    const bool contended = found[kL4s].packets > 0 && found[kClassic].packets > 0;
    const Queue queue = m_arithmetic.schedule(Simulator::Now().GetNanoSeconds(), found);
    Ptr<QueueDiscItem> item = GetInternalQueue(queue)->Dequeue();
    if (!item) {
      m_arithmetic.reset_credit();
      return nullptr;
    }
    if (m_cWeightBy == kAge) {
      AgeOut(item);
    }
    const Time sojourn = Simulator::Now() - item->GetTimeStamp();
    if (!Pass(item, queue, sojourn, found[queue].packets)) {
      continue;  // a dropped packet takes no share of the link
    }
    m_arithmetic.charge(queue, item->GetSize(), contended);
    ++m_counts[queue].dequeuedPackets;
    m_counts[queue].dequeuedBytes += item->GetSize();
    queue == kL4s ? m_lSojournTrace(sojourn) : m_cSojournTrace(sojourn);
    return item;
  }
}

bool DualPi2QueueDisc::Pass(Ptr<QueueDiscItem> item, Queue queue, Time sojourn,
                            uint32_t packetsFound) {
  const Verdict verdict =
      m_arithmetic.pass(queue, EcnField(item), sojourn.GetNanoSeconds(), packetsFound,
                        m_arithmetic.is_short(Waiting()), [this] { return m_random->GetValue(); });
  if (queue == kL4s) {
    m_pL4s = m_arithmetic.p_l4s();
  }
  QueueCounts& counts = m_counts[queue];
  if (dual_pi2::is_drop(verdict)) {
    ++counts.droppedPackets;
    counts.droppedBytes += item->GetSize();
    DropAfterDequeue(item, ReasonOf(verdict));
    return false;
  }
  if (dual_pi2::is_mark(verdict) && Mark(item, ReasonOf(verdict))) {
    ++counts.markedPackets;
  }
  return true;
}

// --- the scheduler's weights by age -------------------------------------------------------------

void DualPi2QueueDisc::AgeIn(Ptr<QueueDiscItem> item, Queue queue) {
  const uint32_t flow = item->Hash() % kAgedFlows;
  const auto group = static_cast<uint32_t>(queue);
  if (m_ages.GroupOf(flow) == swiftqueue::FlowAges::kUnknown) {
    m_ages.Begin(flow, group);
  } else if (m_ages.GroupOf(flow) != group) {
    m_ages.Put(flow, group, m_ages.IsNew(flow));  // it is where its last packet went
  }
  m_ages.Weigh(flow, true);
  m_ages.Seen(flow);
  ++m_waiting[flow];
}

void DualPi2QueueDisc::AgeOut(Ptr<QueueDiscItem> item) {
  const uint32_t flow = item->Hash() % kAgedFlows;
  m_ages.Seen(flow);
  --m_waiting[flow];
}

void DualPi2QueueDisc::Weigh() {
  m_ages.Grow([this](uint32_t flow) { m_ages.Put(flow, m_ages.GroupOf(flow), false); });
  if (Simulator::Now() >= m_nextRest) {
    m_ages.Rest([this](uint32_t flow) { return m_waiting[flow] == 0; });
    m_nextRest = Simulator::Now() + kRestInterval;
  }
  const double l4s = m_ages.Weight(kL4s);
  const double classic = m_ages.Weight(kClassic);
  if (l4s + classic > 0) {
    m_arithmetic.set_c_weight(ClassicShare(l4s, classic));
  }
}

// --- the controller -----------------------------------------------------------------------------

void DualPi2QueueDisc::Update() {
  m_arithmetic.update(Simulator::Now().GetNanoSeconds(), Waiting());
  m_pBase = m_arithmetic.p_base();
  m_pCoupled = m_arithmetic.p_coupled();
  m_pClassic = m_arithmetic.p_classic();
  m_updateTrace(NanoSeconds(m_arithmetic.delay_ns()), m_pBase, m_pCoupled, m_pClassic);
  m_updateEvent = Simulator::Schedule(m_tUpdate, &DualPi2QueueDisc::Update, this);
}

}  // namespace ns3
