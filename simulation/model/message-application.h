// SPDX-License-Identifier: GPL-2.0-only
//
// A TCP sender whose messages arrive as a Poisson process.

#ifndef SWIFTQUEUE_MESSAGE_APPLICATION_H
#define SWIFTQUEUE_MESSAGE_APPLICATION_H

#include <cstdint>

#include "ns3/application.h"
#include "ns3/data-rate.h"
#include "ns3/event-id.h"
#include "ns3/inet-socket-address.h"
#include "ns3/random-variable-stream.h"
#include "ns3/socket.h"
#include "ns3/type-id.h"

namespace swiftqueue {

/**
 * Sends messages over one TCP connection: exponential gaps, sizes from a flow-size distribution,
 * so that the offered load is `DataRate` on average.
 */
class MessageApplication : public ns3::Application {
 public:
  static ns3::TypeId GetTypeId();
  MessageApplication();

  /** Connect to `peer` by a socket of congestion control `tcp` once the application starts. */
  void SetPeer(const ns3::InetSocketAddress& peer, ns3::TypeId tcp);

  int64_t AssignStreams(int64_t stream) override;

 private:
  void StartApplication() override;
  void StopApplication() override;
  void NextMessage();
  void Fill(ns3::Ptr<ns3::Socket> socket, uint32_t available);

  ns3::InetSocketAddress m_peer;
  ns3::TypeId m_tcp;
  ns3::DataRate m_offered;
  uint32_t m_dupAckThreshold;
  ns3::Ptr<ns3::EmpiricalRandomVariable> m_messageBytes;
  ns3::Ptr<ns3::ExponentialRandomVariable> m_gap;  // of mean 1
  ns3::Ptr<ns3::Socket> m_socket;
  ns3::EventId m_next;
  uint64_t m_unsentBytes{0};
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_MESSAGE_APPLICATION_H
