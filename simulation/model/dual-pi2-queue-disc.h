// SPDX-License-Identifier: GPL-2.0-only
//
// DualPI2, the dual-queue coupled AQM of RFC 9332 appendix A. Its arithmetic is
// testbed/router/dual_pi2.h, which the kernel test bed's router uses too (docs/decisions/0009).
// Needs besides flow-ages.* and nothing but ns-3's traffic-control module, so these five files can
// be taken out of this project as they are.

#ifndef DUAL_PI2_QUEUE_DISC_H
#define DUAL_PI2_QUEUE_DISC_H

#include <array>
#include <cstdint>
#include <vector>

#include "../../testbed/router/dual_pi2.h"
#include "flow-ages.h"
#include "ns3/event-id.h"
#include "ns3/nstime.h"
#include "ns3/queue-disc.h"
#include "ns3/random-variable-stream.h"
#include "ns3/traced-callback.h"
#include "ns3/traced-value.h"

namespace ns3 {

/**
 * \ingroup traffic-control
 *
 * Two queues for one link, L (low latency) and C (classic), whose congestion signals are coupled so
 * that scalable and classic flows get about the same window.
 *
 * Overload (A.2): once p_CL reaches p_Lmax, packets of L too are dropped with p_C, and C drops even
 * what it could mark, so that traffic which ignores marks meets loss.
 *
 * See simulation/doc/dual-pi2.md for the table beside Linux's constants, and what differs and why.
 */
class DualPi2QueueDisc : public QueueDisc {
 public:
  /** Who says what C's weight is: CWeight, or Confucius' age rule. */
  enum CWeightBy { kFixed, kAge };

  using Queue = swiftqueue::dual_pi2::Queue;  ///< Index of the internal queue.
  static constexpr Queue kL4s = swiftqueue::dual_pi2::kL4s;
  static constexpr Queue kClassic = swiftqueue::dual_pi2::kClassic;

  /** What became of the packets of one queue. enqueued = dequeued + dropped + still waiting. */
  struct QueueCounts {
    uint64_t enqueuedPackets{0};
    uint64_t enqueuedBytes{0};
    uint64_t dequeuedPackets{0};
    uint64_t dequeuedBytes{0};
    uint64_t markedPackets{0};   ///< of those dequeued
    uint64_t droppedPackets{0};  ///< by the AQM, after they had been enqueued
    uint64_t droppedBytes{0};
    uint64_t refusedPackets{0};  ///< never enqueued: a limit was reached
    uint64_t refusedBytes{0};
  };

  // Reasons, the keys of QueueDisc::Stats' maps and of its Mark and Drop traces
  static constexpr const char* kLNativeMark = "L native mark";         ///< p'_L was the greater
  static constexpr const char* kLCoupledMark = "L coupled mark";       ///< p_CL was the greater
  static constexpr const char* kLOverloadMark = "L overload mark";     ///< A.2, p_CL >= p_Lmax
  static constexpr const char* kLOverloadDrop = "L overload drop";     ///< A.2, with p_C
  static constexpr const char* kCMark = "C mark";                      ///< ECT(0), with p_C
  static constexpr const char* kCDrop = "C drop";                      ///< Not-ECT, with p_C
  static constexpr const char* kCOverloadDrop = "C overload drop";     ///< A.2, ECT(0), with p_C
  static constexpr const char* kSharedLimitDrop = "both queues full";  ///< MaxSize
  static constexpr const char* kLLimitDrop = "L full";                 ///< LMaxBytes
  static constexpr const char* kCLimitDrop = "C full";                 ///< CMaxBytes

  /** Signature of the trace source Update. */
  typedef void (*UpdateTracedCallback)(Time queueDelay, double pBase, double pCoupled,
                                       double pClassic);

  static TypeId GetTypeId();
  DualPi2QueueDisc();

  /** Fix the random stream that `Draw` = Random uses; returns the number of streams used. */
  int64_t AssignStreams(int64_t stream);

  /** The queue of an item by its ECN field (RFC 9332 2.3): what is not IP goes to C. */
  static Queue ClassifyItem(Ptr<const QueueDiscItem> item);

  /**
   * Counts of one queue. A packet that Peek() took out and keeps counts as dequeued here, while
   * GetNPackets() still counts it as waiting.
   */
  const QueueCounts& GetQueueCounts(Queue queue) const;

  double GetBaseProbability() const;     ///< p', 0 to 1
  double GetCoupledProbability() const;  ///< p_CL, 0 to k
  double GetClassicProbability() const;  ///< p_C, 0 to 1
  double GetClassicWeight() const;       ///< C's share of the bytes while both queues wait, now

  /** What a queue's flows weigh together, now; CWeightBy Age. */
  double GetFlowsWeight(Queue queue) const;
  /** C's share where the queues' flows weigh so much; CWeightBy Age. */
  double ClassicShare(double l4sWeight, double classicWeight) const;

 protected:
  void DoDispose() override;

 private:
  bool DoEnqueue(Ptr<QueueDiscItem> item) override;
  Ptr<QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override;

  swiftqueue::dual_pi2::Backlog Waiting() const;

  /** Send the item, marked or not; false if it must be dropped, and was. */
  bool Pass(Ptr<QueueDiscItem> item, Queue queue, Time sojourn, uint32_t packetsFound);
  void Update();

  // CWeightBy Age
  void AgeIn(Ptr<QueueDiscItem> item, Queue queue);
  void AgeOut(Ptr<QueueDiscItem> item);
  void Weigh();

  // attributes
  uint32_t m_mtuBytes;
  uint32_t m_lMaxBytes;
  uint32_t m_cMaxBytes;
  uint32_t m_minBacklogBytes;
  Time m_target;
  Time m_tUpdate;
  double m_alphaHz;
  double m_betaHz;
  double m_coupling;  // k
  swiftqueue::dual_pi2::DelayInput m_delayInput;
  swiftqueue::dual_pi2::LAqm m_lAqm;
  Time m_lMinThreshold;
  Time m_lRange;
  Time m_lStep;
  uint32_t m_lMinPackets;    // Th_len
  double m_lMaxProbability;  // p_Lmax
  swiftqueue::dual_pi2::Scheduler m_scheduler;
  double m_cWeight;
  CWeightBy m_cWeightBy{kFixed};
  Time m_timeShift;
  swiftqueue::dual_pi2::Overload m_overload;
  swiftqueue::dual_pi2::Draw m_draw;

  // state
  swiftqueue::dual_pi2::DualPi2
      m_arithmetic;                   // with the attributes of when the disc was initialized
  TracedValue<double> m_pBase{0};     // p'
  TracedValue<double> m_pCoupled{0};  // p_CL, not clamped at 1: p_C = (p_CL / k)^2 always holds
  TracedValue<double> m_pClassic{0};  // p_C
  TracedValue<double> m_pL4s{0};      // p_L
  EventId m_updateEvent;
  std::array<QueueCounts, 2> m_counts;
  Ptr<UniformRandomVariable> m_random;
  swiftqueue::FlowAges m_ages;      // groups are queues
  std::vector<uint32_t> m_waiting;  // packets of each flow
  Time m_nextRest;

  TracedCallback<Time> m_lSojournTrace;
  TracedCallback<Time> m_cSojournTrace;
  TracedCallback<Time, double, double, double> m_updateTrace;
};

}  // namespace ns3

#endif  // DUAL_PI2_QUEUE_DISC_H
