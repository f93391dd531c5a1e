// SPDX-License-Identifier: GPL-2.0-only

#include "ack-tracker.h"

#include <algorithm>

namespace swiftqueue::lab {

int64_t AckTracker::Unwrap(uint32_t sequence) const {
  // the number nearest to the highest sent
  return m_highest + static_cast<int32_t>(sequence - static_cast<uint32_t>(m_highest));
}

int64_t AckTracker::Sent(uint32_t packet, uint32_t sequence, uint32_t payloadBytes) {
  if (!m_started) {
    m_started = true;
    m_highest = sequence;
  }
  const int64_t begin = Unwrap(sequence);
  const int64_t end = begin + payloadBytes;
  const bool again = begin < m_highest;
  m_highest = std::max(m_highest, end);
  if (!again) {
    m_first.push_back({end, packet, false, false});
    return kNew;
  }
  // The ACK of a last byte that was sent twice may belong to either sending.
  const auto below = [](const Outstanding& o, int64_t byte) { return o.end <= byte; };
  for (auto o = std::lower_bound(m_first.begin(), m_first.end(), begin, below);
       o != m_first.end() && o->end <= end; ++o) {
    o->sentAgain = true;
  }
  m_resent.push_back({end, packet, true, false});
  const auto first = std::lower_bound(m_first.begin(), m_first.end(), end - 1, below);
  return end <= m_acknowledged || first == m_first.end() ? kAcknowledged : int64_t{first->packet};
}

void AckTracker::Acked(uint32_t ackNumber, std::vector<Covered>& covered) {
  if (!m_started) {
    return;
  }
  const int64_t ack = Unwrap(ackNumber);
  m_acknowledged = std::max(m_acknowledged, ack);
  for (; !m_first.empty() && m_first.front().end <= ack; m_first.pop_front()) {
    if (!m_first.front().covered) {
      covered.push_back({m_first.front().packet, !m_first.front().sentAgain});
    }
  }
  std::erase_if(m_resent, [&](const Outstanding& o) {
    if (o.end > ack) {
      return false;
    }
    covered.push_back({o.packet, false});
    return true;
  });
}

void AckTracker::Sacked(uint32_t begin, uint32_t end, std::vector<Covered>& covered) {
  if (!m_started) {
    return;
  }
  const int64_t from = Unwrap(begin);
  const int64_t to = Unwrap(end);
  // Segments never straddle a block's end: the receiver has them whole.
  const auto ends = [](int64_t byte, const Outstanding& o) { return byte < o.end; };
  for (auto o = std::upper_bound(m_first.begin(), m_first.end(), from, ends);
       o != m_first.end() && o->end <= to; ++o) {
    if (!o->covered) {
      o->covered = true;
      covered.push_back({o->packet, !o->sentAgain});
    }
  }
  std::erase_if(m_resent, [&](const Outstanding& o) {
    if (o.end <= from || o.end > to) {
      return false;
    }
    covered.push_back({o.packet, false});
    return true;
  });
}

}  // namespace swiftqueue::lab
