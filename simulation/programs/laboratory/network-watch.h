// SPDX-License-Identifier: GPL-2.0-only
//
// What happens to tagged data packets on their way: waiting, drops, arrival.

#ifndef SWIFTQUEUE_LABORATORY_NETWORK_WATCH_H
#define SWIFTQUEUE_LABORATORY_NETWORK_WATCH_H

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "network.h"
#include "ns3/ipv4-header.h"
#include "ns3/queue-item.h"
#include "packet-log.h"
#include "queue-view.h"
#include "sender-watch.h"

namespace swiftqueue::lab {

/** Completes the senders' logs from the bottlenecks' and the receivers' trace sources. */
class NetworkWatch {
 public:
  NetworkWatch(const Network& network, std::vector<std::shared_ptr<SenderWatch>>& senders,
               std::size_t flows);
  /** From now on notes what each packet of the first sender finds at its bottlenecks. */
  void LogWaits(const Run& run);
  /** One for each packet that the first sender has sent. */
  WaitsLog Waits() const;

  NetworkWatch(const NetworkWatch&) = delete;
  NetworkWatch& operator=(const NetworkWatch&) = delete;

 private:
  PacketRow* RowOf(ns3::Ptr<const ns3::Packet> packet);
  void Came(uint32_t bottleneck, ns3::Ptr<const ns3::QueueDiscItem> item);
  void Waited(ns3::Ptr<const ns3::QueueDiscItem> item);
  void Dropped(ns3::Ptr<const ns3::QueueDiscItem> item);
  void Lost(ns3::Ptr<const ns3::Packet> packet);
  void Arrived(const ns3::Ipv4Header& ip, ns3::Ptr<const ns3::Packet> packet, uint32_t interface);

  const Network& m_network;
  std::vector<std::shared_ptr<SenderWatch>>& m_senders;
  std::vector<int64_t> m_newestArrived;  // packet of each flow
  std::optional<QueueView> m_view;
  WaitsLog m_waits;  // up to the last that came
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_NETWORK_WATCH_H
