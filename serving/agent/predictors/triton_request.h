// SPDX-License-Identifier: Apache-2.0
//
// A KServe request: questions of one sender, as a message of its session or, for a model without
// sessions, as windows. Its messages are made once and used again: asking copies rows and nothing
// else. Rows of events are copied as it is sent, so that a server is sent each once, whatever
// became of the requests before.
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
  explicit Request(const std::string& model);

  // Empties the request, for the questions of a sender.
  void begin(std::uint32_t sender, const EventRows& rows);
  // Adds a question, whose queries are copied.
  void add(const Ticket& ticket, const float* x_QF);
  // Takes out the questions whose deadline has passed.
  void drop_expired(std::int64_t now_ns);
  // Takes out all questions: the sender is gone.
  void forget();

  // Makes the message, with this number, that goes on with a session or begins it, and notes that
  // in `session`. False: none of its questions can be asked any more, because a later one was, or
  // because the events are no longer kept.
  bool go_on(std::uint64_t number, ServerSession& session, int reach);
  // Makes the message that ends a session.
  void end(std::uint64_t number, const ServerSession& session);
  // Makes the message with the questions' windows. False: the events are no longer kept.
  bool make_windows(std::uint64_t number, int tokens);
  // Returns the message made last.
  const inference::ModelInferRequest& message() const { return *made_; }

  // Gives each question its answer in `response`, or `error` (one line) to all of them.
  void answer(const inference::ModelInferResponse& response, int server,
              std::deque<Answer>& answers) const;
  void fail(const std::string& error, int server, std::deque<Answer>& answers) const;

  bool empty() const { return tickets_.empty(); }
  std::uint32_t sender() const { return sender_; }
  const EventRows& rows() const { return *rows_; }
  // Returns how often its session had been begun as it was sent, and whether it began it.
  std::uint64_t begun() const { return begun_; }
  bool begins() const { return begins_; }
  int alternatives() const { return alternatives_; }
  const std::vector<Ticket>& tickets() const { return tickets_; }
  // Returns the queries of question `index`.
  const float* queries_of(std::size_t index) const;
  const std::string& id() const { return made_->id(); }
  // Returns when the first of its answers is due.
  std::int64_t first_deadline_ns() const;
  // Returns when the last of its answers is due.
  std::int64_t deadline_ns() const;
  // A request with several questions was refused: each goes on its own, so that only the faulty one
  // is refused again.
  bool alone = false;
  bool resent = false;  // the server wanted more, though the message began its session
  std::int64_t sent_ns = 0;

 private:
  template <typename Gone>
  void drop(Gone gone);
  void seal(inference::ModelInferRequest& message, std::uint64_t number);
  void name_session(std::uint64_t id, bool start, bool end);

  inference::ModelInferRequest talk_;
  inference::ModelInferRequest windows_;
  inference::ModelInferRequest* made_ = &windows_;
  std::vector<std::int64_t> header_;
  std::vector<float> x_BWF_;
  std::uint32_t sender_ = 0;
  const EventRows* rows_ = nullptr;
  std::uint64_t begun_ = 0;
  bool begins_ = false;
  std::vector<Ticket> tickets_;
  std::vector<float> x_QF_;
  int alternatives_ = 0;
};

// Returns the number of the event from which on `response` wants them again; -1 if it is an answer.
std::int64_t resend_wanted(const inference::ModelInferResponse& response);

// Requests that are not in use. It keeps a few, so that a burst's memory is given back.
class RequestPool {
 public:
  explicit RequestPool(std::string model) : model_(std::move(model)) {}
  std::unique_ptr<Request> take(std::uint32_t sender, const EventRows& rows);
  void give_back(std::unique_ptr<Request> request);

 private:
  std::string model_;
  std::vector<std::unique_ptr<Request>> free_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_REQUEST_H_
