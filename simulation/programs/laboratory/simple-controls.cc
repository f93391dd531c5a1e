// SPDX-License-Identifier: GPL-2.0-only

#include "simple-controls.h"

#include <algorithm>
#include <cmath>

#include "ns3/simulator.h"
#include "packet-log.h"
#include "streams.h"

namespace swiftqueue::lab {

using ns3::Simulator;

namespace {

constexpr double kSmoothing = 1.0 / 8;  // RFC 6298

}  // namespace

RandomMove::RandomMove(const RandomControl& params)
    : m_bursts(params.share, params.burstPackets, kRandomControlStream + params.seed) {}

OracleMove::OracleMove(const OracleControl& params, const Run& run, const Network& network)
    : m_params(params), m_view(run, network, params.rateUs) {}

bool OracleMove::Choose(const QueueView::Both& waits, double nowUs, const Last& last) const {
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
  if (!packet.movable) {
    return false;
  }
  const double nowUs = static_cast<double>(Simulator::Now().GetNanoSeconds()) * 1e-3;
  const QueueView::Both waits = m_view.Toward(packet.receiver);
  Last& last = m_last[packet.flow];
  last.moved = Choose(waits, nowUs, last);
  last.arrivalUs = std::max(last.arrivalUs, nowUs + (last.moved ? waits.classicUs : waits.l4sUs));
  return last.moved;
}

bool FlowSplitMove::Move(const DataPacket& packet, const Waiting&) {
  if (!packet.movable) {
    return false;
  }
  const auto known = static_cast<double>(m_moved.size());
  const bool moves = std::floor((known + 1) * m_share) > std::floor(known * m_share);
  return m_moved.try_emplace(packet.flow, moves).first->second;
}

bool LastLatency::IsHigh(uint16_t flow) const {
  const auto found = m_seen.find(flow);
  if (found == m_seen.end()) {
    return false;
  }
  const Seen& seen = found->second;
  const bool fresh = seen.l4sAt >= Simulator::Now() - ns3::Seconds(m_params.staleUs * 1e-6);
  return fresh && seen.l4sUs - seen.leastUs > m_params.thresholdUs;
}

void LastLatency::Acked(uint16_t flow, uint8_t queue, float latencyUs) {
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

double OwnQueues::ForecastUs(uint32_t receiver, uint8_t queue, double aheadBytes) const {
  const VirtualQueueRow row = m_queues.query(Simulator::Now().GetNanoSeconds(),
                                             Receiver(receiver, queue), queue, aheadBytes);
  const double us = virtual_queue_us(row, VirtualQueueRule::online());
  return std::isnan(us) ? 0 : us;
}

void OwnQueues::Sent(const DataPacket& packet, uint8_t queue) {
  m_queues.sent(packet.number, Simulator::Now().GetNanoSeconds(),
                {.size_bytes = static_cast<int32_t>(packet.sizeBytes),
                 .flow_id = packet.flow,
                 .receiver_id = Receiver(packet.receiver, queue),
                 .queue = queue});
}

int32_t OwnQueues::Receiver(uint32_t receiver, uint8_t queue) const {
  return static_cast<int32_t>(m_apart ? 2 * receiver + queue : receiver);
}

void OwnQueues::Acked(int64_t packet, float latencyUs) {
  m_queues.acked(packet, Simulator::Now().GetNanoSeconds(), latencyUs);
}

bool VirtualQueueMove::Move(const DataPacket& packet, const Waiting&) {
  if (!packet.movable) {
    return false;
  }
  const double l4sUs = m_queues.ForecastUs(packet.receiver, kL4sQueue, 0);
  const double classicUs = m_queues.ForecastUs(packet.receiver, kClassicQueue, 0);
  return l4sUs - classicUs > m_params.marginUs;
}

bool LeastLatencyMove::Move(const DataPacket&, const Waiting&) {
  const ns3::Time now = Simulator::Now();
  if (now - m_lookedAt < ns3::Seconds(m_params.everyS)) {
    return m_moved;
  }
  m_lookedAt = now;
  if (m_params.of == LeastLatencyControl::Of::kMean) {
    for (Path& path : m_paths) {
      path.us =
          path.packets > 0 ? path.sumUs / path.packets : std::numeric_limits<double>::infinity();
      path.sumUs = 0;
      path.packets = 0;
    }
  }
  const double hereUs = m_paths[m_moved ? kClassicQueue : kL4sQueue].us;
  const double thereUs = m_paths[m_moved ? kL4sQueue : kClassicQueue].us;
  m_moved = thereUs < hereUs - m_params.marginUs ? !m_moved : m_moved;
  return m_moved;
}

void LeastLatencyMove::Acked(int64_t, uint16_t, uint8_t queue, float latencyUs) {
  if (std::isnan(latencyUs)) {
    return;
  }
  Path& path = m_paths[queue];
  if (m_params.of == LeastLatencyControl::Of::kMean) {
    path.sumUs += latencyUs;
    ++path.packets;
  } else if (m_params.of == LeastLatencyControl::Of::kSmoothed && std::isfinite(path.us)) {
    path.us += kSmoothing * (latencyUs - path.us);
  } else {
    path.us = latencyUs;
  }
}

}  // namespace swiftqueue::lab
