// SPDX-License-Identifier: GPL-2.0-only
//
// A call over UDP under Google congestion control: frames, pacing and repair at the sender, arrival
// times as feedback from the receiver. docs: simulation/doc/gcc.md.

#ifndef SWIFTQUEUE_GCC_APPLICATION_H
#define SWIFTQUEUE_GCC_APPLICATION_H

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "frame-application.h"
#include "gcc-controller.h"
#include "ns3/address.h"
#include "ns3/application.h"
#include "ns3/event-id.h"
#include "ns3/nstime.h"
#include "ns3/packet.h"
#include "ns3/socket.h"

namespace swiftqueue {

/**
 * Makes a frame at each tick, by FrameRule at the controller's rate, and sends its packets in
 * groups every 5 ms. What the feedback says is lost is sent again, before anything else: a frame
 * counts as arrived when everything up to its last byte is there, as over TCP.
 */
class GccApplication : public ns3::Application {
 public:
  static ns3::TypeId GetTypeId();

  /** `open` makes the UDP socket, when the application starts; it sends to `peer`. */
  void SetSocket(std::function<ns3::Ptr<ns3::Socket>()> open, const ns3::Address& peer);
  /** `startBps`: the controller's first rate. `scale`: see gcc::OveruseDetector. */
  void SetFrames(const FrameRule& rule, double startBps, std::shared_ptr<WriteLog> log,
                 uint32_t scale = gcc::OveruseDetector::kScale);

 private:
  struct Part {  // a part of the stream
    uint64_t begin;
    uint32_t bytes;
  };
  struct Sent {
    Part part;
    ns3::Time at;
  };

  void StartApplication() override;
  void StopApplication() override;
  void NextFrame();
  void NextGroup();
  void Send(const Part& part);
  void Hear(ns3::Ptr<ns3::Socket> socket);
  void Feedback(ns3::Ptr<ns3::Packet> packet);

  std::function<ns3::Ptr<ns3::Socket>()> m_open;
  ns3::Address m_peer;
  FrameRule m_rule{};
  std::optional<gcc::Controller> m_controller;
  ns3::Ptr<ns3::Socket> m_socket;
  ns3::EventId m_nextFrame;
  ns3::EventId m_nextGroup;
  std::deque<Part> m_waiting;
  uint64_t m_waitingBytes{0};
  double m_creditBytes{0};
  uint32_t m_firstUnreported{0};  // packet number of the first of the next
  std::deque<Sent> m_unreported;
  std::shared_ptr<WriteLog> m_log;
};

/** The first byte, in the stream, of a media packet that has its UDP header. */
uint64_t MediaBegin(ns3::Ptr<const ns3::Packet> packet);

/** Notes when each packet came, and tells the sender once a frame; hands the stream on in order. */
class GccReceiver : public ns3::Application {
 public:
  /** `received` hears of the bytes by which the stream has become longer. */
  using Received = std::function<void(uint32_t bytes)>;

  static ns3::TypeId GetTypeId();
  void Listen(ns3::Ptr<ns3::Socket> socket, uint16_t port, double periodS, Received received);

 private:
  void DoDispose() override;
  void Hear(ns3::Ptr<ns3::Socket> socket);
  void Arrived(uint32_t number, uint64_t begin, uint32_t bytes);
  void Tell();

  ns3::Ptr<ns3::Socket> m_socket;
  ns3::Time m_interval;
  Received m_received;
  ns3::Address m_sender;
  ns3::EventId m_next;
  uint32_t m_firstUntold{0};                      // packet number of the first of the next
  std::deque<std::optional<ns3::Time>> m_untold;  // when they came
  uint64_t m_streamBytes{0};                      // bytes that are there without a gap
  std::map<uint64_t, uint64_t> m_beyond;          // behind a gap: begin, end
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_GCC_APPLICATION_H
