// SPDX-License-Identifier: GPL-2.0-only
//
// A call: video frames over TCP, each as large as the congestion control's rate allows just then.

#ifndef SWIFTQUEUE_FRAME_APPLICATION_H
#define SWIFTQUEUE_FRAME_APPLICATION_H

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "ns3/address.h"
#include "ns3/application.h"
#include "ns3/event-id.h"
#include "ns3/nstime.h"
#include "ns3/tcp-socket-base.h"

namespace swiftqueue {

/**
 * Writes a frame at each tick: what the window over the round trip would carry until the next one,
 * less what still waits to be sent, between two rates. A frame has arrived when the last of its
 * bytes has been handed to the receiver.
 */
class FrameApplication : public ns3::Application {
 public:
  struct Frame {
    ns3::Time made;
    uint64_t endByte;  // of the stream, behind its last
    double delayS;     // negative: has not arrived
  };

  static ns3::TypeId GetTypeId();

  /** `open` makes the socket, when the application starts; it is then connected to `peer`. */
  void SetSocket(std::function<ns3::Ptr<ns3::TcpSocketBase>()> open, const ns3::Address& peer);
  void SetFrames(double framesPerS, double leastBps, double mostBps);
  /** So many bytes of the stream have been handed to the receiver, now. */
  void Received(uint64_t bytes);

  const std::vector<Frame>& Frames() const { return m_frames; }

 private:
  void StartApplication() override;
  void StopApplication() override;
  void NextFrame();
  void Fill(ns3::Ptr<ns3::Socket> socket, uint32_t available);

  std::function<ns3::Ptr<ns3::TcpSocketBase>()> m_open;
  ns3::Address m_peer;
  double m_periodS{0};
  double m_leastBps{0};
  double m_mostBps{0};
  ns3::Ptr<ns3::TcpSocketBase> m_socket;
  uint32_t m_bufferBytes{0};  // of the socket, empty
  uint32_t m_windowBytes{0};
  ns3::Time m_rtt;
  ns3::EventId m_next;
  uint64_t m_writtenBytes{0};  // by the frames
  uint64_t m_unsentBytes{0};   // of them, not yet taken by the socket
  std::vector<Frame> m_frames;
  std::size_t m_arrived{0};  // frames
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_FRAME_APPLICATION_H
