// SPDX-License-Identifier: GPL-2.0-only
//
// Which data packets a TCP flow's ACKs cover first: by their number (the rules of docs/PACKETS.md),
// or by their SACK blocks as well (RFC 2018).

#ifndef SWIFTQUEUE_LABORATORY_ACK_TRACKER_H
#define SWIFTQUEUE_LABORATORY_ACK_TRACKER_H

#include <cstdint>
#include <deque>
#include <vector>

namespace swiftqueue::lab {

/** One flow. Sequence numbers are TCP's, modulo 2^32. */
class AckTracker {
 public:
  struct Covered {
    uint32_t packet;
    bool known;  // false: Karn's rule, its latency is unknown
  };

  static constexpr int64_t kNew = -1;           // not a retransmission
  static constexpr int64_t kAcknowledged = -2;  // a retransmission of what has been acknowledged

  /**
   * A data packet left. A retransmission begins below what was sent before: of it, returns the
   * packet that carried its last byte first, or kAcknowledged.
   */
  int64_t Sent(uint32_t packet, uint32_t sequence, uint32_t payloadBytes);

  /** An ACK came; appends the packets that its number is the first to cover. */
  void Acked(uint32_t ackNumber, std::vector<Covered>& covered);

  /** The same for one of its SACK blocks. A tracker that is never told of them is cumulative. */
  void Sacked(uint32_t begin, uint32_t end, std::vector<Covered>& covered);

 private:
  struct Outstanding {
    int64_t end;  // one past the last byte
    uint32_t packet;
    bool sentAgain;  // its last byte
    bool covered;    // by a SACK block
  };

  int64_t Unwrap(uint32_t sequence) const;

  bool m_started{false};
  int64_t m_highest{0};               // one past the highest byte sent
  int64_t m_acknowledged{0};          // one past the highest byte acknowledged cumulatively
  std::deque<Outstanding> m_first;    // sent once: ends rise
  std::vector<Outstanding> m_resent;  // retransmissions, in send order
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_ACK_TRACKER_H
