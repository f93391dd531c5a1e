// SPDX-License-Identifier: Apache-2.0
//
// Forecasts of rates by Triton: a thread asks about everything that waits in one request, whose
// input is that of README.md of the study of rates, "Registered and served".
#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include "serving/agent/io/clock.h"
#include "serving/agent/predictors/triton_channel.h"
#include "studies/rate/_build/schema_hash.h"
#include "studies/rate/native/kept_rates.h"
#include "studies/rate/samples/feedback.h"

namespace swiftqueue::agent {
namespace {

constexpr std::size_t kMostQuestions = 64;  // in a request
constexpr std::size_t kMostWaiting = 1024;  // then a question is late at once
constexpr std::int64_t kLeastUs = 1'000;    // time that an answer may take, whatever the round trip
constexpr std::int64_t kMostUs = 1'000'000;
constexpr std::int64_t kRestNs = 1'000'000'000;  // rest of a server that did not answer in time
constexpr std::size_t kInputs = std::size_t{rate::kMostSamples} * rate::kFieldCount;
constexpr std::size_t kAnswerBytes = rate::kHorizons.size() * sizeof(float);

struct Question {
  RateAnswer answer;  // to be
  std::int64_t due_ns = 0;
  std::array<float, kInputs> x_SF{};
};

struct Known {
  rate::SampleStream stream;
  std::array<float, kInputs> x_SF{};
  int samples = 0;
};

class TritonRates final : public KeptRates<Known> {
 public:
  TritonRates(const TritonOptions& options, std::function<void()> woken)
      : model_(options.model), woken_(std::move(woken)) {
    const auto credentials = make_credentials(options);
    for (const std::string& server : options.servers) {
      servers_.push_back(
          {server, inference::GRPCInferenceService::NewStub(make_channel(server, credentials))});
    }
    thread_ = std::thread([this] { run(); });
  }

  ~TritonRates() override { stop(); }

  void sample(std::uint32_t sender, const SampleFrame& frame, std::int64_t arrived_ns) override {
    Known* known = frame.sample == 0 ? &known_.begin(sender, frame.connection)
                                     : known_.find(sender, frame.connection);
    RateAnswer answer = rate_answer(sender, frame, arrived_ns, RateOutcome::kNone);
    const bool added = known != nullptr && known->samples == frame.sample &&
                       known->samples < rate::kMostSamples &&
                       known->stream.push(frame.fields.data(),
                                          known->x_SF.data() + frame.sample * rate::kFieldCount);
    if (added) ++known->samples;
    const int least = *std::min_element(rate::kPrefixes.begin(), rate::kPrefixes.end());
    if (!added) {
      note("connection " + std::to_string(frame.connection) + ": sample " +
           std::to_string(frame.sample) + " cannot be, or those before it are missing");
    }
    const std::lock_guard lock(mutex_);
    if (frame.asked != 0) {
      const std::int64_t trip_us = frame.fields[rate::At::min_rtt];
      if (!added || known->samples < least) {
        answers_.push_back(answer);
      } else if (waiting_.size() >= kMostWaiting) {
        answer.frame.outcome = RateOutcome::kLate;
        answers_.push_back(answer);
      } else {
        waiting_.push_back(
            {answer, arrived_ns + 1000 * std::clamp(trip_us, kLeastUs, kMostUs), known->x_SF});
        changed_.notify_all();
      }
    }
    if (frame.last != 0) known_.forget(sender, frame.connection);
  }

 private:
  struct Server {
    std::string name;
    std::unique_ptr<inference::GRPCInferenceService::Stub> stub;
    std::int64_t checked = -1;       // the version whose configuration was looked at
    std::int64_t rest_until_ns = 0;  // asked last until then
  };

  void run() {
    std::vector<Question> asked;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
        if (closing_) return;
        asked.clear();
        while (!waiting_.empty() && asked.size() < kMostQuestions) {  // the newest first
          asked.push_back(waiting_.back());
          waiting_.pop_back();
        }
      }
      const std::int64_t now_ns = monotonic_ns();
      const auto late = std::stable_partition(asked.begin(), asked.end(),
                                              [&](const Question& q) { return q.due_ns > now_ns; });
      for (auto each = late; each != asked.end(); ++each) {
        each->answer.frame.outcome = RateOutcome::kLate;
      }
      std::string problem;
      if (late != asked.begin()) {
        problem = ask({asked.data(), static_cast<std::size_t>(late - asked.begin())});
      }
      note(problem);
      {
        const std::lock_guard lock(mutex_);
        for (const Question& each : asked) answers_.push_back(each.answer);
      }
      woken_();
    }
  }

  // Answers all of them, whatever comes; a line about what went wrong.
  std::string ask(std::span<Question> left) {
    const std::int64_t begun_ns = monotonic_ns();
    std::int64_t due_ns = left[0].due_ns;
    for (const Question& each : left) due_ns = std::max(due_ns, each.due_ns);
    std::string problem = "there is no server";
    RateOutcome outcome = RateOutcome::kError;
    for (const bool resting : {false, true}) {
      for (Server& server : servers_) {
        if ((begun_ns < server.rest_until_ns) != resting) continue;
        if (monotonic_ns() >= due_ns) break;
        grpc::Status status = checked(server, due_ns, problem);
        if (status.ok() && server.checked < 0) {
          outcome = RateOutcome::kNoModel;
          continue;
        }
        std::string refused;
        if (status.ok()) status = infer_all(server, left, due_ns, refused);
        if (status.ok()) return refused;
        problem = server.name + ": " + describe(status);
        server.checked = -1;
        const bool late = status.error_code() == grpc::DEADLINE_EXCEEDED;
        if (late) server.rest_until_ns = monotonic_ns() + kRestNs;
        outcome = late                                     ? RateOutcome::kLate
                  : status.error_code() == grpc::NOT_FOUND ? RateOutcome::kNoModel
                                                           : RateOutcome::kError;
      }
    }
    for (Question& each : left) each.answer.frame.outcome = outcome;
    return problem;
  }

  // Leaves in `left` what has no answer yet. One bad question has a whole request refused: fewer
  // are asked together then, until it is alone and has no forecast, and more after each answer.
  grpc::Status infer_all(Server& server, std::span<Question>& left, std::int64_t due_ns,
                         std::string& refused) {
    bool answered = false;
    for (std::size_t count = left.size(); !left.empty();) {
      count = std::min(count, left.size());
      const grpc::Status status = infer(server, left.first(count), due_ns);
      if (status.error_code() == grpc::INVALID_ARGUMENT) {
        if (count > 1) {
          count /= 2;
          continue;
        }
        refused = server.name + ": connection " + std::to_string(left[0].answer.frame.connection) +
                  ": " + describe(status);
      } else if (!status.ok()) {
        return status;
      } else {
        answered = true;
      }
      left = left.subspan(count);
      count *= 2;
    }
    if (!answered) server.checked = -1;  // another model, perhaps
    return grpc::Status::OK;
  }

  // Looks at what the server says of its model, before the first question and after a failure.
  grpc::Status checked(Server& server, std::int64_t due_ns, std::string& problem) {
    if (server.checked >= 0) return grpc::Status::OK;
    grpc::ClientContext context;
    until(context, due_ns);
    inference::ModelConfigRequest request;
    inference::ModelConfigResponse response;
    request.set_name(model_);
    const grpc::Status status = server.stub->ModelConfig(&context, request, &response);
    if (!status.ok()) return status;
    const auto& parameters = response.config().parameters();
    const auto hash = parameters.find("schema_hash");
    if (hash == parameters.end() || hash->second.string_value() != rate::kSchemaHash) {
      problem = server.name + ": the served model of rates was made for other samples";
    } else {
      server.checked = 0;
    }
    return status;
  }

  grpc::Status infer(Server& server, std::span<Question> questions, std::int64_t due_ns) {
    inference::ModelInferRequest request;
    request.set_model_name(model_);
    auto* input = request.add_inputs();
    input->set_name("window");
    input->set_datatype("FP32");
    for (const auto size : {static_cast<std::int64_t>(questions.size()),
                            std::int64_t{rate::kMostSamples}, std::int64_t{rate::kFieldCount}}) {
      input->add_shape(size);
    }
    std::string& raw = *request.add_raw_input_contents();
    raw.reserve(questions.size() * kInputs * sizeof(float));
    for (const Question& each : questions) {
      raw.append(reinterpret_cast<const char*>(each.x_SF.data()), kInputs * sizeof(float));
    }
    grpc::ClientContext context;
    until(context, due_ns);
    inference::ModelInferResponse response;
    const grpc::Status status = server.stub->ModelInfer(&context, request, &response);
    if (!status.ok()) return status;
    std::int64_t version = -1;
    const std::string& text = response.model_version();
    std::from_chars(text.data(), text.data() + text.size(), version);
    if (version < 0 || response.raw_output_contents_size() != 1 ||
        response.raw_output_contents(0).size() != questions.size() * kAnswerBytes) {
      return {grpc::INTERNAL, "the answer is not six rates of each question, of a version"};
    }
    if (version != server.checked && server.checked > 0) server.checked = -1;  // looked at anew
    if (server.checked == 0) server.checked = version;
    const char* from = response.raw_output_contents(0).data();
    const std::int64_t now_ns = monotonic_ns();
    for (Question& each : questions) {
      ForecastFrame& frame = each.answer.frame;
      std::array<float, rate::kHorizons.size()> rates{};
      std::memcpy(rates.data(), from, kAnswerBytes);
      from += kAnswerBytes;
      const bool possible =
          std::all_of(rates.begin(), rates.end(), [](float one) { return sq_rate_of(one) != 0; });
      frame.outcome = now_ns > each.due_ns ? RateOutcome::kLate
                      : possible           ? RateOutcome::kForecast
                                           : RateOutcome::kNone;
      if (frame.outcome != RateOutcome::kForecast) continue;
      frame.rates = rates;
      frame.version = version;
    }
    return status;
  }

  static void until(grpc::ClientContext& context, std::int64_t due_ns) {
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::nanoseconds(std::max<std::int64_t>(due_ns - monotonic_ns(), 0)));
  }

  const std::string model_;
  const std::function<void()> woken_;
  std::vector<Server> servers_;
  std::vector<Question> waiting_;  // shared
};

}  // namespace

std::unique_ptr<Rates> make_triton_rates(const TritonOptions& options,
                                         std::function<void()> woken) {
  return std::make_unique<TritonRates>(options, std::move(woken));
}

}  // namespace swiftqueue::agent
