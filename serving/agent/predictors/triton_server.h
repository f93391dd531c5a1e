// SPDX-License-Identifier: Apache-2.0
//
// One Triton server: its stream, the requests under way on it, and the known state of its model.
// All of it is asynchronous on one completion queue, driven by the thread that decides: an answer
// wakes that thread and no other, and nothing here waits.
//
// A server is judged by answers alone. Every second it is asked for the `config` of its model and,
// while it has no other question, for a real inference; after any trouble it is used again once it
// has answered such an inference.
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_SERVER_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grpc_service.grpc.pb.h"
#include "serving/agent/io/complaints.h"
#include "serving/agent/predictors/predictor.h"
#include "serving/agent/predictors/triton_predictor.h"
#include "serving/agent/predictors/triton_request.h"

namespace swiftqueue::agent {

// Requests under way at once: one for the server to compute and one for it to begin with, so that
// it never waits for us. Questions beyond these wait and go out together, the newest first.
inline constexpr std::size_t kMaxInFlight = 2;
// A server that misses all deadlines for this long is left for another, if there is one.
inline constexpr std::int64_t kStallNs = 30'000'000;

class TritonServer;

// A tag of the completion queue: the server, the call, and the kind of event.
struct Tag {
  enum Event { kStart, kRead, kWrite, kFinish, kConfig, kInfer };
  TritonServer* server;
  struct Call* call;  // call of the first four kinds; nullptr for the others
  struct Probe* probe;
  Event event;
};

// Results from servers, for the predictor.
struct Outcomes {
  std::deque<Answer> answers;
  // Requests whose stream broke or stalled: another server may still answer them in time.
  std::vector<std::unique_ptr<Request>> returned;
};

class TritonServer {
 public:
  TritonServer(std::string name, int index, const TritonOptions& options,
               std::shared_ptr<grpc::ChannelCredentials> credentials, grpc::CompletionQueue& queue,
               RequestPool& pool, Outcomes& outcomes);
  ~TritonServer();  // the queue must have been shut down and emptied

  // Opens the stream and asks about the model when that is due.
  void tend(std::int64_t now_ns);
  // Takes an event of this server.
  void handle(const Tag& tag, bool ok, std::int64_t now_ns);
  // Ends all calls; their events still come.
  void cancel();

  bool usable() const { return open_ && model_.reach > 0 && proven_ns_ > trouble_ns_; }
  // After repeated trouble it is left alone for a while, where there is another server.
  bool resting(std::int64_t now_ns) const { return now_ns < rest_until_ns_; }
  bool room() const {
    return open_ && !writing_ && in_flight_.size() < kMaxInFlight && !settling();
  }
  // Returns until when questions wait for others to travel with. Requests follow each other at
  // 1.5 times what one takes: a request costs several times what a question in it does.
  std::int64_t hold_until_ns() const { return written_ns_ + kPaceQuarters * took_ns_ / 4; }
  // Returns the recent time from sending a request to its answer.
  std::int64_t took_ns() const { return took_ns_; }
  // Sends, in one message, the questions of requests that can be asked here; the others get no
  // answer. Requests that find no room in it are returned. `requests` is empty afterwards.
  void send(std::vector<std::unique_ptr<Request>>& requests);
  // Returns whether requests of several senders may travel together.
  bool several() const { return several_; }
  // Forgets a sender, and ends its session.
  void forget(std::uint32_t sender);
  // Notes that a question waits for room here: silence meanwhile counts against the server, too.
  void await(std::int64_t deadline_ns) { awaited_ns_ = std::min(awaited_ns_, deadline_ns); }
  // Returns how long ago the first of the questions under way, or waiting since its last answer,
  // was due. A patient question hides no other one. Large only if no event waits to be taken.
  std::int64_t overdue_ns(std::int64_t now_ns) const;
  // Returns whether answers come, but all deadlines have been missed for kStallNs.
  bool too_slow(std::int64_t now_ns) const;
  // Leaves it until it has proven itself again.
  void leave(const std::string& why, std::int64_t now_ns);
  // Leaves it, with all its requests, and connects anew.
  void give_up(std::int64_t now_ns);
  bool idle() const { return in_flight_.empty(); }

  const Model& model() const { return model_; }
  // Returns the least recent time of an answer: a question with less time left is not asked, since
  // it would make others late, too. 0 if it is unknown.
  std::int64_t least_ns(std::int64_t now_ns) const;
  // Returns the recent time of an alternative at the server, as a share of its request's.
  std::int64_t alternative_ns() const {
    return static_cast<std::int64_t>(busy_ns_ / std::max(asked_, 1.0));
  }
  // Returns how many alternatives to send together with `left_ns` to go: they are answered
  // together.
  int batch_limit(std::int64_t left_ns) const;
  const std::string& problem() const { return problem_; }
  ServerState state() const;

 private:
  static constexpr std::int64_t kPaceQuarters = 6;
  static constexpr std::int64_t kNobody = std::numeric_limits<std::int64_t>::max();

  bool settling() const;
  void connect();
  void open();
  void take_answer(std::int64_t now_ns);
  void take_parts(Parcel& parcel, std::int64_t now_ns);
  void refuse(Parcel& parcel, const std::string& error);
  void resend(std::unique_ptr<Request> request, std::int64_t wanted);
  void lost_session(const Request& request, int reach);
  void end_sessions();
  std::unique_ptr<Parcel> take_parcel();
  void give_back(std::unique_ptr<Parcel> parcel);
  void write(std::unique_ptr<Parcel> parcel);
  void complain(const std::string& line);
  void lose(const std::string& why, std::int64_t now_ns);
  void trouble(const std::string& why, std::int64_t now_ns);
  void begin_probe(std::int64_t now_ns);
  void config_done(Probe& probe, std::int64_t now_ns);
  void infer_done(const Probe& probe, std::int64_t now_ns);
  void end_probe(const std::string& problem, bool model_gone, std::int64_t now_ns);
  void drop_probe();
  std::unique_ptr<Parcel> padding_question();

  const std::string name_;
  const int index_;
  const std::string model_name_;
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  grpc::CompletionQueue& queue_;
  RequestPool& pool_;
  Outcomes& outcomes_;

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<inference::GRPCInferenceService::Stub> stub_;

  std::unique_ptr<Call> call_;  // the open or opening stream
  bool open_ = false;
  bool writing_ = false;
  std::vector<std::unique_ptr<Parcel>> in_flight_;  // in the order sent
  std::vector<std::unique_ptr<Parcel>> free_;       // not in use
  std::uint64_t sent_ = 0;
  std::int64_t awaited_ns_ = kNobody;  // first deadline of the questions that wait for room
  std::int64_t reopen_ns_ = 0;
  std::int64_t backoff_ns_;

  std::unique_ptr<Probe> probe_;
  std::int64_t probe_ns_ = 0;  // time of the next probe
  std::int64_t probe_pause_ns_;

  // Calls that were given up; kept until their last event.
  std::vector<std::unique_ptr<Call>> old_calls_;
  std::vector<std::unique_ptr<Probe>> old_probes_;

  Model model_;
  int max_batch_ = 0;      // most alternatives of a request to the model
  bool sessions_ = false;  // whether the model keeps sessions
  bool several_ = false;
  std::unordered_map<std::uint32_t, ServerSession> session_of_;  // by sender
  std::vector<ServerSession> ended_;  // those that the server has not been told of
  std::int64_t resends_ = 0;
  Complaints complaints_;
  std::string problem_;
  std::string said_;     // last report about a batch
  std::string refusal_;  // why the model there cannot be used; empty if it can
  std::int64_t refusals_ = 0;
  std::int64_t answered_ns_ = -1;  // time of the stream's last good answer
  std::int64_t written_ns_ = 0;    // time of the last request
  std::int64_t took_ns_ = 0;       // recent time from sending to an answer
  std::int64_t least_ns_ = 0;      // from sending to an answer in time: falls at once, rises slowly
  // Recent time that the server took for requests, and the alternatives in them: fading sums, so
  // that a large request counts for more, as it tells more of what another alternative costs.
  double busy_ns_ = 0;
  double asked_ = 0;
  std::int64_t trouble_ns_ = 0;      // time of the last trouble
  std::int64_t proven_ns_ = -1;      // start of the last inference that was asked to prove it
  std::int64_t late_since_ns_ = -1;  // first deadline missed since the last one met
  int late_ = 0;                     // late answers since then
  std::int64_t rest_ns_ = 0;         // length of the rest after the next trouble of slowness
  std::int64_t rest_until_ns_ = 0;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_SERVER_H_
