// SPDX-License-Identifier: GPL-2.0-only
//
// What a queue disc costs: `disc-cost --type=ns3::FqCoDelQueueDisc --flows=100` prints, as JSON,
// the time of a packet's dequeue and the next one's enqueue, of a disc in which each flow has
// packets waiting. Time goes on as on a link of 100 Mbit/s, so what is done now and then is in it.
// `--attributes="Weights=FILE;Beyond=1"` sets the disc's.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../helper/queue-profiles.h"
#include "ns3/command-line.h"
#include "ns3/fq-codel-queue-disc.h"
#include "ns3/ipv4-queue-disc-item.h"
#include "ns3/simulator.h"
#include "ns3/udp-header.h"
#include "ns3/udp-l4-protocol.h"

namespace {

using namespace ns3;  // NOLINT(build/namespaces): a program of ns-3
using Clock = std::chrono::steady_clock;

constexpr uint32_t kPayloadBytes = 1472;
constexpr uint32_t kIpBytes = 1500;
constexpr auto kInBytes = "ns3::DualPi2QueueDisc";  // which takes its size in bytes alone
constexpr uint32_t kWarmUp = 2000;                  // packets
constexpr int64_t kPacketNs = 120'000;              // of 1500 bytes at 100 Mbit/s

Ptr<Ipv4QueueDiscItem> Item(uint16_t flow) {
  auto packet = Create<Packet>(kPayloadBytes);
  UdpHeader udp;
  udp.SetDestinationPort(flow);
  packet->AddHeader(udp);
  Ipv4Header ip;
  ip.SetProtocol(UdpL4Protocol::PROT_NUMBER);
  ip.SetPayloadSize(packet->GetSize());
  return Create<Ipv4QueueDiscItem>(packet, Address(), 0x0800, ip);
}

/** "Name=value;Name=value" */
swiftqueue::DiscAttributes ReadAttributes(const std::string& text) {
  swiftqueue::DiscAttributes attributes;
  std::istringstream all(text);
  for (std::string one; std::getline(all, one, ';');) {
    const std::size_t equals = one.find('=');
    if (equals == std::string::npos) {
      throw std::invalid_argument("attributes: '" + one + "' is no NAME=VALUE");
    }
    attributes.emplace_back(one.substr(0, equals), one.substr(equals + 1));
  }
  return attributes;
}

int Main(int argc, char** argv) {
  std::string type;
  std::string given;
  uint32_t flows = 100;
  uint32_t packets = 50'000;
  uint32_t waiting = 5;
  CommandLine line(__FILE__);
  line.AddValue("type", "ns-3 type of the disc", type);
  line.AddValue("attributes", "of the disc: NAME=VALUE;NAME=VALUE", given);
  line.AddValue("flows", "flows that have packets waiting", flows);
  line.AddValue("waiting", "packets of each", waiting);
  line.AddValue("packets", "packets that are timed", packets);
  line.Parse(argc, argv);
  auto attributes = ReadAttributes(given);
  const uint32_t most = 2 * flows * waiting;  // packets
  attributes.emplace_back("MaxSize", type == kInBytes ? std::to_string(most * kIpBytes) + "B"
                                                      : std::to_string(most) + "p");
  auto disc = swiftqueue::MakeDisc(type, attributes);
  // FqCoDel takes its device's MTU otherwise, and has none here.
  if (const auto fqCoDel = DynamicCast<FqCoDelQueueDisc>(disc)) {
    fqCoDel->SetQuantum(kIpBytes);
  }
  disc->Initialize();
  for (uint32_t i = 0; i < flows * waiting; ++i) {
    disc->Enqueue(Item(static_cast<uint16_t>(i % flows)));
  }
  std::vector<double> ns;
  ns.reserve(packets);
  for (uint32_t i = 0; i < kWarmUp + packets; ++i) {
    Simulator::Schedule(NanoSeconds(i * kPacketNs), [&disc, &ns, i, flows] {
      const auto began = Clock::now();
      const auto item = disc->Dequeue();
      const auto between = Clock::now();
      if (!item) {  // it has dropped all that waited too long
        disc->Enqueue(Item(static_cast<uint16_t>(i % flows)));
        return;
      }
      // A packet of the same flow, made beside the clock: that is no disc's work.
      UdpHeader udp;
      item->GetPacket()->PeekHeader(udp);
      const auto next = Item(udp.GetDestinationPort());
      const auto again = Clock::now();
      disc->Enqueue(next);
      const std::chrono::duration<double, std::nano> spent =
          Clock::now() - again + (between - began);
      if (i >= kWarmUp) {
        ns.push_back(spent.count());
      }
    });
  }
  // A disc that updates something now and then would go on for ever.
  Simulator::Stop(NanoSeconds(int64_t{kWarmUp + packets} * kPacketNs));
  Simulator::Run();
  if (ns.empty()) {
    throw std::runtime_error(type + ": it dropped every packet");
  }
  const uint32_t left = disc->GetNPackets();
  disc->Dispose();
  Simulator::Destroy();
  const double mean = std::accumulate(ns.begin(), ns.end(), 0.0) / static_cast<double>(ns.size());
  std::nth_element(ns.begin(), ns.begin() + ns.size() / 2, ns.end());
  std::cout << "{\"p50_ns\": " << ns[ns.size() / 2] << ", \"mean_ns\": " << mean
            << ", \"waiting\": " << left << "}" << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
