// SPDX-License-Identifier: GPL-2.0-only
//
// DualPI2, the dual-queue coupled AQM of RFC 9332 appendix A. Needs nothing but ns-3's
// traffic-control module, so these two files can be taken out of this project as they are.

#ifndef DUAL_PI2_QUEUE_DISC_H
#define DUAL_PI2_QUEUE_DISC_H

#include <array>
#include <cstdint>

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
 * Names, as in RFC 9332:
 *   p'    base probability, output of a PI controller on the queueing delay, every Tupdate
 *   p_C   = p'^2, marks ECN-capable packets of C and drops the others
 *   p_CL  = k p', couples C's congestion to L
 *   p'_L  native L4S AQM, a ramp or a step of L's own queueing delay
 *   p_L   = max(p'_L, p_CL), marks packets of L
 *
 * Overload (A.2): once p_CL reaches p_Lmax, packets of L too are dropped with p_C, and C drops even
 * what it could mark, so that traffic which ignores marks meets loss.
 *
 * See simulation/doc/dual-pi2.md for the table beside Linux's constants, and what differs and why.
 */
class DualPi2QueueDisc : public QueueDisc {
 public:
  /** Index of the internal queue. */
  enum Queue : std::size_t { kL4s = 0, kClassic = 1 };

  enum LAqm { kRamp, kStep };
  enum Scheduler { kWeightedRoundRobin, kTimeShiftedFifo };
  enum Overload { kDrop, kDelay };
  enum DelayInput { kGreater, kClassicOnly };
  enum Draw { kRecur, kRandom };

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

 protected:
  void DoDispose() override;

 private:
  /** Decides with a likelihood, evenly spaced or at random. */
  class Chooser {
   public:
    bool Choose(double likelihood, Draw draw, UniformRandomVariable& random);

   private:
    double m_sum{0};  // likelihoods since the last `true`, less 1 for each `true`
  };

  bool DoEnqueue(Ptr<QueueDiscItem> item) override;
  Ptr<QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override;

  const char* LimitReached(Queue queue, uint32_t itemBytes) const;
  Queue Schedule() const;
  Time HeadDelay(Queue queue) const;
  void Charge(Queue queue, uint32_t bytes, bool contended);
  void ResetCredit();

  /** Mark the item or leave it; false if it must be dropped, and was. */
  bool PassL4s(Ptr<QueueDiscItem> item, Time sojourn, uint32_t packetsFound);
  bool PassClassic(Ptr<QueueDiscItem> item);
  bool Drop(Ptr<QueueDiscItem> item, Queue queue, const char* reason);
  double NativeProbability(Time sojourn, uint32_t packetsFound) const;
  bool IsSaturated() const;
  bool IsShort() const;
  void Update();

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
  DelayInput m_delayInput;
  LAqm m_lAqm;
  Time m_lMinThreshold;
  Time m_lRange;
  Time m_lStep;
  uint32_t m_lMinPackets;    // Th_len
  double m_lMaxProbability;  // p_Lmax
  Scheduler m_scheduler;
  double m_cWeight;
  Time m_timeShift;
  Overload m_overload;
  Draw m_draw;

  // state
  TracedValue<double> m_pBase{0};     // p'
  TracedValue<double> m_pCoupled{0};  // p_CL, not clamped at 1: p_C = (p_CL / k)^2 always holds
  TracedValue<double> m_pClassic{0};  // p_C
  TracedValue<double> m_pL4s{0};      // p_L
  double m_credit{0};                 // bytes · weight that L is ahead of its share
  Time m_previousDelay;
  EventId m_updateEvent;
  Chooser m_lMarks;
  Chooser m_lDrops;
  Chooser m_cSignals;
  std::array<QueueCounts, 2> m_counts;
  Ptr<UniformRandomVariable> m_random;

  TracedCallback<Time> m_lSojournTrace;
  TracedCallback<Time> m_cSojournTrace;
  TracedCallback<Time, double, double, double> m_updateTrace;
};

}  // namespace ns3

#endif  // DUAL_PI2_QUEUE_DISC_H
