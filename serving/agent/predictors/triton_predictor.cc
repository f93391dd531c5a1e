// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/predictors/triton_predictor.h"

#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "serving/agent/io/clock.h"
#include "serving/agent/io/wake_up.h"
#include "serving/agent/predictors/triton_channel.h"
#include "serving/agent/predictors/triton_request.h"
#include "serving/agent/predictors/triton_server.h"

namespace swiftqueue::agent {
namespace {

constexpr std::int64_t kTendNs = 10'000'000;          // servers are looked after this often
constexpr std::int64_t kLastStallNs = 1'000'000'000;  // then the only server is given up, too
constexpr std::int64_t kSecondLookNs = 5'000'000;
constexpr std::int64_t kRoomTimes = 3;  // a question is not held with less time left than this

// The events of a completion queue, which a thread of its own takes. The loop's thread sleeps for
// them as it does for anything else: gRPC counts its own waits in whole ms.
class Events {
 public:
  struct Event {
    const Tag* tag;  // it may go with the call when its last event is handled
    bool ok;
  };

  Events(grpc::CompletionQueue& queue, WakeUp& wake_up)
      : queue_(queue), thread_([this, &wake_up] {
          void* tag = nullptr;
          bool ok = false;
          while (queue_.Next(&tag, &ok)) {
            {
              const std::lock_guard lock(lock_);
              events_.push_back({static_cast<const Tag*>(tag), ok});
            }
            wake_up.wake();
          }
        }) {}
  // All calls must have been cancelled.
  ~Events() {
    queue_.Shutdown();
    thread_.join();
  }
  Events(const Events&) = delete;
  Events& operator=(const Events&) = delete;

  std::optional<Event> take() {
    const std::lock_guard lock(lock_);
    if (events_.empty()) return std::nullopt;
    const Event event = events_.front();
    events_.pop_front();
    return event;
  }

 private:
  grpc::CompletionQueue& queue_;
  std::mutex lock_;
  std::deque<Event> events_;
  std::thread thread_;
};

class TritonPredictor : public Predictor {
 public:
  explicit TritonPredictor(const TritonOptions& options);
  ~TritonPredictor() override;

  Model model() const override;
  std::string problem() const override;
  bool ask(const Enquiry& enquiry) override;
  void forget(std::uint32_t sender) override;
  bool next(Answer& answer, std::int64_t until_ns) override;
  void wake() override {
    woken_ = true;
    wake_up_.wake();
  }
  std::vector<ServerState> servers() const override;

 private:
  bool pop(Answer& answer);
  bool wait(std::int64_t now, std::int64_t until_ns);
  void tend(std::int64_t now);
  void route(std::int64_t now);
  void gather(bool in_order, std::int64_t now, std::int64_t earliest_ns);
  void put_back(std::unique_ptr<Request> request);
  bool all_in_time(std::int64_t first_ns) const;
  std::int64_t held_until_ns() const;
  void choose_server(std::int64_t now);
  void give_up_stalled(std::int64_t now);
  bool others(const TritonServer* server) const;
  void publish();

  WakeUp wake_up_{0};  // to the point: the cores are the server's, too
  grpc::CompletionQueue queue_;
  std::optional<Events> events_{std::in_place, queue_, wake_up_};
  RequestPool pool_;
  Outcomes outcomes_;
  std::vector<std::unique_ptr<TritonServer>> servers_;
  TritonServer* active_ = nullptr;
  const TritonServer* last_ = nullptr;  // the server used before, among `servers_`
  std::deque<std::unique_ptr<Request>> waiting_;
  std::vector<std::unique_ptr<Request>> leaving_;  // those that `gather` took
  bool pressed_ = false;  // whether the last question came while others were under way
  std::int64_t tended_ns_ = 0;
  std::int64_t overdue_since_ns_ = 0;  // when a server was first found stalled; 0: none is
  std::atomic<bool> woken_{false};
  mutable std::mutex states_lock_;
  std::vector<ServerState> states_;
};

TritonPredictor::TritonPredictor(const TritonOptions& options) {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // Linux lets a thread oversleep by 50 us otherwise
  if (options.servers.empty()) throw std::invalid_argument("no server is named");
  const auto credentials = make_credentials(options);
  for (const std::string& name : options.servers) {
    if (name.find(':') == std::string::npos) {
      throw std::invalid_argument("server " + name + ": write it as host:port or unix:PATH");
    }
    servers_.push_back(std::make_unique<TritonServer>(
        name, static_cast<int>(servers_.size()), options, credentials, queue_, pool_, outcomes_));
  }
  publish();
}

TritonPredictor::~TritonPredictor() {
  for (const auto& server : servers_) server->cancel();
  events_.reset();
}

std::string TritonPredictor::problem() const {
  std::string text;
  for (const auto& server : servers_) {
    const ServerState state = server->state();
    if (state.problem.empty()) continue;
    if (!text.empty()) text += "; ";
    text += state.name + ": " + state.problem;
  }
  return text;
}

// Returns the model of the server in use. While none answers, it is that of the last one, unless
// that has said that it serves none: a batch is then an error, and not one without a model.
Model TritonPredictor::model() const {
  if (active_ != nullptr) return active_->model();
  return last_ == nullptr ? Model{} : last_->model();
}

bool TritonPredictor::ask(const Enquiry& enquiry) {
  if (active_ == nullptr || !active_->usable()) return false;
  const std::int64_t now = monotonic_ns();
  const std::int64_t deadline_ns = enquiry.deadline_ns;
  if (deadline_ns - now < active_->least_ns(now)) return true;  // the answer would be late
  // A question that comes alone has nobody to wait for.
  pressed_ = !active_->idle() || !waiting_.empty();
  const auto last = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const auto& request) {
    return request->sender() == enquiry.sender;
  });
  const bool joins =
      last != waiting_.rend() && !(*last)->alone &&
      (*last)->alternatives() + enquiry.alternatives <=
          active_->batch_limit(std::min((*last)->first_deadline_ns(), deadline_ns) - now);
  if (!joins) waiting_.push_back(pool_.take(enquiry.sender, enquiry.rows));
  (joins ? **last : *waiting_.back())
      .add({enquiry.ticket, enquiry.rows.next(), enquiry.alternatives, deadline_ns}, enquiry.x_QF);
  if (active_->room()) route(now);
  if (active_ != nullptr && !waiting_.empty()) active_->await(deadline_ns);
  return true;
}

void TritonPredictor::forget(std::uint32_t sender) {
  for (auto& server : servers_) server->forget(sender);
  const auto of_sender = [&](const auto& request) { return request->sender() == sender; };
  std::erase_if(waiting_, of_sender);
  std::erase_if(outcomes_.returned, of_sender);
}

bool TritonPredictor::next(Answer& answer, std::int64_t until_ns) {
  std::int64_t now = monotonic_ns();
  for (;;) {
    if (pop(answer)) return true;
    if (woken_.exchange(false)) return false;
    if (now - tended_ns_ >= kTendNs) tend(now);
    const bool idle = active_ == nullptr || (active_->idle() && waiting_.empty());
    const bool event = wait(now, until_ns);
    if (!event && idle && now >= until_ns) return false;
    now = monotonic_ns();
    if (!event) give_up_stalled(now);
    route(now);
    if (!event && now >= until_ns) return pop(answer);
  }
}

bool TritonPredictor::pop(Answer& answer) {
  if (outcomes_.answers.empty()) return false;
  answer = std::move(outcomes_.answers.front());
  outcomes_.answers.pop_front();
  return true;
}

// Takes an event, waiting until `until_ns` or until servers need a look; false: none.
bool TritonPredictor::wait(std::int64_t now, std::int64_t until_ns) {
  std::int64_t end_ns = std::min(until_ns, tended_ns_ + kTendNs);
  if (!waiting_.empty() && active_ != nullptr && active_->room()) {
    end_ns = std::min(end_ns, held_until_ns());
  }
  auto event = events_->take();
  if (!event && end_ns > now) {
    wake_up_.sleep(now, end_ns);
    event = events_->take();
  }
  if (!event) return false;
  const Tag tag = *event->tag;
  tag.server->handle(tag, event->ok, monotonic_ns());
  return true;
}

void TritonPredictor::tend(std::int64_t now) {
  tended_ns_ = now;
  for (const auto& server : servers_) server->tend(now);
  route(now);
  publish();
}

// Chooses the server, and gives it the waiting questions: new ones, and those that another left
// unanswered. They go in order where all can be in time that way. When there are more than the
// server can answer, the newest go first: in order, all would wait until each is too late. A
// sender's older ones are then not asked at all.
void TritonPredictor::route(std::int64_t now) {
  choose_server(now);
  for (; !outcomes_.returned.empty(); outcomes_.returned.pop_back()) {
    put_back(std::move(outcomes_.returned.back()));
  }
  const std::int64_t earliest_ns = now + (active_ == nullptr ? 0 : active_->least_ns(now));
  while (!waiting_.empty() && waiting_.front()->deadline_ns() <= earliest_ns) {
    pool_.give_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  while (!waiting_.empty() && (active_ == nullptr || active_->room())) {
    if (active_ != nullptr && held_until_ns() > now) return;
    gather(active_ != nullptr && all_in_time(earliest_ns), now, earliest_ns);
    if (active_ != nullptr) {
      active_->send(leaving_);
      continue;
    }
    for (std::unique_ptr<Request>& request : leaving_) {
      request->fail(problem(), 0, outcomes_.answers);
      pool_.give_back(std::move(request));
    }
    leaving_.clear();
  }
}

// Takes the requests that travel next out of the waiting ones: as many as can be answered in time
// together, one of a question that was refused among others.
void TritonPredictor::gather(bool in_order, std::int64_t now, std::int64_t earliest_ns) {
  int alternatives = 0;
  std::int64_t first_ns = std::numeric_limits<std::int64_t>::max();
  while (!waiting_.empty()) {
    const Request& next = in_order ? *waiting_.front() : *waiting_.back();
    first_ns = std::min(first_ns, next.first_deadline_ns());
    if (!leaving_.empty() &&
        (next.alone || leaving_.back()->alone || active_ == nullptr || !active_->several() ||
         alternatives + next.alternatives() > active_->batch_limit(first_ns - now))) {
      return;
    }
    std::unique_ptr<Request> request = std::move(in_order ? waiting_.front() : waiting_.back());
    in_order ? waiting_.pop_front() : waiting_.pop_back();
    request->drop_expired(earliest_ns);
    if (request->empty()) {
      pool_.give_back(std::move(request));
    } else {
      alternatives += request->alternatives();
      leaving_.push_back(std::move(request));
    }
  }
}

// Lets a request wait again, before the others but after those of its sender that were asked
// before: a server takes a sender's events in order.
void TritonPredictor::put_back(std::unique_ptr<Request> request) {
  if (request->empty()) return pool_.give_back(std::move(request));
  auto place = waiting_.begin();
  for (auto other = waiting_.begin(); other != waiting_.end(); ++other) {
    const bool earlier = (*other)->sender() == request->sender() && !(*other)->empty() &&
                         (*other)->tickets().front().number < request->tickets().front().number;
    if (earlier) place = other + 1;
  }
  waiting_.insert(place, std::move(request));
}

// Returns whether the server in use can answer all waiting questions in time from `first_ns` on.
bool TritonPredictor::all_in_time(std::int64_t first_ns) const {
  return std::all_of(waiting_.begin(), waiting_.end(), [&](const auto& request) {
    const bool in_time = first_ns <= request->first_deadline_ns();
    first_ns += request->alternatives() * active_->alternative_ns();
    return in_time;
  });
}

// Returns until when the waiting questions wait for others to travel with.
std::int64_t TritonPredictor::held_until_ns() const {
  if (!pressed_) return 0;
  std::int64_t until_ns = active_->hold_until_ns();
  for (const auto& request : waiting_) {
    if (request->alone || request->resent) return 0;
    until_ns = std::min(until_ns, request->first_deadline_ns() - kRoomTimes * active_->took_ns());
  }
  return until_ns;
}

void TritonPredictor::choose_server(std::int64_t now) {
  const auto best = [&]() -> TritonServer* {
    TritonServer* resting = nullptr;
    for (const auto& server : servers_) {
      if (!server->usable()) continue;
      if (!server->resting(now)) return server.get();
      if (resting == nullptr) resting = server.get();
    }
    return resting;
  };
  const TritonServer* const before = std::exchange(active_, best());
  if (active_ != nullptr && active_->too_slow(now) && others(active_)) {
    active_->leave("its answers are too late", now);
    active_ = best();
  }
  if (active_ != nullptr) last_ = active_;
  // A batch with a decision of a server must find it connected in the metrics.
  if (active_ != before) publish();
}

// Called when no event waits: overdue questions then were not answered, unless the events' thread
// had no core either, which a second look some ms later tells.
void TritonPredictor::give_up_stalled(std::int64_t now) {
  bool overdue = false;
  for (const auto& server : servers_) {
    // The only server is given its time: there is no better choice.
    if (server->overdue_ns(now) < (others(server.get()) ? kStallNs : kLastStallNs)) continue;
    overdue = true;
    if (overdue_since_ns_ == 0) overdue_since_ns_ = now;
    if (now - overdue_since_ns_ >= kSecondLookNs) server->give_up(now);
  }
  if (!overdue) overdue_since_ns_ = 0;
}

bool TritonPredictor::others(const TritonServer* server) const {
  return std::any_of(servers_.begin(), servers_.end(),
                     [&](const auto& other) { return other.get() != server && other->usable(); });
}

std::vector<ServerState> TritonPredictor::servers() const {
  const std::lock_guard lock(states_lock_);
  return states_;
}

void TritonPredictor::publish() {
  std::vector<ServerState> states;
  for (const auto& server : servers_) states.push_back(server->state());
  const std::lock_guard lock(states_lock_);
  states_ = std::move(states);
}

}  // namespace

std::unique_ptr<Predictor> make_triton_predictor(const TritonOptions& options) {
  // Failures are in problem() and in the answers; gRPC would write them to the terminal as well.
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  return std::make_unique<TritonPredictor>(options);
}

}  // namespace swiftqueue::agent
