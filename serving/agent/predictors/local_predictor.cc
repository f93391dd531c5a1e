// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/local_predictor.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <vector>

#include "serving/agent/io/clock.h"
#include "serving/agent/io/wake_up.h"
#include "serving/agent/predictors/artifact_folder.h"
#include "serving/agent/predictors/second_engine.h"
#include "serving/agent/predictors/up_to_date.h"
#include "serving/agent/predictors/usable_model.h"
#include "serving/engine/artifact.h"
#include "serving/engine/engine.h"

namespace swiftqueue::agent {
namespace {

using engine::Artifact;
using engine::Engine;

constexpr std::int64_t kSmooth = 8;  // questions over which the time of one is averaged
constexpr std::int64_t kMostSlower =
    3;  // a question's time counts as at most so many times the others'
constexpr std::int64_t kLeastNs = 20'000;
constexpr std::int64_t kTryNs = 20'000'000;
constexpr std::int64_t kWatchNs = 200'000;  // longest look at the second engine without sleeping
// A sender that has had so much more of the time than another one waits until that has caught up.
constexpr std::int64_t kAheadNs = 500'000;
constexpr std::int64_t kSmoothTurn = 4;
constexpr std::int64_t kMostTurnNs = 500'000;
constexpr std::int64_t kFillNs = 2'000'000'000;  // then another encoder answers, filled or not
constexpr std::int64_t kFillOneNs = 500'000;     // time in which a session is filled
constexpr std::size_t kFeatures = kEventWindowFeatureCount;

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Returns an engine that has answered a question; throws the artifact's fault.
std::unique_ptr<Engine> tried(const Artifact& artifact, const std::string& arithmetic,
                              std::int64_t version) {
  const auto& model = artifact.description;
  engine::require_one_latency(model);
  const std::string why =
      why_not_usable(model.schema_hash, model.tokens, kEventWindowFeatureCount, kHorizon);
  if (!why.empty()) throw std::runtime_error(why);
  auto engine = std::make_unique<Engine>(artifact, nullptr, arithmetic, version);
  const std::array<float, std::size_t{kHorizon} * kEventWindowFeatureCount> x_HF{};
  std::array<float, kHorizon> y_H{};
  engine->answer(*engine->open_session(), x_HF.data(), kHorizon, y_H.data(), nullptr);
  return engine;
}

class LocalPredictor final : public Predictor {
 public:
  LocalPredictor(const std::string& folder, const std::string& arithmetic)
      : folder_(folder), arithmetic_(arithmetic) {
    seen_ = fingerprint_of(folder_);
    try {
      artifact_ = engine::load_artifact(seen_.folder.empty() ? folder_ : seen_.folder);
      engine_ = tried(artifact_, arithmetic_, version_of(seen_.folder));
    } catch (const std::exception& error) {
      throw std::runtime_error(folder_ + ": " + error.what());
    }
    artifact_.tensors.clear();  // only description and hash are compared later
    for (int place = kMaxOutstanding; place-- > 0;) free_.push_back(place);
    asking_.reserve(kMaxOutstanding);
    if (cores() > 1) {
      second_ = std::make_unique<SecondEngine>(*engine_, [this] { wake_up_.wake(); });
    }
    served_ = engine_.get();
    version_ = engine_->version();
    watcher_ = std::thread([this] { watch(); });
  }

  ~LocalPredictor() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    closed_.notify_all();
    watcher_.join();
    second_.reset();  // before `wake_up_`, which it calls
  }

  Model model() const override { return {engine_->reach(), engine_->version()}; }

  std::string problem() const override { return problem_; }

  bool ask(const Enquiry& enquiry) override {
    if (free_.empty()) remove_late(monotonic_ns());
    if (free_.empty()) {
      problem_ = "more questions wait than are ever answered";
      return false;
    }
    Seat& seat = seats_[enquiry.sender];
    if (seat.number == 0) seat.number = ++last_seat_;
    seat.rows = &enquiry.rows;
    const int place = free_.back();
    free_.pop_back();
    waiting_[at(place)] = {enquiry.ticket, enquiry.rows.next(), enquiry.alternatives,
                           enquiry.deadline_ns, kNone};
    std::copy_n(enquiry.x_QF, at(enquiry.alternatives * kHorizon) * kFeatures, queries_of(place));
    if (seat.first == kNone) {
      seat.spent_ns = std::max(seat.spent_ns, least_spent_ns_);  // nobody saves up time
      asking_.push_back(&seat);
      seat.first = place;
    } else {
      waiting_[at(seat.last)].next = place;
    }
    seat.last = place;
    return true;
  }

  void forget(std::uint32_t sender) override {
    const auto found = seats_.find(sender);
    if (found == seats_.end()) return;
    Seat& seat = found->second;
    while (seat.first != kNone) remove_first(seat);
    seats_.erase(found);
  }

  bool next(Answer& answer, std::int64_t until_ns) override {
    while (true) {
      if (take_done(answer)) return true;
      const std::int64_t now_ns = monotonic_ns();
      if (second_ != nullptr && second_->help(*engine_, now_ns)) continue;
      const bool busy = until_ns <= now_ns;  // the loop has other work than to answer
      const bool taking_up = take_up(now_ns, until_ns);
      const bool lent = second_ != nullptr && second_is_quick(now_ns);
      if (lent && !taking_up && hand_over(busy, answer)) return true;
      if ((!busy || !lent) && compute_one(answer)) return true;
      if (busy || woken_.exchange(false)) return false;
      if (!wait(until_ns)) return false;
    }
  }

  void wake() override {
    woken_ = true;
    wake_up_.wake();
  }

  std::vector<ServerState> servers() const override {
    const std::lock_guard lock(mutex_);
    return {{"local", true, version_, watch_problem_, !watch_problem_.empty(), refusals_}};
  }

 private:
  static constexpr int kNone = -1;

  // A question that waits.
  struct Waiting {
    std::uint64_t ticket = 0;
    std::int64_t event = 0;  // number of the sender's first event that it does not know
    int alternatives = 0;
    std::int64_t deadline_ns = 0;
    int next = kNone;  // the sender's next one
  };
  // A sender. Its questions are answered in order: its session only goes on.
  struct Seat {
    std::uint64_t number = 0;
    const EventRows* rows = nullptr;
    std::shared_ptr<engine::Session> session;       // the second engine's while it has jobs of it
    std::shared_ptr<engine::Session> next_session;  // session of the encoder that will be taken up
    int first = kNone;  // its questions that wait, as places in `waiting_`
    int last = kNone;
    int jobs = 0;               // those at the second engine
    std::int64_t next = 0;      // number of the next event for the session, in its jobs
    std::int64_t begun = 0;     // number of the first event since it was begun
    std::int64_t spent_ns = 0;  // time of its answers; a new sender begins with the others' time
  };

  static std::size_t at(int number) { return static_cast<std::size_t>(number); }
  float* queries_of(int place) { return x_QF_.get() + at(place) * kMaxQueries * kFeatures; }

  void remove_first(Seat& seat) {
    free_.push_back(seat.first);
    seat.first = waiting_[at(seat.first)].next;
    if (seat.first == kNone) std::erase(asking_, &seat);
  }

  // Removes questions that are due by now. They would be removed when their turn comes, but while
  // the second engine has no core nobody's turn comes, and new questions need their places.
  void remove_late(std::int64_t now_ns) {
    for (std::size_t i = asking_.size(); i-- > 0;) {
      Seat& seat = *asking_[i];  // leaves `asking_` with its last question
      while (seat.first != kNone && waiting_[at(seat.first)].deadline_ns <= now_ns) {
        remove_first(seat);
      }
    }
  }

  // Returns the sender to answer next. Of those that have not had more of the time than others it
  // is the one whose question is due first: a flood gets its share, however urgent it calls itself.
  // `here`: only senders without a job at the second engine. Null: there is none.
  Seat* next_seat(bool here) {
    std::int64_t least_ns = std::numeric_limits<std::int64_t>::max();
    for (const Seat* each : asking_) {
      if (!here || each->jobs == 0) least_ns = std::min(least_ns, each->spent_ns);
    }
    Seat* best = nullptr;
    for (Seat* each : asking_) {
      if ((here && each->jobs > 0) || each->spent_ns - least_ns > kAheadNs) continue;
      if (best == nullptr ||
          waiting_[at(each->first)].deadline_ns < waiting_[at(best->first)].deadline_ns) {
        best = each;
      }
    }
    if (best != nullptr) least_spent_ns_ = std::max(least_spent_ns_, least_ns);
    return best;
  }

  // Returns whether a question cannot be answered in time: it is not computed, because it would
  // make later ones late too. One slow answer must not keep all later ones from being tried.
  bool hopeless(const Seat& seat, const Waiting& question, std::int64_t now_ns,
                std::int64_t before) const {
    // It waited for so long that its events are no longer kept.
    if (question.event < seat.rows->next() && !kept(seat, question)) return true;
    return now_ns + (before + question.alternatives) * alternative_ns_ > question.deadline_ns &&
           now_ns - computed_ns_ < kTryNs;
  }

  bool kept(const Seat& seat, const Waiting& question) const {
    return begin_of_session(question.event, engine_->reach()) >= seat.rows->first();
  }

  void computed(Seat& seat, int alternatives, std::int64_t took_ns, std::int64_t now_ns) {
    seat.spent_ns += took_ns;
    computed_ns_ = now_ns;
    // A thread that had no core for a while says little about the next question.
    const std::int64_t most_ns = kMostSlower * std::max(alternative_ns_, kLeastNs);
    alternative_ns_ += (std::min(took_ns / alternatives, most_ns) - alternative_ns_) / kSmooth;
  }

  // Answers a question on this thread. Returns false if there is none for it.
  bool compute_one(Answer& answer) {
    while (Seat* const seat = next_seat(true)) {
      const int place = seat->first;
      const Waiting question = waiting_[at(place)];
      const std::int64_t begin_ns = monotonic_ns();
      if (hopeless(*seat, question, begin_ns, 0)) {
        remove_first(*seat);
        continue;
      }
      answer.ticket = question.ticket;
      answer.ok = false;
      try {
        bring_up_to_date(*engine_, session_of(*seat), *seat->rows, question.event);
        answer.version =
            engine_->answer(*seat->session, queries_of(place), question.alternatives * kHorizon,
                            answer.y_BH.data(), nullptr);
        answer.ok = true;
      } catch (const std::exception& error) {
        problem_ = answer.error = error.what();
      }
      const std::int64_t now_ns = monotonic_ns();
      if (answer.ok) computed(*seat, question.alternatives, now_ns - begin_ns, now_ns);
      remove_first(*seat);
      return true;
    }
    return false;
  }

  engine::Session& session_of(Seat& seat) {
    if (seat.session == nullptr) seat.session = engine_->open_session();
    return *seat.session;
  }

  // Hands questions to the second engine while it has room. Where this thread has time, it keeps
  // one that it can answer itself, so that a lone question wakes nobody. Returns true, with an
  // error as the answer, if a question cannot be asked.
  bool hand_over(bool busy, Answer& answer) {
    while (second_->room() && !asking_.empty()) {
      Seat* const seat = next_seat(false);
      if (!busy && seat->jobs == 0 && asking_.size() == 1) return false;
      const Waiting question = waiting_[at(seat->first)];
      // One more than is under way: its answer must come back, too.
      const std::int64_t before = (second_->under_way() + 1) * kMaxAlternatives;
      if (hopeless(*seat, question, monotonic_ns(), before)) {
        remove_first(*seat);
      } else if (!hand(*seat, question)) {
        remove_first(*seat);
        problem_ = answer.error = "too few of the sender's events are kept";
        answer.ticket = question.ticket;
        answer.ok = false;
        return true;
      } else {
        remove_first(*seat);
      }
    }
    return false;
  }

  // Returns whether the second engine's answers come soon, or it is time to try again: on a machine
  // without a free core a thread of its own only makes answers later.
  bool second_is_quick(std::int64_t now_ns) const {
    return turn_ns_ < kMostTurnNs || now_ns - turned_ns_ > kTryNs;
  }

  // Fills a job with a question. False: the events that its session lacks are no longer kept.
  bool hand(Seat& seat, const Waiting& question) {
    const engine::Session& session = session_of(seat);
    if (seat.jobs == 0) {
      seat.next = static_cast<std::int64_t>(session.next());
      seat.begun = static_cast<std::int64_t>(session.first());
    }
    const std::int64_t begin = begin_of_session(question.event, engine_->reach());
    Job& job = second_->place();
    job.anew = seat.next < begin || seat.begun > begin;
    job.first = job.anew ? begin : seat.next;
    if (job.first < seat.rows->first()) return false;
    job.seat = seat.number;
    job.session = seat.session;
    job.events = static_cast<int>(question.event - job.first);
    job.x_EF.clear();
    seat.rows->visit(job.first, question.event, [&](const float* x_EF, int events) {
      job.x_EF.insert(job.x_EF.end(), x_EF, x_EF + at(events) * kFeatures);
    });
    job.alternatives = question.alternatives;
    std::copy_n(queries_of(seat.first), at(question.alternatives * kHorizon) * kFeatures,
                job.x_QF.data());
    job.answer.ticket = question.ticket;
    if (job.anew) seat.begun = job.first;
    seat.next = question.event;
    ++seat.jobs;
    second_->push();
    return true;
  }

  // Takes an answer of the second engine; those of senders that went are dropped.
  bool take_done(Answer& answer) {
    while (Job* const job = second_ == nullptr ? nullptr : second_->done()) {
      const auto found = std::find_if(seats_.begin(), seats_.end(), [&](const auto& each) {
        return each.second.number == job->seat;
      });
      const bool known = found != seats_.end();
      turned_ns_ = monotonic_ns();
      turn_ns_ += (turned_ns_ - job->pushed_ns - turn_ns_) / kSmoothTurn;
      if (known) {
        --found->second.jobs;
        answer = job->answer;
        if (answer.ok) {
          computed(found->second, job->alternatives, job->took_ns, turned_ns_);
        } else {
          problem_ = answer.error;
        }
      }
      second_->give_back();
      if (known) return true;
    }
    return false;
  }

  // Waits until `until_ns` (false) or until something may have come. It sleeps until shortly before
  // and then looks at the clock, as it does while the second engine is about to answer.
  bool wait(std::int64_t until_ns) {
    const std::int64_t watch_ns = monotonic_ns() + kWatchNs;
    while (true) {
      const std::int64_t now_ns = monotonic_ns();
      if (now_ns >= until_ns) return false;
      if (second_ != nullptr) {
        if (second_->done() != nullptr || second_->help(*engine_, now_ns)) return true;
        if (!second_->idle() && now_ns < watch_ns) continue;
        second_->asleep(true);
        if (second_->done() != nullptr) return true;
      }
      const bool wakes = wake_up_.sleep(now_ns, until_ns);
      if (second_ != nullptr) second_->asleep(false);
      if (wakes) return true;
    }
  }

  // Takes over the engine that the watcher made, once every sender has a session of it: one is
  // filled whenever there is time, and the old encoder answers meanwhile, for kFillNs at most.
  // The watcher keeps the old engine until it makes another. Returns whether the second engine
  // must get no more jobs, because the old engine goes.
  bool take_up(std::int64_t now_ns, std::int64_t until_ns) {
    if (!fresh_.load(std::memory_order_acquire)) return false;
    if (fill_until_ns_ == 0) fill_until_ns_ = now_ns + kFillNs;
    const auto lacking = std::find_if(seats_.begin(), seats_.end(), [](const auto& each) {
      return each.second.next_session == nullptr;
    });
    if (lacking != seats_.end() && now_ns < fill_until_ns_) {
      if (until_ns - now_ns > kFillOneNs && asking_.empty()) fill(lacking->second);
      return false;
    }
    if (second_ != nullptr && !second_->idle()) return true;
    const std::lock_guard lock(mutex_);
    std::swap(engine_, made_);
    for (auto& [sender, seat] : seats_) seat.session = std::move(seat.next_session);
    if (second_ != nullptr) second_->take_up(*engine_);
    served_ = engine_.get();
    fill_until_ns_ = 0;
    fresh_ = false;
    closed_.notify_all();
    return false;
  }

  void fill(Seat& seat) {
    seat.next_session = made_->open_session();
    try {
      bring_up_to_date(*made_, *seat.next_session, *seat.rows, seat.rows->next());
    } catch (const std::exception&) {  // its first question begins it anew, or says why not
    }
  }

  void watch() {
    std::unique_lock lock(mutex_);
    while (!closing_) {
      closed_.wait_for(lock, kWatchPause);
      if (closing_ || fresh_) continue;
      lock.unlock();
      const Fingerprint now = fingerprint_of(folder_);
      const bool changed = !(now == seen_);
      std::string problem = changed ? look(now) : "";
      if (!problem.empty()) {
        problem = folder_ + ": " + problem + "; version " + std::to_string(version_) + " goes on";
        std::fprintf(stderr, "swiftqueue-agent: %s\n", problem.c_str());
      }
      lock.lock();
      if (changed) {
        watch_problem_ = problem;
        refusals_ += problem.empty() ? 0 : 1;
      }
    }
  }

  // Takes up the folder's artifact; returns one line if it cannot.
  std::string look(const Fingerprint& now) {
    seen_ = now;
    try {
      if (now.folder.empty()) throw std::runtime_error("is gone");
      Artifact artifact = engine::load_artifact(now.folder);
      const std::int64_t version = version_of(now.folder);
      auto engine = tried(artifact, arithmetic_, version);
      const bool head_only = artifact.encoder_hash == artifact_.encoder_hash &&
                             artifact.description == artifact_.description;
      if (head_only) served_.load()->swap_head(now.folder, version);
      const std::lock_guard lock(mutex_);
      version_ = version;
      if (!head_only) {
        artifact.tensors.clear();
        artifact_ = std::move(artifact);
        made_ = std::move(engine);
        fresh_.store(true, std::memory_order_release);
      }
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }

  const std::string folder_;
  const std::string arithmetic_;
  WakeUp wake_up_{kOversleepNs};
  // These belong to the loop's thread:
  std::unique_ptr<Engine> engine_;
  std::unordered_map<std::uint32_t, Seat> seats_;  // by sender
  std::uint64_t last_seat_ = 0;
  std::vector<Seat*> asking_;  // those with questions that wait
  std::vector<Waiting> waiting_ = std::vector<Waiting>(kMaxOutstanding);
  std::vector<int> free_;  // unused places of `waiting_`
  // Their queries. Memory that no question ever needed is never touched.
  std::unique_ptr<float[]> x_QF_{new float[std::size_t{kMaxOutstanding} * kMaxQueries * kFeatures]};
  std::int64_t turn_ns_ = 0;         // recent time from handing a question over to its answer
  std::int64_t turned_ns_ = 0;       // time of the last such answer
  std::int64_t least_spent_ns_ = 0;  // least time that senders with questions have had
  std::int64_t fill_until_ns_ = 0;   // when the engine that the watcher made is taken up at last
  std::string problem_;
  std::int64_t alternative_ns_ = 0;  // recent time of one alternative
  std::int64_t computed_ns_ = 0;     // time when the last answer was ready
  // These belong to the watcher:
  Fingerprint seen_;
  Artifact artifact_;  // without its tensors
  // These are shared:
  std::atomic<bool> woken_{false};
  std::atomic<Engine*> served_{nullptr};  // the watcher may swap its head
  mutable std::mutex mutex_;
  std::condition_variable closed_;
  std::unique_ptr<Engine> made_;    // waits to be taken up, or was replaced
  std::atomic<bool> fresh_{false};  // whether it waits
  bool closing_ = false;
  std::int64_t version_ = 0;
  std::string watch_problem_;  // problem of the folder's artifact; empty if it is in service
  std::int64_t refusals_ = 0;
  std::unique_ptr<SecondEngine> second_;  // null where this process has one core
  std::thread watcher_;
};

}  // namespace

std::unique_ptr<Predictor> make_local_predictor(const std::string& folder,
                                                const std::string& arithmetic) {
  return std::make_unique<LocalPredictor>(folder, arithmetic);
}

}  // namespace swiftqueue::agent
