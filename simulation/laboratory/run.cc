// SPDX-License-Identifier: GPL-2.0-only

#include "run.h"

#include <algorithm>
#include <functional>
#include <span>
#include <utility>

#include "run-reader.h"

namespace swiftqueue::lab {
namespace {

namespace json = engine::json;

constexpr uint32_t kPacketBytes = 1500;
constexpr uint32_t kMaxFlows = 20'000;  // of a run: each has a port of its own
constexpr uint32_t kMaxSenders = 250;   // ns-3's global routing takes the cube of the nodes
constexpr double kMaxSeconds = 1e5;
constexpr double kMaxUs = 1e9;

std::vector<Quantile> ParseDistribution(const Node& node, double low, double high) {
  std::vector<Quantile> points;
  for (const Node& item : node.Items()) {
    const auto pair = item.Items();
    if (pair.size() != 2) {
      item.Fail("is not a pair [value, cumulative share]");
    }
    points.push_back({pair[0].Number(low, high), pair[1].Number(0, 1)});
    if (points.size() > 1) {
      const Quantile& before = points[points.size() - 2];
      if (points.back().value < before.value || points.back().cumulative <= before.cumulative) {
        item.Fail("is not above the point before it");
      }
    }
  }
  if (points.size() < 2 || points.front().cumulative != 0 || points.back().cumulative != 1) {
    node.Fail("does not run from share 0 to share 1");
  }
  return points;
}

std::vector<Quantile> PublishedBytes(const Node& node) {
  const auto points = node.OneOf<std::span<const Quantile>>(
      {{"web_search", kWebSearchBytes}, {"hadoop", kHadoopBytes}});
  return {points.begin(), points.end()};
}

Traffic ParseTraffic(const Node& node) {
  constexpr double kMaxBps = 1e11;
  const auto rate = [&node] { return node["rate_bps"].Number(1, kMaxBps); };
  using Parse = std::function<Traffic()>;
  return node["kind"].OneOf<Parse>({
      {"messages",
       [&]() -> Traffic {
         node.Keys({"kind", "rate_bps", "sizes"});
         return Messages{rate(), PublishedBytes(node["sizes"])};
       }},
      {"greedy",
       [&]() -> Traffic {
         node.Keys({"kind"});
         return Greedy{};
       }},
      {"video",
       [&]() -> Traffic {
         node.Keys({"kind", "rate_bps", "frames_per_s"});
         return Video{rate(), node["frames_per_s"].Number(0.1, 1000)};
       }},
      {"cbr",
       [&]() -> Traffic {
         node.Keys({"kind", "rate_bps", "packet_bytes"});
         return ConstantRate{rate(), node["packet_bytes"].Count(1, 1448)};
       }},
      {"replay",
       [&]() -> Traffic {
         node.Keys({"kind", "gaps_us", "bytes", "durations_s"});
         return Replay{ParseDistribution(node["gaps_us"], 0, kMaxUs),
                       ParseDistribution(node["bytes"], 1, 1e9),
                       ParseDistribution(node["durations_s"], 0, kMaxSeconds)};
       }},
  })();
}

Group ParseGroup(const Node& node, const Run& run, uint32_t senderRouter) {
  node.Keys({"flows", "tcp", "ecn", "receiver", "start_s", "dupack_threshold", "traffic"});
  Group group;
  group.flows = node["flows"].Count(1, 2000);
  const auto same = [](std::string_view name) { return std::pair{name, std::string(name)}; };
  group.tcp = node["tcp"].OneOf<std::string>(
      {same("dctcp"), same("prague"), same("cubic"), same("bbr"), same("udp")});
  group.ecn = node["ecn"].OneOf<Ecn>(
      {{"ect1", Ecn::kEct1}, {"ect0", Ecn::kEct0}, {"not_ect", Ecn::kNotEct}});
  if ((group.tcp == "dctcp" || group.tcp == "prague") && group.ecn != Ecn::kEct1) {
    node["ecn"].Fail("must be ect1 for " + group.tcp);
  }
  group.l4s = group.ecn == Ecn::kEct1;
  const std::string& wanted = node["receiver"].Text();
  const auto found = std::find_if(run.receivers.begin(), run.receivers.end(),
                                  [&](const Receiver& r) { return r.name == wanted; });
  if (found == run.receivers.end()) {
    node["receiver"].Fail("is " + json::quoted(wanted) + ": no receiver has that name");
  }
  if (found->router <= senderRouter) {
    node["receiver"].Fail("is " + json::quoted(wanted) + ": no bottleneck lies in between");
  }
  group.receiver = static_cast<uint32_t>(found - run.receivers.begin());
  const auto start = node["start_s"].Items();
  if (start.size() != 2) {
    node["start_s"].Fail("is not a pair [from, to]");
  }
  group.startFromS = start[0].Number(0, run.seconds);
  group.startToS = start[1].Number(group.startFromS, run.seconds);
  if (!node["dupack_threshold"].Is("ncr")) {
    group.dupAckThreshold = node["dupack_threshold"].Count(1, 10'000);
  }
  group.traffic = ParseTraffic(node["traffic"]);
  if (group.tcp == "udp" && std::holds_alternative<Greedy>(group.traffic)) {
    node["traffic"].Fail("is greedy: UDP would send without end");
  }
  return group;
}

void ParseNetwork(const Node& root, Run& run) {
  for (const Node& node : root["bottlenecks"].Items()) {
    node.Keys({"rate_bps", "delay_ms", "buffer_bytes"});
    run.bottlenecks.push_back({node["rate_bps"].Number(1e4, 1e11), node["delay_ms"].Number(0, 1e4),
                               node["buffer_bytes"].Count(0, 2'000'000'000)});
    if (run.bottlenecks.back().bufferBytes < kPacketBytes) {
      node["buffer_bytes"].Fail("is " + std::to_string(run.bottlenecks.back().bufferBytes) +
                                ": less than one packet of 1500 bytes");
    }
  }
  const auto routers = static_cast<uint32_t>(run.bottlenecks.size());
  if (routers == 0 || routers > 8) {
    root["bottlenecks"].Fail("must be 1 to 8");
  }
  for (const Node& node : root["receivers"].Items()) {
    node.Keys({"name", "router", "delay_ms"});
    run.receivers.push_back(
        {node["name"].Name(), node["router"].Count(1, routers), node["delay_ms"].Number(0, 1e4)});
  }
  uint32_t flows = 0;
  for (const Node& node : root["senders"].Items()) {
    node.Keys({"name", "router", "delay_ms", "groups"});
    Sender sender{node["name"].Name(),
                  node["router"].Count(0, routers - 1),
                  node["delay_ms"].Number(0, 1e4),
                  {}};
    for (const Node& group : node["groups"].Items()) {
      sender.groups.push_back(ParseGroup(group, run, sender.router));
      flows += sender.groups.back().flows;
    }
    if (sender.groups.empty()) {
      node["groups"].Fail("is empty: a sender without flows");
    }
    for (const Sender& other : run.senders) {
      if (other.name == sender.name) {
        node["name"].Fail("is " + json::quoted(sender.name) + " twice");
      }
    }
    run.senders.push_back(std::move(sender));
  }
  if (run.senders.empty() || run.senders.size() > kMaxSenders) {
    root["senders"].Fail("must be 1 to " + std::to_string(kMaxSenders));
  }
  if (flows > kMaxFlows) {
    root["senders"].Fail("have more than " + std::to_string(kMaxFlows) + " flows");
  }
}

Bursts ParseBursts(const Node& node) {
  return {node["share"].Number(0, 1), node["burst_packets"].Count(1, 1'000'000),
          node["seed"].Count(0, 1'000'000)};
}

Control ParseControl(const Node& node) {
  using Parse = std::function<Control()>;
  const auto us = [&node](std::string_view key) { return node[key].Number(0, kMaxUs); };
  return node["kind"].OneOf<Parse>({
      {"default",
       [&]() -> Control {
         node.Keys({"kind"});
         return DefaultControl{};
       }},
      {"no_l4s",
       [&]() -> Control {
         node.Keys({"kind"});
         return NoL4sControl{};
       }},
      {"random",
       [&]() -> Control {
         node.Keys({"kind", "share", "burst_packets", "seed"});
         return ParseBursts(node);
       }},
      {"oracle",
       [&]() -> Control {
         node.Keys({"kind", "margin_us", "order", "rate_us"});
         return OracleControl{us("margin_us"),
                              node["order"].OneOf<bool>({{"any", false}, {"kept", true}}),
                              us("rate_us")};
       }},
      {"last_latency",
       [&]() -> Control {
         node.Keys({"kind", "threshold_us", "stale_us"});
         return LastLatencyControl{us("threshold_us"), us("stale_us")};
       }},
      {"model",
       [&]() -> Control {
         node.Keys({"kind", "artifact", "version", "inference_us", "until_decided", "margin_us",
                    "margin_share", "max_moved_unacked"});
         return ModelControl{
             node["artifact"].Text(),
             node["version"].Count(0, 2'000'000'000),
             us("inference_us"),
             node["until_decided"].OneOf<bool>({{"default", false}, {"previous", true}}),
             us("margin_us"),
             node["margin_share"].Number(0, 1e6),
             static_cast<int32_t>(node["max_moved_unacked"].Count(0, 1'000'000'000))};
       }},
  })();
}

std::optional<FineTuning> ParseFineTuning(const Node& node, double seconds) {
  if (node.IsNull()) {
    return std::nullopt;
  }
  node.Keys({"every_s", "span_s", "apply_after_s", "command"});
  FineTuning tuning{node["every_s"].Number(0.1, kMaxSeconds),
                    node["span_s"].Number(0, seconds),
                    node["apply_after_s"].Number(0, kMaxSeconds),
                    {}};
  for (const Node& word : node["command"].Items()) {
    tuning.command.push_back(word.Text());
  }
  if (tuning.command.empty()) {
    node["command"].Fail("is empty");
  }
  return tuning;
}

}  // namespace

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

Run ParseRun(std::string_view text) {
  const json::Value value = json::parse(text);
  const Node root(value, Node::kRoot);
  root.Keys({"format", "name", "seed", "seconds", "warmup_s", "profile", "bottlenecks", "receivers",
             "senders", "control", "moved_ecn", "acks", "explore", "finetune", "outputs"});
  root["format"].Count(1, 1);
  Run run{};
  run.text = text;
  run.name = root["name"].Name();
  run.seed = root["seed"].Count(1, 2'147'483'647);
  run.seconds = root["seconds"].Number(0.01, kMaxSeconds);
  run.warmupS = root["warmup_s"].Number(0, run.seconds);
  if (run.warmupS == run.seconds) {
    root["warmup_s"].Fail("leaves nothing of the run");
  }
  run.profile =
      root["profile"].OneOf<std::string>({{"rfc9332", "rfc9332"}, {"premise", "premise"}});
  ParseNetwork(root, run);
  run.control = ParseControl(root["control"]);
  run.movedEcn = root["moved_ecn"].OneOf<Ecn>({{"not_ect", Ecn::kNotEct}, {"ect0", Ecn::kEct0}});
  run.acks = root["acks"].OneOf<Acks>(
      {{"cumulative", Acks::kCumulative}, {"selective", Acks::kSelective}});
  root["explore"].Keys({"share", "burst_packets", "seed"});
  run.explore = ParseBursts(root["explore"]);
  run.fineTuning = ParseFineTuning(root["finetune"], run.seconds);
  for (const Node& output : root["outputs"].Items()) {
    *output.OneOf<bool*>(
        {{"pcap", &run.pcap}, {"truth", &run.truth}, {"questions", &run.questions}}) = true;
  }
  if (run.fineTuning && !std::holds_alternative<ModelControl>(run.control)) {
    root["finetune"].Fail("needs control model");
  }
  if (run.questions && !std::holds_alternative<ModelControl>(run.control)) {
    root["outputs"].Fail("have questions, which need control model");
  }
  return run;
}

}  // namespace swiftqueue::lab
