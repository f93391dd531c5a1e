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
// In the tensor `session` of several sessions (docs/explanation/serving.md): numbers of each before
// its questions, and its flags.
constexpr std::size_t kSessionNumbers = 5;
constexpr std::int64_t kStart = 1;
constexpr std::int64_t kEnd = 2;
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
std::string& rows_of(inference::ModelInferRequest& talk, TalkInput input, std::size_t rows) {
  talk.mutable_inputs(input)->set_shape(1, static_cast<std::int64_t>(rows));
  talk.mutable_inputs(input)->set_shape(2, kEventWindowFeatureCount);
  std::string& raw = *talk.mutable_raw_input_contents(input);
  raw.clear();
  return raw;
}

void append(std::string& raw, const std::vector<float>& x_RF) {
  raw.append(reinterpret_cast<const char*>(x_RF.data()), x_RF.size() * sizeof(float));
}

}  // namespace

ServerSession::ServerSession() {
  do {
    while (getrandom(&id, sizeof id, 0) != sizeof id) {
    }
  } while (id == 0);  // none, to Triton
}

void Request::begin(std::uint32_t sender, const EventRows& rows) {
  sender_ = sender;
  rows_ = &rows;
  alternatives_ = 0;
  alone = resent = begins = false;
  begun = 0;
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

std::int64_t Request::first_event(const ServerSession& session, int reach) {
  if (session.open) drop([&](const Ticket& ticket) { return ticket.event < session.next; });
  if (tickets_.empty()) return -1;
  const std::int64_t begin = begin_of_session(tickets_.front().event, reach);
  if (session.open && session.next >= std::max(begin, rows_->first())) return session.next;
  drop(
      [&](const Ticket& ticket) { return begin_of_session(ticket.event, reach) < rows_->first(); });
  return tickets_.empty() ? -1 : begin_of_session(tickets_.front().event, reach);
}

void Request::answer(const char* y_BH, std::int64_t version, int server,
                     std::deque<Answer>& answers) const {
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

Parcel::Parcel(const std::string& model) {
  for (inference::ModelInferRequest* message : {&talk_, &windows_}) message->set_model_name(model);
  add_input(windows_, "window", "FP32", 3);
  windows_.mutable_inputs(0)->set_shape(2, kEventWindowFeatureCount);
}

void Parcel::begin() {
  parts_.clear();
  header_.clear();
  x_QF_.clear();
  x_EF_.clear();
  x_BWF_.clear();
  events_ = 0;
  tokens_ = 0;
}

bool Parcel::add(std::unique_ptr<Request>& request, ServerSession& session, int reach) {
  const std::int64_t first = request->first_event(session, std::max(reach, session.reach));
  if (first < 0) return false;
  const bool start = !session.open || first != session.next;
  const std::int64_t end = request->tickets().back().event;
  header_.insert(header_.end(), {static_cast<std::int64_t>(session.id), start ? kStart : 0, first,
                                 end - first, std::ssize(request->tickets())});
  std::int64_t event = first;
  for (const Ticket& ticket : request->tickets()) {
    header_.push_back(ticket.event - std::exchange(event, ticket.event));
    header_.push_back(std::int64_t{ticket.alternatives} * kHorizon);
  }
  x_QF_.insert(x_QF_.end(), request->queries().begin(), request->queries().end());
  request->rows().visit(first, end, [&](const float* x_EF, int events) {
    x_EF_.insert(x_EF_.end(), x_EF, x_EF + static_cast<std::size_t>(events) * kFeatures);
  });
  events_ += static_cast<std::size_t>(end - first);
  session.open = true;
  session.next = end;
  session.begun += start ? 1 : 0;
  request->begun = session.begun;
  request->begins = start;
  const int alternatives = request->alternatives();
  parts_.push_back({std::move(request), alternatives});
  return true;
}

void Parcel::add_end(const ServerSession& session) {
  header_.insert(header_.end(), {static_cast<std::int64_t>(session.id), kEnd, session.next, 0, 0});
  parts_.push_back({nullptr, 0});
}

bool Parcel::add_windows(std::unique_ptr<Request>& request, int tokens) {
  const std::size_t floats = static_cast<std::size_t>(tokens) * kFeatures;
  const std::size_t before = x_BWF_.size();
  x_BWF_.resize(before + static_cast<std::size_t>(request->alternatives()) * floats);
  float* x_WF = x_BWF_.data() + before;
  const float* x_HF = request->queries().data();
  for (const Ticket& ticket : request->tickets()) {
    for (int i = 0; i < ticket.alternatives; ++i) {
      if (!request->rows().window(tokens, ticket.event, x_HF, x_WF)) {
        x_BWF_.resize(before);
        return false;
      }
      x_WF += floats;
      x_HF += std::size_t{kHorizon} * kFeatures;
    }
  }
  tokens_ = tokens;
  const int alternatives = request->alternatives();
  parts_.push_back({std::move(request), alternatives});
  return true;
}

void Parcel::seal(std::uint64_t number) {
  made_ = tokens_ > 0 ? &windows_ : &talk_;
  char text[20];
  const auto end = std::to_chars(text, text + sizeof text, number).ptr;
  made_->mutable_id()->assign(text, end);
  if (tokens_ > 0) {
    const auto windows = x_BWF_.size() / (static_cast<std::size_t>(tokens_) * kFeatures);
    windows_.mutable_inputs(0)->set_shape(0, static_cast<std::int64_t>(windows));
    windows_.mutable_inputs(0)->set_shape(1, tokens_);
    windows_.mutable_raw_input_contents(0)->assign(reinterpret_cast<const char*>(x_BWF_.data()),
                                                   x_BWF_.size() * sizeof(float));
    return;
  }
  keep_inputs(talk_, events_ > 0 ? kEvents + 1 : x_QF_.empty() ? kSession + 1 : kQueries + 1);
  if (!x_QF_.empty()) append(rows_of(talk_, kQueries, x_QF_.size() / kFeatures), x_QF_);
  if (events_ > 0) append(rows_of(talk_, kEvents, events_), x_EF_);
  const std::int64_t* header = header_.data();
  std::size_t numbers = header_.size();
  if (parts_.size() == 1) {  // a session of its own: Triton's parameters name it
    auto& parameters = *talk_.mutable_parameters();
    parameters["sequence_id"].set_int64_param(header_[0]);
    parameters["sequence_start"].set_bool_param((header_[1] & kStart) != 0);
    parameters["sequence_end"].set_bool_param((header_[1] & kEnd) != 0);
    header_[kSessionNumbers - 1] = header_[2];
    header += kSessionNumbers - 1;
    numbers -= kSessionNumbers - 1;
  } else {
    talk_.mutable_parameters()->clear();
  }
  talk_.mutable_inputs(kSession)->set_shape(1, static_cast<std::int64_t>(numbers));
  talk_.mutable_raw_input_contents(kSession)->assign(reinterpret_cast<const char*>(header),
                                                     numbers * sizeof(std::int64_t));
}

const std::vector<std::int64_t>& Parcel::wanted(const inference::ModelInferResponse& response) {
  wanted_.assign(parts_.size(), -1);
  if (tokens_ > 0) return wanted_;
  const std::size_t bytes = wanted_.size() * sizeof(std::int64_t);
  const std::string* raw = output_of(response, "resend", "INT64", bytes);
  if (raw == nullptr) {
    wanted_.clear();
  } else {
    std::memcpy(wanted_.data(), raw->data(), bytes);
  }
  return wanted_;
}

bool Parcel::answer(const inference::ModelInferResponse& response, int server,
                    std::deque<Answer>& answers, std::string& error) const {
  const int alternatives = answered_alternatives();
  const char* y_BH = wanted_.empty() ? nullptr : latencies_of(response, alternatives);
  std::int64_t version = -1;
  const std::string& text = response.model_version();
  std::from_chars(text.data(), text.data() + text.size(), version);
  if (y_BH == nullptr || version < 0) {
    error = "the answer is not " + std::to_string(alternatives) + " x 8 latencies of a version";
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto& [request, sent] = parts_[i];
    if (request == nullptr || (!wanted_.empty() && wanted_[i] >= 0)) continue;
    if (!error.empty()) {
      request->fail(error, server, answers);
      continue;
    }
    // A request whose sender went has no questions any more, and its answers are passed over.
    request->answer(y_BH, version, server, answers);
    y_BH += static_cast<std::size_t>(sent) * kAnswerBytes;
  }
  return error.empty();
}

int Parcel::answered_alternatives() const {
  int sum = 0;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    if (wanted_.empty() || wanted_[i] < 0) sum += parts_[i].alternatives;
  }
  return sum;
}

std::unique_ptr<Request> RequestPool::take(std::uint32_t sender, const EventRows& rows) {
  std::unique_ptr<Request> request;
  if (free_.empty()) {
    request = std::make_unique<Request>();
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
