// SPDX-License-Identifier: GPL-2.0-only

#include "dual-pi2-probe.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "ns3/double.h"
#include "ns3/queue.h"
#include "ns3/simulator.h"

namespace ns3 {

namespace {

using Disc = DualPi2QueueDisc;

/** Value below which a share `q` of the sorted values lies; 0 of none. */
double Quantile(const std::vector<double>& sorted, double q) {
  return sorted.empty() ? 0 : sorted[static_cast<std::size_t>(q * (sorted.size() - 1))];
}

template <typename Map>
void WriteCounts(std::ostream& out, const Map& counts) {
  const char* separator = "";
  for (const auto& [reason, count] : counts) {
    out << separator << '"' << reason << "\": " << count;
    separator = ", ";
  }
}

}  // namespace

DualPi2Probe::DualPi2Probe(Ptr<Disc> disc, Time from) : m_disc(disc), m_from(from) {
  DoubleValue coupling;
  disc->GetAttribute("CouplingFactor", coupling);
  m_coupling = coupling.Get();
  const auto departed = [this, disc](const char* trace, Disc::Queue queue) {
    disc->TraceConnectWithoutContext(
        trace, Callback<void, Time>([this, queue](Time sojourn) { Departed(queue, sojourn); }));
  };
  departed("LSojourn", Disc::kL4s);
  departed("CSojourn", Disc::kClassic);
  disc->TraceConnectWithoutContext("Update", MakeCallback(&DualPi2Probe::Updated, this));
  Simulator::Schedule(from, [this] {
    for (auto queue : {Disc::kL4s, Disc::kClassic}) {
      m_before[queue] = m_disc->GetQueueCounts(queue);
    }
  });
}

void DualPi2Probe::Departed(Disc::Queue queue, Time sojourn) {
  for (int64_t value :
       {Simulator::Now().GetNanoSeconds(), static_cast<int64_t>(queue), sojourn.GetNanoSeconds()}) {
    m_departures = (m_departures ^ static_cast<uint64_t>(value)) * 1099511628211ULL;
  }
  if (Simulator::Now() >= m_from) {
    m_sojournUs[queue].push_back(sojourn.GetNanoSeconds() * 1e-3);
  }
}

void DualPi2Probe::Updated(Time, double pBase, double pCoupled, double pClassic) {
  if (m_coupling > 0) {
    m_couplingError =
        std::max(m_couplingError, std::abs(pClassic - std::pow(pCoupled / m_coupling, 2)));
  }
  if (Simulator::Now() >= m_from) {
    m_pBase.Add(pBase);
    m_pCoupled.Add(pCoupled);
    m_pClassic.Add(pClassic);
  }
}

void DualPi2Probe::WriteQueue(std::ostream& out, Disc::Queue queue) {
  const auto& c = m_disc->GetQueueCounts(queue);
  auto waiting = m_disc->GetInternalQueue(queue);
  out << "{\"enqueued\": " << c.enqueuedPackets << ", \"dequeued\": " << c.dequeuedPackets
      << ", \"dropped\": " << c.droppedPackets << ", \"waiting\": " << waiting->GetNPackets()
      << ", \"refused\": " << c.refusedPackets << ", \"marked\": " << c.markedPackets
      << ", \"enqueued_bytes\": " << c.enqueuedBytes << ", \"dequeued_bytes\": " << c.dequeuedBytes
      << ", \"dropped_bytes\": " << c.droppedBytes
      << ", \"waiting_bytes\": " << waiting->GetNBytes();
  const auto& before = m_before[queue];
  out << ", \"later\": {\"dequeued\": " << c.dequeuedPackets - before.dequeuedPackets
      << ", \"dropped\": " << c.droppedPackets - before.droppedPackets
      << ", \"refused\": " << c.refusedPackets - before.refusedPackets
      << ", \"marked\": " << c.markedPackets - before.markedPackets << "}}";
}

void DualPi2Probe::WriteJson(std::ostream& out) {
  out << "\"sojourn_us\": {";
  for (auto queue : {Disc::kL4s, Disc::kClassic}) {
    auto& values = m_sojournUs[queue];
    std::sort(values.begin(), values.end());
    Mean mean;
    for (double value : values) {
      mean.Add(value);
    }
    out << (queue == Disc::kL4s ? "\"L\"" : ", \"C\"") << ": {\"packets\": " << values.size()
        << ", \"mean\": " << mean.Value() << ", \"p50\": " << Quantile(values, 0.5)
        << ", \"p90\": " << Quantile(values, 0.9) << ", \"p99\": " << Quantile(values, 0.99)
        << ", \"max\": " << Quantile(values, 1) << "}";
  }
  out << "}, \"counts\": {\"L\": ";
  WriteQueue(out, Disc::kL4s);
  out << ", \"C\": ";
  WriteQueue(out, Disc::kClassic);
  const auto& stats = m_disc->GetStats();
  out << ", \"received\": " << stats.nTotalReceivedPackets << "}, \"marks\": {";
  WriteCounts(out, stats.nMarkedPackets);
  out << "}, \"drops\": {";
  auto drops = stats.nDroppedPacketsAfterDequeue;
  drops.insert(stats.nDroppedPacketsBeforeEnqueue.begin(),
               stats.nDroppedPacketsBeforeEnqueue.end());
  WriteCounts(out, drops);
  out << "}, \"controller\": {\"p_base\": " << m_pBase.Value()
      << ", \"p_coupled\": " << m_pCoupled.Value() << ", \"p_classic\": " << m_pClassic.Value()
      << ", \"coupling_error\": " << m_couplingError << ", \"updates\": " << m_pBase.count
      << "}, \"departures\": \"" << std::hex << m_departures << std::dec << '"';
}

}  // namespace ns3
