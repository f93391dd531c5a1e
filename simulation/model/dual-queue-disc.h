// SPDX-License-Identifier: GPL-2.0-only
//
// A first dual queue: L4S and classic packets, told apart by their ECN codepoint, share one link.

#ifndef SWIFTQUEUE_DUAL_QUEUE_DISC_H
#define SWIFTQUEUE_DUAL_QUEUE_DISC_H

#include <array>
#include <cstdint>

#include "ns3/event-id.h"
#include "ns3/nstime.h"
#include "ns3/queue-disc.h"
#include "ns3/random-variable-stream.h"

namespace swiftqueue {

/**
 * Two queues for one link: ECT(1) and CE packets go to L, all others to C (RFC 9331 section 5.1).
 *
 * - L marks CE on each ECT packet that waited longer than `LStep` (RFC 9332 appendix A.1, the step
 *   of the native L4S AQM).
 * - C is driven by a PI controller on its own head's waiting time; a packet is marked, or dropped
 *   if it is not ECN-capable, with the square of the controller's output (PI2, RFC 9332 A.1).
 * - While both queues hold packets they are served by weighted deficit: `LWeight` of the bytes
 *   from L.
 *
 * Not an RFC 9332 DualPI2: the queues are not coupled and there is no overload handling. With a
 * step of 20 ms this is the profile in which choosing the queue packet by packet can pay at all.
 */
class DualQueueDisc : public ns3::QueueDisc {
 public:
  enum Queue : std::size_t { kL4s = 0, kClassic = 1 };

  static ns3::TypeId GetTypeId();
  DualQueueDisc();

  /** Fix the random stream of the drop decisions; returns the number of streams used. */
  int64_t AssignStreams(int64_t stream);

  /** The queue in which an item waits, by its ECN field. */
  static Queue Classify(ns3::Ptr<const ns3::QueueDiscItem> item);

  static constexpr const char* kStepMark = "L step mark";
  static constexpr const char* kPi2Mark = "C PI2 mark";
  static constexpr const char* kPi2Drop = "C PI2 drop";
  static constexpr const char* kFullDrop = "queue full";

 private:
  bool DoEnqueue(ns3::Ptr<ns3::QueueDiscItem> item) override;
  ns3::Ptr<ns3::QueueDiscItem> DoDequeue() override;
  bool CheckConfig() override;
  void InitializeParams() override;
  void DoDispose() override;

  void SetLLimit(uint32_t bytes);
  void SetCLimit(uint32_t bytes);
  Queue ChooseQueue() const;
  ns3::Time HeadWait(Queue queue) const;
  void UpdateProbability();

  std::array<uint32_t, 2> m_limitBytes;  // of L and of C, apart from each other
  double m_lWeight;                      // share of the bytes served from L while both wait
  ns3::Time m_lStep;
  ns3::Time m_target;
  ns3::Time m_updateInterval;
  double m_alphaHz;  // integral gain
  double m_betaHz;   // proportional gain

  double m_lCreditBytes{0};  // served from L beyond its share; L's turn while it is not positive
  double m_probability{0};   // output of the PI controller, before squaring
  ns3::Time m_lastWait;
  ns3::EventId m_update;
  ns3::Ptr<ns3::UniformRandomVariable> m_uniform;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_DUAL_QUEUE_DISC_H
