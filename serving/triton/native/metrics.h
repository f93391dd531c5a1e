// SPDX-License-Identifier: Apache-2.0
//
// This backend's own rows at Triton's metrics endpoint, beside Triton's own counts.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_METRICS_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_METRICS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "serving/triton/native/session_store.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {

using Labels = std::vector<std::pair<std::string, std::string>>;

class MetricFamily;

// One row; without a family (a server without metrics) it does nothing.
class Metric {
 public:
  Metric() = default;
  Metric(const MetricFamily& family, const Labels& labels);
  ~Metric();
  Metric(const Metric&) = delete;
  Metric& operator=(const Metric&) = delete;

  void set(double value);
  void add(double value);

 private:
  TRITONSERVER_Metric* metric_ = nullptr;
};

class MetricFamily {
 public:
  // Logs a warning, and leaves the family out, if the server refuses it.
  MetricFamily(MetricKind kind, const char* name, const char* description);
  ~MetricFamily();
  MetricFamily(const MetricFamily&) = delete;
  MetricFamily& operator=(const MetricFamily&) = delete;

 private:
  friend class Metric;
  TRITONSERVER_MetricFamily* family_ = nullptr;
};

// Exists once, while the backend is loaded.
struct Metrics {
  MetricFamily windows{kCounter, "swiftqueue_windows_total", "Windows predicted"};
  MetricFamily refused{kCounter, "swiftqueue_refused_requests_total",
                       "Requests answered with an error: shape, range, or not computable"};
  MetricFamily head{kGauge, "swiftqueue_head_loaded_seconds",
                    "Unix time when a version's head was loaded, of each version in memory"};
  MetricFamily encoder_family{kGauge, "swiftqueue_encoders",
                              "Distinct encoders in memory; versions that differ in their heads "
                              "share one"};
  Metric encoders{encoder_family, {}};
  MetricFamily session_family{kGauge, "swiftqueue_sessions", "Senders' sessions in memory"};
  Metric sessions{session_family, {}};
  MetricFamily opened_family{kCounter, "swiftqueue_sessions_opened_total", "Sessions opened"};
  Metric opened{opened_family, {}};
  MetricFamily evicted_family{kCounter, "swiftqueue_sessions_evicted_total",
                              "Sessions that went before their sender ended them, by reason"};
  Metric evicted{evicted_family, {{"reason", "room"}}};
  Metric expired{evicted_family, {{"reason", "idle"}}};
  MetricFamily resend_family{kCounter, "swiftqueue_resends_total",
                             "Messages answered with the wish for earlier events: the session is "
                             "not known, or has others"};
  Metric resends{resend_family, {}};

  std::mutex mutex;
  std::atomic<std::int64_t> said_open{0};  // the last value of `sessions`

  // Adds what has been counted since the last report; any thread may call.
  void report(SessionCounts& counts);
};

// The rows of one version.
struct VersionMetrics {
  VersionMetrics(const Metrics& metrics, const std::string& model, std::int64_t version,
                 const std::string& encoder);

  Metric windows;
  Metric refused;
  Metric head;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_METRICS_H_
