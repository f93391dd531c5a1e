// SPDX-License-Identifier: Apache-2.0
//
// Sources of answers: the interface between the decision loop and Triton's stream
// (triton_predictor.h) or the engine in this process (local_predictor.h).
//
// Only the decision loop's thread calls it, but any thread may call `wake` and `servers`.
// Times are nanoseconds of CLOCK_MONOTONIC. Nothing throws; nothing but `next` ever waits.
//
// Shapes: B alternatives asked about (1 or 2), Q queries (8 for each), F features of a row, H
// horizon (8 packets).
#ifndef SWIFTQUEUE_SERVING_AGENT_PREDICTOR_H_
#define SWIFTQUEUE_SERVING_AGENT_PREDICTOR_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "serving/agent/decision/sender.h"

namespace swiftqueue::agent {

// The model that answers now.
struct Model {
  int reach = 0;              // events a question looks back at; 0: no model, or for other features
  std::int64_t version = -1;  // -1: not said before the first answer
};

// A question about what a sender may send next, after all its events so far.
struct Enquiry {
  std::uint64_t ticket;   // unique
  std::uint32_t sender;   // number of the sender
  const EventRows& rows;  // its events, which outlive it: until `forget`
  const float* x_QF;      // queries, which are copied
  int alternatives;       // B
  std::int64_t deadline_ns;
};

struct Answer {
  std::uint64_t ticket = 0;  // ticket of the question
  bool ok = false;
  std::array<float, kMaxQueries> y_BH{};  // us, for the alternatives asked about; if ok
  std::int64_t version = -1;              // model version; if ok
  int server = 0;                         // index into `servers()`
  std::string error;                      // one line; if not ok
};

// One server (or the engine in this process), for the metrics.
struct ServerState {
  std::string name;           // as given to --server; "local"
  bool connected = false;     // whether it may answer
  std::int64_t version = -1;  // its served version as far as known
  std::string problem;        // why it does not answer, in one line; empty if all is well
  bool refused = false;       // its model cannot be used: damaged, or made for other features
  std::int64_t refusals = 0;  // number of such models so far
  std::int64_t resends = 0;   // times that it had lost a sender's events
};

class Predictor {
 public:
  virtual ~Predictor() = default;

  virtual Model model() const = 0;
  // Returns why there is no model, or why the last question failed: one line; empty if all is well.
  virtual std::string problem() const = 0;

  // Asks a question. Whoever answers is sent the events that it does not have yet, and the last
  // ones again where it lost them, so an answer depends on nothing but the sender's events and the
  // queries. Up to kMaxOutstanding questions are outstanding at once; those of a sender that wait
  // together may be sent in one request. After the deadline nobody wants the answer. False: it
  // cannot be asked now (`problem` says why), and no answer will come.
  virtual bool ask(const Enquiry& enquiry) = 0;

  // Forgets a sender that goes: its questions that wait, and its events at whoever answers.
  virtual void forget(std::uint32_t sender) = 0;

  // Takes the next answer, waiting for it until `until_ns` (in the past: does not wait). False:
  // there was none by then, or `wake` was called. Returns within 100 us of `until_ns`. Answers may
  // come out of order. Every question gets at most one; the loop counts a question without an
  // answer as late when it is due, and an answer to such a question as stale.
  virtual bool next(Answer& answer, std::int64_t until_ns) = 0;

  // Makes the present `next`, or else the next one, return at once.
  virtual void wake() = 0;

  // Lists them in order of preference. The version is never negative once a server has answered.
  virtual std::vector<ServerState> servers() const = 0;
};

inline constexpr int kMaxOutstanding = 4096;

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_PREDICTOR_H_
