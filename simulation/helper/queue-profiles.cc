// SPDX-License-Identifier: GPL-2.0-only

#include "queue-profiles.h"

#include "ns3/string.h"

namespace swiftqueue {

DiscAttributes Rfc9332Profile(uint32_t bufferBytes) {
  return {{"MaxSize", std::to_string(bufferBytes) + "B"}};
}

DiscAttributes UncoupledProfile(uint32_t bufferBytes, ns3::Time lStep) {
  const std::string limit = std::to_string(bufferBytes);
  return {
      {"CouplingFactor", "0"},
      {"Overload", "Delay"},
      {"DelayInput", "Classic"},
      {"LAqm", "Step"},
      {"LStep", std::to_string(lStep.GetNanoSeconds()) + "ns"},
      {"CWeight", "0.5"},
      {"LMaxBytes", limit},
      {"CMaxBytes", limit},
      {"MaxSize", std::to_string(2 * uint64_t{bufferBytes}) + "B"},
      {"Draw", "Random"},  // as Linux does
  };
}

ns3::Ptr<ns3::DualPi2QueueDisc> MakeDisc(const DiscAttributes& attributes) {
  auto disc = ns3::CreateObject<ns3::DualPi2QueueDisc>();
  for (const auto& [name, value] : attributes) {
    disc->SetAttribute(name, ns3::StringValue(value));
  }
  return disc;
}

}  // namespace swiftqueue
