// SPDX-License-Identifier: GPL-2.0-only
//
// A call: video frames over TCP, each as large as the congestion control's rate allows just then.
// docs: simulation/doc/queue-discs.md, "What uses them".

#ifndef SWIFTQUEUE_FRAME_APPLICATION_H
#define SWIFTQUEUE_FRAME_APPLICATION_H

#include <cstdint>
#include <functional>
#include <memory>

#include "ns3/address.h"
#include "ns3/application.h"
#include "ns3/event-id.h"
#include "ns3/nstime.h"
#include "ns3/tcp-socket-base.h"
#include "write-log.h"

namespace swiftqueue {

/** What an encoder may make of the next frame. */
struct FrameRule {
  double periodS;
  double leastBps;
  double mostBps;

  /**
   * Bytes of a frame, 1 at least: kShare of what `rateBps` carries in a period, less what still
   * waits at the sender, between the two rates.
   */
  uint64_t Bytes(double rateBps, uint64_t waitingBytes) const;

  /** Leaves room to make up for jitter, so that no frame waits for the one before it; Confucius'
   * authors aim at as much of their sender's time. */
  static constexpr double kShare = 0.9;
};

/**
 * Writes a frame at each tick, by FrameRule, at the rate at which the congestion control sends: its
 * window over the round trip, or its pacing, whichever is slower. A frame has arrived when the last
 * of its bytes has been handed to the receiver.
 */
class FrameApplication : public ns3::Application {
 public:
  static ns3::TypeId GetTypeId();

  /** `open` makes the socket, when the application starts; it is then connected to `peer`. */
  void SetSocket(std::function<ns3::Ptr<ns3::TcpSocketBase>()> open, const ns3::Address& peer);
  void SetFrames(const FrameRule& rule, std::shared_ptr<WriteLog> log);

 private:
  void StartApplication() override;
  void StopApplication() override;
  void NextFrame();
  double RateBps() const;
  void Fill();

  std::function<ns3::Ptr<ns3::TcpSocketBase>()> m_open;
  ns3::Address m_peer;
  FrameRule m_rule{};
  ns3::Ptr<ns3::TcpSocketBase> m_socket;
  uint32_t m_windowBytes{0};
  double m_pacingBps{0};  // 0: it does not pace
  ns3::Time m_rtt;        // smoothed
  ns3::EventId m_next;
  uint64_t m_unsentBytes{0};  // bytes of frames, not yet taken by the socket
  uint64_t m_sentBytes{0};    // sequence numbers sent, without retransmissions
  std::shared_ptr<WriteLog> m_log;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FRAME_APPLICATION_H
