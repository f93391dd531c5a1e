// SPDX-License-Identifier: Apache-2.0
//
// The backend without Triton, to be run under sanitizers (`make sanitize`): hostile requests and
// limits end in an answer or one error line, sessions answer what one that lost nothing answers,
// and versions, of one encoder and of two, come and go while others predict.
//
// stress_SANITIZER FOLDER ROUNDS [SEED]   FOLDER: a valid version folder
//                                         ROUNDS 0: only what has threads

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "feature_store/events/event_window.h"
#include "serving/engine/error.h"
#include "serving/engine/safetensors.h"
#include "serving/triton/native/model.h"
#include "tests/stress/stress.h"

namespace swiftqueue::backend {
namespace {

using stress::below;
using stress::Random;
using stress::require;

// A request as a client may send it: bytes in separate allocations, each exactly as large as it
// says and starting at any address, so that one step too far is seen.
class Request {
 public:
  std::vector<std::int64_t> shape;

  void set_bytes(const std::vector<std::byte>& bytes, Random& random) {
    memory_.clear();
    tensor_.pieces.clear();
    const std::size_t parts = below(random, 3) == 0 ? 1 + below(random, 4) : 1;
    std::size_t at = 0;
    for (std::size_t part = 1; part <= parts; ++part) {
      const std::size_t end =
          part == parts ? bytes.size() : at + below(random, bytes.size() - at + 1);
      const std::size_t shift = below(random, 4) == 0 ? 1 + below(random, 3) : 0;
      memory_.push_back(std::make_unique<std::byte[]>(end - at + shift));
      std::copy_n(bytes.data() + at, end - at, memory_.back().get() + shift);
      tensor_.pieces.push_back({memory_.back().get() + shift, end - at});
      at = end;
    }
  }
  const Tensor& tensor() {
    tensor_.shape = shape;
    return tensor_;
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  Tensor tensor_;
};

template <typename Number>
std::vector<std::byte> bytes_of(const std::vector<Number>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(Number));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::int64_t any_size(Random& random, std::int64_t usual) {
  static const std::int64_t kSpecial[] = {0,
                                          1,
                                          -1,
                                          7,
                                          8,
                                          std::numeric_limits<std::int64_t>::max(),
                                          std::numeric_limits<std::int64_t>::min(),
                                          std::int64_t{1} << 62,
                                          std::int64_t{1} << 32};
  return below(random, 3) == 0 ? kSpecial[below(random, std::size(kSpecial))] : usual;
}

// Checks a request's shape in another way than model.cc.
bool fits(const std::vector<std::int64_t>& shape, const engine::Description& description,
          std::size_t bytes) {
  const std::int64_t features = kEventWindowFeatureCount;
  if (shape.size() != 3 || shape[0] < 1 || shape[0] > 1000 || shape[2] != features) return false;
  return shape[1] == description.tokens &&
         static_cast<std::size_t>(shape[0] * shape[1] * features) * sizeof(float) == bytes;
}

// Makes rows of events: 0 and 1 lie in every feature's range, and an event has a size.
std::vector<float> made_rows(std::int64_t rows, Random& random) {
  std::vector<float> x_RF(static_cast<std::size_t>(rows * kEventWindowFeatureCount));
  for (float& x : x_RF) x = static_cast<float>(below(random, 2));
  for (std::int64_t row = 0; row < rows; ++row) {
    x_RF[static_cast<std::size_t>(row * kEventWindowFeatureCount + event_input("size_bytes"))] = 1;
  }
  return x_RF;
}

void hostile_requests(const std::string& folder, long rounds, Random& random) {
  EncoderCache encoders;
  const Model model(folder, 1, encoders);
  Worker worker(model);
  const engine::Description& description = model.engine().description();
  const std::int64_t features = kEventWindowFeatureCount;
  long answered = 0;
  for (long i = 0; i < rounds; ++i) {
    const auto windows = static_cast<std::int64_t>(1 + below(random, 4));
    const std::int64_t tokens = description.tokens;
    std::vector<float> x_BWF = made_rows(windows * tokens, random);
    Request request;
    request.shape = {windows, tokens, features};
    const std::size_t damage = below(random, 4);
    if (damage == 0) {
      static const float kBad[] = {NAN, INFINITY, -INFINITY, 3e38F, -1e30F};
      x_BWF[below(random, x_BWF.size())] = kBad[below(random, std::size(kBad))];
    }
    std::vector<std::byte> bytes = bytes_of(x_BWF);
    if (damage == 1) {
      for (std::int64_t& size : request.shape) size = any_size(random, size);
      if (below(random, 4) == 0) request.shape.resize(below(random, 6), 1);
      if (below(random, 4) == 0) bytes.resize(below(random, 2 * bytes.size()));
    }
    const bool good = damage != 0 && fits(request.shape, description, bytes.size());
    request.set_bytes(bytes, random);
    try {
      const std::span<const float> y_BH = worker.predict(request.tensor());
      require(good, "a bad request is answered");
      require(y_BH.size() == static_cast<std::size_t>(request.shape[0] * kHorizon),
              "another number of latencies");
      const auto sane = [](float y) { return y >= 0 && y <= 6.1e7F; };
      require(std::all_of(y_BH.begin(), y_BH.end(), sane), "a latency out of range");
      ++answered;
    } catch (const engine::InvalidError& error) {
      require(!good, error.what());
    }
  }
  require(answered > 0 && answered < rounds, "the requests do not reach both outcomes");
  std::printf("requests: %ld of %ld answered\n", answered, rounds);
}

// Writes a copy of a version with another number in a file: the first one of `key` after `place`.
std::string changed_version(const std::string& folder, const char* name, const char* file,
                            const std::string& place, const std::string& key, const char* number) {
  const std::string copy =
      std::filesystem::temp_directory_path() / (std::string(name) + "-" + std::to_string(getpid()));
  std::filesystem::copy(folder, copy, std::filesystem::copy_options::recursive);
  std::string text = engine::read_file(copy + "/" + file, 1 << 20);
  const std::size_t from = text.find(key, text.find(place)) + key.size();
  require(from < text.size(), "the version has other files");
  text.replace(from, text.find_first_of(",}\n", from) - from, number);
  std::ofstream(copy + "/" + file) << text;
  return copy;
}

// Two versions that differ in their encoders, and one that takes no event as well.
struct Folders {
  explicit Folders(const std::string& folder)
      : of{folder, changed_version(folder, "stress-encoder", "model.json", "\"features\"",
                                   "\"shift\": ", "0.125")},
        strict(changed_version(of[1], "stress-strict", "limits.json", "\"size_bytes\"",
                               "\"high\": ", "0.5")) {}
  ~Folders() {
    std::filesystem::remove_all(of[1]);
    std::filesystem::remove_all(strict);
  }
  Folders(const Folders&) = delete;
  Folders& operator=(const Folders&) = delete;

  const std::array<std::string, 2> of;
  const std::string strict;
};

// A sender's message: `events` from number `first` on, then a question about 16 rows.
class Question {
 public:
  Question(std::uint64_t id, bool start, std::int64_t first, const float* x_EF, std::int64_t events,
           const std::vector<float>& x_QF)
      : header_{first, events, 16},
        events_shape_{1, events, kEventWindowFeatureCount},
        message_{id,
                 start,
                 false,
                 {header_shape_, {{header_.data(), sizeof header_}}},
                 {events_shape_, {{x_EF, static_cast<std::size_t>(events) * kRowBytes}}},
                 {queries_shape_, {{x_QF.data(), 16 * kRowBytes}}}} {}
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  const SessionMessage& message() const { return message_; }

 private:
  static constexpr std::size_t kRowBytes = kEventWindowFeatureCount * sizeof(float);

  std::array<std::int64_t, 3> header_;
  std::array<std::int64_t, 2> header_shape_{1, 3};
  std::array<std::int64_t, 3> events_shape_;
  std::array<std::int64_t, 3> queries_shape_{1, 16, kEventWindowFeatureCount};
  SessionMessage message_;
};

// Senders of messages, good ones and others, to versions of two encoders that come and go: what is
// answered is what a session of that encoder that never lost anything answers, bit for bit.
void hostile_messages(const Folders& folders, long rounds, Random& random) {
  struct Served {
    std::unique_ptr<Model> model;
    std::unique_ptr<Worker> worker;
    std::unique_ptr<engine::Engine> reference;
  };
  EncoderCache encoders;
  std::array<Served, 2> served;
  const auto load = [&](std::size_t i) {
    served[i].worker.reset();
    served[i].model.reset();
    served[i].model = std::make_unique<Model>(folders.of[i], 1, encoders);
    if (below(random, 2) == 0) served[i].model->fill_sessions();
    served[i].worker = std::make_unique<Worker>(*served[i].model);
    served[i].reference = served[i].model->engine().share();
  };
  load(0);
  load(1);
  require(encoders.size() == 2, "the versions have one encoder");
  SessionLimits limits{.sessions = 4};
  served[0].model->sessions().limit(limits);
  const std::int64_t reach = served[0].reference->reach();
  struct Sender {
    std::uint64_t id;
    std::vector<float> x_EF;
    std::int64_t sent = 0;
    std::array<std::unique_ptr<engine::Session>, 2> all;  // one of each encoder, with all events
    std::int64_t events() const {
      return static_cast<std::int64_t>(x_EF.size()) / kEventWindowFeatureCount;
    }
  };
  std::vector<Sender> senders(6);
  for (Sender& sender : senders) {
    sender.id = random();
    for (std::size_t i = 0; i < 2; ++i) sender.all[i] = served[i].reference->open_session();
  }
  const std::vector<float> x_QF = made_rows(16, random);
  long answered = 0;
  long resent = 0;
  long refused = 0;
  for (long i = 0; i < rounds; ++i) {
    if (below(random, 20) == 0) load(below(random, 2));
    if (below(random, 20) == 0) {
      limits.bytes = below(random, 2) == 0 ? SessionLimits().bytes : below(random, 1 << 19);
      served[0].model->sessions().limit(limits);
    }
    const std::size_t which = below(random, 4) == 0 ? 1 : 0;
    auto& [model, worker, reference] = served[which];
    Sender& sender = senders[below(random, senders.size())];
    if (below(random, 40) == 0) {  // another log under the same number
      sender.x_EF.clear();
      sender.sent = 0;
      for (const auto& all : sender.all) all->begin(0);
    }
    const std::vector<float> more = made_rows(static_cast<std::int64_t>(below(random, 20)), random);
    sender.x_EF.insert(sender.x_EF.end(), more.begin(), more.end());
    const std::int64_t end = sender.events();
    const bool start = sender.sent == 0 || below(random, 8) == 0;
    std::int64_t first = start ? std::max<std::int64_t>(end - reach, 0) : sender.sent;
    if (below(random, 8) == 0) {  // too early, or too late
      first = std::min(end, first + 3 - static_cast<std::int64_t>(below(random, 6)));
    }
    first = std::max<std::int64_t>(first, 0);
    const std::int64_t queries = below(random, 4) == 0 ? 8 : 16;
    std::vector<std::int64_t> header{first, end - first, queries};
    std::vector<float> events(sender.x_EF.begin() + first * kEventWindowFeatureCount,
                              sender.x_EF.end());
    bool good = true;
    if (below(random, 6) == 0) {
      std::int64_t& damaged = header[below(random, header.size())];
      const std::int64_t was = std::exchange(damaged, any_size(random, damaged));
      good = damaged == was;
      if (below(random, 4) == 0) {
        header.resize(below(random, 6), 1);
        good = false;
      }
    }
    if (!events.empty() && below(random, 20) == 0) {
      events[below(random, events.size())] = NAN;
      good = false;
    }
    Request parts[3];
    parts[0].shape = {1, static_cast<std::int64_t>(header.size())};
    parts[0].set_bytes(bytes_of(header), random);
    parts[1].shape = {1, end - first, kEventWindowFeatureCount};
    parts[1].set_bytes(bytes_of(events), random);
    parts[2].shape = {1, queries, kEventWindowFeatureCount};
    parts[2].set_bytes(bytes_of(std::vector<float>(
                           x_QF.begin(), x_QF.begin() + queries * kEventWindowFeatureCount)),
                       random);
    const bool ends = below(random, 50) == 0;
    try {
      const SessionReply reply = worker->converse(
          {sender.id, start, ends, parts[0].tensor(), parts[1].tensor(), parts[2].tensor()});
      if (!good) {  // by chance it may be possible, and its sender cannot say what the server has
        sender.sent = 0;
        continue;
      }
      if (reply.resend[0] >= 0) {
        require(reply.y_BH.empty(), "an answer of a session that lacks events");
        sender.sent = 0;
        ++resent;
        continue;
      }
      engine::Session& all = *sender.all[which];
      const auto known = static_cast<std::int64_t>(all.next());
      require(reference->take(all, static_cast<std::uint64_t>(known),
                              sender.x_EF.data() + known * kEventWindowFeatureCount,
                              static_cast<int>(end - known)),
              "the reference does not go on");
      std::array<float, 16> y_Q{};
      reference->answer(all, x_QF.data(), static_cast<int>(queries), y_Q.data(), nullptr);
      require(std::memcmp(reply.y_BH.data(), y_Q.data(), reply.y_BH.size_bytes()) == 0,
              "a session answers otherwise than one that has all events");
      sender.sent = ends ? 0 : end;
      ++answered;
    } catch (const engine::InvalidError& error) {
      require(!good, error.what());
      sender.sent = 0;
      ++refused;
    }
    const SessionStore& store = model->sessions();
    require(store.size() <= 4, "more sessions than may be");
    require(store.bytes() <= limits.bytes || store.size() == 1, "more memory than may be");
  }
  require(answered > 0 && resent > 0 && refused > 0, "the messages do not reach all outcomes");
  std::printf("messages: %ld of %ld answered, %ld resent\n", answered, rounds, resent);
}

// Several threads with workers of their own take turns at the same few sessions, which come and go.
void shared_sessions(const std::string& folder, long rounds) {
  EncoderCache encoders;
  const Model model(folder, 1, encoders);
  model.sessions().limit({.sessions = 3});
  std::atomic<long> answered{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, seed = i] {
      Random random(static_cast<std::uint64_t>(seed));
      Worker worker(model);
      const std::vector<float> rows = made_rows(16, random);
      const Piece piece{rows.data(), rows.size() * sizeof(float)};
      const std::vector<std::int64_t> shape{1, 16, kEventWindowFeatureCount};
      const std::vector<std::int64_t> header_shape{1, 3};
      std::array<std::int64_t, 3> header{0, 16, 16};
      for (long round = 0; round < rounds; ++round) {
        SessionMessage message{1 + below(random, 5),  below(random, 3) == 0,
                               below(random, 9) == 0, {},
                               {shape, {piece}},      {shape, {piece}}};
        header[0] = message.start ? 0 : static_cast<std::int64_t>(16 * below(random, 3));
        message.header = {header_shape, {{header.data(), sizeof header}}};
        const SessionReply reply = worker.converse(message);
        require(reply.resend[0] >= 0 || std::isfinite(reply.y_BH[0]), "no latency");
        answered += reply.resend[0] < 0 ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  require(answered > 0 && model.sessions().size() <= 3, "sessions are not shared");
  std::printf("sessions: %ld answers by three threads\n", answered.load());
}

// Reads `what` from text that is valid but for some damaged characters.
template <typename Read>
void damaged_text(const char* what, const std::string& text, long rounds, Random& random,
                  Read read) {
  static const std::string kCharacters = "{}[]\",:-+.0129eE \\ntf\xff";
  read(text);
  long refused = 0;
  for (long i = 0; i < rounds; ++i) {
    std::string damaged = text;
    for (std::size_t edits = 1 + below(random, 3); edits > 0 && !damaged.empty(); --edits) {
      const std::size_t at = below(random, damaged.size());
      switch (below(random, 3)) {
        case 0:
          damaged[at] = kCharacters[below(random, kCharacters.size())];
          break;
        case 1:
          damaged.erase(at, 1 + below(random, 30));
          break;
        default:
          damaged.resize(below(random, 20) == 0 ? at : damaged.size());
      }
    }
    try {
      read(damaged);
    } catch (const engine::InvalidError&) {
      ++refused;
    }
  }
  require(refused > 0, "no damaged text is refused");
  std::printf("%s: %ld of %ld damaged texts refused\n", what, refused, rounds);
}

void hostile_texts(const std::string& folder, long rounds, Random& random) {
  EncoderCache encoders;
  const Model model(folder, 1, encoders);
  const engine::Description& description = model.engine().description();
  damaged_text("limits", engine::read_file(folder + "/limits.json", 1 << 20), rounds, random,
               [&](const std::string& text) {
                 Limits(text, {kEventWindowFeatures.begin(), kEventWindowFeatures.end()});
               });
  const std::string config =
      R"({"max_batch_size":64,"input":[{"name":"window","data_type":"TYPE_FP32","dims":[)" +
      std::to_string(description.tokens) + "," + std::to_string(kEventWindowFeatureCount) +
      R"(]},{"name":"session","data_type":"TYPE_INT64","dims":[-1]}],"output":[{"name":"latency_us","data_type":"TYPE_FP32","dims":[)" +
      std::to_string(kHorizon) + R"(]}],"parameters":{"schema_hash":{"string_value":")" +
      description.schema_hash + R"("},"sessions":{"string_value":"9"}}})";
  damaged_text("config", config, rounds, random,
               [&](const std::string& text) { model.check_config(text); });
}

// Sessions of one encoder get the keys and values of another while there is room, or when they are
// used first. Nobody is asked for rows again, unless the version refuses those that it was sent.
void filled_sessions(const Folders& folders, Random& random) {
  constexpr std::int64_t kSenders = 40;
  constexpr std::int64_t kEvents = 300;
  EncoderCache encoders;
  const Model old(folders.of[0], 1, encoders);
  SessionStore& store = old.sessions();
  const std::vector<float> x_QF(std::size_t{16} *
                                kEventWindowFeatureCount);  // no version refuses it
  std::vector<float> x_EF = made_rows(kEvents + 1, random);
  // Asks for each sender; returns how many are asked for rows again.
  const auto ask = [&](const Model& model, std::int64_t first, std::int64_t events) {
    Worker worker(model);
    const auto reference = model.engine().share();
    const auto all = reference->open_session();
    std::array<float, 16> none_Q{};
    std::array<float, 16> y_Q{};
    reference->answer(*all, x_QF.data(), 16, none_Q.data(), nullptr);
    reference->take(*all, 0, x_EF.data(), static_cast<int>(first + events));
    reference->answer(*all, x_QF.data(), 16, y_Q.data(), nullptr);
    require(y_Q != none_Q, "the version answers the same whatever happened");
    std::int64_t resent = 0;
    for (std::uint64_t sender = 1; sender <= kSenders; ++sender) {
      const Question question(sender, first == 0, first,
                              x_EF.data() + first * kEventWindowFeatureCount, events, x_QF);
      const SessionReply reply = worker.converse(question.message());
      resent += reply.resend[0] < 0 ? 0 : 1;
      require(reply.resend[0] >= 0 || std::memcmp(reply.y_BH.data(), y_Q.data(), sizeof y_Q) == 0,
              "a filled session answers otherwise than one that has all events");
    }
    return resent;
  };
  require(ask(old, 0, kEvents) == 0, "an old question is not answered");
  const std::size_t before = store.bytes();
  const std::size_t state = old.engine().open_session()->bytes();
  const std::size_t rows =
      static_cast<std::size_t>(old.engine().reach()) * kEventWindowFeatureCount * sizeof(float);
  require(before > kSenders * (state + rows) && before < kSenders * (state + rows + 1000),
          "the counted memory is not that of rows, keys and values");
  const auto states_after = [&](const Model& model) {
    model.fill_sessions();
    require(store.size() == kSenders, "a session went");
    return (store.bytes() - before) / state;
  };
  {
    const Model next(folders.of[1], 2, encoders);
    require(states_after(next) == kSenders, "not all sessions are filled");
    require(states_after(next) == kSenders, "a session is filled twice");
    require(ask(next, kEvents, 0) == 0, "a filled session is not answered");
    require(ask(old, kEvents, 1) == 0 && ask(next, kEvents + 1, 0) == 0,
            "an event after the filling is not made up");
  }
  require(store.bytes() == before, "an encoder's memory outlives it");
  {
    const Model strict(folders.strict, 3, encoders);
    require(states_after(strict) == 0, "a version takes rows that it refuses");
    require(ask(strict, kEvents + 1, 0) == kSenders, "a version uses rows that it refuses");
  }
  const Model next(folders.of[1], 4, encoders);
  const auto now = std::chrono::steady_clock::now();
  store.fill(next.encoder(), next.engine().reach(), now, [&](const RecentRows& rows) {
    for (std::uint64_t sender = 1; sender <= kSenders; ++sender) store.open(sender, now).begin(0);
    auto session = next.engine().open_session();
    session->begin(rows.next());
    return session;
  });
  require(store.bytes() == before,
          "a session that was begun anew meanwhile is filled with old rows");
  require(ask(old, 0, kEvents + 1) == 0, "a session is not begun anew");
  const SessionLimits limits{.bytes = before + 10 * state + state / 2};
  store.limit(limits);
  require(states_after(next) == 10, "another number of sessions is filled than there is room for");
  require(ask(next, kEvents + 1, 0) == 0 && ask(old, kEvents + 1, 0) == 0,
          "without room a session is not answered");
  require(store.size() == kSenders && store.bytes() <= limits.bytes, "more memory than may be");
  store.limit({});
  require(ask(next, kEvents + 1, 0) == 0 && ask(old, kEvents + 1, 0) == 0, "a session went");
  x_EF = made_rows(kEvents + 20, random);
  require(ask(old, 0, kEvents + 20) == 0 && ask(next, kEvents + 20, 0) == 0,
          "another log under the same number is not answered");
  std::printf("filled: %ld sessions, 10 where there is no more room\n", long{kSenders});
}

// Imitates Triton while encoders are swapped: each of two senders goes on with its session. None is
// asked for rows again, and each answer is that of a session that had only this encoder.
void encoders_under_load(const Folders& folders, long versions) {
  EncoderCache encoders;
  std::mutex mutex;
  const auto load = [&](long version) {
    auto model = std::make_shared<const Model>(folders.of[static_cast<std::size_t>(version % 2)],
                                               version, encoders);
    model->fill_sessions();
    return model;
  };
  std::shared_ptr<const Model> served = load(0);
  std::atomic<bool> done{false};
  std::atomic<long> answers{0};
  std::vector<std::thread> threads;
  for (std::uint64_t id = 1; id <= 2; ++id) {
    threads.emplace_back([&, id] {
      Random random(id);
      std::array<std::unique_ptr<engine::Engine>, 2> references;
      std::array<std::unique_ptr<engine::Session>, 2> all;
      for (std::size_t i = 0; i < 2; ++i) {
        references[i] = std::make_unique<engine::Engine>(folders.of[i]);
        all[i] = references[i]->open_session();
      }
      const std::vector<float> x_QF = made_rows(16, random);
      std::array<float, 16> y_Q{};
      for (std::int64_t event = 0; !done; event += 16) {
        std::shared_ptr<const Model> mine;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          mine = served;
        }
        const std::vector<float> x_EF = made_rows(16, random);
        for (std::size_t i = 0; i < 2; ++i) {
          references[i]->take(*all[i], static_cast<std::uint64_t>(event), x_EF.data(), 16);
        }
        Worker worker(*mine);
        const Question question(id, event == 0, event, x_EF.data(), 16, x_QF);
        const SessionReply reply = worker.converse(question.message());
        require(reply.resend[0] < 0, "a sender is asked for rows again");
        const auto which = static_cast<std::size_t>(mine->engine().version() % 2);
        references[which]->answer(*all[which], x_QF.data(), 16, y_Q.data(), nullptr);
        require(std::memcmp(reply.y_BH.data(), y_Q.data(), sizeof y_Q) == 0,
                "a filled session answers otherwise than one that has all events");
        ++answers;
      }
    });
  }
  for (long version = 1; version <= versions; ++version) {
    const long before = answers;
    while (answers < before + 20) std::this_thread::yield();
    auto next = load(version);
    const std::lock_guard<std::mutex> lock(mutex);
    served = std::move(next);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  served.reset();
  require(encoders.size() == 0, "an encoder outlives its versions");
  std::printf("swap: %ld encoders under %ld answers, no rows again\n", versions, answers.load());
}

// Imitates Triton while versions are swapped: a loader thread replaces the served version, two
// threads predict with whichever is served, each with a session of its own.
void versions_under_load(const std::string& folder, long versions) {
  EncoderCache encoders;
  std::mutex mutex;
  auto served = std::make_shared<const Model>(folder, 0, encoders);
  const engine::Description description = served->engine().description();
  const std::vector<std::int64_t> shape = {2, description.tokens, kEventWindowFeatureCount};
  const std::vector<float> x_BWF(static_cast<std::size_t>(shape[0] * shape[1] * shape[2]), 1);
  std::atomic<bool> done{false};
  std::atomic<long> predictions{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      const Piece piece{x_BWF.data(), x_BWF.size() * sizeof(float)};
      while (!done) {
        std::shared_ptr<const Model> mine;
        {
          const std::lock_guard<std::mutex> lock(mutex);
          mine = served;
        }
        Worker worker(*mine);
        const std::span<const float> y_BH = worker.predict({shape, {piece}});
        require(std::isfinite(y_BH[0]), "no latency");
        ++predictions;
      }
    });
  }
  for (long version = 1; version <= versions; ++version) {
    auto next = std::make_shared<const Model>(folder, version, encoders);
    require(encoders.size() == 1, "a version brings a second encoder");
    const std::lock_guard<std::mutex> lock(mutex);
    served = std::move(next);
  }
  while (predictions < 20) std::this_thread::yield();
  done = true;
  for (std::thread& thread : threads) thread.join();
  served.reset();
  require(encoders.size() == 0, "an encoder outlives its versions");
  std::printf("swap: %ld versions under %ld predictions, one encoder\n", versions,
              predictions.load());
}

}  // namespace
}  // namespace swiftqueue::backend

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: %s FOLDER ROUNDS [SEED]\n", argv[0]);
    return 2;
  }
  const std::string folder = argv[1];
  const long rounds = std::atol(argv[2]);
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
  const swiftqueue::backend::Folders folders(folder);
  if (rounds > 0) {
    swiftqueue::backend::hostile_requests(folder, rounds / 10, random);
    swiftqueue::backend::hostile_messages(folders, rounds, random);
    swiftqueue::backend::hostile_texts(folder, rounds, random);
  }
  swiftqueue::backend::shared_sessions(folder, 2000);
  swiftqueue::backend::filled_sessions(folders, random);
  swiftqueue::backend::versions_under_load(folder, 50);
  swiftqueue::backend::encoders_under_load(folders, 50);
  return 0;
}
