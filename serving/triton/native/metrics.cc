// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/metrics.h"

#include "serving/triton/native/guard.h"

namespace swiftqueue::backend {
namespace {

Labels with(Labels labels, const std::string& name, const std::string& value) {
  labels.emplace_back(name, value);
  return labels;
}

Labels version_labels(const std::string& model, std::int64_t version) {
  return {{"model", model}, {"version", std::to_string(version)}};
}

}  // namespace

Metric::Metric(const MetricFamily& family, const Labels& labels) {
  if (family.family_ == nullptr) return;
  std::vector<const TRITONSERVER_Parameter*> parameters;
  for (const auto& [name, value] : labels) {
    parameters.push_back(TRITONSERVER_ParameterNew(name.c_str(), kString, value.c_str()));
  }
  if (!logged(
          TRITONSERVER_MetricNew(&metric_, family.family_, parameters.data(), parameters.size()))) {
    metric_ = nullptr;
  }
  for (const TRITONSERVER_Parameter* parameter : parameters) {
    TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(parameter));
  }
}

Metric::~Metric() {
  if (metric_ != nullptr) logged(TRITONSERVER_MetricDelete(metric_));
}

void Metric::set(double value) {
  if (metric_ != nullptr) logged(TRITONSERVER_MetricSet(metric_, value));
}

void Metric::add(double value) {
  if (metric_ != nullptr) {
    logged(TRITONSERVER_MetricIncrement(metric_, value));
  }
}

MetricFamily::MetricFamily(MetricKind kind, const char* name, const char* description) {
  if (!logged(TRITONSERVER_MetricFamilyNew(&family_, kind, name, description))) {
    family_ = nullptr;
  }
}

MetricFamily::~MetricFamily() {
  if (family_ != nullptr) logged(TRITONSERVER_MetricFamilyDelete(family_));
}

void Metrics::report(SessionCounts& counts) {
  const auto add = [](Metric& metric, std::atomic<std::int64_t>& count) {
    if (count.load(std::memory_order_relaxed) == 0) return;
    metric.add(static_cast<double>(count.exchange(0)));
  };
  add(opened, counts.opened);
  add(evicted, counts.evicted);
  add(expired, counts.expired);
  add(resends, counts.resends);
  if (counts.open == said_open) return;
  const std::lock_guard lock(mutex);  // else an older number could be said last
  said_open = counts.open.load();
  sessions.set(static_cast<double>(said_open));
}

VersionMetrics::VersionMetrics(const Metrics& metrics, const std::string& model,
                               std::int64_t version, const std::string& encoder)
    : windows(metrics.windows, version_labels(model, version)),
      refused(metrics.refused, version_labels(model, version)),
      head(metrics.head, with(version_labels(model, version), "encoder", encoder)) {}

}  // namespace swiftqueue::backend
