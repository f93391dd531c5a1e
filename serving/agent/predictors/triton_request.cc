// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/triton_request.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
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
constexpr std::size_t kFeatures = kEventWindowFeatureCount;
// Inputs of a session's message. The last ones are left out where there is nothing in them.
enum TalkInput { kSession, kQueries, kEvents };
constexpr const char* kTalkInputs[] = {"session", "queries", "events"};

bool finite(const std::string& raw) {
  for (std::size_t at = 0; at < raw.size(); at += sizeof(float)) {
    float us = 0;
    std::memcpy(&us, &raw[at], sizeof us);
    if (!std::isfinite(us)) return false;
  }
  return true;
}

// Returns an output's contents; nullptr if there is none of this type and size.
const std::string* output_of(const inference::ModelInferResponse& response, const char* name,
                             const char* type, std::size_t bytes) {
  const int outputs = std::min(response.outputs_size(), response.raw_output_contents_size());
  for (int i = 0; i < outputs; ++i) {
    const std::string& raw = response.raw_output_contents(i);
    if (response.outputs(i).name() == name && response.outputs(i).datatype() == type &&
        raw.size() == bytes) {
      return &raw;
    }
  }
  return nullptr;
}

// Returns the latencies of a response about so many alternatives; nullptr if it has another size,
// or a value that is not finite: that is a server's fault, where a negative one is the model's.
const char* latencies_of(const inference::ModelInferResponse& response, int alternatives) {
  const std::string* raw = output_of(response, "latency_us", "FP32",
                                     static_cast<std::size_t>(alternatives) * kAnswerBytes);
  return raw != nullptr && finite(*raw) ? raw->data() : nullptr;
}

void add_input(inference::ModelInferRequest& message, const char* name, const char* type,
               int dimensions) {
  auto* input = message.add_inputs();
  input->set_name(name);
  input->set_datatype(type);
  input->mutable_shape()->Resize(dimensions, 1);
  message.add_raw_input_contents();
}

// Makes a session's message have its first `count` inputs.
void keep_inputs(inference::ModelInferRequest& talk, int count) {
  while (talk.inputs_size() > count) {
    talk.mutable_inputs()->RemoveLast();
    talk.mutable_raw_input_contents()->RemoveLast();
  }
  for (int i = talk.inputs_size(); i < count; ++i) {
    add_input(talk, kTalkInputs[i], i == kSession ? "INT64" : "FP32", i == kSession ? 2 : 3);
  }
}

// Puts `rows` rows into an input of a session's message, which the caller appends.
std::string& rows_of(inference::ModelInferRequest& talk, TalkInput input, std::int64_t rows) {
  talk.mutable_inputs(input)->set_shape(1, rows);
  talk.mutable_inputs(input)->set_shape(2, kEventWindowFeatureCount);
  std::string& raw = *talk.mutable_raw_input_contents(input);
  raw.clear();
  return raw;
}

void append(std::string& raw, const float* x_RF, std::size_t rows) {
  raw.append(reinterpret_cast<const char*>(x_RF), rows * kFeatures * sizeof(float));
}

}  // namespace

ServerSession::ServerSession() {
  do {
    while (getrandom(&id, sizeof id, 0) != sizeof id) {
    }
  } while (id == 0);  // none, to Triton
}

Request::Request(const std::string& model) {
  for (inference::ModelInferRequest* message : {&talk_, &windows_}) message->set_model_name(model);
  add_input(windows_, "window", "FP32", 3);
  windows_.mutable_inputs(0)->set_shape(2, kEventWindowFeatureCount);
}

void Request::begin(std::uint32_t sender, const EventRows& rows) {
  sender_ = sender;
  rows_ = &rows;
  begun_ = 0;
  alternatives_ = 0;
  alone = resent = false;
  tickets_.clear();
  x_QF_.clear();
}

void Request::add(const Ticket& ticket, const float* x_QF) {
  tickets_.push_back(ticket);
  alternatives_ += ticket.alternatives;
  x_QF_.insert(x_QF_.end(), x_QF,
               x_QF + static_cast<std::size_t>(ticket.alternatives) * kHorizon * kFeatures);
}

template <typename Gone>
void Request::drop(Gone gone) {
  float* kept = x_QF_.data();
  const float* next = x_QF_.data();
  alternatives_ = 0;
  std::erase_if(tickets_, [&](const Ticket& ticket) {
    const auto floats = static_cast<std::size_t>(ticket.alternatives) * kHorizon * kFeatures;
    const float* const from = std::exchange(next, next + floats);
    if (gone(ticket)) return true;
    if (kept != from) std::memmove(kept, from, floats * sizeof(float));
    kept += floats;
    alternatives_ += ticket.alternatives;
    return false;
  });
  x_QF_.resize(static_cast<std::size_t>(kept - x_QF_.data()));
}

void Request::drop_expired(std::int64_t now_ns) {
  drop([&](const Ticket& ticket) { return ticket.deadline_ns <= now_ns; });
}

void Request::forget() {
  drop([](const Ticket&) { return true; });
}

void Request::seal(inference::ModelInferRequest& message, std::uint64_t number) {
  char text[20];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  message.mutable_id()->assign(text, end);
  made_ = &message;
}

void Request::name_session(std::uint64_t id, bool start, bool end) {
  auto& parameters = *talk_.mutable_parameters();
  parameters["sequence_id"].set_int64_param(static_cast<std::int64_t>(id));
  parameters["sequence_start"].set_bool_param(start);
  parameters["sequence_end"].set_bool_param(end);
  talk_.mutable_inputs(kSession)->set_shape(1, static_cast<std::int64_t>(header_.size()));
  talk_.mutable_raw_input_contents(kSession)->assign(reinterpret_cast<const char*>(header_.data()),
                                                     header_.size() * sizeof(std::int64_t));
}

bool Request::go_on(std::uint64_t number, ServerSession& session, int reach) {
  reach = std::max(reach, session.reach);
  if (session.open) drop([&](const Ticket& ticket) { return ticket.event < session.next; });
  if (tickets_.empty()) return false;
  std::int64_t first = session.next;
  bool start = false;
  if (!session.open || first < rows_->first() ||
      first < begin_of_session(tickets_.front().event, reach)) {
    start = true;
    drop([&](const Ticket& ticket) {
      return begin_of_session(ticket.event, reach) < rows_->first();
    });
    if (tickets_.empty()) return false;
    first = begin_of_session(tickets_.front().event, reach);
  }
  const std::int64_t end = tickets_.back().event;
  header_.assign(1, first);
  std::int64_t event = first;
  for (const Ticket& ticket : tickets_) {
    header_.push_back(ticket.event - std::exchange(event, ticket.event));
    header_.push_back(std::int64_t{ticket.alternatives} * kHorizon);
  }
  keep_inputs(talk_, end > first ? kEvents + 1 : kEvents);
  name_session(session.id, start, false);
  append(rows_of(talk_, kQueries, std::int64_t{alternatives_} * kHorizon), x_QF_.data(),
         x_QF_.size() / kFeatures);
  if (end > first) {
    std::string& events = rows_of(talk_, kEvents, end - first);
    rows_->visit(first, end, [&](const float* x_EF, int count) {
      append(events, x_EF, static_cast<std::size_t>(count));
    });
  }
  session.open = true;
  session.next = end;
  session.begun += start ? 1 : 0;
  begun_ = session.begun;
  begins_ = start;
  seal(talk_, number);
  return true;
}

void Request::end(std::uint64_t number, const ServerSession& session) {
  header_.assign(1, session.next);
  keep_inputs(talk_, kSession + 1);
  name_session(session.id, false, true);
  seal(talk_, number);
}

bool Request::make_windows(std::uint64_t number, int tokens) {
  const std::size_t floats = static_cast<std::size_t>(tokens) * kFeatures;
  x_BWF_.resize(static_cast<std::size_t>(alternatives_) * floats);
  float* x_WF = x_BWF_.data();
  const float* x_HF = x_QF_.data();
  for (const Ticket& ticket : tickets_) {
    for (int i = 0; i < ticket.alternatives; ++i) {
      if (!rows_->window(tokens, ticket.event, x_HF, x_WF)) return false;
      x_WF += floats;
      x_HF += std::size_t{kHorizon} * kFeatures;
    }
  }
  windows_.mutable_inputs(0)->set_shape(0, alternatives_);
  windows_.mutable_inputs(0)->set_shape(1, tokens);
  windows_.mutable_raw_input_contents(0)->assign(reinterpret_cast<const char*>(x_BWF_.data()),
                                                 x_BWF_.size() * sizeof(float));
  seal(windows_, number);
  return true;
}

std::int64_t resend_wanted(const inference::ModelInferResponse& response) {
  std::int64_t wanted = -1;
  const std::string* raw = output_of(response, "resend", "INT64", sizeof wanted);
  if (raw != nullptr) std::memcpy(&wanted, raw->data(), sizeof wanted);
  return wanted;
}

void Request::answer(const inference::ModelInferResponse& response, int server,
                     std::deque<Answer>& answers) const {
  const char* y_BH = latencies_of(response, alternatives_);
  std::int64_t version = -1;
  const std::string& text = response.model_version();
  std::from_chars(text.data(), text.data() + text.size(), version);
  if (y_BH == nullptr || version < 0) {
    fail("the answer is not " + std::to_string(alternatives_) + " x 8 latencies of a version",
         server, answers);
    return;
  }
  for (const Ticket& ticket : tickets_) {
    Answer& answer = answers.emplace_back();
    answer.ticket = ticket.number;
    answer.ok = true;
    answer.version = version;
    answer.server = server;
    const std::size_t bytes = static_cast<std::size_t>(ticket.alternatives) * kAnswerBytes;
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

const float* Request::queries_of(std::size_t index) const {
  const float* x_QF = x_QF_.data();
  for (std::size_t i = 0; i < index; ++i) {
    x_QF += static_cast<std::size_t>(tickets_[i].alternatives) * kHorizon * kFeatures;
  }
  return x_QF;
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

std::unique_ptr<Request> RequestPool::take(std::uint32_t sender, const EventRows& rows) {
  std::unique_ptr<Request> request;
  if (free_.empty()) {
    request = std::make_unique<Request>(model_);
  } else {
    request = std::move(free_.back());
    free_.pop_back();
  }
  request->begin(sender, rows);
  return request;
}

void RequestPool::give_back(std::unique_ptr<Request> request) {
  if (free_.size() < kFreeRequests) free_.push_back(std::move(request));
}

}  // namespace swiftqueue::agent
