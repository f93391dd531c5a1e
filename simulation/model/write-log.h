// SPDX-License-Identifier: GPL-2.0-only
//
// The writes of a flow, a call's frames or messages, and when each was there.

#ifndef SWIFTQUEUE_WRITE_LOG_H
#define SWIFTQUEUE_WRITE_LOG_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ns3/nstime.h"

namespace swiftqueue {

/** A write has arrived when all bytes of the stream up to its last are with the receiver. */
class WriteLog {
 public:
  struct Write {
    ns3::Time made;
    uint64_t endByte;  // end in the stream, behind its last byte
    double delayS;     // negative: has not arrived
  };

  /** A write of so many bytes is made, now. */
  void Made(uint64_t bytes);
  /** So many bytes of the stream have been handed to the receiver, now. */
  void Received(uint64_t bytes);
  const std::vector<Write>& Writes() const { return m_writes; }
  /** Of the stream, by all writes. */
  uint64_t Bytes() const { return m_writes.empty() ? 0 : m_writes.back().endByte; }

 private:
  std::vector<Write> m_writes;
  std::size_t m_arrived{0};  // writes
};

}  // namespace swiftqueue

#endif  // SWIFTQUEUE_WRITE_LOG_H
