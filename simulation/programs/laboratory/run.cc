// SPDX-License-Identifier: GPL-2.0-only

#include "run.h"

#include <algorithm>
#include <span>
#include <utility>

#include "feature_store/events/event_stream.h"
#include "serving/engine/error.h"
#include "serving/engine/json.h"

namespace swiftqueue::lab {
namespace {

namespace json = engine::json;

constexpr std::size_t kMaxFlows = 20'000;  // flows of a run: each has a port of its own
constexpr double kLStepMs = 20;            // where the run does not say
const std::string kFile = "run file";

/** What would lead beyond the end of something; all else its writer has seen to. */
void Require(bool sound, const std::string& problem) {
  if (!sound) {
    throw engine::InvalidError(kFile + ": " + problem);
  }
}

/** A value of the run file; one of another kind, or a key that is missing, is refused. */
class Node {
 public:
  explicit Node(const json::Value& value) : m_value(value) {}

  Node operator[](std::string_view key) const { return Node(m_value.at(key, kFile)); }
  bool IsNull() const { return m_value.is_null(); }
  bool Has(std::string_view key) const { return m_value.has(key, kFile); }
  const std::string& Text() const { return m_value.string(kFile); }
  double Number() const { return m_value.number(kFile); }
  uint32_t Count() const { return static_cast<uint32_t>(m_value.count(kFile)); }

  std::vector<std::pair<std::string, std::string>> Texts() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (const auto& [key, value] : m_value.object(kFile)) {
      all.emplace_back(key, value.string(kFile));
    }
    return all;
  }

  std::optional<uint32_t> CountIfNumber() const {
    try {
      return Count();
    } catch (const engine::InvalidError&) {
      return std::nullopt;
    }
  }

  template <typename T, typename Read>
  std::vector<T> All(Read read) const {
    std::vector<T> all;
    for (const json::Value& value : m_value.array(kFile)) {
      all.push_back(read(Node(value)));
    }
    return all;
  }

  std::pair<double, double> Pair() const {
    const auto both = All<double>([](const Node& node) { return node.Number(); });
    Require(both.size() == 2, "what must be a pair is none");
    return {both[0], both[1]};
  }

 private:
  const json::Value& m_value;
};

std::vector<Quantile> ReadDistribution(const Node& node) {
  auto points = node.All<Quantile>([](const Node& point) {
    const auto [value, cumulative] = point.Pair();
    return Quantile{value, cumulative};
  });
  Require(!points.empty(), "a distribution is empty");
  return points;
}

Traffic ReadTraffic(const Node& node) {
  const std::string& kind = node["kind"].Text();
  if (kind == "greedy") {
    return Greedy{};
  }
  if (kind == "replay") {
    return Replay{ReadDistribution(node["gaps_us"]), ReadDistribution(node["bytes"]),
                  ReadDistribution(node["durations_s"])};
  }
  if (kind == "pages") {
    return node["pages"].All<WebPage>([](const Node& page) {
      return WebPage{page["start_s"].Number(), page["bytes"].All<uint64_t>([](const Node& bytes) {
                       return uint64_t{bytes.Count()};
                     })};
    });
  }
  if (kind == "real_time") {
    const double leastBps = node["least_bps"].Number();
    return RealTime{node["frames_per_s"].Number(), leastBps, node["most_bps"].Number(),
                    node.Has("start_bps") ? node["start_bps"].Number() : leastBps};
  }
  const double rateBps = node["rate_bps"].Number();
  if (kind == "video") {
    return Video{rateBps, node["frames_per_s"].Number()};
  }
  if (kind == "cbr") {
    return ConstantRate{rateBps, node["packet_bytes"].Count()};
  }
  const bool hadoop = node["sizes"].Text() == "hadoop";
  const auto bytes = hadoop ? std::span<const Quantile>(kHadoopBytes) : kWebSearchBytes;
  return Messages{rateBps, {bytes.begin(), bytes.end()}};
}

Ecn ReadEcn(const Node& node) {
  const std::string& text = node.Text();
  return text == "ect1" ? Ecn::kEct1 : text == "ect0" ? Ecn::kEct0 : Ecn::kNotEct;
}

MovedResponse ReadMovedResponse(const Node& root) {
  if (!root.Has("moved_response")) {
    return MovedResponse::kScalable;
  }
  return root["moved_response"].Text() == "classic" ? MovedResponse::kClassic
                                                    : MovedResponse::kScalable;
}

Group ReadGroup(const Node& node, const Run& run) {
  const std::vector<Receiver>& receivers = run.receivers;
  Group group{};
  group.flows = node["flows"].Count();
  group.tcp = node["tcp"].Text();
  group.ecn = ReadEcn(node["ecn"]);
  if (node.Has("uplink")) {
    group.uplink = static_cast<uint8_t>(node["uplink"].Count());
    Require(*group.uplink < run.uplinks.size(), "a group's uplink is beyond the last");
  }
  group.l4s = run.uplinks.empty() ? group.ecn == Ecn::kEct1 : !group.uplink;
  const auto found = std::find_if(
      receivers.begin(), receivers.end(),
      [&](const Receiver& receiver) { return receiver.name == node["receiver"].Text(); });
  Require(found != receivers.end(), "a group's receiver is none of the receivers");
  group.receiver = static_cast<uint32_t>(found - receivers.begin());
  const auto [from, to] = node["start_s"].Pair();
  group.startFromS = from;
  group.startToS = to;
  group.dupAckThreshold = node["dupack_threshold"].CountIfNumber();
  group.dscp = node.Has("dscp") ? node["dscp"].Count() : 0;
  group.paced = node.Has("paced") && node["paced"].Text() == "on";
  group.traffic = ReadTraffic(node["traffic"]);
  if (const auto* pages = std::get_if<Pages>(&group.traffic)) {
    std::size_t objects = 0;
    for (const WebPage& page : *pages) {
      objects += page.bytes.size();
    }
    Require(objects == group.flows, "a group has not as many flows as its pages have objects");
  }
  Require(group.tcp != "udp" || !std::holds_alternative<RealTime>(group.traffic),
          "real_time needs a congestion control");
  Require(group.tcp != kGcc || std::holds_alternative<RealTime>(group.traffic),
          "gcc sends real_time alone");
  return group;
}

DiscOfType ReadDisc(const Node& node) { return {node["type"].Text(), node["attributes"].Texts()}; }

void ReadNetwork(const Node& root, Run& run) {
  run.bottlenecks = root["bottlenecks"].All<Bottleneck>([](const Node& node) {
    return Bottleneck{
        node["rate_bps"].Number(),
        node["delay_ms"].Number(),
        node["buffer_bytes"].Count(),
        node.Has("l_step_ms") ? node["l_step_ms"].Number() : kLStepMs,
        node.Has("disc") ? std::optional<DiscOfType>(ReadDisc(node["disc"])) : std::nullopt,
        node.Has("rates") ? node["rates"].All<std::pair<double, double>>(
                                [](const Node& from) { return from.Pair(); })
                          : std::vector<std::pair<double, double>>{}};
  });
  if (root.Has("uplinks")) {
    run.uplinks = root["uplinks"].All<Uplink>([](const Node& node) {
      Uplink link{node["name"].Text(), node["dscp"].Count(), node["routed"].Text() == "on"};
      if (node.Has("dies_s")) {
        link.diesS = node["dies_s"].Number();
      }
      return link;
    });
    Require(run.uplinks.size() == 2 && run.bottlenecks.size() == 2, "uplinks are two bottlenecks");
  }
  const std::size_t routers = run.uplinks.empty() ? run.bottlenecks.size() : 1;
  run.receivers = root["receivers"].All<Receiver>([&](const Node& node) {
    Receiver receiver{node["name"].Text(), node["router"].Count(), node["delay_ms"].Number()};
    Require(receiver.router <= routers, "a receiver's router is beyond the last");
    return receiver;
  });
  std::size_t flows = 0;
  run.senders = root["senders"].All<Sender>([&](const Node& node) {
    Sender sender{
        node["name"].Text(), node["router"].Count(), node["delay_ms"].Number(),
        node["groups"].All<Group>([&](const Node& group) { return ReadGroup(group, run); })};
    Require(sender.router < routers, "a sender's router is beyond the last bottleneck");
    for (const Group& group : sender.groups) {
      flows += group.flows;
    }
    return sender;
  });
  Require(!run.senders.empty(), "there is no sender");
  for (std::size_t s = run.uplinks.empty() ? run.senders.size() : 1; s < run.senders.size(); ++s) {
    for (const Group& group : run.senders[s].groups) {
      Require(group.uplink.has_value(), "a group of another sender has no uplink");
    }
  }
  Require(flows <= kMaxFlows, "there are more than " + std::to_string(kMaxFlows) + " flows");
}

Bursts ReadBursts(const Node& node) {
  return {node["share"].Number(), node["burst_packets"].Count(), node["seed"].Count()};
}

Batching ReadBatching(const Node& node) {
  return {node["inference_us"].Number(),
          node["until_decided"].Text() == "previous",
          node["margin_us"].Number(),
          node["margin_share"].Number(),
          static_cast<int32_t>(node["max_moved_unacked"].Count()),
          node.Has("max_moved_share") ? node["max_moved_share"].Number() : 0,
          node.Has("guard") && node["guard"].Text() == "on"};
}

BatchedControl ReadBatched(const Node& node) {
  const Node by = node["by"];
  const std::string& kind = by["kind"].Text();
  BatchedControl control{ForecastAlways{}, ReadBatching(node)};
  if (kind == "chance") {
    control.by = ForecastByChance{by["share"].Number(), by["seed"].Count()};
  } else if (kind == "last_latency") {
    control.by = ForecastByLastLatency{by["threshold_us"].Number(), by["stale_us"].Number()};
  } else if (kind == "virtual_queue") {
    control.by = ForecastByVirtualQueue{};
  } else if (kind == "view") {
    control.by = ForecastByView{by["rate_us"].Number(), by["age_us"].Number()};
  } else if (kind == "record") {
    control.by = ForecastByRecord{by["decisions"].Text(), by["shift_us"].Number()};
  }
  return control;
}

Control ReadControl(const Node& node) {
  const std::string& kind = node["kind"].Text();
  if (kind == "no_l4s") {
    return NoL4sControl{};
  }
  if (kind == "random") {
    return ReadBursts(node);
  }
  if (kind == "oracle") {
    return OracleControl{node["margin_us"].Number(), node["order"].Text() == "kept",
                         node["rate_us"].Number()};
  }
  if (kind == "last_latency") {
    return LastLatencyControl{node["threshold_us"].Number(), node["stale_us"].Number()};
  }
  if (kind == "virtual_queue") {
    return VirtualQueueControl{node["margin_us"].Number()};
  }
  if (kind == "least_latency") {
    using Of = LeastLatencyControl::Of;
    const std::string& of = node["of"].Text();
    return LeastLatencyControl{of == "last"       ? Of::kLast
                               : of == "smoothed" ? Of::kSmoothed
                                                  : Of::kMean,
                               node["margin_us"].Number(), node["every_s"].Number()};
  }
  if (kind == "model") {
    return ModelControl{node["artifact"].Text(), node["version"].Count(), ReadBatching(node)};
  }
  if (kind == "agent_rule") {
    return AgentRuleControl{node["inference_us"].Number(),
                            node["until_decided"].Text() == "previous"};
  }
  if (kind == "flow_split") {
    return FlowSplitControl{node["share"].Number()};
  }
  if (kind == "batched") {
    return ReadBatched(node);
  }
  return DefaultControl{};
}

Hold ReadHold(const Node& root) {
  const std::string hold = root.Has("hold") ? root["hold"].Text() : "";
  return hold == "write" ? Hold::kWrite : hold == "batch" ? Hold::kBatch : Hold::kPacket;
}

std::optional<FineTuning> ReadFineTuning(const Node& node) {
  if (node.IsNull()) {
    return std::nullopt;
  }
  FineTuning tuning{node["every_s"].Number(), node["span_s"].Number(),
                    node["apply_after_s"].Number(),
                    node["command"].All<std::string>([](const Node& word) { return word.Text(); })};
  Require(!tuning.command.empty(), "finetune.command is empty");
  return tuning;
}

}  // namespace

double RateBpsAt(const Bottleneck& link, double s) {
  const auto after = std::upper_bound(link.rates.begin(), link.rates.end(), s,
                                      [](double at, const auto& rate) { return at < rate.first; });
  return after == link.rates.begin() ? link.rateBps : std::prev(after)->second;
}

double BitsUntil(const Bottleneck& link, double s) {
  double bits = 0, sinceS = 0, rateBps = link.rateBps;
  for (const auto& [atS, nextBps] : link.rates) {
    bits += rateBps * (std::min(atS, s) - sinceS);
    sinceS = std::min(atS, s);
    rateBps = nextBps;
  }
  return bits + rateBps * (s - sinceS);
}

double TimeOfBits(const Bottleneck& link, double bits) {
  double sinceS = 0, rateBps = link.rateBps;
  for (const auto& [atS, nextBps] : link.rates) {
    const double here = rateBps * (atS - sinceS);
    if (bits < here) {
      break;
    }
    bits -= here;
    sinceS = atS;
    rateBps = nextBps;
  }
  return sinceS + bits / rateBps;
}

void RemoveL4s(Run& run) {
  for (Sender& sender : run.senders) {
    for (Group& group : sender.groups) {
      if (!group.l4s) {
        continue;
      }
      if (group.tcp == "udp") {
        group.ecn = Ecn::kNotEct;
      } else {
        group.tcp = "cubic";
        group.ecn = Ecn::kEct0;
        group.dupAckThreshold = 3;
      }
    }
  }
}

Run ReadRun(std::string_view text) {
  const json::Value value = json::parse(text);
  const Node root(value);
  Require(root["format"].Count() == 1, "its format is not 1");
  Run run{};
  run.text = text;
  run.seed = root["seed"].Count();
  run.tracesStreams = root.Has("streams") && root["streams"].Text() == "traces";
  run.seconds = root["seconds"].Number();
  run.warmupS = root["warmup_s"].Number();
  run.isUncoupled = root["profile"].Text() == "uncoupled";
  ReadNetwork(root, run);
  run.control = ReadControl(root["control"]);
  run.hold = ReadHold(root);
  run.movedEcn = ReadEcn(root["moved_ecn"]);
  run.movedResponse = ReadMovedResponse(root);
  run.acks = root["acks"].Text() == "selective" ? Acks::kSelective : Acks::kCumulative;
  run.explore = ReadBursts(root["explore"]);
  run.fineTuning = ReadFineTuning(root["finetune"]);
  const auto outputs =
      root["outputs"].All<std::string>([](const Node& output) { return output.Text(); });
  const auto asked = [&outputs](const char* output) {
    return std::find(outputs.begin(), outputs.end(), output) != outputs.end();
  };
  run.pcap = asked("pcap");
  run.truth = asked("truth");
  run.questions = asked("questions");
  run.waits = asked("waits");
  run.decisions = asked("decisions");
  run.classes = asked("classes");
  const bool model = std::holds_alternative<ModelControl>(run.control);
  Require(model || !(run.fineTuning || run.questions), "finetune and questions need control model");
  Require(model || std::holds_alternative<BatchedControl>(run.control) || !run.decisions,
          "decisions need control model or batched");
  return run;
}

}  // namespace swiftqueue::lab
