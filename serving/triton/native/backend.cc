// SPDX-License-Identifier: Apache-2.0
//
// The Triton backend `swiftqueue` (docs/explanation/serving.md): the inference engine behind
// Triton's C interface. Each request of a batch is computed and answered on its own, so a bad one
// spoils nothing and a good one does not wait for those behind it. No exception leaves a function
// that Triton calls.
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/error.h"
#include "serving/triton/native/guard.h"
#include "serving/triton/native/metrics.h"
#include "serving/triton/native/model.h"
#include "serving/triton/native/request.h"
#include "serving/triton/native/triton_api.h"

namespace swiftqueue::backend {
namespace {

// Lives while the backend is loaded.
struct Backend {
  EncoderCache encoders;
  Metrics metrics;
};

constexpr int kLowestPriority = 19;  // nice(2)

// Runs `work` on a thread of the lowest priority: requests come before a version that is being
// loaded. Triton's own thread would have to take its priority back, which needs rights.
template <typename Work>
auto in_the_background(Work work) {
  return std::async(std::launch::async,
                    [&] {
                      setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLowestPriority);
                      return work();
                    })
      .get();
}

// A version in Triton's terms.
class Version {
 public:
  Version(const std::string& name, std::int64_t version, const std::string& folder,
          std::string_view config, Backend& backend)
      : backend_(backend),
        model_(std::make_unique<Model>(folder, version, backend.encoders, arithmetic_of(config))),
        metrics_(backend.metrics, name, version, hexadecimal(model_->encoder_hash())) {
    model_->check_config(config);
    model_->fill_sessions();
    backend_.metrics.encoders.set(static_cast<double>(backend_.encoders.size()));
    metrics_.head.set(
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
  }
  ~Version() {
    model_.reset();  // and perhaps its encoder, if no other version uses it
    backend_.metrics.encoders.set(static_cast<double>(backend_.encoders.size()));
    report_sessions();
  }
  Version(const Version&) = delete;
  Version& operator=(const Version&) = delete;

  const Model& model() const { return *model_; }
  VersionMetrics& metrics() { return metrics_; }
  void report_sessions() { backend_.metrics.report(backend_.encoders.sessions()); }

 private:
  static std::string hexadecimal(std::uint64_t hash) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
    return text;
  }

  Backend& backend_;
  std::unique_ptr<Model> model_;
  VersionMetrics metrics_;
};

// One of a version's instances: Triton gives it one batch at a time.
class Instance {
 public:
  explicit Instance(Version& version) : version_(version), worker_(version.model()) {}

  void execute(TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
               std::uint32_t count) noexcept {
    const std::uint64_t start_ns = now_ns();
    std::uint64_t compute_start_ns = 0;
    std::uint64_t compute_end_ns = 0;
    std::uint64_t windows = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
      const Answer answer = answer_one(instance, requests[i]);
      if (answer.windows == 0) continue;
      windows += answer.windows;
      if (compute_start_ns == 0) compute_start_ns = answer.compute_start_ns;
      compute_end_ns = answer.compute_end_ns;
    }
    version_.report_sessions();
    if (windows == 0) return;  // all were refused: no batch was computed
    version_.metrics().windows.add(static_cast<double>(windows));
    logged(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        instance, windows, start_ns, compute_start_ns, compute_end_ns, now_ns()));
  }

 private:
  struct Answer {
    std::uint64_t windows = 0;  // computed windows: 0 if refused
    std::uint64_t compute_start_ns = 0;
    std::uint64_t compute_end_ns = 0;
  };

  // Computes, answers and releases a request.
  Answer answer_one(TRITONBACKEND_ModelInstance* instance,
                    TRITONBACKEND_Request* request) noexcept {
    const std::uint64_t start_ns = now_ns();
    Answer answer{0, start_ns, start_ns};
    TRITONBACKEND_Response* response = nullptr;
    OwnedError error(guarded([&] {
      require(TRITONBACKEND_ResponseNew(&response, request));
      read_input(request, "window", kFp32, windows_);
      std::span<const float> y_BH;
      if (windows_.shape.empty()) {
        read_message(request, message_);
        answer.compute_start_ns = now_ns();
        const SessionReply reply = worker_.converse(message_);
        answer.compute_end_ns = now_ns();
        std::memcpy(place_for<std::int64_t>(response, "resend", std::ssize(reply.resend), 1),
                    reply.resend.data(), reply.resend.size_bytes());
        y_BH = reply.y_BH;
      } else {
        answer.compute_start_ns = now_ns();
        y_BH = worker_.predict(windows_);
        answer.compute_end_ns = now_ns();
      }
      const auto windows = static_cast<std::int64_t>(y_BH.size()) / kHorizon;
      if (windows == 0) return;
      std::memcpy(place_for<float>(response, kOutput, windows, kHorizon), y_BH.data(),
                  y_BH.size_bytes());
      answer.windows = static_cast<std::uint64_t>(windows);
    }));
    if (error != nullptr) version_.metrics().refused.add(1);
    if (response != nullptr) {
      logged(TRITONBACKEND_ResponseSend(response, kResponseFinal, error.get()));
    }
    logged(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, error == nullptr,
                                                       start_ns, answer.compute_start_ns,
                                                       answer.compute_end_ns, now_ns()));
    if (response == nullptr) logged(error.release());
    logged(TRITONBACKEND_RequestRelease(request, kReleaseAll));
    return answer;
  }

  Version& version_;
  Worker worker_;
  Tensor windows_;
  SessionMessage message_;
};

template <typename State, typename Object>
State& state_of(TRITONSERVER_Error* (*get)(Object*, void**), Object* object) {
  void* state = nullptr;
  require(get(object, &state));
  if (state == nullptr) throw std::runtime_error("swiftqueue: called before it was initialised");
  return *static_cast<State*>(state);
}

// Deletes a state; does nothing when there is none, because its initialisation failed.
template <typename State, typename Object>
TRITONSERVER_Error* finalize(TRITONSERVER_Error* (*get)(Object*, void**), Object* object) noexcept {
  return guarded([&] {
    void* state = nullptr;
    require(get(object, &state));
    delete static_cast<State*>(state);
  });
}

std::string config_of(TRITONBACKEND_Model* model) {
  TRITONSERVER_Message* message = nullptr;
  require(TRITONBACKEND_ModelConfig(model, 1, &message));
  const char* text = nullptr;
  std::size_t bytes = 0;
  OwnedError error(TRITONSERVER_MessageSerializeToJson(message, &text, &bytes));
  std::string config = error == nullptr ? std::string(text, bytes) : std::string();
  logged(TRITONSERVER_MessageDelete(message));
  require(error.release());
  return config;
}

std::unique_ptr<Version> load_version(TRITONBACKEND_Model* model) {
  const char* name = nullptr;
  const char* location = nullptr;
  int artifact_type = kFilesystem;
  std::uint64_t version = 0;
  TRITONBACKEND_Backend* backend = nullptr;
  require(TRITONBACKEND_ModelName(model, &name));
  require(TRITONBACKEND_ModelVersion(model, &version));
  require(TRITONBACKEND_ModelRepository(model, &artifact_type, &location));
  require(TRITONBACKEND_ModelBackend(model, &backend));
  if (artifact_type != kFilesystem) throw engine::InvalidError("the model is not a folder");
  const std::uint64_t start_ns = now_ns();
  const std::string folder = std::string(location) + "/" + std::to_string(version);
  auto& shared = state_of<Backend>(TRITONBACKEND_BackendState, backend);
  const std::size_t encoders = shared.encoders.size();
  const std::string config = config_of(model);
  auto loaded = in_the_background([&] {
    return std::make_unique<Version>(name, static_cast<std::int64_t>(version), folder, config,
                                     shared);
  });
  log_line(kInfo, (std::string("swiftqueue: ") + name + " version " + std::to_string(version) +
                   " loaded in " + std::to_string((now_ns() - start_ns) / 1000) + " us (" +
                   loaded->model().engine().kernel().name + ", " + std::to_string(encoders) +
                   " -> " + std::to_string(shared.encoders.size()) + " encoders)")
                      .c_str());
  return loaded;
}

}  // namespace
}  // namespace swiftqueue::backend

using namespace swiftqueue::backend;  // NOLINT: the functions below must be at the outermost level

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend* backend) {
  return guarded([&] {
    std::uint32_t major = 0;
    std::uint32_t minor = 0;
    require(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != kApiMajor || minor < kApiMinor) {
      require(TRITONSERVER_ErrorNew(
          kErrorUnsupported,
          ("swiftqueue: this server's backend API is " + std::to_string(major) + "." +
           std::to_string(minor) + ", needed is " + std::to_string(kApiMajor) + "." +
           std::to_string(kApiMinor) + " or a later minor version")
              .c_str()));
    }
    auto state = std::make_unique<Backend>();
    require(TRITONBACKEND_BackendSetState(backend, state.get()));
    static_cast<void>(state.release());
  });
}

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend* backend) {
  return finalize<Backend>(TRITONBACKEND_BackendState, backend);
}

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model* model) {
  return guarded([&] {
    std::unique_ptr<Version> version = load_version(model);
    require(TRITONBACKEND_ModelSetState(model, version.get()));
    static_cast<void>(version.release());
  });
}

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model* model) {
  TRITONSERVER_Error* error = finalize<Version>(TRITONBACKEND_ModelState, model);
  // A version leaves holes in the heaps of many threads (docs/results/soak.md); takes 0.3 ms.
  malloc_trim(0);
  return error;
}

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(
    TRITONBACKEND_ModelInstance* instance) {
  return guarded([&] {
    TRITONBACKEND_Model* model = nullptr;
    require(TRITONBACKEND_ModelInstanceModel(instance, &model));
    auto state = std::make_unique<Instance>(state_of<Version>(TRITONBACKEND_ModelState, model));
    require(TRITONBACKEND_ModelInstanceSetState(instance, state.get()));
    static_cast<void>(state.release());
  });
}

SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(
    TRITONBACKEND_ModelInstance* instance) {
  return finalize<Instance>(TRITONBACKEND_ModelInstanceState, instance);
}

// An error returned from here leaves all requests with Triton; once execute began they are ours.
SWIFTQUEUE_EXPORT TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance* instance, TRITONBACKEND_Request** requests,
    const std::uint32_t request_count) {
  return guarded([&] {
    state_of<Instance>(TRITONBACKEND_ModelInstanceState, instance)
        .execute(instance, requests, request_count);
  });
}
