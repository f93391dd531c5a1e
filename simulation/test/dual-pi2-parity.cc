// SPDX-License-Identifier: GPL-2.0-only
//
// Pushes the same packets through DualPi2QueueDisc, on ns-3's clock, and through the router's link
// in virtual time (testbed/router/dual_queue.h), and compares what became of each, and when. Prints
// a JSON object; 1 if any differs.
//
//   build/simulation/dual-pi2-parity [PACKETS]

#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../../testbed/router/dual_queue.h"
#include "../model/dual-pi2-queue-disc.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/string.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a test speaks ns-3
namespace dual_pi2 = swiftqueue::dual_pi2;
using swiftqueue::testbed::Arrival;
using swiftqueue::testbed::Departure;
using swiftqueue::testbed::DualQueue;

constexpr int64_t kNsPerByte = 80;  // 100 Mbit/s
constexpr uint32_t kHeaderBytes = 20;

enum class Fate : uint8_t { kNone, kRefused, kDropped, kSent, kMarked };

struct Outcome {
  Fate fate{Fate::kNone};
  int64_t atNs{-1};
  bool operator==(const Outcome&) const = default;
};

struct Setting {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;
  dual_pi2::Parameters parameters;
};

std::vector<Setting> Settings() {
  using dual_pi2::Parameters;
  std::vector<Setting> out;
  out.push_back({"rfc9332", {}, {}});
  Parameters step;
  step.l_aqm = dual_pi2::LAqm::kStep;
  step.overload = dual_pi2::Overload::kDelay;
  step.c_weight = 0.1;
  step.min_backlog_bytes = 3000;
  out.push_back(
      {"as Linux's, evenly spaced",
       {{"LAqm", "Step"}, {"Overload", "Delay"}, {"CWeight", "0.1"}, {"MinBacklogBytes", "3000"}},
       step});
  Parameters shifted;
  shifted.scheduler = dual_pi2::Scheduler::kTimeShiftedFifo;
  shifted.time_shift_ns = 30'000'000;
  shifted.delay_input = dual_pi2::DelayInput::kClassicOnly;
  out.push_back(
      {"time-shifted FIFO",
       {{"Scheduler", "TimeShiftedFifo"}, {"TimeShift", "30ms"}, {"DelayInput", "Classic"}},
       shifted});
  Parameters uncoupled;
  uncoupled.coupling = 0;
  uncoupled.l_aqm = dual_pi2::LAqm::kStep;
  uncoupled.l_step_ns = 20'000'000;
  uncoupled.c_weight = 0.5;
  uncoupled.l_max_bytes = uncoupled.c_max_bytes = 300'000;
  uncoupled.max_bytes = 600'000;
  out.push_back({"uncoupled, small buffers",
                 {{"CouplingFactor", "0"},
                  {"LAqm", "Step"},
                  {"LStep", "20ms"},
                  {"CWeight", "0.5"},
                  {"LMaxBytes", "300000"},
                  {"CMaxBytes", "300000"},
                  {"MaxSize", "600000B"}},
                 uncoupled});
  return out;
}

/** Odd times that rise; below and above the link's rate by turns, from 0.3 to 2.2 of it. */
std::vector<Arrival> Traffic(std::size_t packets, uint32_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform;
  std::exponential_distribution<double> exponential;
  std::vector<Arrival> out;
  int64_t atNs = 1;
  double load = 1;
  double l4sShare = 0.5;
  for (std::size_t i = 0; i < packets; ++i) {
    if (i % 4000 == 0) {
      load = 0.3 + 1.9 * uniform(random);
      l4sShare = uniform(random);
    }
    const auto bytes =
        static_cast<uint32_t>(64 + (uniform(random) < 0.6 ? 1436 : 1436 * uniform(random)));
    const bool l4s = uniform(random) < l4sShare;
    const uint8_t ecn = l4s ? (uniform(random) < 0.95 ? 1 : 3) : (uniform(random) < 0.5 ? 0 : 2);
    out.push_back({atNs, bytes, ecn, i});
    atNs += 2 + 2 * static_cast<int64_t>(exponential(random) * static_cast<double>(bytes) *
                                         kNsPerByte / load / 2);
  }
  return out;
}

/** A link of 100 Mbit/s behind the disc: departures before arrivals where times are equal. */
class SimulatedLink {
 public:
  SimulatedLink(const Setting& setting, const std::vector<Arrival>& traffic)
      : m_traffic(traffic), m_outcomes(traffic.size()) {
    m_disc = CreateObject<DualPi2QueueDisc>();
    for (const auto& [name, value] : setting.attributes) {
      m_disc->SetAttribute(name, StringValue(value));
    }
    m_disc->TraceConnectWithoutContext("DropAfterDequeue",
                                       MakeCallback(&SimulatedLink::Dropped, this));
    m_disc->Initialize();
    Simulator::Schedule(NanoSeconds(traffic.front().arrived_ns), &SimulatedLink::Arrive, this, 0);
    Simulator::Stop(NanoSeconds(traffic.back().arrived_ns) + Seconds(2));
    Simulator::Run();
    m_disc->Dispose();
    Simulator::Destroy();
  }
  const std::vector<Outcome>& Outcomes() const { return m_outcomes; }

 private:
  static int64_t NowInNs() { return Simulator::Now().GetNanoSeconds(); }

  void Arrive(std::size_t i) {
    if (m_busy && m_free.GetTs() == static_cast<uint64_t>(NowInNs())) {
      m_free.Cancel();
      Serve();
    }
    const Arrival& packet = m_traffic[i];
    Ipv4Header ip;
    ip.SetEcn(static_cast<Ipv4Header::EcnType>(packet.ecn));
    ip.SetPayloadSize(packet.bytes - kHeaderBytes);
    auto item = Create<Ipv4QueueDiscItem>(Create<Packet>(packet.bytes - kHeaderBytes), Address(),
                                          0x0800, ip);
    m_tags[PeekPointer(item)] = packet.tag;
    if (!m_disc->Enqueue(item)) {
      Leave(item);
      m_outcomes[packet.tag] = {Fate::kRefused, NowInNs()};
    } else if (!m_busy) {
      Serve();
    }
    if (i + 1 < m_traffic.size()) {
      Simulator::Schedule(NanoSeconds(m_traffic[i + 1].arrived_ns - NowInNs()),
                          &SimulatedLink::Arrive, this, i + 1);
    }
  }

  void Serve() {
    Ptr<QueueDiscItem> item = m_disc->Dequeue();
    m_busy = item != nullptr;
    if (!item) {
      return;
    }
    const uint64_t tag = Leave(item);
    uint8_t dsField = 0;
    item->GetUint8Value(QueueItem::IP_DSFIELD, dsField);
    const bool marked = (dsField & 3) == 3 && m_traffic[tag].ecn != 3;
    m_outcomes[tag] = {marked ? Fate::kMarked : Fate::kSent, NowInNs()};
    m_free =
        Simulator::Schedule(NanoSeconds(item->GetSize() * kNsPerByte), &SimulatedLink::Serve, this);
  }

  uint64_t Leave(Ptr<const QueueDiscItem> item) {
    const auto node = m_tags.extract(PeekPointer(item));
    return node.mapped();
  }

  void Dropped(Ptr<const QueueDiscItem> item, const char*) {
    m_outcomes[Leave(item)] = {Fate::kDropped, NowInNs()};
  }

  const std::vector<Arrival>& m_traffic;
  std::vector<Outcome> m_outcomes;
  std::map<const QueueDiscItem*, uint64_t> m_tags;  // tags of packets that are somewhere
  Ptr<DualPi2QueueDisc> m_disc;
  EventId m_free;
  bool m_busy{false};
};

std::vector<Outcome> Routed(const Setting& setting, const std::vector<Arrival>& traffic) {
  std::vector<Outcome> out(traffic.size());
  DualQueue link(setting.parameters, 8e9 / kNsPerByte, 0, 1);
  const auto departed = [&](const Departure& d) {
    const bool marked = dual_pi2::is_mark(d.verdict) && d.packet.ecn != 3;
    out[d.packet.tag] = {dual_pi2::is_drop(d.verdict) ? Fate::kDropped
                         : marked                     ? Fate::kMarked
                                                      : Fate::kSent,
                         d.started_ns};
  };
  for (const Arrival& packet : traffic) {
    link.advance(packet.arrived_ns, departed);
    if (link.arrive(packet) != dual_pi2::Refusal::kNone) {
      out[packet.tag] = {Fate::kRefused, packet.arrived_ns};
    }
  }
  link.advance(traffic.back().arrived_ns + 2'000'000'000, departed);
  return out;
}

}  // namespace

int main(int argc, char* argv[]) {
  const std::size_t packets = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1'000'000;
  const auto settings = Settings();
  uint64_t different = 0;
  std::cout << "{\"settings\": [";
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const auto traffic = Traffic(packets / settings.size(), static_cast<uint32_t>(i + 1));
    const SimulatedLink simulated(settings[i], traffic);
    const auto routed = Routed(settings[i], traffic);
    std::array<uint64_t, 5> fates{};
    uint64_t here = 0;
    for (std::size_t k = 0; k < traffic.size(); ++k) {
      ++fates[static_cast<std::size_t>(routed[k].fate)];
      here += routed[k] != simulated.Outcomes()[k];
    }
    different += here;
    std::cout << (i ? ", " : "") << "{\"name\": \"" << settings[i].name
              << "\", \"packets\": " << traffic.size() << ", \"different\": " << here
              << ", \"unknown\": " << fates[0] << ", \"refused\": " << fates[1]
              << ", \"dropped\": " << fates[2] << ", \"sent\": " << fates[3]
              << ", \"marked\": " << fates[4] << "}";
  }
  std::cout << "], \"different\": " << different << "}" << std::endl;
  return different == 0 ? 0 : 1;
}
