// SPDX-License-Identifier: GPL-2.0-only

#include "queue-profiles.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

#include "ns3/object-factory.h"
#include "ns3/string.h"

namespace swiftqueue {

namespace {

constexpr uint32_t kPacketBytes = 1500;

/** What a type's attributes are called, its parents' too. */
std::string NamesOf(ns3::TypeId type) {
  std::string names;
  for (std::size_t i = 0; i < type.GetAttributeN(); ++i) {
    names += (names.empty() ? "" : ", ") + type.GetAttribute(i).name;
  }
  return names.empty() ? "none" : names;
}

/** Whether ns-3 can read a time; it ends the process where it cannot. */
bool IsTime(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const auto units = {"", "s", "ms", "us", "ns", "ps", "fs", "min", "h", "d", "y"};
  return error == std::errc() &&
         std::find(units.begin(), units.end(), std::string(rest, end)) != units.end();
}

}  // namespace

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

ns3::Ptr<ns3::QueueDisc> MakeDisc(const std::string& type, const DiscAttributes& attributes) {
  ns3::TypeId found;
  if (!ns3::TypeId::LookupByNameFailSafe(type, &found) ||
      !found.IsChildOf(ns3::QueueDisc::GetTypeId()) || !found.HasConstructor()) {
    throw std::invalid_argument("type: there is no queue disc " + type);
  }
  ns3::ObjectFactory factory;
  factory.SetTypeId(found);
  const auto disc = factory.Create<ns3::QueueDisc>();
  for (const auto& [name, value] : attributes) {
    ns3::TypeId::AttributeInformation info;
    if (!found.LookupAttributeByName(name, &info)) {
      throw std::invalid_argument("attributes." + name + ": " + type +
                                  " has no such attribute, it has " + NamesOf(found));
    }
    const std::string kind = info.checker->GetValueTypeName();
    if ((kind == "ns3::TimeValue" && !IsTime(value)) ||
        !disc->SetAttributeFailSafe(name, ns3::StringValue(value))) {
      throw std::invalid_argument("attributes." + name + ": '" + value + "' is no " + kind +
                                  " that " + type + " takes");
    }
  }
  return disc;
}

void Limit(ns3::Ptr<ns3::QueueDisc> disc, uint32_t bufferBytes) {
  const auto set = [&disc](uint32_t limit, const char* unit) {
    return disc->SetAttributeFailSafe("MaxSize", ns3::StringValue(std::to_string(limit) + unit));
  };
  if (!set(bufferBytes, "B")) {
    set(std::max(1U, bufferBytes / kPacketBytes), "p");
  }
}

}  // namespace swiftqueue
