// SPDX-License-Identifier: GPL-2.0-only

#include "summary.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "../../model/lfq-queue-disc.h"

namespace swiftqueue::lab {

namespace {

constexpr int kQuantileSteps = 100;  // steps of "cdf"
constexpr double kPacketBits = 12'000;

/** Sorts `values`, those of one group of packets. */
std::string Distribution(std::vector<float>& values) {
  std::sort(values.begin(), values.end());
  const auto quantile = [&values](double share) {
    const auto rank = static_cast<std::size_t>(share * static_cast<double>(values.size()));
    return values.empty() ? std::string("null")
                          : JsonNumber(values[std::min(rank, values.size() - 1)]);
  };
  double sum = 0;
  for (const float value : values) {
    sum += value;
  }
  JsonArray cdf;
  for (int i = 0; i <= kQuantileSteps; ++i) {
    cdf.Add(quantile(static_cast<double>(i) / kQuantileSteps));
  }
  return JsonObject()
      .Add("count", JsonNumber(values.size()))
      .Add("mean", JsonNumber(sum / static_cast<double>(values.size())))
      .Add("p50", quantile(0.5))
      .Add("p90", quantile(0.9))
      .Add("p99", quantile(0.99))
      .Add("p999", quantile(0.999))
      .Add("max", quantile(1))
      .Add("cdf", values.empty() ? "null" : cdf.Text())
      .Text();
}

/** The flows of one class, of one sender or of all. */
struct FlowClass {
  uint64_t flows{0};
  uint64_t receivedBytes{0};
  uint64_t packets{0};
  uint64_t arrived{0};
  uint64_t dropped{0};
  uint64_t marked{0};
  uint64_t reordered{0};
  uint64_t retransmissions{0};
  std::vector<float> queueingUs;
  std::vector<float> oneWayUs;
  std::vector<float> latencyUs;

  void Add(const Flow& flow) {
    ++flows;
    receivedBytes += flow.receivedBytes - flow.receivedInWarmup;
  }

  void Add(const PacketRow& row) {
    ++packets;
    dropped += row.dropped;
    retransmissions += row.retransmitted;
    if (!std::isnan(row.oneWayUs)) {
      ++arrived;
      marked += row.marked;
      reordered += row.reordered;
      queueingUs.push_back(row.queueingUs);
      oneWayUs.push_back(row.oneWayUs);
    }
    if (!std::isnan(row.latencyUs)) {
      latencyUs.push_back(row.latencyUs);
    }
  }

  std::string Json(double seconds) {
    return JsonObject()
        .Add("flows", JsonNumber(flows))
        .Add("goodput_bps", JsonNumber(8.0 * static_cast<double>(receivedBytes) / seconds))
        .Add("packets", JsonNumber(packets))
        .Add("arrived", JsonNumber(arrived))
        .Add("dropped", JsonNumber(dropped))
        .Add("marked", JsonNumber(marked))
        .Add("reordered", JsonNumber(reordered))
        .Add("retransmissions", JsonNumber(retransmissions))
        .Add("queueing_us", Distribution(queueingUs))
        .Add("one_way_us", Distribution(oneWayUs))
        .Add("latency_us", Distribution(latencyUs))
        .Text();
  }
};

struct BothClasses {
  std::array<FlowClass, 2> of;  // by kClassicQueue, kL4sQueue

  FlowClass& Of(const Flow& flow) { return of[flow.group->l4s ? kL4sQueue : kClassicQueue]; }

  std::string Json(double seconds) {
    return JsonObject()
        .Add("l4s", of[kL4sQueue].Json(seconds))
        .Add("classic", of[kClassicQueue].Json(seconds))
        .Text();
  }
};

std::string Counts(const ns3::DualPi2QueueDisc::QueueCounts& counts) {
  return JsonObject()
      .Add("enqueued", JsonNumber(counts.enqueuedPackets))
      .Add("enqueued_bytes", JsonNumber(counts.enqueuedBytes))
      .Add("dequeued", JsonNumber(counts.dequeuedPackets))
      .Add("dequeued_bytes", JsonNumber(counts.dequeuedBytes))
      .Add("marked", JsonNumber(counts.markedPackets))
      .Add("dropped", JsonNumber(counts.droppedPackets))
      .Add("dropped_bytes", JsonNumber(counts.droppedBytes))
      .Add("refused", JsonNumber(counts.refusedPackets))
      .Add("refused_bytes", JsonNumber(counts.refusedBytes))
      .Text();
}

using Reasons = decltype(ns3::QueueDisc::Stats::nMarkedPackets);

std::string ByReason(const Reasons& reasons) {
  JsonObject json;
  for (const auto& [reason, packets] : reasons) {
    json.Add(reason, JsonNumber(packets));
  }
  return json.Text();
}

std::string Bottlenecks(const Run& run, const Network& network) {
  using Disc = ns3::DualPi2QueueDisc;
  JsonArray json;
  for (std::size_t i = 0; i < run.bottlenecks.size(); ++i) {
    const auto& disc = network.Bottlenecks()[i];
    const auto& stats = disc->GetStats();
    const auto dualPi2 = ns3::DynamicCast<Disc>(disc);
    uint64_t bytes = stats.nTotalDequeuedBytes;
    if (dualPi2) {
      bytes = dualPi2->GetQueueCounts(Disc::kL4s).dequeuedBytes +
              dualPi2->GetQueueCounts(Disc::kClassic).dequeuedBytes;
    }
    const double bits = 8.0 * static_cast<double>(bytes);
    Reasons drops = stats.nDroppedPacketsBeforeEnqueue;
    for (const auto& [reason, packets] : stats.nDroppedPacketsAfterDequeue) {
      drops[reason] += packets;
    }
    const auto counts = [&dualPi2](Disc::Queue queue) {
      return dualPi2 ? Counts(dualPi2->GetQueueCounts(queue)) : "null";
    };
    JsonObject link;
    link.Add("utilisation", JsonNumber(bits / BitsUntil(run.bottlenecks[i], run.seconds)))
        .Add("l4s", counts(Disc::kL4s))
        .Add("classic", counts(Disc::kClassic))
        .Add("marks", ByReason(stats.nMarkedPackets))
        .Add("drops", ByReason(drops));
    if (const auto lfq = ns3::DynamicCast<LfqQueueDisc>(disc)) {
      link.Add("lfq", JsonObject()
                          .Add("decisions", JsonNumber(lfq->GetDecisions()))
                          .Add("fallbacks", JsonNumber(lfq->GetFallbacks()))
                          .Text());
    }
    json.Add(link.Text());
  }
  return json.Text();
}

std::string Discs(const Run& run) {
  JsonArray json;
  for (const Bottleneck& bottleneck : run.bottlenecks) {
    JsonObject attributes;
    for (const auto& [name, value] : DiscAttributesOf(run, bottleneck)) {
      attributes.Add(name, JsonString(value));
    }
    json.Add(attributes.Text());
  }
  return json.Text();
}

}  // namespace

JsonObject Summarise(const Run& run, const Network& network, const Flows& flows,
                     std::span<const PacketLog* const> logs) {
  const double seconds = run.seconds - run.warmupS;
  const auto fromNs = static_cast<int64_t>(run.warmupS * 1e9);
  std::vector<BothClasses> senders(run.senders.size());
  BothClasses all;
  for (const Flow& flow : flows) {
    senders[flow.sender].Of(flow).Add(flow);
    all.Of(flow).Add(flow);
  }
  uint64_t movable = 0;
  uint64_t moved = 0;
  for (std::size_t s = 0; s < logs.size(); ++s) {
    for (const PacketRow& row : *logs[s]) {
      if (row.sentNs < fromNs) {
        continue;
      }
      senders[s].Of(flows[row.flow]).Add(row);
      all.Of(flows[row.flow]).Add(row);
      if (s == 0 && row.defaultQueue == kL4sQueue && flows[row.flow].group->l4s) {
        ++movable;
        moved += row.queue == kClassicQueue;
      }
    }
  }
  const auto classicBytes = static_cast<double>(all.of[kClassicQueue].receivedBytes);
  const auto l4sBytes = static_cast<double>(all.of[kL4sQueue].receivedBytes);
  JsonObject bySender;
  for (std::size_t s = 0; s < senders.size(); ++s) {
    bySender.Add(run.senders[s].name, senders[s].Json(seconds));
  }
  JsonObject summary;
  summary.Add("format", "1")
      .Add("run", run.text)
      .Add("ns3", JsonString(NS3_VERSION))
      .Add("disc", Discs(run))
      .Add("senders", bySender.Text())
      .Add("classes", all.Json(seconds))
      .Add("classic_share", JsonNumber(classicBytes / (classicBytes + l4sBytes)))
      .Add("moved",
           JsonObject()
               .Add("l4s_data_packets", JsonNumber(movable))
               .Add("moved", JsonNumber(moved))
               .Add("share", JsonNumber(static_cast<double>(moved) / static_cast<double>(movable)))
               .Text())
      .Add("bottlenecks", Bottlenecks(run, network));
  return summary;
}

JsonObject DescribeUplinks(const Run& run, const Network& network,
                           std::span<const PacketLog* const> logs,
                           std::span<const std::vector<uint32_t>> spurious) {
  JsonArray links;
  for (std::size_t i = 0; i < run.uplinks.size(); ++i) {
    const UplinkCounts& counts = network.Gateway()->Counts()[i];
    links.Add(JsonObject()
                  .Add("name", JsonString(run.uplinks[i].name))
                  .Add("packets", JsonNumber(counts.packets))
                  .Add("bytes", JsonNumber(counts.bytes))
                  .Add("unrouted", JsonNumber(counts.unrouted))
                  .Add("diverted", JsonNumber(counts.diverted))
                  .Text());
  }
  const auto fromNs = static_cast<int64_t>(run.warmupS * 1e9);
  JsonObject resent;
  for (std::size_t s = 0; s < logs.size(); ++s) {
    const auto counted =
        std::count_if(spurious[s].begin(), spurious[s].end(),
                      [&](uint32_t packet) { return (*logs[s])[packet].sentNs >= fromNs; });
    resent.Add(run.senders[s].name, JsonNumber(counted));
  }
  return JsonObject().Add("links", links.Text()).Add("spurious_retransmissions", resent.Text());
}

JsonObject ScoreChoice(const Run& run, const PacketLog& log, const WaitsLog& waits) {
  double slowestBps = run.bottlenecks.front().rateBps;
  for (const Bottleneck& bottleneck : run.bottlenecks) {
    slowestBps = std::min(slowestBps, bottleneck.rateBps);
  }
  const double packetUs = kPacketBits / slowestBps * 1e6;
  const auto fromNs = static_cast<int64_t>(run.warmupS * 1e9);
  uint64_t apart = 0;
  uint64_t right = 0;
  std::vector<float> regretUs;
  std::vector<float> classicLessL4sUs;
  for (std::size_t i = 0; i < log.size(); ++i) {
    if (log[i].sentNs < fromNs || log[i].defaultQueue != kL4sQueue || std::isnan(waits[i].l4sUs)) {
      continue;
    }
    const float moreUs = waits[i].classicUs - waits[i].l4sUs;
    const bool classic = log[i].queue == kClassicQueue;
    classicLessL4sUs.push_back(moreUs);
    regretUs.push_back(std::max(0.0F, classic ? moreUs : -moreUs));
    if (std::abs(moreUs) > packetUs) {
      ++apart;
      right += classic == (moreUs < 0);
    }
  }
  return JsonObject()
      .Add("apart", JsonNumber(apart))
      .Add("right", JsonNumber(right))
      .Add("regret_us", Distribution(regretUs))
      .Add("classic_less_l4s_us", Distribution(classicLessL4sUs));
}

JsonObject DescribeTrace(const Run& run, const Network& network, const Flows& flows,
                         const PacketLog& log) {
  JsonArray described;
  for (const Flow& flow : flows) {
    if (flow.sender != 0) {
      continue;
    }
    std::ostringstream address;
    address << network.Receivers()[flow.group->receiver].address;
    described.Add(JsonObject()
                      .Add("number", JsonNumber(flow.number))
                      .Add("tcp", JsonString(flow.group->tcp))
                      .Add("ecn", JsonString(flow.group->ecn == Ecn::kEct1   ? "ect1"
                                             : flow.group->ecn == Ecn::kEct0 ? "ect0"
                                                                             : "not_ect"))
                      .Add("receiver", JsonString(run.receivers[flow.group->receiver].name))
                      .Add("address", JsonString(address.str()))
                      .Add("port", JsonNumber(flow.Port()))
                      .Text());
  }
  JsonObject trace;
  trace.Add("format", "1")
      .Add("run", run.text)
      .Add("packets", JsonNumber(log.size()))
      .Add("flows", described.Text());
  return trace;
}

}  // namespace swiftqueue::lab
