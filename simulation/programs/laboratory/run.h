// SPDX-License-Identifier: GPL-2.0-only
//
// One run of the laboratory as simulation/doc/lab.md describes it, read from JSON.

#ifndef SWIFTQUEUE_LABORATORY_RUN_H
#define SWIFTQUEUE_LABORATORY_RUN_H

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "../../model/message-sizes.h"

namespace swiftqueue::lab {

inline const std::string kGcc = "gcc";  // Google congestion control, over UDP

struct Messages {
  double rateBps;
  std::vector<Quantile> bytes;
};
struct Greedy {};
struct Video {
  double rateBps;
  double framesPerS;
};
struct ConstantRate {
  double rateBps;
  uint32_t packetBytes;
};
struct Replay {
  std::vector<Quantile> gapsUs;
  std::vector<Quantile> bytes;
  std::vector<Quantile> durationsS;
};
/** Of a web page, which is asked for at one moment; a flow of the group for each. */
struct WebPage {
  double startS;
  std::vector<uint64_t> bytes;  // bytes of its objects
};
using Pages = std::vector<WebPage>;
/** A call: frames as large as the congestion control allows, between two rates. */
struct RealTime {
  double framesPerS;
  double leastBps;
  double mostBps;
  double startBps;  // first rate of tcp `gcc`
};
using Traffic = std::variant<Messages, Greedy, Video, ConstantRate, Replay, Pages, RealTime>;

enum class Ecn { kEct1, kEct0, kNotEct };

/** From which ACKs S1's control learns latencies. */
enum class Acks { kCumulative, kSelective };

struct Group {
  uint32_t flows;
  std::string tcp;  // as in the run file; "udp" and kGcc too
  Ecn ecn;
  bool l4s;           // counted as an L4S flow; with uplinks: the control chooses its link
  uint32_t receiver;  // index
  double startFromS;
  double startToS;
  std::optional<uint32_t> dupAckThreshold;  // none: RFC 4653's
  uint32_t dscp;                            // 0: none
  bool paced;                               // by ns-3, where the TCP does not do so itself
  std::optional<uint8_t> uplink;            // index of its uplink, where it is pinned to one
  Traffic traffic;
};

/** A queue disc of any type, with values as text. */
struct DiscOfType {
  std::string type;
  std::vector<std::pair<std::string, std::string>> attributes;
};
struct Bottleneck {
  double rateBps;
  double delayMs;
  uint32_t bufferBytes;
  double lStepMs;                                // step of profile uncoupled
  std::optional<DiscOfType> disc;                // none: the profile's
  std::vector<std::pair<double, double>> rates;  // from a second on, bit/s; none: rateBps always
};
/** What a bottleneck is besides where it is one of two uplinks; a packet's queue is its index. */
struct Uplink {
  std::string name;
  uint32_t dscp;                                          // mark by which the gateway chooses it
  bool routed;                                            // whether the gateway has a rule for it
  double diesS{std::numeric_limits<double>::infinity()};  // nothing passes from then on
};
struct Receiver {
  std::string name;
  uint32_t router;
  double delayMs;
};
struct Sender {
  std::string name;
  uint32_t router;
  double delayMs;
  std::vector<Group> groups;
};

struct Bursts {
  double share;
  uint32_t burstPackets;
  uint32_t seed;
};

struct DefaultControl {};
struct NoL4sControl {};
using RandomControl = Bursts;
struct OracleControl {
  double marginUs;
  bool keepOrder;
  double rateUs;  // time constant of the arrival rates that it expects to go on; 0: expects none
};
struct LastLatencyControl {
  double thresholdUs;
  double staleUs;
};
struct VirtualQueueControl {
  double marginUs;
};
/** Takes the uplink whose latency, as S1's packets tell it, is least. */
struct LeastLatencyControl {
  enum class Of { kLast, kSmoothed, kMean };
  Of of;
  double marginUs;  // how much less the other's must be for a change
  double everyS;    // span of a mean, and how often it is looked at; 0: always
};
/** How forecasts for a batch become queues: the agent's controller, and when its answer exists. */
struct Batching {
  double inferenceUs;
  bool holdPrevious;  // until_decided: previous
  double marginUs;
  double marginShare;
  int32_t maxMovedUnacked;
  double maxMovedShare;  // share of the packets in flight, where that is more
  bool guard;
};
struct ModelControl {
  std::string artifact;
  int64_t version;
  Batching batching;
};
/** The sender agent with the rule that it has for two uplinks. */
struct AgentRuleControl {
  double inferenceUs;
  bool holdPrevious;
};
struct FlowSplitControl {
  double share;
};

struct ForecastAlways {};
struct ForecastByChance {
  double share;
  uint32_t seed;
};
using ForecastByLastLatency = LastLatencyControl;
struct ForecastByVirtualQueue {};
struct ForecastByView {
  double rateUs;
  double ageUs;  // how old what it sees is
};
struct ForecastByRecord {
  std::string decisions;  // file of another run
  double shiftUs;
};
/** Decides as the model does, by batches, delay and limit, on what something else says. */
struct BatchedControl {
  std::variant<ForecastAlways, ForecastByChance, ForecastByLastLatency, ForecastByVirtualQueue,
               ForecastByView, ForecastByRecord>
      by;
  Batching batching;
};
using Control =
    std::variant<DefaultControl, NoL4sControl, RandomControl, OracleControl, LastLatencyControl,
                 VirtualQueueControl, ModelControl, AgentRuleControl, FlowSplitControl,
                 BatchedControl, LeastLatencyControl>;

/** For how long a flow keeps to what was decided. */
enum class Hold {
  kPacket,  // each packet is decided
  kBatch,   // until the sender's next batch
  kWrite    // until its next message or frame
};

struct FineTuning {
  double everyS;
  double spanS;
  double applyAfterS;
  std::vector<std::string> command;
};

/** What the ACK of a moved packet says to S1's DCTCP. */
enum class MovedResponse {
  kScalable,  // the same as any other packet's ACK says
  kClassic    // its mark is a loss
};

struct Run {
  std::string text;  // the file
  uint32_t seed;
  bool tracesStreams;  // random streams are numbered as the default traces have them (streams.h)
  double seconds;
  double warmupS;
  bool isUncoupled;                     // the bottlenecks' profile; else rfc9332
  std::vector<Bottleneck> bottlenecks;  // in series, or the uplinks
  std::vector<Uplink> uplinks;          // none, or two
  std::vector<Receiver> receivers;
  std::vector<Sender> senders;
  Control control;
  Hold hold;
  Ecn movedEcn;
  MovedResponse movedResponse;
  Acks acks;
  Bursts explore;
  std::optional<FineTuning> fineTuning;
  bool pcap;
  bool truth;
  bool questions;  // only with ModelControl
  bool waits;      // each packet's queues as they were when it came
  bool decisions;  // only with ModelControl and BatchedControl
  bool classes;    // whether Confucius' class of each flow is logged
};

/** A link's rate at a time of the run, bit/s. */
double RateBpsAt(const Bottleneck& link, double s);

/** What a link can send from the beginning of the run until a time, bits. */
double BitsUntil(const Bottleneck& link, double s);

/** The time until which a link can have sent so many bits. */
double TimeOfBits(const Bottleneck& link, double bits);

/** The run without L4S, for control `no_l4s`: the same flows, all classic. */
void RemoveL4s(Run& run);

/**
 * Reads what laboratory/runs wrote of a checked scenario. Throws engine::InvalidError, one line,
 * where it is no run file or would lead beyond the end of something.
 */
Run ReadRun(std::string_view text);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_RUN_H
