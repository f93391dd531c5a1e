// SPDX-License-Identifier: Apache-2.0
//
// A KServe request and its questions. Its message is made once and used again: asking copies the
// windows and nothing else.
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
  int windows;
  std::int64_t deadline_ns;
};

class Request {
 public:
  explicit Request(const std::string& model);

  // Empties the request, for the windows of a model.
  void begin(const Model& model);
  // Adds a question; the windows are copied.
  void add(const Ticket& ticket, const void* x_BWF);
  // Takes out the questions whose deadline has passed.
  void drop_expired(std::int64_t now_ns);
  // Numbers the request; returns the message to send.
  const inference::ModelInferRequest& sealed(std::uint64_t number);
  // Gives each question its answer in `response`, or `error` (one line) to all of them.
  void answer(const inference::ModelInferResponse& response, int server,
              std::deque<Answer>& answers) const;
  void fail(const std::string& error, int server, std::deque<Answer>& answers) const;

  bool empty() const { return tickets_.empty(); }
  const Model& model() const { return model_; }
  int windows() const { return windows_; }
  const std::vector<Ticket>& tickets() const { return tickets_; }
  // Returns the windows of question `index`.
  const char* windows_of(std::size_t index) const;
  const std::string& id() const { return message_.id(); }
  // Returns when the first of its answers is due.
  std::int64_t first_deadline_ns() const;
  // Returns when the last of its answers is due.
  std::int64_t deadline_ns() const;
  // A request with several questions was refused: each goes on its own, so that only the faulty one
  // is refused again.
  bool alone = false;
  std::int64_t sent_ns = 0;

 private:
  std::size_t window_bytes() const;

  inference::ModelInferRequest message_;
  std::vector<Ticket> tickets_;
  Model model_;
  int windows_ = 0;
};

// Requests that are not in use. It keeps a few, so that a burst's memory is given back.
class RequestPool {
 public:
  explicit RequestPool(std::string model) : model_(std::move(model)) {}
  std::unique_ptr<Request> take(const Model& model);
  void give_back(std::unique_ptr<Request> request);

 private:
  std::string model_;
  std::vector<std::unique_ptr<Request>> free_;
};

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_TRITON_REQUEST_H_
