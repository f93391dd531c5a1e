// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/triton_server.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "serving/agent/io/clock.h"
#include "serving/agent/predictors/triton_channel.h"
#include "serving/agent/predictors/usable_model.h"

namespace swiftqueue::agent {

// The stream: one KServe ModelStreamInfer call.
struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<inference::ModelInferRequest,
                                                inference::ModelStreamInferResponse>>
      stream;
  inference::ModelStreamInferResponse response;
  grpc::Status status;
  Tag start, read, write, finish;
  int events = 0;  // events that are still to come
  bool finishing = false;
};

// One check of a server: its model's configuration, then perhaps an inference.
struct Probe {
  std::int64_t begun_ns;
  grpc::ClientContext context;        // context of the configuration's call
  grpc::ClientContext infer_context;  // context of the inference's call
  std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelConfigResponse>> config_call;
  std::unique_ptr<grpc::ClientAsyncResponseReader<inference::ModelInferResponse>> infer_call;
  inference::ModelConfigResponse config;
  inference::ModelInferResponse inferred;
  grpc::Status status;
  Tag tag;
};

namespace {

constexpr std::int64_t kMs = 1'000'000;
constexpr std::int64_t kFirstBackoffNs = 50 * kMs;
constexpr std::int64_t kLastBackoffNs = 1'000 * kMs;
constexpr std::int64_t kFirstProbePauseNs = 100 * kMs;
constexpr std::int64_t kProbePauseNs = 1'000 * kMs;
constexpr std::int64_t kProbeMs = 1'000;  // longest time of a probe
constexpr int kLateInARow = 8;            // late answers after which a server counts as slow
constexpr std::int64_t kSmooth = 64;      // answers over which times are averaged
constexpr std::int64_t kSmoothTook = 8;
constexpr std::int64_t kMostSlower =
    4;  // a request's time counts as at most so many times the others'
constexpr std::int64_t kTryNs = 20 * kMs;
constexpr std::int64_t kTogetherShare = 2;  // a request may take this part of the time left
constexpr std::int64_t kFirstRestNs = 1'000 * kMs;
constexpr std::int64_t kLastRestNs = 60'000 * kMs;
constexpr std::size_t kMostEnded = 64;
constexpr std::int64_t kMostEvents = kMaxTokens / 2;  // no further request joins a message then
const EventRows kNoRows(0);                           // rows of a sender without events

gpr_timespec in_ms(std::int64_t ms) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

std::string schema_hash_of(const inference::ModelConfig& config) {
  const auto hash = config.parameters().find("schema_hash");
  return hash == config.parameters().end() ? "" : hash->second.string_value();
}

bool is(const auto& tensor, const char* name, inference::DataType type, int dims) {
  return tensor.name() == name && tensor.data_type() == type && tensor.dims_size() == dims;
}

// Returns why this sender cannot ask the model; empty if it can.
std::string mismatch(const inference::ModelConfig& config) {
  std::int64_t tokens = 0;
  std::int64_t features = 0;
  for (const auto& input : config.input()) {
    if (is(input, "window", inference::TYPE_FP32, 2)) {
      tokens = input.dims(0);
      features = input.dims(1);
    } else if (!input.optional()) {
      tokens = features = 0;
      break;
    }
  }
  const auto answer = std::find_if(
      config.output().begin(), config.output().end(),
      [](const auto& output) { return is(output, "latency_us", inference::TYPE_FP32, 1); });
  const std::string why = why_not_usable(schema_hash_of(config), tokens, features,
                                         answer == config.output().end() ? 0 : answer->dims(0));
  if (!why.empty()) return "the served model " + why;
  if (config.max_batch_size() < kMaxAlternatives) {
    return "the served model takes fewer than " + std::to_string(kMaxAlternatives) +
           " windows in a request";
  }
  return {};
}

int tokens_of(const inference::ModelConfig& config) {
  const auto window = std::find_if(config.input().begin(), config.input().end(),
                                   [](const auto& input) { return input.name() == "window"; });
  return static_cast<int>(window->dims(0));
}

bool keeps_sessions(const inference::ModelConfig& config) {
  const auto has = [](const auto& tensors, const char* name, inference::DataType type, int dims) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const auto& tensor) { return is(tensor, name, type, dims); });
  };
  return has(config.input(), "session", inference::TYPE_INT64, 1) &&
         has(config.input(), "events", inference::TYPE_FP32, 2) &&
         has(config.input(), "queries", inference::TYPE_FP32, 2) &&
         has(config.output(), "resend", inference::TYPE_INT64, 1);
}

// Returns whether Triton says that it serves no version (any more), as it does while it ends.
bool ending(const std::string& error) {
  return error.find("has no available versions") != std::string::npos ||
         error.find("Server is stopping") != std::string::npos;
}

}  // namespace

TritonServer::TritonServer(std::string name, int index, const TritonOptions& options,
                           std::shared_ptr<grpc::ChannelCredentials> credentials,
                           grpc::CompletionQueue& queue, RequestPool& pool, Outcomes& outcomes)
    : name_(std::move(name)),
      index_(index),
      model_name_(options.model),
      credentials_(std::move(credentials)),
      queue_(queue),
      pool_(pool),
      outcomes_(outcomes),
      backoff_ns_(kFirstBackoffNs),
      probe_pause_ns_(kFirstProbePauseNs),
      problem_("not connected yet") {}

TritonServer::~TritonServer() = default;

ServerState TritonServer::state() const {
  return {name_, usable(), model_.version, problem_, !refusal_.empty(), refusals_, resends_};
}

void TritonServer::tend(std::int64_t now_ns) {
  if (call_ == nullptr && now_ns >= reopen_ns_) open();
  if (probe_ == nullptr && now_ns >= probe_ns_) begin_probe(now_ns);
  end_sessions();
}

std::int64_t TritonServer::overdue_ns(std::int64_t now_ns) const {
  if (in_flight_.empty()) return 0;
  std::int64_t due_ns = awaited_ns_;
  for (const auto& parcel : in_flight_) {
    for (const auto& [request, sent] : parcel->parts()) {
      if (request != nullptr) due_ns = std::min(due_ns, request->first_deadline_ns());
    }
  }
  return now_ns - due_ns;
}

void TritonServer::give_up(std::int64_t now_ns) {
  const std::string why =
      "no answer for " + std::to_string(overdue_ns(now_ns) / kMs) + " ms after it was due";
  leave(why, now_ns);
  lose(why, now_ns);
  // The host may be gone without any word of it: the next stream has its own connection.
  drop_probe();
  channel_.reset();
}

void TritonServer::cancel() {
  if (call_ != nullptr) lose("closed", 0);
  drop_probe();
}

std::int64_t TritonServer::least_ns(std::int64_t now_ns) const {
  return now_ns - answered_ns_ < kTryNs ? least_ns_ : 0;
}

int TritonServer::batch_limit(std::int64_t left_ns) const {
  const std::int64_t alternatives =
      left_ns / kTogetherShare / std::max<std::int64_t>(alternative_ns(), 1);
  return static_cast<int>(std::clamp<std::int64_t>(alternatives, kMaxAlternatives, max_batch_));
}

bool TritonServer::too_slow(std::int64_t now_ns) const {
  return late_ >= kLateInARow && now_ns - late_since_ns_ >= kStallNs;
}

void TritonServer::leave(const std::string& why, std::int64_t now_ns) {
  rest_ns_ = rest_ns_ == 0 ? kFirstRestNs : std::min(2 * rest_ns_, kLastRestNs);
  rest_until_ns_ = now_ns + rest_ns_;
  late_ = 0;
  late_since_ns_ = -1;
  trouble(why, now_ns);
}

void TritonServer::trouble(const std::string& why, std::int64_t now_ns) {
  problem_ = why;
  trouble_ns_ = now_ns;
  probe_pause_ns_ = kFirstProbePauseNs;
  probe_ns_ = std::min(probe_ns_, now_ns + kFirstProbePauseNs);
}

// The stream.

void TritonServer::connect() {
  if (channel_ != nullptr) return;
  channel_ = make_channel(name_, credentials_);
  stub_ = inference::GRPCInferenceService::NewStub(channel_);
}

void TritonServer::open() {
  connect();
  call_ = std::make_unique<Call>();
  call_->start = {this, call_.get(), nullptr, Tag::kStart};
  call_->read = {this, call_.get(), nullptr, Tag::kRead};
  call_->write = {this, call_.get(), nullptr, Tag::kWrite};
  call_->finish = {this, call_.get(), nullptr, Tag::kFinish};
  call_->stream = stub_->PrepareAsyncModelStreamInfer(&call_->context, &queue_);
  call_->stream->StartCall(&call_->start);
  call_->events = 1;
}

void TritonServer::send(std::vector<std::unique_ptr<Request>>& requests) {
  std::unique_ptr<Parcel> parcel = take_parcel();
  for (std::unique_ptr<Request>& request : requests) {
    if (parcel->events() > kMostEvents) {
      outcomes_.returned.push_back(std::move(request));
      continue;
    }
    const bool added = sessions_
                           ? parcel->add(request, session_of_[request->sender()], model_.reach)
                           : parcel->add_windows(request, model_.reach + kHorizon);
    if (!added) pool_.give_back(std::move(request));
  }
  requests.clear();
  parcel->parts().empty() ? give_back(std::move(parcel)) : write(std::move(parcel));
}

// Returns whether a request under way will come back because its session was lost before it: later
// questions wait for it, since a session is begun anew with the first of them.
bool TritonServer::settling() const {
  const auto comes_back = [&](const Parcel::Part& part) {
    if (part.request == nullptr) return false;
    const auto session = session_of_.find(part.request->sender());
    return session != session_of_.end() && !session->second.open &&
           session->second.begun == part.request->begun;
  };
  return std::any_of(in_flight_.begin(), in_flight_.end(), [&](const auto& parcel) {
    return std::any_of(parcel->parts().begin(), parcel->parts().end(), comes_back);
  });
}

std::unique_ptr<Parcel> TritonServer::take_parcel() {
  if (free_.empty()) free_.push_back(std::make_unique<Parcel>(model_name_));
  std::unique_ptr<Parcel> parcel = std::move(free_.back());
  free_.pop_back();
  parcel->begin();
  return parcel;
}

// Takes back a message, and the requests that are still in it.
void TritonServer::give_back(std::unique_ptr<Parcel> parcel) {
  for (auto& [request, sent] : parcel->parts()) {
    if (request != nullptr) pool_.give_back(std::move(request));
  }
  if (free_.size() < kMaxInFlight) free_.push_back(std::move(parcel));
}

void TritonServer::write(std::unique_ptr<Parcel> parcel) {
  parcel->seal(++sent_);
  const inference::ModelInferRequest& message = parcel->message();
  if (in_flight_.empty()) awaited_ns_ = kNobody;  // no answer was owed
  parcel->sent_ns = written_ns_ = monotonic_ns();
  in_flight_.push_back(std::move(parcel));
  writing_ = true;
  ++call_->events;
  call_->stream->Write(message, &call_->write);
}

void TritonServer::forget(std::uint32_t sender) {
  for (const auto& parcel : in_flight_) {
    for (const auto& [request, sent] : parcel->parts()) {
      if (request != nullptr && request->sender() == sender) request->forget();
    }
  }
  const auto place = session_of_.find(sender);
  if (place == session_of_.end()) return;
  if (place->second.open && ended_.size() < kMostEnded) ended_.push_back(place->second);
  session_of_.erase(place);
}

// Tells the server of a session that has ended. One that it is not told of ends when it is idle.
void TritonServer::end_sessions() {
  if (ended_.empty() || !room()) return;
  std::unique_ptr<Parcel> parcel = take_parcel();
  parcel->add_end(ended_.back());
  ended_.pop_back();
  write(std::move(parcel));
}

void TritonServer::handle(const Tag& tag, bool ok, std::int64_t now_ns) {
  if (tag.probe != nullptr) {
    if (tag.probe != probe_.get()) {
      std::erase_if(old_probes_, [&](const auto& probe) { return probe.get() == tag.probe; });
    } else if (tag.event == Tag::kConfig) {
      config_done(*probe_, now_ns);
    } else {
      infer_done(*probe_, now_ns);
    }
    return;
  }
  Call& call = *tag.call;
  --call.events;
  const bool current = tag.call == call_.get();
  if (tag.event == Tag::kFinish) {
    if (current) lose(describe(call.status), now_ns);
  } else if (ok && current) {
    if (tag.event == Tag::kRead) take_answer(now_ns);
    if (tag.event == Tag::kWrite) writing_ = false;
    if (tag.event == Tag::kStart) open_ = true;
    if (tag.event != Tag::kWrite) {
      ++call.events;
      call.stream->Read(&call.response, &call.read);
    }
  } else if (!call.finishing) {  // broken, or cancelled: now it gives the reason
    if (current) open_ = false;
    call.finishing = true;
    ++call.events;
    call.stream->Finish(&call.status, &call.finish);
  }
  if (call.events == 0 && tag.call != call_.get()) {
    std::erase_if(old_calls_, [&](const auto& old) { return old.get() == tag.call; });
  }
}

// Gives the stream up. Its requests go back to the predictor.
void TritonServer::lose(const std::string& why, std::int64_t now_ns) {
  call_->context.TryCancel();
  old_calls_.push_back(std::move(call_));
  open_ = writing_ = false;
  for (auto& parcel : in_flight_) {
    for (auto& [request, sent] : parcel->parts()) {
      if (request != nullptr) outcomes_.returned.push_back(std::move(request));
    }
    give_back(std::move(parcel));
  }
  in_flight_.clear();
  for (auto& [sender, session] : session_of_) session.open = false;  // nobody knows what arrived
  ended_.clear();
  reopen_ns_ = now_ns + backoff_ns_;
  backoff_ns_ = std::min(2 * backoff_ns_, kLastBackoffNs);
  trouble(why, now_ns);
}

void TritonServer::take_answer(std::int64_t now_ns) {
  const auto& response = call_->response;
  const auto place = std::find_if(in_flight_.begin(), in_flight_.end(), [&](const auto& parcel) {
    return parcel->id() == response.infer_response().id();
  });
  if (place == in_flight_.end()) {
    problem_ = "an answer to no question: " + response.error_message().substr(0, 200);
    return;
  }
  std::unique_ptr<Parcel> parcel = std::move(*place);
  in_flight_.erase(place);
  awaited_ns_ = kNobody;
  const auto waited_for = [](const Parcel::Part& part) {
    return part.request != nullptr && !part.request->empty();
  };
  if (std::any_of(parcel->parts().begin(), parcel->parts().end(), waited_for)) {
    if (ending(response.error_message())) {  // no fault of the questions: another may answer them
      in_flight_.push_back(std::move(parcel));
      lose(describe(grpc::Status(grpc::StatusCode::UNAVAILABLE, response.error_message())), now_ns);
      return;
    }
    if (response.error_message().empty()) {
      take_parts(*parcel, now_ns);
    } else {
      refuse(*parcel, response.error_message());
      probe_ns_ = std::min(probe_ns_, now_ns + kFirstProbePauseNs);  // another model may be there
    }
  }
  give_back(std::move(parcel));
}

// Takes the answers of a message, and asks again where the server lacks events.
void TritonServer::take_parts(Parcel& parcel, std::int64_t now_ns) {
  const auto& response = call_->response.infer_response();
  const std::vector<std::int64_t>& wanted = parcel.wanted(response);
  std::int64_t due_ns = std::numeric_limits<std::int64_t>::min();
  int alternatives = 0;
  for (std::size_t i = 0; i < parcel.parts().size(); ++i) {
    const auto& [request, sent] = parcel.parts()[i];
    if (request == nullptr || request->empty() || (!wanted.empty() && wanted[i] >= 0)) continue;
    due_ns = std::max(due_ns, request->deadline_ns());
    alternatives += sent;
  }
  std::string error;
  const bool good = alternatives == 0 || parcel.answer(response, index_, outcomes_.answers, error);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::unique_ptr<Request>& request = parcel.parts()[i].request;
    if (wanted[i] >= 0 && request != nullptr && !request->empty()) {
      resend(std::move(request), wanted[i]);
    }
  }
  if (alternatives == 0) return;
  const std::int64_t took_ns = now_ns - parcel.sent_ns;
  // The server computes one message after the other.
  const std::int64_t busy_ns = now_ns - std::max(parcel.sent_ns, answered_ns_);
  // A pause of a machine says little about the next message.
  const std::int64_t most_ns = took_ns_ == 0 ? took_ns : kMostSlower * took_ns_;
  took_ns_ += (std::min(took_ns, most_ns) - took_ns_) / (took_ns_ == 0 ? 1 : kSmoothTook);
  busy_ns_ += static_cast<double>(std::min(busy_ns, most_ns)) - busy_ns_ / kSmooth;
  asked_ += alternatives - asked_ / kSmooth;
  if (!good) {
    complain(": " + error);
    leave(error, now_ns);
    return;
  }
  model_.version = outcomes_.answers.back().version;
  answered_ns_ = now_ns;
  if (now_ns <= due_ns) {
    late_ = 0;
    late_since_ns_ = -1;
    least_ns_ = std::min(took_ns, least_ns_ + (took_ns - least_ns_) / kSmooth);
    backoff_ns_ = kFirstBackoffNs;
    if (now_ns - rest_until_ns_ > kLastRestNs) rest_ns_ = 0;
  } else if (late_++ == 0) {
    late_since_ns_ = due_ns;
  }
}

void TritonServer::complain(const std::string& line) {
  if (line != said_) complaints_.say(name_ + line);
  said_ = line;
}

// The server lacks events: the next message has them again. Its questions are asked once more, at
// once, if their answers can still be in time.
void TritonServer::resend(std::unique_ptr<Request> request, std::int64_t wanted) {
  ++resends_;
  const std::int64_t lacking = request->tickets().front().event - wanted;
  lost_session(*request, static_cast<int>(std::clamp<std::int64_t>(lacking, 0, kMaxTokens)));
  if (request->begins && std::exchange(request->resent, true)) {
    problem_ = "the server wants a sender's events again and again";
    request->fail(problem_, index_, outcomes_.answers);
    pool_.give_back(std::move(request));
  } else {
    outcomes_.returned.push_back(std::move(request));
  }
}

void TritonServer::lost_session(const Request& request, int reach) {
  const auto place = session_of_.find(request.sender());
  if (place == session_of_.end() || place->second.begun != request.begun) return;
  place->second.open = false;
  place->second.reach = reach;
}

// Each question of a refused message goes on its own, so that only the faulty one is refused again.
void TritonServer::refuse(Parcel& parcel, const std::string& error) {
  std::size_t questions = 0;
  for (const auto& [request, sent] : parcel.parts()) {
    if (request == nullptr) continue;
    lost_session(*request, 0);  // it may have taken some of the events
    questions += request->tickets().size();
  }
  if (questions == 1) {
    problem_ = describe(grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, error));
    complain(" refused a batch: " + problem_);
  }
  for (const auto& [request, sent] : parcel.parts()) {
    if (request == nullptr) continue;
    if (questions == 1) {
      request->fail(problem_, index_, outcomes_.answers);
      continue;
    }
    for (std::size_t i = 0; i < request->tickets().size(); ++i) {
      auto single = pool_.take(request->sender(), request->rows());
      single->alone = true;
      single->add(request->tickets()[i], request->queries_of(i));
      outcomes_.returned.push_back(std::move(single));
    }
  }
}

// The probe.

void TritonServer::begin_probe(std::int64_t now_ns) {
  connect();
  probe_ = std::make_unique<Probe>();
  probe_->begun_ns = now_ns;
  probe_->tag = {this, nullptr, probe_.get(), Tag::kConfig};
  probe_->context.set_deadline(in_ms(kProbeMs));
  inference::ModelConfigRequest request;
  request.set_name(model_name_);
  probe_->config_call = stub_->PrepareAsyncModelConfig(&probe_->context, request, &queue_);
  probe_->config_call->StartCall();
  probe_->config_call->Finish(&probe_->config, &probe_->status, &probe_->tag);
}

void TritonServer::config_done(Probe& probe, std::int64_t now_ns) {
  if (!probe.status.ok()) {
    const auto code = probe.status.error_code();
    const bool silent = code == grpc::StatusCode::DEADLINE_EXCEEDED ||
                        code == grpc::StatusCode::CANCELLED || channel_ == nullptr ||
                        channel_->GetState(false) != GRPC_CHANNEL_READY;
    if (!silent) refusal_.clear();  // without a model there is none to refuse
    return end_probe(describe(probe.status), !silent, now_ns);
  }
  const inference::ModelConfig& config = probe.config.config();
  const std::string before = std::exchange(refusal_, mismatch(config));
  if (!refusal_.empty()) {
    if (refusal_ != before) {  // it is checked again and again
      ++refusals_;
      complaints_.say(name_ + ": " + refusal_);
    }
    return end_probe(refusal_, true, now_ns);
  }
  max_batch_ = config.max_batch_size();
  model_.reach = tokens_of(config) - kHorizon;
  sessions_ = keeps_sessions(config);
  several_ = !sessions_ || config.parameters().contains("sessions_together");
  if (usable() && answered_ns_ > now_ns - kProbePauseNs) return end_probe({}, false, now_ns);
  auto parcel = padding_question();
  probe.infer_context.set_deadline(in_ms(kProbeMs));
  probe.tag.event = Tag::kInfer;
  probe.infer_call =
      stub_->PrepareAsyncModelInfer(&probe.infer_context, parcel->message(), &queue_);
  probe.infer_call->StartCall();
  probe.infer_call->Finish(&probe.inferred, &probe.status, &probe.tag);
  give_back(std::move(parcel));
}

void TritonServer::infer_done(const Probe& probe, std::int64_t now_ns) {
  if (!probe.status.ok()) return end_probe(describe(probe.status), false, now_ns);
  std::deque<Answer> answers;
  std::string error;
  auto parcel = padding_question();
  parcel->wanted(probe.inferred);
  parcel->answer(probe.inferred, index_, answers, error);
  give_back(std::move(parcel));
  if (!error.empty()) return end_probe(error, false, now_ns);
  model_.version = answers.front().version;
  proven_ns_ = probe.begun_ns;
  end_probe({}, false, now_ns);
}

// Makes a question that any model can answer.
std::unique_ptr<Parcel> TritonServer::padding_question() {
  auto request = pool_.take(0, kNoRows);
  const std::vector<float> x_HF(std::size_t{kHorizon} * kEventWindowFeatureCount);
  request->add({0, 0, 1, 0}, x_HF.data());
  auto parcel = take_parcel();
  parcel->add_windows(request, model_.reach + kHorizon);
  parcel->seal(0);
  return parcel;
}

void TritonServer::end_probe(const std::string& problem, bool model_gone, std::int64_t now_ns) {
  const bool answers = answered_ns_ > probe_->begun_ns;  // the stream does, whatever the probe says
  probe_.reset();
  if (problem.empty()) {
    if (open_) problem_.clear();
    probe_pause_ns_ = kProbePauseNs;
  } else if (model_gone || !answers) {
    const std::int64_t pause_ns = std::min(2 * probe_pause_ns_, kProbePauseNs);
    if (model_gone) model_.reach = 0;
    trouble(problem, now_ns);
    probe_pause_ns_ = pause_ns;
  }
  probe_ns_ = now_ns + probe_pause_ns_;
}

void TritonServer::drop_probe() {
  if (probe_ == nullptr) return;
  probe_->context.TryCancel();
  probe_->infer_context.TryCancel();
  old_probes_.push_back(std::move(probe_));
}

}  // namespace swiftqueue::agent
