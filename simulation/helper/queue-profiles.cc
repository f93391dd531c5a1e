// SPDX-License-Identifier: GPL-2.0-only

#include "queue-profiles.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <type_traits>

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

template <typename Number>
bool IsNumber(const std::string& text) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || rest != end) {
    return false;
  }
  if constexpr (std::is_floating_point_v<Number>) {
    return std::isfinite(value);
  }
  return true;
}

/** Whether a text is a time with its unit, or 0: ns-3 takes a bare 5 for seconds. */
bool IsTime(const std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  const auto units = {"s", "ms", "us", "ns", "ps", "fs", "min", "h", "d", "y"};
  const std::string unit(rest, end);
  return error == std::errc() && ((unit.empty() && value == 0) ||
                                  std::find(units.begin(), units.end(), unit) != units.end());
}

/** Whether an attribute holds a time; some discs keep theirs as texts. */
bool HoldsTime(const ns3::TypeId::AttributeInformation& info) {
  const std::string kind = info.checker->GetValueTypeName();
  return kind == "ns3::TimeValue" ||
         (kind == "ns3::StringValue" && IsTime(info.initialValue->SerializeToString(info.checker)));
}

/** Whether ns-3 can read a text as an attribute's value; it ends the process where it cannot. */
bool IsReadable(const ns3::TypeId::AttributeInformation& info, const std::string& text) {
  const std::string kind = info.checker->GetValueTypeName();
  const auto truths = {"true", "false", "t", "f", "1", "0"};
  return HoldsTime(info)                ? IsTime(text)
         : kind == "ns3::UintegerValue" ? IsNumber<uint64_t>(text)
         : kind == "ns3::IntegerValue"  ? IsNumber<int64_t>(text)
         : kind == "ns3::DoubleValue"   ? IsNumber<double>(text)
         : kind == "ns3::BooleanValue"
             ? std::find(truths.begin(), truths.end(), text) != truths.end()
             : true;
}

/** What an attribute takes, for a line that says it. */
std::string TakenBy(const ns3::TypeId::AttributeInformation& info) {
  const std::string range = info.checker->HasUnderlyingTypeInformation()
                                ? info.checker->GetUnderlyingTypeInformation()
                                : "";
  return HoldsTime(info) ? " (with a unit, as 5ms)" : range.empty() ? "" : " (" + range + ")";
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
    if (!IsReadable(info, value) || !disc->SetAttributeFailSafe(name, ns3::StringValue(value))) {
      throw std::invalid_argument("attributes." + name + ": '" + value + "' is no " +
                                  info.checker->GetValueTypeName() + " that " + type + " takes" +
                                  TakenBy(info));
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
