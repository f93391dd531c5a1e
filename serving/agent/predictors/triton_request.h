// SPDX-License-Identifier: Apache-2.0
//
// Questions of one sender, and the KServe message in which those of several travel: as messages of
// their sessions or, for a model without sessions, as windows. Messages are made once and used
// again: asking copies rows and nothing else. Rows of events are copied as they are sent, so that a
// server is sent each once, whatever became of the messages before.
#ifndef SWIFTQUEUE_SERVING_AGENT_TRITON_REQUEST_H_
#define SWIFTQUEUE_SERVING_AGENT_TRITON_REQUEST_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "grpc_service.pb.h"
#include "serving/agent/predictors/predictor.h"

namespace swiftqueue::agent {

struct Ticket {
  std::uint64_t number;  // number of the question
  std::int64_t event;    // number of the sender's first event that it does not know
  int alternatives;
  std::int64_t deadline_ns;
};

// State of a sender's session at a server, as the agent knows it.
struct ServerSession {
  // Draws a number that nobody else can name.
  ServerSession();

  std::uint64_t id;
  bool open = false;        // the server has been sent all events before `next`
  std::int64_t next = 0;    // number of the next event to send
  std::uint64_t begun = 0;  // how often it was begun: older answers say nothing about it
  int reach = 0;            // events that the server asked for again, where those did not suffice
};

class Request {
 public:
  // Empties the request, for the questions of a sender.
  void begin(std::uint32_t sender, const EventRows& rows);
  // Adds a question, whose queries are copied.
  void add(const Ticket& ticket, const float* x_QF);
  // Takes out the questions whose deadline has passed.
  void drop_expired(std::int64_t now_ns);
  // Takes out all questions: the sender is gone.
  void forget();

  // Takes out the questions that a session cannot be asked any more, because a later one was, or
  // because the events are no longer kept. Returns from which event on it must be sent; -1 if no
  // question is left.
  std::int64_t first_event(const ServerSession& session, int reach);

  // Gives each question its answer in y_BH, or `error` (one line) to all of them.
  void answer(const char* y_BH, std::int64_t version, int server,
              std::deque<Answer>& answers) const;
  void fail(const std::string& error, int server, std::deque<Answer>& answers) const;

  bool empty() const { return tickets_.empty(); }
  std::uint32_t sender() const { return sender_; }
  const EventRows& rows() const { return *rows_; }
  int alternatives() const { return alternatives_; }
  const std::vector<Ticket>& tickets() const { return tickets_; }
  const std::vector<float>& queries() const { return x_QF_; }
  // Returns the queries of question `index`.
  const float* queries_of(std::size_t index) const;
  // Returns when the first of its answers is due.
  std::int64_t first_deadline_ns() const;
  // Returns when the last of its answers is due.
  std::int64_t deadline_ns() const;
  // Requests that travelled together were refused: each question goes on its own, so that only the
  // faulty one is refused again.
  bool alone = false;
  bool resent = false;      // the server wanted more, though the message began its session
  std::uint64_t begun = 0;  // how often its session had been begun as it was sent,
  bool begins = false;      // and whether its message began it

 private:
  template <typename Gone>
  void drop(Gone gone);

  std::uint32_t sender_ = 0;
  const EventRows* rows_ = nullptr;
  std::vector<Ticket> tickets_;
  std::vector<float> x_QF_;
  int alternatives_ = 0;
};

// A message, with the requests in it.
class Parcel {
 public:
  // A session's part of the message.
  struct Part {
    std::unique_ptr<Request> request;  // null: the session ends
    int alternatives;                  // as sent, whatever becomes of the request
  };

  explicit Parcel(const std::string& model);

  void begin();
  // Adds a request that goes on with a session or begins it, which is noted in both. False, and the
  // request stays the caller's: none of its questions can be asked any more.
  bool add(std::unique_ptr<Request>& request, ServerSession& session, int reach);
  // Adds the end of a session.
  void add_end(const ServerSession& session);
  // Adds a request's questions as windows. False, as above: the events are no longer kept.
  bool add_windows(std::unique_ptr<Request>& request, int tokens);
  // Makes the message, with this number.
  void seal(std::uint64_t number);

  const inference::ModelInferRequest& message() const { return *made_; }
  const std::string& id() const { return made_->id(); }
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  std::int64_t events() const { return static_cast<std::int64_t>(events_); }

  // Returns for each part the number of the event from which on `response` wants them again, and
  // -1 where it has its answers; empty if there is none for each part.
  const std::vector<std::int64_t>& wanted(const inference::ModelInferResponse& response);
  // Gives the questions of the parts that `wanted` says have answers those in `response`. False,
  // and `error` is one line about it, if they are not what was asked for.
  bool answer(const inference::ModelInferResponse& response, int server,
              std::deque<Answer>& answers, std::string& error) const;

  std::int64_t sent_ns = 0;

 private:
  int answered_alternatives() const;

  inference::ModelInferRequest talk_;
  inference::ModelInferRequest windows_;
  inference::ModelInferRequest* made_ = &talk_;
  std::vector<Part> parts_;
  std::vector<std::int64_t> header_;  // header of several sessions
  std::vector<float> x_QF_;
  std::vector<float> x_EF_;
  std::size_t events_ = 0;
  std::vector<float> x_BWF_;
  int tokens_ = 0;
  std::vector<std::int64_t> wanted_;
};

// Requests that are not in use. It keeps a few, so that a burst's memory is given back.
class RequestPool {
 public:
  std::unique_ptr<Request> take(std::uint32_t sender, const EventRows& rows);
  void give_back(std::unique_ptr<Request> request);

 private:
  std::vector<std::unique_ptr<Request>> free_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_REQUEST_H_
