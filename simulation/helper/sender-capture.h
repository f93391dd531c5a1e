// SPDX-License-Identifier: GPL-2.0-only
//
// A capture as the sender itself would take it: raw IP, nanoseconds, headers only.

#ifndef SWIFTQUEUE_SENDER_CAPTURE_H
#define SWIFTQUEUE_SENDER_CAPTURE_H

#include <cstdint>
#include <fstream>
#include <string>

#include "ns3/packet.h"
#include "ns3/point-to-point-net-device.h"

namespace swiftqueue {

/** Writes each packet that a point-to-point device sends or receives to a pcap file (LINKTYPE_RAW).
 */
class SenderCapture {
 public:
  static constexpr uint32_t kSnaplenBytes = 96;  // IPv4 20 + TCP at most 60, and some to spare
  static constexpr uint32_t kLinktypeRaw = 101;

  /** Throws std::runtime_error, with the file's name, if it cannot be written. */
  SenderCapture(const std::string& path, ns3::Ptr<ns3::PointToPointNetDevice> device);

  /** Hand what was captured so far to the file; throws std::runtime_error if it cannot be. */
  void Flush();

  /** Close the file; throws std::runtime_error if not all of it could be written. */
  void Close();

 private:
  void Write(ns3::Ptr<const ns3::Packet> frame);
  void RequireAllWritten() const;

  std::string m_path;
  std::ofstream m_file;
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_SENDER_CAPTURE_H
