// SPDX-License-Identifier: GPL-2.0-only
//
// A sender of one flow, TCP or UDP, whose writes come at random times and in random sizes.

#ifndef SWIFTQUEUE_TRAFFIC_APPLICATION_H
#define SWIFTQUEUE_TRAFFIC_APPLICATION_H

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "message-sizes.h"
#include "ns3/address.h"
#include "ns3/application.h"
#include "ns3/event-id.h"
#include "ns3/random-variable-stream.h"
#include "ns3/socket.h"
#include "write-log.h"

namespace swiftqueue {

/** A variable of this distribution, linear between its points. */
ns3::Ptr<ns3::RandomVariableStream> Empirical(std::span<const Quantile> points);

/**
 * Opens one socket when it starts and hands it writes: the first at once, the next after a gap.
 * What TCP cannot take yet waits here; a UDP write leaves at once, in datagrams.
 */
class TrafficApplication : public ns3::Application {
 public:
  static ns3::TypeId GetTypeId();

  /** `open` makes the socket, when the application starts; it is then connected to `peer`. */
  void SetSocket(std::function<ns3::Ptr<ns3::Socket>()> open, const ns3::Address& peer);

  /** Sizes in bytes, and gaps in units of `gapUnitS` seconds. */
  void SetWrites(ns3::Ptr<ns3::RandomVariableStream> bytes, ns3::Ptr<ns3::RandomVariableStream> gap,
                 double gapUnitS);

  /** Poisson messages of this offered load, on average. */
  void SetMessages(std::span<const Quantile> bytes, double rateBps);

  /** Always something to send: one endless write (TCP only). */
  void SetGreedy();

  /** Of its writes from now on. */
  void SetLog(std::shared_ptr<WriteLog> log) { m_log = std::move(log); }

  int64_t AssignStreams(int64_t stream) override;

 private:
  void StartApplication() override;
  void StopApplication() override;
  void NextWrite();
  void Fill();

  std::function<ns3::Ptr<ns3::Socket>()> m_open;
  ns3::Address m_peer;
  ns3::Ptr<ns3::RandomVariableStream> m_bytes;  // null: greedy
  ns3::Ptr<ns3::RandomVariableStream> m_gap;
  double m_gapUnitS{0};
  ns3::Ptr<ns3::Socket> m_socket;
  uint32_t m_chunkBytes{0};  // bytes of one call of Send
  ns3::EventId m_next;
  uint64_t m_unsentBytes{0};
  std::shared_ptr<WriteLog> m_log;  // null: nobody asks
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_TRAFFIC_APPLICATION_H
