// SPDX-License-Identifier: GPL-2.0-only

#include "queue-view.h"

#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>

#include "ns3/queue.h"
#include "ns3/simulator.h"
#include "packet-log.h"

namespace swiftqueue::lab {

using Disc = ns3::DualPi2QueueDisc;
using ns3::Simulator;

namespace {

constexpr double kForeverUs = std::numeric_limits<double>::infinity();
constexpr double kEveryUs = 1'000;
constexpr std::array kBothQueues{Disc::kL4s, Disc::kClassic};

}  // namespace

double WaitUs(double ahead, double other, double weight, BytesPerUs rate,
              BytesPerUs otherArrivals) {
  const BytesPerUs otherShare = (1 - weight) * rate;
  const double bothUs =
      otherArrivals < otherShare ? other / (otherShare - otherArrivals) : kForeverUs;
  const double aloneUs = ahead / (weight * rate);
  if (aloneUs <= bothUs) {
    return aloneUs;
  }
  return bothUs + (ahead - weight * rate * bothUs) / (rate - otherArrivals);
}

QueueView::QueueView(const Run& run, const Network& network, double rateUs, double ageUs)
    : m_rateUs(rateUs),
      m_ageTicks(static_cast<std::size_t>(std::lround(ageUs / kEveryUs))),
      m_firstBottleneck(run.senders.front().router) {
  for (const Receiver& receiver : run.receivers) {
    m_lastBottleneck.push_back(receiver.router);
  }
  for (std::size_t i = 0; i < run.bottlenecks.size(); ++i) {
    const auto& any = network.Bottlenecks()[i];
    const auto disc = run.uplinks.empty() ? ns3::DynamicCast<Disc>(any) : nullptr;
    if (!disc && run.uplinks.empty()) {
      throw std::invalid_argument("bottlenecks." + std::to_string(i) +
                                  ".disc: there is no view of its queues");
    }
    m_seen.push_back({any, disc, &run.bottlenecks[i], {}, {}, {}});
  }
  if (m_rateUs > 0 || m_ageTicks > 0) {
    Measure();
  }
}

void QueueView::Measure() {
  const double share = m_rateUs > 0 ? 1 - std::exp(-kEveryUs / m_rateUs) : 0;
  for (Seen& seen : m_seen) {
    for (const auto queue : seen.disc ? kBothQueues : std::span<const Queue>{}) {
      const auto& counts = seen.disc->GetQueueCounts(queue);
      const uint64_t bytes = counts.enqueuedBytes + counts.refusedBytes;
      const BytesPerUs now = static_cast<double>(bytes - seen.arrivedBytes[queue]) / kEveryUs;
      seen.arrivals[queue] += share * (now - seen.arrivals[queue]);
      seen.arrivedBytes[queue] = bytes;
    }
    if (m_ageTicks > 0) {
      seen.past.push_back(Now(seen));
      if (seen.past.size() > m_ageTicks) {
        seen.past.pop_front();
      }
    }
  }
  Simulator::Schedule(ns3::Seconds(kEveryUs * 1e-6), &QueueView::Measure, this);
}

QueueView::State QueueView::Now(const Seen& seen) const {
  State state;
  if (!seen.disc) {
    const double atS = Simulator::Now().GetSeconds();
    const double sentS =
        TimeOfBits(*seen.link, BitsUntil(*seen.link, atS) + 8.0 * seen.any->GetNBytes());
    state.uplinkUs = (sentS - atS) * 1e6 + seen.link->delayMs * 1e3;
    return state;
  }
  state.classicWeight = seen.disc->GetClassicWeight();
  state.rate = RateBpsAt(*seen.link, Simulator::Now().GetSeconds()) / 8e6;
  if (seen.disc->GetNInternalQueues() == 0) {
    return state;  // it makes them when the simulation begins
  }
  for (const auto queue : {Disc::kL4s, Disc::kClassic}) {
    state.bytes[queue] = seen.disc->GetInternalQueue(queue)->GetNBytes();
  }
  state.arrivals = seen.arrivals;
  return state;
}

QueueView::Both QueueView::Predict(const State& state) {
  const double l4sBytes = state.bytes[Disc::kL4s];
  const double classicBytes = state.bytes[Disc::kClassic];
  return {
      WaitUs(l4sBytes, classicBytes, 1 - state.classicWeight, state.rate,
             state.arrivals[Disc::kClassic]),
      WaitUs(classicBytes, l4sBytes, state.classicWeight, state.rate, state.arrivals[Disc::kL4s])};
}

QueueView::Both QueueView::Toward(uint32_t receiver) const {
  const auto seenOf = [this](const Seen& seen) {
    return m_ageTicks > 0 ? seen.past.front() : Now(seen);
  };
  if (!m_seen.front().disc) {
    return {seenOf(m_seen[kL4sQueue]).uplinkUs, seenOf(m_seen[kClassicQueue]).uplinkUs};
  }
  Both waits{0, 0};
  for (uint32_t i = m_firstBottleneck; i < m_lastBottleneck[receiver]; ++i) {
    const Seen& seen = m_seen[i];
    const Both here = Predict(seenOf(seen));
    waits.l4sUs += here.l4sUs;
    waits.classicUs += here.classicUs;
  }
  return waits;
}

QueueView::Both QueueView::Behind(uint32_t bottleneck, Queue queue, uint32_t bytes) const {
  const Seen& seen = m_seen[bottleneck];
  State state = Now(seen);
  state.bytes[queue] -= bytes;
  return Predict(state);
}

}  // namespace swiftqueue::lab
