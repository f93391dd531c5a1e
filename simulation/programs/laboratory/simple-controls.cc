// SPDX-License-Identifier: GPL-2.0-only

#include "simple-controls.h"

#include <algorithm>
#include <cmath>

#include "ns3/double.h"
#include "ns3/queue.h"
#include "ns3/simulator.h"
#include "packet-log.h"
#include "streams.h"

namespace swiftqueue::lab {

using Disc = ns3::DualPi2QueueDisc;
using ns3::Simulator;

namespace {

constexpr double kForeverUs = std::numeric_limits<double>::infinity();

/**
 * How long `ahead` bytes take in a queue of this weight, beside another that holds `other` bytes
 * and goes on getting `otherArrivals`: at the weights until the other is empty, with what the
 * other's arrivals leave from then on.
 */
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

}  // namespace

RandomMove::RandomMove(const RandomControl& params)
    : m_bursts(params.share, params.burstPackets, kRandomControlStream + params.seed) {}

OracleMove::OracleMove(const OracleControl& params, const Run& run, const Network& network)
    : m_params(params), m_firstBottleneck(run.senders.front().router) {
  for (const Receiver& receiver : run.receivers) {
    m_lastBottleneck.push_back(receiver.router);
  }
  for (std::size_t i = 0; i < run.bottlenecks.size(); ++i) {
    const auto& disc = network.Bottlenecks()[i];
    ns3::DoubleValue weight;
    disc->GetAttribute("CWeight", weight);
    m_views.push_back({disc, run.bottlenecks[i].rateBps / 8e6, weight.Get()});
  }
  if (m_params.rateUs > 0) {
    MeasureArrivals();
  }
}

void OracleMove::MeasureArrivals() {
  constexpr double kEveryUs = 1'000;
  const double share = 1 - std::exp(-kEveryUs / m_params.rateUs);
  for (View& view : m_views) {
    for (const auto queue : {Disc::kL4s, Disc::kClassic}) {
      const auto& counts = view.disc->GetQueueCounts(queue);
      const uint64_t bytes = counts.enqueuedBytes + counts.refusedBytes;
      const BytesPerUs now = static_cast<double>(bytes - view.arrivedBytes[queue]) / kEveryUs;
      view.arrivals[queue] += share * (now - view.arrivals[queue]);
      view.arrivedBytes[queue] = bytes;
    }
  }
  Simulator::Schedule(ns3::Seconds(kEveryUs * 1e-6), &OracleMove::MeasureArrivals, this);
}

Waits OracleMove::Predict(uint32_t receiver) const {
  Waits waits{0, 0};
  for (uint32_t i = m_firstBottleneck; i < m_lastBottleneck[receiver]; ++i) {
    const View& view = m_views[i];
    const double l4sBytes = view.disc->GetInternalQueue(Disc::kL4s)->GetNBytes();
    const double classicBytes = view.disc->GetInternalQueue(Disc::kClassic)->GetNBytes();
    const double classicWeight = view.classicWeight;
    waits.l4sUs +=
        WaitUs(l4sBytes, classicBytes, 1 - classicWeight, view.rate, view.arrivals[Disc::kClassic]);
    waits.classicUs +=
        WaitUs(classicBytes, l4sBytes, classicWeight, view.rate, view.arrivals[Disc::kL4s]);
  }
  return waits;
}

bool OracleMove::Choose(const Waits& waits, double nowUs, const Last& last) const {
  const bool better = waits.l4sUs - waits.classicUs > m_params.marginUs;
  if (!m_params.keepOrder) {
    return better;
  }
  const bool l4sKeepsOrder = nowUs + waits.l4sUs >= last.arrivalUs;
  const bool classicKeepsOrder = nowUs + waits.classicUs >= last.arrivalUs;
  if (l4sKeepsOrder && classicKeepsOrder) {
    return better;
  }
  return l4sKeepsOrder == classicKeepsOrder ? last.moved : classicKeepsOrder;
}

bool OracleMove::Move(const DataPacket& packet, const Waiting&) {
  if (packet.defaultQueue == kClassicQueue) {
    return false;
  }
  const double nowUs = static_cast<double>(Simulator::Now().GetNanoSeconds()) * 1e-3;
  const Waits waits = Predict(packet.receiver);
  Last& last = m_last[packet.flow];
  last.moved = Choose(waits, nowUs, last);
  last.arrivalUs = std::max(last.arrivalUs, nowUs + (last.moved ? waits.classicUs : waits.l4sUs));
  return last.moved;
}

bool LastLatencyMove::Move(const DataPacket& packet, const Waiting&) {
  const auto found = m_seen.find(packet.flow);
  if (found == m_seen.end()) {
    return false;
  }
  const Seen& seen = found->second;
  const bool fresh = seen.l4sAt >= Simulator::Now() - ns3::Seconds(m_params.staleUs * 1e-6);
  return fresh && seen.l4sUs - seen.leastUs > m_params.thresholdUs;
}

void LastLatencyMove::Acked(int64_t, uint16_t flow, uint8_t queue, float latencyUs) {
  if (std::isnan(latencyUs)) {
    return;
  }
  Seen& seen = m_seen[flow];
  seen.leastUs = std::min(seen.leastUs, latencyUs);
  if (queue == kL4sQueue) {
    seen.l4sUs = latencyUs;
    seen.l4sAt = Simulator::Now();
  }
}

}  // namespace swiftqueue::lab
