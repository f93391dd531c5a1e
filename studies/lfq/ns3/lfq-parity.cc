// SPDX-License-Identifier: GPL-2.0-only
//
// LFQ's arithmetic alone, for a test to compare with Python's and PyTorch's:
// `lfq-parity --events` reads lines `a NS QUEUE LIMIT`, `d NS` or `l NS` (a packet comes, leaves,
// is lost) and prints behind each `a` whether the network would be asked, and all inputs.
// `lfq-parity --weights=FILE` reads 60 inputs a line and prints the answer, and the limit.

#include <array>
#include <cstdint>
#include <exception>
#include <iostream>
#include <limits>
#include <string>

#include "ns3/command-line.h"
#include "simulation/model/dense.h"
#include "simulation/model/lfq-queue-disc.h"

namespace {

using namespace swiftqueue;  // NOLINT(build/namespaces): a program of its own

void Events() {
  lfq::Flow flow;
  char kind = 0;
  int64_t ns = 0;
  while (std::cin >> kind >> ns) {
    if (kind == 'd') {
      flow.depart(ns);
    } else if (kind == 'l') {
      flow.lose(ns);
    } else {
      uint32_t queue = 0;
      uint32_t limit = 0;
      std::cin >> queue >> limit;
      flow.arrive(ns, queue, limit);
      std::cout << flow.ask();
      for (const float input : flow.inputs()) {
        std::cout << ' ' << input;
      }
      std::cout << '\n';
    }
  }
}

void Answers(const std::string& path) {
  engine::Tensors tensors = engine::parse_safetensors(engine::read_file(path, 16 << 20));
  Dense network({lfq::kInputs, 256, 256, 256, 1}, tensors);
  lfq::Inputs inputs{};
  while (true) {
    for (float& input : inputs) {
      std::cin >> input;
    }
    if (!std::cin) {
      return;
    }
    const float answer = network.forward(inputs).front();
    std::cout << answer << ' ' << lfq::limit_of(answer) << '\n';
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string weights;
  bool events = false;
  ns3::CommandLine line(__FILE__);
  line.AddValue("events", "read events of a flow", events);
  line.AddValue("weights", "file of a network, to read inputs", weights);
  line.Parse(argc, argv);
  std::cout.precision(std::numeric_limits<float>::max_digits10);
  try {
    if (events) {
      Events();
    } else {
      Answers(weights);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
  return 0;
}
