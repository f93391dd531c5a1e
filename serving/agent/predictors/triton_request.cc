// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/triton_request.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace swiftqueue::agent {
namespace {

static_assert(std::endian::native == std::endian::little,
              "KServe's raw contents are little-endian");

constexpr std::size_t kFreeRequests = 16;
constexpr std::size_t kAnswerBytes = kHorizon * sizeof(float);

bool finite(const std::string& raw) {
  for (std::size_t at = 0; at < raw.size(); at += sizeof(float)) {
    float us = 0;
    std::memcpy(&us, &raw[at], sizeof us);
    if (!std::isfinite(us)) return false;
  }
  return true;
}

// Returns the latencies of a response about `windows` windows; nullptr if it has another size, or a
// value that is not finite: that is a server's fault, where a negative one is the model's.
const char* latencies_of(const inference::ModelInferResponse& response, int windows) {
  const int outputs = std::min(response.outputs_size(), response.raw_output_contents_size());
  for (int i = 0; i < outputs; ++i) {
    const std::string& raw = response.raw_output_contents(i);
    if (response.outputs(i).name() == "latency_us" && response.outputs(i).datatype() == "FP32" &&
        raw.size() == static_cast<std::size_t>(windows) * kAnswerBytes && finite(raw)) {
      return raw.data();
    }
  }
  return nullptr;
}

}  // namespace

Request::Request(const std::string& model) {
  message_.set_model_name(model);
  auto* input = message_.add_inputs();
  input->set_name("window");
  input->set_datatype("FP32");
  input->mutable_shape()->Resize(3, 0);
  message_.add_raw_input_contents();
}

std::size_t Request::window_bytes() const { return model_.floats() * sizeof(float); }

void Request::begin(const Model& model) {
  model_ = model;
  windows_ = 0;
  alone = false;
  tickets_.clear();
  message_.mutable_raw_input_contents(0)->clear();
  message_.mutable_id()->clear();
}

void Request::add(const Ticket& ticket, const void* x_BWF) {
  tickets_.push_back(ticket);
  windows_ += ticket.windows;
  message_.mutable_raw_input_contents(0)->append(
      static_cast<const char*>(x_BWF), static_cast<std::size_t>(ticket.windows) * window_bytes());
}

void Request::drop_expired(std::int64_t now_ns) {
  char* const x_BWF = message_.mutable_raw_input_contents(0)->data();
  char* kept = x_BWF;
  const char* next = x_BWF;
  windows_ = 0;
  std::erase_if(tickets_, [&](const Ticket& ticket) {
    const std::size_t bytes = static_cast<std::size_t>(ticket.windows) * window_bytes();
    const char* const from = std::exchange(next, next + bytes);
    if (ticket.deadline_ns <= now_ns) return true;
    if (kept != from) std::memmove(kept, from, bytes);
    kept += bytes;
    windows_ += ticket.windows;
    return false;
  });
  message_.mutable_raw_input_contents(0)->resize(static_cast<std::size_t>(kept - x_BWF));
}

const inference::ModelInferRequest& Request::sealed(std::uint64_t number) {
  char text[20];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  message_.mutable_id()->assign(text, end);
  auto* shape = message_.mutable_inputs(0)->mutable_shape();
  shape->Set(0, windows_);
  shape->Set(1, model_.tokens);
  shape->Set(2, kEventWindowFeatureCount);
  return message_;
}

void Request::answer(const inference::ModelInferResponse& response, int server,
                     std::deque<Answer>& answers) const {
  const char* y_BH = latencies_of(response, windows_);
  std::int64_t version = -1;
  const std::string& text = response.model_version();
  std::from_chars(text.data(), text.data() + text.size(), version);
  if (y_BH == nullptr || version < 0) {
    fail("the answer is not " + std::to_string(windows_) + " x 8 latencies of a version", server,
         answers);
    return;
  }
  for (const Ticket& ticket : tickets_) {
    Answer& answer = answers.emplace_back();
    answer.ticket = ticket.number;
    answer.ok = true;
    answer.version = version;
    answer.server = server;
    const std::size_t bytes = static_cast<std::size_t>(ticket.windows) * kAnswerBytes;
    std::memcpy(answer.y_BH.data(), y_BH, bytes);
    y_BH += bytes;
  }
}

void Request::fail(const std::string& error, int server, std::deque<Answer>& answers) const {
  for (const Ticket& ticket : tickets_) {
    Answer& answer = answers.emplace_back();
    answer.ticket = ticket.number;
    answer.server = server;
    answer.error = error;
  }
}

const char* Request::windows_of(std::size_t index) const {
  const char* x_BWF = message_.raw_input_contents(0).data();
  for (std::size_t i = 0; i < index; ++i) {
    x_BWF += static_cast<std::size_t>(tickets_[i].windows) * window_bytes();
  }
  return x_BWF;
}

std::int64_t Request::first_deadline_ns() const {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const Ticket& ticket : tickets_) first = std::min(first, ticket.deadline_ns);
  return first;
}

std::int64_t Request::deadline_ns() const {
  std::int64_t latest = std::numeric_limits<std::int64_t>::min();
  for (const Ticket& ticket : tickets_) latest = std::max(latest, ticket.deadline_ns);
  return latest;
}

std::unique_ptr<Request> RequestPool::take(const Model& model) {
  std::unique_ptr<Request> request;
  if (free_.empty()) {
    request = std::make_unique<Request>(model_);
  } else {
    request = std::move(free_.back());
    free_.pop_back();
  }
  request->begin(model);
  return request;
}

void RequestPool::give_back(std::unique_ptr<Request> request) {
  if (free_.size() < kFreeRequests) free_.push_back(std::move(request));
}

}  // namespace swiftqueue::agent
