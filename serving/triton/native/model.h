// SPDX-License-Identifier: Apache-2.0
//
// A served version and a request's answer. Nothing here knows Triton, so that sanitizers can drive
// it (stress.cc).
//
// Shapes: B windows or alternatives, W rows of a window, E events, Q queries (8 for each
// alternative), F features of a row, H horizon.
#ifndef SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_
#define SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "serving/engine/engine.h"
#include "serving/triton/native/encoder_cache.h"
#include "serving/triton/native/limits.h"

namespace swiftqueue::backend {

// A part of a request's input, in the order of the whole; its address need not be aligned.
struct Piece {
  const void* data;
  std::size_t bytes;
};

// A tensor of a request; without dimensions where the request has none of its name.
struct Tensor {
  std::span<const std::int64_t> shape;
  std::vector<Piece> pieces;
};

// A message of a session, or of several: those of senders whose questions waited together.
//
// For one session, `id` is its number and `header`, int64 [1, 1 + 2 n], has the number of the first
// of the events, then for each of n questions how many of them come before it since the last
// question, and how many queries it has. Events after the last question are taken as well.
//
// For several, `id` is 0, and `header` has for each session in turn its number, kStart + kEnd where
// they hold, the number of its first event, how many events are its, n, and n times the two numbers
// of a question. Events and queries follow each other in the same order.
struct SessionMessage {
  std::uint64_t id = 0;
  bool start = false;  // the sender begins anew: with its first event, or `reach` events at least
  bool end = false;    // its last message
  Tensor header;
  Tensor events;   // float [1, E, F]
  Tensor queries;  // float [1, Q, F]
};

struct SessionReply {
  // For each session the number of the event from which on they must be sent again, with `start`;
  // -1: all is well.
  std::span<const std::int64_t> resend;
  std::span<const float> y_BH;  // latencies in us, without those of sessions that want rows again
};

// A request's tensor as one aligned array.
template <typename Number>
class Whole {
 public:
  // The array stays until the next call, or is the pieces' own memory.
  const Number* of(std::span<const Piece> pieces);

 private:
  std::vector<Number> values_;  // used when the tensor is in pieces or not aligned
};

inline constexpr char kOutput[] = "latency_us";  // name of the answers' tensor

// One version: head and limits of its own; an encoder shared with the other versions that have it,
// and sessions shared with all.
class Model {
 public:
  // Loads version folder `folder`: model.json, model.safetensors, limits.json. Throws FileError or
  // InvalidError, naming the file. `arithmetic` is the engine's: "auto" or "bf16".
  Model(const std::string& folder, std::int64_t version, EncoderCache& encoders,
        std::string_view arithmetic = "auto");

  // Throws InvalidError unless Triton's configuration (JSON) promises clients the inputs and
  // outputs of this version. Takes the limits of all sessions from it.
  void check_config(std::string_view json) const;
  // Gives the senders' sessions the keys and values of this version's encoder, from the rows sent
  // before, so that its first questions need not wait for them. Other versions answer meanwhile.
  void fill_sessions() const;
  // Hash of the encoder that versions may share.
  std::uint64_t encoder_hash() const { return encoder_hash_; }

  const engine::Engine& engine() const { return *engine_; }
  const Limits& limits() const { return limits_; }
  const Encoder& encoder() const { return *encoder_; }
  SessionStore& sessions() const { return *encoder_->sessions; }
  SessionCounts& session_counts() const { return counts_; }

 private:
  Model(const std::string& folder, const engine::Artifact& artifact, std::int64_t version,
        EncoderCache& encoders, std::string_view arithmetic);

  std::shared_ptr<Encoder> encoder_;
  SessionCounts& counts_;
  std::unique_ptr<engine::Engine> engine_;
  Limits limits_;
  std::uint64_t encoder_hash_;
};

// Returns what Triton's configuration (JSON) says of the engine's arithmetic, as `Model` takes it.
// Throws InvalidError where it is neither fp32 nor bf16.
std::string_view arithmetic_of(std::string_view config);

// One thread's use of a model.
class Worker {
 public:
  // `model` must outlive it.
  explicit Worker(const Model& model) : model_(model), engine_(model.engine().share()) {}

  // Answers windows [B, W, F] with latencies in us, y_BH, which stay until the next call. Throws
  // InvalidError if the request cannot be answered.
  std::span<const float> predict(const Tensor& windows);
  // Takes sessions' events and answers their questions; otherwise as `predict`. After an error the
  // sessions may have taken some of the events.
  SessionReply converse(const SessionMessage& message);

 private:
  // A session's part of a message, checked.
  struct Talk {
    std::uint64_t id = 0;
    bool start = false;
    bool end = false;
    std::int64_t first = 0;                   // number of the first event
    std::span<const std::int64_t> questions;  // two numbers of each
    const float* x_EF = nullptr;
    std::int64_t events = 0;
    const float* x_QF = nullptr;
    std::int64_t queries = 0;
  };

  void read(const SessionMessage& message);
  void read_several(std::span<const std::int64_t> header, Talk rest);
  SessionStore::Use session_of(const Talk& talk) const;
  std::int64_t wanted_at(std::int64_t event) const;
  std::int64_t go_through(const SessionStore::Use& use, const Talk& talk, float* y_Q);

  const Model& model_;
  std::unique_ptr<engine::Engine> engine_;
  Whole<float> x_BWF_;
  Whole<std::int64_t> header_;
  Whole<float> x_EF_;
  Whole<float> x_QF_;
  std::vector<Talk> talks_;
  std::vector<std::int64_t> resend_;
  std::vector<float> y_BH_;
};

}  // namespace swiftqueue::backend

#endif  // SWIFTQUEUE_SERVING_TRITON_NATIVE_MODEL_H_
