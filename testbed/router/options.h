// SPDX-License-Identifier: Apache-2.0
//
// The router's command line.
#ifndef SWIFTQUEUE_TESTBED_ROUTER_OPTIONS_H_
#define SWIFTQUEUE_TESTBED_ROUTER_OPTIONS_H_

#include <getopt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "dual_queue.h"
#include "rules.h"
#include "serving/agent/io/one_line.h"

namespace swiftqueue::testbed {

inline constexpr std::size_t kMostLinks = 2;  // a mark chooses between two alternatives

struct LinkOptions {
  double rate_mbps = 40;
  double delay_ms = 10;
  double jitter_ms = 0;
  double cross_mbps = 0;
  int cross_burst = 1;  // packets of cross traffic that come at once
};

struct Options {
  std::vector<LinkOptions> links{1};  // more than one: uplinks, which host a's gateway chooses from
  double seconds = 0;
  double spin_us = 0;
  int priority = 0;
  unsigned seed = 1;
  std::string log;
  std::uint16_t rule_port = 0;  // TCP packets to there are its; 0: none are
  Rule rule;
  dual_pi2::Parameters disc;
  bool limited = false;  // the queue's length was said
};

// One of the queue's parameters, as `l_step_ms=20`.
inline void set(dual_pi2::Parameters& p, const std::string& given) {
  const std::size_t at = given.find('=');
  const std::string name = given.substr(0, at),
                    text = at == std::string::npos ? "" : given.substr(at + 1);
  const auto ms = [&](std::int64_t& ns) {
    ns = static_cast<std::int64_t>(number("--set " + name, text, 0, 1e6) * 1e6);
  };
  const auto one_of = [&](auto& value, auto first, const char* first_name, auto second,
                          const char* second_name) {
    if (text != first_name && text != second_name) {
      throw std::invalid_argument("--set " + name + "=" + text + ": must be " + first_name +
                                  " or " + second_name);
    }
    value = text == first_name ? first : second;
  };
  const auto plain = [&](auto& value, double least, double most) {
    value = static_cast<std::remove_reference_t<decltype(value)>>(
        number("--set " + name, text, least, most));
  };
  using namespace dual_pi2;  // NOLINT(build/namespaces): its names, in this function
  if (name == "max_bytes")
    plain(p.max_bytes, 1500, 1e9);
  else if (name == "l_max_bytes")
    plain(p.l_max_bytes, 1500, 1e9);
  else if (name == "c_max_bytes")
    plain(p.c_max_bytes, 1500, 1e9);
  else if (name == "min_backlog_bytes")
    plain(p.min_backlog_bytes, 0, 1e9);
  else if (name == "target_ms")
    ms(p.target_ns);
  else if (name == "t_update_ms")
    p.t_update_ns = static_cast<std::int64_t>(number("--set " + name, text, 0.001, 1e6) * 1e6);
  else if (name == "alpha_hz")
    plain(p.alpha_hz, 0, 1e6);
  else if (name == "beta_hz")
    plain(p.beta_hz, 0, 1e6);
  else if (name == "coupling")
    plain(p.coupling, 0, 255);
  else if (name == "l_min_threshold_ms")
    ms(p.l_min_threshold_ns);
  else if (name == "l_range_ms")
    ms(p.l_range_ns);
  else if (name == "l_step_ms")
    ms(p.l_step_ns);
  else if (name == "l_min_packets")
    plain(p.l_min_packets, 0, 1e6);
  else if (name == "l_max_probability")
    plain(p.l_max_probability, 0, 1);
  else if (name == "c_weight")
    plain(p.c_weight, 0, 1);
  else if (name == "time_shift_ms")
    ms(p.time_shift_ns);
  else if (name == "l_aqm")
    one_of(p.l_aqm, LAqm::kRamp, "ramp", LAqm::kStep, "step");
  else if (name == "overload")
    one_of(p.overload, Overload::kDrop, "drop", Overload::kDelay, "delay");
  else if (name == "delay_input")
    one_of(p.delay_input, DelayInput::kGreater, "greater", DelayInput::kClassicOnly, "classic");
  else if (name == "draw")
    one_of(p.draw, Draw::kRecur, "recur", Draw::kRandom, "random");
  else if (name == "scheduler")
    one_of(p.scheduler, Scheduler::kWeightedRoundRobin, "weighted_round_robin",
           Scheduler::kTimeShiftedFifo, "time_shifted_fifo");
  else
    throw std::invalid_argument("--set " + name + ": the queue has no such parameter");
}

inline Options parse(int argc, char** argv) {
  Options options;
  static const std::array<option, 16> known{{{"rate-mbps", 1, nullptr, 'r'},
                                             {"delay-ms", 1, nullptr, 'd'},
                                             {"jitter-ms", 1, nullptr, 'j'},
                                             {"cross-mbps", 1, nullptr, 'c'},
                                             {"cross-burst", 1, nullptr, 'b'},
                                             {"next-uplink", 0, nullptr, 'n'},
                                             {"seconds", 1, nullptr, 's'},
                                             {"priority", 1, nullptr, 'p'},
                                             {"spin-us", 1, nullptr, 'i'},
                                             {"seed", 1, nullptr, 'e'},
                                             {"log", 1, nullptr, 'l'},
                                             {"set", 1, nullptr, 'x'},
                                             {"rule-port", 1, nullptr, 'o'},
                                             {"move-share", 1, nullptr, 'm'},
                                             {"move-margin-us", 1, nullptr, 'u'},
                                             {nullptr, 0, nullptr, 0}}};
  opterr = 0;
  for (int c; (c = ::getopt_long(argc, argv, "", known.data(), nullptr)) != -1;) {
    const std::string given = optarg ? optarg : "";
    LinkOptions& link = options.links.back();
    if (c == 'r')
      link.rate_mbps = number("--rate-mbps", given, 0.01, 10'000);
    else if (c == 'd')
      link.delay_ms = number("--delay-ms", given, 0, 10'000);
    else if (c == 'j')
      link.jitter_ms = number("--jitter-ms", given, 0, 10'000);
    else if (c == 'c')
      link.cross_mbps = number("--cross-mbps", given, 0, 10'000);
    else if (c == 'b')
      link.cross_burst = static_cast<int>(number("--cross-burst", given, 1, 10'000));
    else if (c == 'n' && options.links.size() == kMostLinks)
      throw std::invalid_argument("--next-uplink: at most " + std::to_string(kMostLinks) +
                                  " links");
    else if (c == 'n')
      options.links.emplace_back();
    else if (c == 's')
      options.seconds = number("--seconds", given, 0, 1e6);
    else if (c == 'i')
      options.spin_us = number("--spin-us", given, 0, 1000);
    else if (c == 'p')
      options.priority = static_cast<int>(number("--priority", given, 0, 99));
    else if (c == 'e')
      options.seed = static_cast<unsigned>(number("--seed", given, 0, 4e9));
    else if (c == 'o')
      options.rule_port = static_cast<std::uint16_t>(number("--rule-port", given, 1, 65'535));
    else if (c == 'm')
      options.rule = {Rule::Kind::kChance, number("--move-share", given, 0, 1), 0};
    else if (c == 'u')
      options.rule = {Rule::Kind::kShorter, 0, number("--move-margin-us", given, 0, 1e6)};
    else if (c == 'l')
      options.log = given;
    else if (c == 'x') {
      set(options.disc, given);
      options.limited = options.limited || given.rfind("max_bytes", 0) == 0;
    } else
      throw std::invalid_argument(std::string(argv[optind - 1]) +
                                  ": not an option, or without its value");
  }
  if (optind != argc) throw std::invalid_argument(std::string(argv[optind]) + ": not understood");
  return options;
}

// Returns the queue's parameters at a link.
inline dual_pi2::Parameters queue_at(const Options& options, const LinkOptions& link) {
  dual_pi2::Parameters disc = options.disc;
  // RFC 9332 A.1: 250 ms of the link's rate. bytes = Mbit/s · 10^6 bit/Mbit · s / (bit/byte)
  if (!options.limited)
    disc.max_bytes =
        std::max<std::uint64_t>(3000, static_cast<std::uint64_t>(link.rate_mbps * 1e6 * 0.25 / 8));
  return disc;
}

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_OPTIONS_H_
