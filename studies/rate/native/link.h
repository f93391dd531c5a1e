// SPDX-License-Identifier: Apache-2.0
//
// A sender's connection with swiftqueue-rate-agent. Without an agent, or when it goes, there are no
// forecasts.
//
//   RateLink link("var/rate-agent.sock", "loader");
//   link.turn(now_ns);    // often: takes what came; without a connection it tries each second
//   link.sample(frame);   // a sample of a TCP connection; the frame says whether it asks
//   link.forecast();      // the next answer
//
// Times are CLOCK_MONOTONIC. One thread.
#ifndef SWIFTQUEUE_STUDIES_RATE_LINK_H_
#define SWIFTQUEUE_STUDIES_RATE_LINK_H_

#include <deque>
#include <optional>

#include "serving/agent/io/agent_socket.h"
#include "studies/rate/native/frames.h"

namespace swiftqueue::agent {

class RateLink final : public AgentSocket<RateFrame, read_rate_frame> {
 public:
  using AgentSocket::AgentSocket;

  void sample(const SampleFrame& frame) {
    if (connected()) say(frame);
  }

  // Returns an answer; each is given once.
  std::optional<ForecastFrame> forecast() {
    if (forecasts_.empty()) return std::nullopt;
    const ForecastFrame next = forecasts_.front();
    forecasts_.pop_front();
    return next;
  }

 private:
  void took(const RateFrame& frame) override {
    if (frame.header.type == ForecastFrame::kType) forecasts_.push_back(frame.forecast);
  }
  void gone() override { forecasts_.clear(); }

  std::deque<ForecastFrame> forecasts_;  // not taken yet
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_STUDIES_RATE_LINK_H_
