// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/io/metrics.h"

#include <prometheus/client_metric.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace swiftqueue::agent {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Upper ends of the buckets in seconds.
constexpr std::array kRoundTripBuckets{25e-6,  50e-6,  100e-6, 150e-6, 200e-6, 300e-6,
                                       400e-6, 600e-6, 1e-3,   1.5e-3, 2e-3,   3e-3,
                                       5e-3,   10e-3,  20e-3,  50e-3};
// Twelve for each power of ten (IEC 60063's E12), so that a quantile between two is 20 % wide at
// most.
constexpr std::array kLatencyBuckets{
    0.5e-3, 0.6e-3, 0.7e-3, 0.8e-3, 1e-3,   1.2e-3, 1.5e-3, 1.8e-3, 2.2e-3, 2.7e-3, 3.3e-3,
    3.9e-3, 4.7e-3, 5.6e-3, 6.8e-3, 8.2e-3, 10e-3,  12e-3,  15e-3,  18e-3,  22e-3,  27e-3,
    33e-3,  39e-3,  47e-3,  56e-3,  68e-3,  82e-3,  100e-3, 120e-3, 150e-3, 180e-3, 220e-3,
    270e-3, 330e-3, 390e-3, 470e-3, 560e-3, 680e-3, 820e-3, 1.0,    2.0};
constexpr std::array kErrorBuckets{100e-6, 250e-6, 500e-6, 1e-3,   2e-3,   5e-3,
                                   10e-3,  20e-3,  50e-3,  100e-3, 200e-3, 1.0};

ClientMetric labelled(std::vector<ClientMetric::Label> labels, MetricType type, double value) {
  ClientMetric metric;
  metric.label = std::move(labels);
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  return metric;
}

MetricFamily family(const char* name, const char* help, MetricType type,
                    std::vector<ClientMetric> metrics) {
  return {std::string("swiftqueue_agent_") + name, help, type, std::move(metrics)};
}

// Our bins are finer than the buckets; a bin that holds a bucket's end counts above it.
template <std::size_t N>
ClientMetric histogram(const DurationHistogram& from, const std::array<double, N>& ends_s) {
  ClientMetric metric;
  std::size_t bin = 0;
  std::int64_t seen = 0;
  const auto up_to = [&](double end_s) {
    while (bin < DurationHistogram::kBins &&
           static_cast<double>(DurationHistogram::end_ns(bin)) <= end_s * 1e9) {
      seen += from.in_bin(bin++);
    }
    metric.histogram.bucket.push_back({static_cast<std::uint64_t>(seen), end_s});
  };
  for (const double end_s : ends_s) up_to(end_s);
  up_to(std::numeric_limits<double>::infinity());
  metric.histogram.sample_count = static_cast<std::uint64_t>(seen);
  metric.histogram.sample_sum = from.sum_s();
  return metric;
}

// `telemetry` may be null.
std::vector<MetricFamily> collect(const Statistics& s, const Predictor& predictor,
                                  const FrameSink* telemetry) {
  std::vector<ClientMetric> batches;
  for (std::size_t i = 0; i < kOutcomeNames.size(); ++i) {
    batches.push_back(labelled({{"outcome", kOutcomeNames[i]}}, MetricType::Counter,
                               static_cast<double>(s.batches[i].get())));
  }
  std::vector<ClientMetric> packets;
  for (const auto& [queue, name] : {std::pair{kClassic, "classic"}, std::pair{kL4s, "l4s"}}) {
    packets.push_back(labelled({{"queue", name}}, MetricType::Counter,
                               static_cast<double>(s.packets[queue].get())));
  }
  std::vector<ClientMetric> guarded;
  for (std::size_t i = 0; i < Guard::kStateNames.size(); ++i) {
    guarded.push_back(labelled({{"state", Guard::kStateNames[i]}}, MetricType::Gauge,
                               static_cast<double>(s.guard.receivers[i].get())));
  }
  std::vector<ClientMetric> version;
  std::vector<ClientMetric> connected;
  std::vector<ClientMetric> refused;
  std::vector<ClientMetric> refusals;
  std::vector<ClientMetric> resends;
  for (const ServerState& server : predictor.servers()) {
    const std::vector<ClientMetric::Label> label{{"server", server.name}};
    connected.push_back(labelled(label, MetricType::Gauge, server.connected ? 1 : 0));
    refused.push_back(labelled(label, MetricType::Gauge, server.refused ? 1 : 0));
    refusals.push_back(labelled(label, MetricType::Counter, static_cast<double>(server.refusals)));
    resends.push_back(labelled(label, MetricType::Counter, static_cast<double>(server.resends)));
    if (server.version >= 0) {
      version.push_back(labelled(label, MetricType::Gauge, static_cast<double>(server.version)));
    }
  }
  const auto single = [](MetricType type, const Counter& counter) {
    return std::vector{labelled({}, type, static_cast<double>(counter.get()))};
  };
  const std::int64_t dropped = telemetry == nullptr ? 0 : telemetry->dropped();
  return {
      family("batches_total", "Batches of 8 packets by outcome.", MetricType::Counter,
             std::move(batches)),
      family("packets_total", "Packets by the alternative they were given.", MetricType::Counter,
             std::move(packets)),
      family("round_trip_seconds", "Seconds from question to answer.", MetricType::Histogram,
             {histogram(s.round_trip, kRoundTripBuckets)}),
      family("server_version", "Model version served there, as far as known.", MetricType::Gauge,
             std::move(version)),
      family("connected", "1 while answers can be expected of the server.", MetricType::Gauge,
             std::move(connected)),
      family("model_refused", "1 while the model there is damaged or made for other features.",
             MetricType::Gauge, std::move(refused)),
      family("refused_models_total", "Models found damaged or made for other features.",
             MetricType::Counter, std::move(refusals)),
      family("resends_total", "Times that the server had lost a sender's events.",
             MetricType::Counter, std::move(resends)),
      family("rule_batches_total", "Batches without an answer that the virtual queue decided.",
             MetricType::Counter, single(MetricType::Counter, s.by_rule)),
      family("stale_answers_total", "Answers that came after their batch was due.",
             MetricType::Counter, single(MetricType::Counter, s.stale)),
      family("moved_unacked", "Packets moved to alternative 0 and not acknowledged yet.",
             MetricType::Gauge, single(MetricType::Gauge, s.moved_unacked)),
      family("guard_receivers", "Receivers by the guard's state.", MetricType::Gauge,
             std::move(guarded)),
      family("guard_trials_total", "Trials of moving to a receiver.", MetricType::Counter,
             single(MetricType::Counter, s.guard.trials)),
      family("guard_stops_total", "Times that moving to a receiver stopped.", MetricType::Counter,
             single(MetricType::Counter, s.guard.stops)),
      family("guard_grown_total", "Stops because the moved flows' rate had grown.",
             MetricType::Counter, single(MetricType::Counter, s.guard.grown)),
      family("guard_advantage_total", "Stops because moved flows had gained on classic ones.",
             MetricType::Counter, single(MetricType::Counter, s.guard.advantage)),
      family("guard_pairs_total", "Moved batches compared with batches that were not.",
             MetricType::Counter, single(MetricType::Counter, s.guard.pairs)),
      family("predicted_latency_seconds",
             "Latency predicted for each acknowledged packet in the queue it took, seconds.",
             MetricType::Histogram, {histogram(s.predicted_latency, kLatencyBuckets)}),
      family("prediction_error_seconds",
             "|predicted - measured latency| of each acknowledged packet, seconds.",
             MetricType::Histogram, {histogram(s.prediction_error, kErrorBuckets)}),
      family("senders", "Senders connected.", MetricType::Gauge,
             single(MetricType::Gauge, s.senders)),
      family("undelivered_decisions_total", "Decisions that a sender's socket did not take.",
             MetricType::Counter, single(MetricType::Counter, s.undelivered)),
      family("refused_senders_total", "Connections that were refused.", MetricType::Counter,
             {labelled({}, MetricType::Counter,
                       static_cast<double>(s.refused.get() + s.turned_away.get()))}),
      family("remembered_packets", "Packets in flight, or given up, whose ACK may still come.",
             MetricType::Gauge, single(MetricType::Gauge, s.remembered)),
      family("overflowed_packets_total", "Packets given up before their time, for want of room.",
             MetricType::Counter, single(MetricType::Counter, s.overflowed)),
      family("telemetry_dropped_frames_total", "Telemetry frames that nobody took in time.",
             MetricType::Counter,
             {labelled({}, MetricType::Counter, static_cast<double>(dropped))}),
  };
}

}  // namespace

Metrics::Metrics(const std::string& address, int port, const Statistics& statistics,
                 const Predictor& predictor, const FrameSink* telemetry) {
  const auto page = [&statistics, &predictor, telemetry] {
    return prometheus::TextSerializer().Serialize(collect(statistics, predictor, telemetry));
  };
  try {
    page_ = std::make_unique<HttpPage>(address, port, "/metrics", page);
  } catch (const std::exception&) {
    throw std::runtime_error("--metrics-port " + std::to_string(port) + " at " + address +
                             ": cannot listen there; 0 takes any free port");
  }
}

}  // namespace swiftqueue::agent
