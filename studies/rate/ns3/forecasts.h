// SPDX-License-Identifier: GPL-2.0-only
//
// Where a run's forecasts come from: what flows may do, and what each is told.

#ifndef SWIFTQUEUE_RATE_FORECASTS_H
#define SWIFTQUEUE_RATE_FORECASTS_H

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "ns3/double.h"
#include "ns3/random-variable-stream.h"
#include "serving/engine/error.h"
#include "studies/rate/native/rate_model.h"
#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::rate {

/** Of one run. A forecast is of bytes/s; whatever it is, it is told. */
class Forecasts {
 public:
  struct Options {
    std::string kind{"none"};  // none, oracle, random, dispersion, previous, network
    double scale{1};           // each is multiplied by it
    std::string artifact;      // folder of the network
    double truthBytesPerS{0};
  };

  explicit Forecasts(const Options& options) : m_options(options) {
    const std::array kinds{"none", "oracle", "random", "dispersion", "previous", "network"};
    if (std::find(kinds.begin(), kinds.end(), options.kind) == kinds.end()) {
      throw std::runtime_error("forecast " + options.kind + ": there is none of this name");
    }
    if (options.kind == "network") {
      m_model = std::make_unique<RateModel>(options.artifact, "auto");
    }
    m_random->SetStream(4);
    m_random->SetAttribute("Min", ns3::DoubleValue(std::log(0.1)));
    m_random->SetAttribute("Max", ns3::DoubleValue(std::log(10)));
  }

  bool IsAny() const { return m_options.kind != "none"; }

  double Make(uint32_t receiver, uint64_t dispersion, const std::vector<Sample>& samples) {
    return m_options.scale * Say(receiver, dispersion, samples);
  }

  /** A flow to this receiver ended, and BBR's estimate was so high. */
  void Remember(uint32_t receiver, int64_t estimate) { m_previous[receiver] = estimate; }

 private:
  double Say(uint32_t receiver, uint64_t dispersion, const std::vector<Sample>& samples) {
    if (m_options.kind == "oracle") {
      return m_options.truthBytesPerS;
    }
    if (m_options.kind == "random") {
      return m_options.truthBytesPerS * std::exp(m_random->GetValue());
    }
    if (m_options.kind == "previous" && m_previous.contains(receiver)) {
      return static_cast<double>(m_previous[receiver]);
    }
    if (m_options.kind == "network") {
      try {
        RateFlow flow(*m_model);
        for (const Sample& sample : samples) {
          flow.push(sample.data());
        }
        return flow.forecast().back();  // the last horizon's
      } catch (const engine::InvalidError&) {
        return 0;  // the sender goes on without one
      }
    }
    return static_cast<double>(dispersion);
  }

  Options m_options;
  std::unique_ptr<RateModel> m_model;
  std::map<uint32_t, int64_t> m_previous;
  ns3::Ptr<ns3::UniformRandomVariable> m_random{ns3::CreateObject<ns3::UniformRandomVariable>()};
};

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_RATE_FORECASTS_H
