// SPDX-License-Identifier: GPL-2.0-only
//
// What can be seen of the bottlenecks' queues, or of both uplinks': how long a packet that comes
// now will wait in either.

#ifndef SWIFTQUEUE_LABORATORY_QUEUE_VIEW_H
#define SWIFTQUEUE_LABORATORY_QUEUE_VIEW_H

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "network.h"

namespace swiftqueue::lab {

/** Bytes in us. */
using BytesPerUs = double;

/**
 * How long `ahead` bytes take in a queue of this weight, beside another that holds `other` bytes
 * and goes on getting `otherArrivals`: at the weights until the other is empty, with what the
 * other's arrivals leave from then on.
 */
double WaitUs(double ahead, double other, double weight, BytesPerUs rate, BytesPerUs otherArrivals);

/**
 * Sees both queues of every bottleneck, and how fast they have been filled of late. With uplinks it
 * sees the bytes in the disc of either, and the rates to come.
 */
class QueueView {
 public:
  using Disc = ns3::DualPi2QueueDisc;
  using Queue = Disc::Queue;

  /**
   * `rateUs`: over which arrivals are smoothed; 0: it expects that nothing comes. `ageUs`: how old
   * what it sees is. Throws std::invalid_argument for a disc that is no DualPI2, but for an
   * uplink's.
   */
  QueueView(const Run& run, const Network& network, double rateUs, double ageUs = 0);
  QueueView(const QueueView&) = delete;
  QueueView& operator=(const QueueView&) = delete;

  struct Both {
    double l4sUs;
    double classicUs;
  };
  /** Of all bottlenecks on the captured sender's way to a receiver; over an uplink, its delay too.
   */
  Both Toward(uint32_t receiver) const;
  /** At one bottleneck, for a packet that has just been put into `queue`, its bytes not counted. */
  Both Behind(uint32_t bottleneck, Queue queue, uint32_t bytes) const;

 private:
  struct State {  // by Queue
    std::array<double, 2> bytes{};
    std::array<BytesPerUs, 2> arrivals{};  // smoothed
    double classicWeight{0};               // in the scheduler, which may follow flows' ages
    BytesPerUs rate{0};                    // rate of the link, which may vary
    double uplinkUs{0};                    // until a packet is across an uplink
  };
  struct Seen {
    ns3::Ptr<ns3::QueueDisc> any;
    ns3::Ptr<Disc> disc;  // null: an uplink's
    const Bottleneck* link;
    std::array<BytesPerUs, 2> arrivals{};
    std::array<uint64_t, 2> arrivedBytes{};
    std::deque<State> past;  // states of the last ageUs, the oldest first
  };

  void Measure();
  State Now(const Seen& seen) const;
  static Both Predict(const State& state);

  double m_rateUs;
  std::size_t m_ageTicks;
  uint32_t m_firstBottleneck;
  std::vector<uint32_t> m_lastBottleneck;  // last bottleneck of each receiver; exclusive
  std::vector<Seen> m_seen;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_QUEUE_VIEW_H
