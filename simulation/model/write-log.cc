// SPDX-License-Identifier: GPL-2.0-only

#include "write-log.h"

#include "ns3/simulator.h"

namespace swiftqueue {

using ns3::Simulator;

void WriteLog::Made(uint64_t bytes) { m_writes.push_back({Simulator::Now(), Bytes() + bytes, -1}); }

void WriteLog::Received(uint64_t bytes) {
  for (; m_arrived < m_writes.size() && m_writes[m_arrived].endByte <= bytes; ++m_arrived) {
    Write& write = m_writes[m_arrived];
    write.delayS = (Simulator::Now() - write.made).GetSeconds();
  }
}

}  // namespace swiftqueue
