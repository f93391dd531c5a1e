// SPDX-License-Identifier: Apache-2.0
//
// A thread that answers questions of the local predictor beside the loop's own thread. The two
// share a ring of jobs and take no lock: the loop's thread fills a job, the other one answers it.
#ifndef SWIFTQUEUE_SERVING_AGENT_SECOND_ENGINE_H_
#define SWIFTQUEUE_SERVING_AGENT_SECOND_ENGINE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "serving/agent/io/clock.h"
#include "serving/agent/predictors/predictor.h"
#include "serving/engine/engine.h"

namespace swiftqueue::agent {

// A question, with the events that its session lacks.
struct Job {
  std::uint64_t seat = 0;                    // the predictor's number of the sender
  std::shared_ptr<engine::Session> session;  // this thread's alone, as long as it has a job of it
  bool anew = false;                         // whether the session begins at `first`
  std::int64_t first = 0;                    // number of the first event
  int events = 0;
  std::vector<float> x_EF;
  std::array<float, std::size_t{kMaxQueries} * kEventWindowFeatureCount> x_QF;
  int alternatives = 0;
  Answer answer;               // the asking thread writes its ticket, the other one the rest
  std::int64_t took_ns = 0;    // time of the computation
  std::int64_t pushed_ns = 0;  // time when it was handed over
};

class SecondEngine {
 public:
  // `woken` is called by the thread after an answer that somebody sleeps for.
  SecondEngine(const engine::Engine& engine, std::function<void()> woken)
      : woken_(std::move(woken)) {
    take_up(engine);
    thread_ = std::thread([this] { run(); });
  }
  ~SecondEngine() {
    closing_ = true;
    pushed_.fetch_add(1);
    pushed_.notify_one();
    thread_.join();
  }
  SecondEngine(const SecondEngine&) = delete;
  SecondEngine& operator=(const SecondEngine&) = delete;

  // All of these belong to the asking thread.
  // Takes another model; no job may be under way.
  void take_up(const engine::Engine& engine) {
    for (Job& job : jobs_) {
      job.x_EF.reserve(static_cast<std::size_t>(engine.reach()) * kEventWindowFeatureCount);
    }
    engine_ = engine.share();
  }
  // One job is computed and one waits, so that the thread never waits for us.
  bool room() const { return count() - taken_ < kAtOnce; }
  bool idle() const { return count() == taken_; }
  std::int64_t under_way() const { return static_cast<std::int64_t>(count() - taken_); }
  // Returns the job to be filled next, where there is room; `push` hands it over.
  Job& place() { return jobs_[count() % kAtOnce]; }
  void push() {
    pushed_ns_ = place().pushed_ns = monotonic_ns();
    pushed_.fetch_add(1);
    pushed_.notify_one();
  }
  // Computes the jobs here, by `engine`, where the thread has had no core since they were pushed.
  bool help(engine::Engine& engine, std::int64_t now_ns) {
    const std::uint64_t end = count();
    std::uint64_t next = claimed_.load();
    if (next == end || next != done_.load() || now_ns - pushed_ns_ < kLostNs) return false;
    // All of them: two of one session must not be computed at once.
    if (!claimed_.compare_exchange_strong(next, end)) return false;
    for (; next != end; ++next) {
      answer(engine, jobs_[next % kAtOnce]);
      done_ = next + 1;
    }
    return true;
  }
  // Returns the first job that is done and not given back; null if there is none.
  Job* done() { return done_.load() == taken_ ? nullptr : &jobs_[taken_ % kAtOnce]; }
  void give_back() {
    jobs_[taken_ % kAtOnce].session.reset();
    ++taken_;
  }
  // Says that the asking thread sleeps from now on, or no longer.
  void asleep(bool sleeps) { asleep_ = sleeps; }

 private:
  static constexpr std::uint64_t kAtOnce = 2;
  static constexpr std::int64_t kSpinNs = 30'000;   // the next job mostly comes as soon
  static constexpr std::int64_t kLostNs = 100'000;  // a thread that has a core begins sooner

  std::uint64_t count() const { return pushed_.load(std::memory_order_relaxed); }

  void run() {
    std::int64_t sleep_ns = monotonic_ns() + kSpinNs;
    while (true) {
      // In this order: the asking thread may push and compute jobs in between, and `next` must not
      // get beyond `pushed`.
      std::uint64_t next = claimed_.load();
      const std::uint64_t pushed = pushed_.load();
      if (next == pushed) {
        if (monotonic_ns() > sleep_ns) pushed_.wait(pushed);
        continue;
      }
      if (!claimed_.compare_exchange_strong(next, next + 1)) continue;
      if (closing_) return;
      answer(*engine_, jobs_[next % kAtOnce]);
      done_ = next + 1;
      if (asleep_.exchange(false)) woken_();
      sleep_ns = monotonic_ns() + kSpinNs;
    }
  }

  static void answer(engine::Engine& engine, Job& job) {
    const std::int64_t begin_ns = monotonic_ns();
    job.answer.ok = false;
    try {
      if (job.anew) job.session->begin(static_cast<std::uint64_t>(job.first));
      if (!engine.take(*job.session, static_cast<std::uint64_t>(job.first), job.x_EF.data(),
                       job.events)) {
        throw std::runtime_error("the session lacks events that were refused");
      }
      job.answer.version = engine.answer(*job.session, job.x_QF.data(), job.alternatives * kHorizon,
                                         job.answer.y_BH.data(), nullptr);
      job.answer.ok = true;
    } catch (const std::exception& error) {
      job.answer.error = error.what();
    }
    job.took_ns = monotonic_ns() - begin_ns;
  }

  std::unique_ptr<engine::Engine> engine_;  // the asking thread changes it while no job is there
  std::array<Job, kAtOnce> jobs_;
  std::atomic<std::uint64_t> pushed_{0};
  std::atomic<std::uint64_t> claimed_{0};  // by whoever computes them
  std::atomic<std::uint64_t> done_{0};
  std::uint64_t taken_ = 0;
  std::int64_t pushed_ns_ = 0;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> closing_{false};
  const std::function<void()> woken_;
  std::thread thread_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_SECOND_ENGINE_H_
