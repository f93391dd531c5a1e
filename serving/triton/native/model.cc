// SPDX-License-Identifier: Apache-2.0
#include "serving/triton/native/model.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "feature_store/events/event_window.h"
#include "serving/engine/error.h"
#include "serving/engine/json.h"
#include "serving/engine/reading.h"
#include "serving/engine/safetensors.h"

namespace swiftqueue::backend {
namespace {

using engine::InvalidError;
using engine::json::Value;

constexpr std::size_t kMaxLimitsBytes = std::size_t{1} << 20;
constexpr std::size_t kMost = 1'000'000;  // a limit of sessions
constexpr std::int64_t kMostEvent = std::int64_t{1} << 62;
constexpr std::int64_t kMostOfOne = 16;  // queries of a question
// Bounds of one message, so that no other waits for it for long.
constexpr std::int64_t kMostEvents = 2 * kMaxTokens;
constexpr std::int64_t kMostQueries = 64 * kHorizon;  // as many windows as a request may have
constexpr std::int64_t kMostSessions = kMostQueries / kHorizon;
constexpr std::int64_t kSessionNumbers =
    5;  // numbers of a session among several, before its questions
constexpr std::int64_t kMostHeader = 1 + 2 * kMostQueries / kHorizon;
constexpr std::int64_t kMostHeaderOfSeveral = kSessionNumbers * kMostSessions + kMostHeader - 1;
constexpr std::chrono::seconds kFillTime{2};  // then a session is filled when it is first used
constexpr std::int64_t kStart = 1;
constexpr std::int64_t kEnd = 2;

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (const std::int64_t size : shape) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  }
  return text + "]";
}

std::size_t bytes_of(std::span<const Piece> pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

// Throws unless `pieces` are `rows` rows of `row_bytes`. It divides instead of multiplying: the
// number of rows is the client's and could overflow.
void require_bytes(const std::string& name, std::span<const std::int64_t> shape,
                   std::span<const Piece> pieces, std::int64_t rows, std::size_t row_bytes) {
  const std::size_t bytes = bytes_of(pieces);
  if (bytes % row_bytes != 0 || bytes / row_bytes != static_cast<std::size_t>(rows)) {
    throw InvalidError(name + " has " + std::to_string(bytes) +
                       " bytes, which does not fit shape " + shape_text(shape));
  }
}

// Returns the number of rows of a session's tensor, int64 [1, rows] or float [1, rows, features];
// 0 if the message has none.
std::int64_t rows_of(const std::string& name, const Tensor& tensor, std::int64_t most,
                     std::optional<std::int64_t> features) {
  const std::span<const std::int64_t> shape = tensor.shape;
  if (shape.empty()) return 0;
  const bool fits = shape.size() == (features ? 3 : 2) && shape[0] == 1 && shape[1] >= 0 &&
                    shape[1] <= most && (!features || shape[2] == *features);
  if (!fits) {
    std::string wanted = "[1, at most " + std::to_string(most);
    if (features) wanted += ", " + std::to_string(*features);
    throw InvalidError(name + " has shape " + shape_text(shape) + ", a message takes " + wanted +
                       "]");
  }
  const std::size_t row_bytes =
      features ? static_cast<std::size_t>(*features) * sizeof(float) : sizeof(std::int64_t);
  require_bytes(name, shape, tensor.pieces, shape[1], row_bytes);
  return shape[1];
}

// Returns whether questions fit a session's events, from `first` on, and queries.
bool possible(std::int64_t first, std::span<const std::int64_t> questions, std::int64_t events,
              std::int64_t queries) {
  bool fits = questions.size() % 2 == 0 && first >= 0 && first <= kMostEvent;
  for (std::size_t i = 0; fits && i < questions.size(); i += 2) {
    fits = questions[i] >= 0 && questions[i] <= events && questions[i + 1] > 0 &&
           questions[i + 1] <= kMostOfOne && questions[i + 1] % kHorizon == 0;
    if (!fits) break;  // any number may be there, and none must overflow
    events -= questions[i];
    queries -= questions[i + 1];
  }
  return fits && queries == 0;
}

// A tensor that clients are promised; its sizes are those of one request of the batch.
struct TensorPromise {
  std::string_view name;
  std::string_view type;
  std::vector<std::int64_t> sizes;
};

bool same_sizes(const engine::json::Array& dims, const TensorPromise& promised) {
  if (dims.size() != promised.sizes.size()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i].number("dims") != static_cast<double>(promised.sizes[i])) return false;
  }
  return true;
}

// Checks the tensors of a configuration's `input` or `output`: the first that is promised must be
// there, others may be.
void check_tensors(const Value& config, const std::string& side,
                   const std::vector<TensorPromise>& promised) {
  bool first = false;
  for (const Value& tensor : config.at(side, "config").array(side)) {
    const std::string& name = tensor.at("name", side).string(side + " name");
    const auto found = std::find_if(promised.begin(), promised.end(),
                                    [&](const TensorPromise& each) { return each.name == name; });
    if (found == promised.end()) {
      throw InvalidError("config: this version has no " + side + " " + engine::json::quoted(name));
    }
    first |= found == promised.begin();
    if (tensor.at("data_type", side).string(side + " data_type") != found->type) {
      throw InvalidError("config: " + name + " must be " + std::string(found->type));
    }
    if (!same_sizes(tensor.at("dims", side).array(side + " dims"), *found)) {
      throw InvalidError("config: this version's " + name + " has dims " +
                         shape_text(found->sizes) + ", the configuration says otherwise");
    }
  }
  if (!first) {
    throw InvalidError("config: it has no " + side + " " + std::string(promised.front().name));
  }
}

// Triton leaves out unset members.
const Value* member(const Value& object, std::string_view key) {
  for (const auto& [name, value] : object.object("config")) {
    if (name == key) return &value;
  }
  return nullptr;
}

// Returns the text of a configuration's parameter, empty if there is none.
std::string parameter(const Value& config, const std::string& name) {
  const Value* parameters = member(config, "parameters");
  const Value* found = parameters == nullptr ? nullptr : member(*parameters, name);
  return found == nullptr ? "" : found->at("string_value", name).string(name);
}

// Sets `limit` to the parameter `name`, times `unit`, where the configuration has it.
template <typename Limit>
void set_limit(const Value& config, const std::string& name, Limit& limit, std::size_t unit) {
  const std::string text = parameter(config, name);
  if (text.empty()) return;
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1 || number > kMost) {
    throw InvalidError("config: parameter " + name + " must be a number from 1 to " +
                       std::to_string(kMost));
  }
  limit = Limit(number * unit);
}

// Gives a session the events before `end` that it lacks, from the rows that were sent before. One
// that is far behind, or that begins too late because the engine refused some of them, begins anew
// with the last ones. Returns false if the version refuses a row: perhaps another one took it.
bool bring_up_to_date(engine::Engine& engine, const Limits& limits, engine::Session& session,
                      const RecentRows& rows, std::uint64_t end) {
  if (session.next() >= end) return true;
  const auto reach = static_cast<std::uint64_t>(engine.reach());
  const std::uint64_t begin = std::max(rows.first(), end - std::min(end, reach));
  if (session.next() < begin || session.first() > begin) session.begin(begin);
  bool taken = true;
  rows.visit(session.next(), end, [&](std::uint64_t event, const float* x_EF, int events) {
    taken = taken && limits.within(x_EF, events);
    try {
      if (taken) engine.take(session, event, x_EF, events);
    } catch (const InvalidError&) {
      taken = false;
    }
  });
  return taken;
}

// Reads `limits.json` of rows with the features `names`; errors name the file.
Limits read_limits(const std::string& path, std::vector<std::string> names) {
  const std::string text = engine::read_file(path, kMaxLimitsBytes);
  try {
    return {text, std::move(names)};
  } catch (const InvalidError& error) {
    throw InvalidError(path + ": " + error.what());
  }
}

}  // namespace

std::string_view arithmetic_of(std::string_view config) {
  const std::string text = parameter(engine::json::parse(config), "arithmetic");
  if (text == "bf16") return "bf16";
  if (text.empty() || text == "fp32") return "auto";
  throw InvalidError("config: parameter arithmetic must be fp32 or bf16, not " +
                     engine::json::quoted(text));
}

Model::Model(const std::string& folder, std::int64_t version, EncoderCache& encoders,
             std::string_view arithmetic)
    : Model(folder, engine::load_artifact(folder), version, encoders, arithmetic) {}

Model::Model(const std::string& folder, const engine::Artifact& artifact, std::int64_t version,
             EncoderCache& encoders, std::string_view arithmetic)
    : encoder_(encoders.get(artifact)),
      counts_(encoders.sessions()),
      engine_(std::make_unique<engine::Engine>(artifact, encoder_->weights, arithmetic, version)),
      limits_(read_limits(folder + "/limits.json",
                          {kEventWindowFeatures.begin(), kEventWindowFeatures.end()})),
      encoder_hash_(artifact.encoder_hash) {
  engine::require_one_latency(artifact.description);
}

void Model::check_config(std::string_view json) const {
  const engine::Description& description = engine_->description();
  const Value config = engine::json::parse(json);
  check_tensors(config, "input",
                {{"window", "TYPE_FP32", {description.tokens, kEventWindowFeatureCount}},
                 {"session", "TYPE_INT64", {-1}},
                 {"events", "TYPE_FP32", {-1, kEventWindowFeatureCount}},
                 {"queries", "TYPE_FP32", {-1, kEventWindowFeatureCount}}});
  check_tensors(config, "output",
                {{kOutput, "TYPE_FP32", {kHorizon}}, {"resend", "TYPE_INT64", {1}}});
  const Value* most = member(config, "max_batch_size");
  if (most == nullptr || !(most->number("max_batch_size") >= 1)) {
    throw InvalidError("config: max_batch_size must be at least 1, a request has B windows");
  }
  const std::string hash = parameter(config, "schema_hash");
  if (!hash.empty() && hash != description.schema_hash) {
    throw InvalidError("config: made for features of another schema_hash than the artifact's " +
                       description.schema_hash);
  }
  SessionLimits limits;
  set_limit(config, "sessions", limits.sessions, 1);
  set_limit(config, "session_mib", limits.bytes, std::size_t{1} << 20);
  set_limit(config, "session_idle_s", limits.idle, 1);
  encoder_->sessions->limit(limits);
}

void Model::fill_sessions() const {
  const auto begun = std::chrono::steady_clock::now();
  encoder_->sessions->fill(*encoder_, engine_->reach(), begun,
                           [&](const RecentRows& rows) -> std::unique_ptr<engine::Session> {
                             if (std::chrono::steady_clock::now() - begun > kFillTime)
                               return nullptr;
                             auto session = engine_->open_session();
                             const bool filled =
                                 bring_up_to_date(*engine_, limits_, *session, rows, rows.next());
                             return filled ? std::move(session) : nullptr;
                           });
}

std::span<const float> Worker::predict(const Tensor& windows) {
  const std::span<const std::int64_t> shape = windows.shape;
  const int tokens = engine_->description().tokens;
  if (shape.size() != 3 || shape[0] < 1 || shape[1] != tokens ||
      shape[2] != kEventWindowFeatureCount) {
    throw InvalidError("window has shape " + shape_text(shape) + ", this version takes " +
                       shape_text(std::vector<std::int64_t>{-1, tokens, kEventWindowFeatureCount}));
  }
  require_bytes("window", shape, windows.pieces, shape[0],
                static_cast<std::size_t>(tokens) * kEventWindowFeatureCount * sizeof(float));
  const float* x_BWF = x_BWF_.of(windows.pieces);
  model_.limits().check(x_BWF, shape[0], tokens);
  y_BH_.resize(static_cast<std::size_t>(shape[0] * kHorizon));
  engine_->forward(x_BWF, shape[0], tokens, y_BH_.data());
  return y_BH_;
}

SessionReply Worker::converse(const SessionMessage& message) {
  read(message);
  resend_.assign(talks_.size(), -1);
  float* y_Q = y_BH_.data();
  for (std::size_t i = 0; i < talks_.size(); ++i) {
    const Talk& talk = talks_[i];
    resend_[i] = go_through(session_of(talk), talk, y_Q);
    if (talk.end) model_.sessions().close(talk.id);
    if (resend_[i] < 0) {
      y_Q += talk.queries;
    } else {
      ++model_.session_counts().resends;
    }
  }
  return {resend_, {y_BH_.data(), y_Q}};
}

// Reads a message into `talks_`. Throws InvalidError, and no session has changed, for one that
// cannot be.
void Worker::read(const SessionMessage& message) {
  const bool several = message.id == 0;
  const auto numbers =
      rows_of("session", message.header, several ? kMostHeaderOfSeveral : kMostHeader, {});
  const auto events = rows_of("events", message.events, kMostEvents, kEventWindowFeatureCount);
  const auto queries = rows_of("queries", message.queries, kMostQueries, kEventWindowFeatureCount);
  const std::span<const std::int64_t> header(header_.of(message.header.pieces),
                                             static_cast<std::size_t>(numbers));
  Talk talk{message.id,  message.start,
            message.end, 0,
            {},          x_EF_.of(message.events.pieces),
            events,      x_QF_.of(message.queries.pieces),
            queries};
  const float* const x_QF = talk.x_QF;
  talks_.clear();
  if (several) {
    read_several(header, talk);
  } else {
    if (!header.empty()) {
      talk.first = header[0];
      talk.questions = header.subspan(1);
    }
    if (header.empty() || !possible(talk.first, talk.questions, events, queries)) {
      throw InvalidError(
          "session is not the number of the first event and, for each question, how many of the "
          "events come before it and how many of the queries (8 or 16) are its");
    }
    talks_.push_back(talk);
  }
  for (const Talk& each : talks_) {
    model_.limits().check_rows(each.x_EF, each.events, "event", each.first);
  }
  model_.limits().check_rows(x_QF, queries, "query", 0);
  y_BH_.resize(static_cast<std::size_t>(queries));
}

// Reads the header of several sessions; `rest` has the events and queries of all of them.
void Worker::read_several(std::span<const std::int64_t> header, Talk rest) {
  bool fits = !header.empty();
  while (fits && !header.empty()) {
    Talk talk = rest;
    fits = std::ssize(header) >= kSessionNumbers && header[0] != 0 && header[1] >= 0 &&
           header[1] <= (kStart | kEnd) && header[3] >= 0 && header[3] <= rest.events &&
           header[4] >= 0 && header[4] <= (std::ssize(header) - kSessionNumbers) / 2;
    if (!fits) break;
    talk.id = static_cast<std::uint64_t>(header[0]);
    talk.start = (header[1] & kStart) != 0;
    talk.end = (header[1] & kEnd) != 0;
    talk.first = header[2];
    talk.events = header[3];
    talk.questions = header.subspan(kSessionNumbers, static_cast<std::size_t>(2 * header[4]));
    talk.queries = 0;
    for (std::size_t i = 1; i < talk.questions.size(); i += 2) {
      fits = fits && talk.questions[i] > 0 && talk.questions[i] <= kMostOfOne;
      talk.queries += fits ? talk.questions[i] : 0;
    }
    fits = fits && talk.queries <= rest.queries &&
           possible(talk.first, talk.questions, talk.events, talk.queries);
    header = header.subspan(kSessionNumbers + talk.questions.size());
    rest.x_EF += fits ? talk.events * kEventWindowFeatureCount : 0;
    rest.events -= talk.events;
    rest.x_QF += fits ? talk.queries * kEventWindowFeatureCount : 0;
    rest.queries -= talk.queries;
    talks_.push_back(talk);
  }
  if (!fits || rest.events != 0 || rest.queries != 0) {
    throw InvalidError(
        "a session has a number: the parameter sequence_id; without one the tensor session has, "
        "for each of several sessions, its number, flags, first event, events and questions");
  }
}

SessionStore::Use Worker::session_of(const Talk& talk) const {
  const auto now = std::chrono::steady_clock::now();
  if (!talk.start) return model_.sessions().find(talk.id, now);
  SessionStore::Use use = model_.sessions().open(talk.id, now);
  use.begin(static_cast<std::uint64_t>(talk.first));
  return use;
}

// Returns from which event on a session that is asked after `event` events is begun anew.
std::int64_t Worker::wanted_at(std::int64_t event) const {
  return std::max<std::int64_t>(event - engine_->reach(), 0);
}

// Takes the events and answers the questions; returns -1, or from which event on rows are wanted
// where there is no session or it has others than the sender thinks: then the rest is not looked
// at.
std::int64_t Worker::go_through(const SessionStore::Use& use, const Talk& talk, float* y_Q) {
  std::int64_t event = talk.first;
  const std::int64_t before = talk.questions.empty() ? talk.events : talk.questions[0];
  if (!use) return wanted_at(event + before);
  RecentRows& rows = use.rows();
  engine::Session& session = use.with(model_.encoder(), *engine_);
  if (!bring_up_to_date(*engine_, model_.limits(), session, rows,
                        std::min(static_cast<std::uint64_t>(event), rows.next()))) {
    return wanted_at(event + before);
  }
  const float* x_EF = talk.x_EF;
  const auto take = [&](std::int64_t count) {
    const bool follow =
        engine_->take(session, static_cast<std::uint64_t>(event), x_EF, static_cast<int>(count));
    if (follow) rows.add(static_cast<std::uint64_t>(event), x_EF, count);
    event += count;
    x_EF += count * kEventWindowFeatureCount;
    return follow && session.next() == static_cast<std::uint64_t>(event);
  };
  const float* x_QF = talk.x_QF;
  for (std::size_t i = 0; i < talk.questions.size(); i += 2) {
    if (!take(talk.questions[i])) return wanted_at(event);
    const auto begun = static_cast<std::int64_t>(session.first());
    if (begun > 0 && event - begun < engine_->reach()) return wanted_at(event);
    const auto queries = static_cast<int>(talk.questions[i + 1]);
    engine_->answer(session, x_QF, queries, y_Q, nullptr);
    x_QF += std::ptrdiff_t{queries} * kEventWindowFeatureCount;
    y_Q += queries;
  }
  return take(talk.first + talk.events - event) ? -1 : wanted_at(event);
}

template <typename Number>
const Number* Whole<Number>::of(std::span<const Piece> pieces) {
  if (pieces.size() == 1 &&
      reinterpret_cast<std::uintptr_t>(pieces[0].data) % alignof(Number) == 0) {
    return static_cast<const Number*>(pieces[0].data);
  }
  values_.resize(bytes_of(pieces) / sizeof(Number));
  auto* to = reinterpret_cast<std::byte*>(values_.data());
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;  // its address may be null
    std::memcpy(to, piece.data, piece.bytes);
    to += piece.bytes;
  }
  return values_.data();
}

template class Whole<float>;
template class Whole<std::int64_t>;

}  // namespace swiftqueue::backend
