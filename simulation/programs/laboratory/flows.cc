// SPDX-License-Identifier: GPL-2.0-only

#include "flows.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "../../helper/tcp-endpoints.h"
#include "../../model/frame-application.h"
#include "../../model/gcc-application.h"
#include "../../model/traffic-application.h"
#include "answering-dctcp.h"
#include "experience.h"
#include "ns3/double.h"
#include "ns3/enum.h"
#include "ns3/inet-socket-address.h"
#include "ns3/simulator.h"
#include "ns3/tcp-l4-protocol.h"
#include "ns3/tcp-socket-base.h"
#include "ns3/udp-l4-protocol.h"
#include "serving/engine/error.h"

namespace swiftqueue::lab {

using namespace ns3;  // NOLINT(build/namespaces): sockets speak ns-3

namespace {

TypeId CongestionControl(const std::string& tcp) {
  static const std::map<std::string, std::string> kNames{
      {"dctcp", "TcpDctcp"}, {"prague", "TcpPrague"}, {"cubic", "TcpCubic"},
      {"bbr", "TcpBbr"},     {"copa", "TcpCopa"},     {"illinois", "TcpIllinois"},
      {"vegas", "TcpVegas"}, {"yeah", "TcpYeah"},     {"new_reno", "TcpNewReno"},
      {"bic", "TcpBic"},
  };
  const auto named = kNames.find(tcp);
  TypeId id;
  if (named == kNames.end() || !TypeId::LookupByNameFailSafe("ns3::" + named->second, &id)) {
    throw engine::InvalidError("tcp " + tcp + ": this program has no such congestion control");
  }
  return id;
}

Ptr<TcpSocketBase> OpenTcp(Ptr<Node> node, const Group& group) {
  const TypeId tcp = CongestionControl(group.tcp);
  auto socket = DynamicCast<TcpSocketBase>(node->GetObject<TcpL4Protocol>()->CreateSocket(tcp));
  if (group.paced) {
    socket->SetPacingStatus(true);
  }
  socket->SetUseEcn(group.ecn == Ecn::kNotEct ? TcpSocketState::Off : TcpSocketState::On);
  if (group.dupAckThreshold) {
    socket->SetRetxThresh(*group.dupAckThreshold);
  } else {
    // RFC 4653, careful variant: LT_F = 2/3 of the window. ns-3 counts duplicates, not bytes.
    socket->TraceConnectWithoutContext(
        "CongestionWindow", Callback<void, uint32_t, uint32_t>([raw = PeekPointer(socket)](
                                                                   uint32_t, uint32_t windowBytes) {
          raw->SetRetxThresh(std::max(3U, windowBytes * 2 / 3 / kSegmentBytes));
        }));
  }
  return socket;
}

Ptr<RandomVariableStream> Uniform(double low, double high) {
  return CreateObjectWithAttributes<UniformRandomVariable>("Min", DoubleValue(low), "Max",
                                                           DoubleValue(high));
}

Ptr<RandomVariableStream> Constant(double value) {
  return CreateObjectWithAttributes<ConstantRandomVariable>("Constant", DoubleValue(value));
}

/** Gives an application its writes; returns how long the flow lasts, or zero for to the end. */
Time SetTraffic(TrafficApplication& application, const Traffic& traffic, int64_t& stream) {
  Time duration;
  std::visit(
      [&](const auto& kind) {
        using Kind = std::decay_t<decltype(kind)>;
        if constexpr (std::is_same_v<Kind, Messages>) {
          application.SetMessages(kind.bytes, kind.rateBps);
        } else if constexpr (std::is_same_v<Kind, Greedy>) {
          application.SetGreedy();
        } else if constexpr (std::is_same_v<Kind, Video>) {
          const double meanBytes = kind.rateBps / 8 / kind.framesPerS;
          application.SetWrites(Uniform(0.5 * meanBytes, 1.5 * meanBytes), Constant(1),
                                1 / kind.framesPerS);
        } else if constexpr (std::is_same_v<Kind, ConstantRate>) {
          application.SetWrites(Constant(kind.packetBytes), Constant(1),
                                kind.packetBytes * 8 / kind.rateBps);
        } else if constexpr (std::is_same_v<Kind, Replay>) {
          application.SetWrites(Empirical(kind.bytes), Empirical(kind.gapsUs), 1e-6);
          auto seconds = Empirical(kind.durationsS);
          seconds->SetStream(stream++);
          duration = Seconds(seconds->GetValue());
        }
      },
      traffic);
  stream += application.AssignStreams(stream);
  return duration;
}

}  // namespace

Flows MakeFlows(const Run& run) {
  Flows flows;
  for (uint32_t s = 0; s < run.senders.size(); ++s) {
    for (const Group& group : run.senders[s].groups) {
      for (uint32_t i = 0; i < group.flows; ++i) {
        flows.push_back({static_cast<uint16_t>(flows.size()), s, &group, i});
      }
    }
  }
  return flows;
}

namespace {

/** An object of a page: one write, at its page's time. */
void InstallObject(const Network& network, Flow& flow, const Pages& pages, Experience& experience) {
  const Group& group = *flow.group;
  const auto& receiver = network.Receivers()[group.receiver];
  Ptr<Node> node = network.Senders()[flow.sender].node;
  const Experience::Object object = Experience::ObjectOf(pages, flow.index);
  ListenTcp(receiver.node, flow.Port(), CongestionControl(group.tcp),
            [&flow, follow = experience.FollowObject(flow, object)](uint32_t bytes) mutable {
              follow(flow.receivedBytes += bytes);
            });
  auto application = CreateObject<TrafficApplication>();
  const auto open = [node, &group] {
    auto socket = OpenTcp(node, group);
    // RFC 6298 2.1; ns-3's own 3 s would be what a page waits for when its first packet is lost
    socket->SetAttribute("ConnTimeout", TimeValue(Seconds(1)));
    return socket;
  };
  application->SetSocket(open, InetSocketAddress(receiver.address, flow.Port()));
  application->SetWrites(Constant(static_cast<double>(object.bytes)), nullptr, 0);
  application->SetStartTime(Seconds(object.startS));
  node->AddApplication(application);
}

Ptr<Application> MakeTcpCall(const Network& network, const Flow& flow, const FrameRule& rule,
                             std::shared_ptr<WriteLog> log, const Received& received) {
  const Group& group = *flow.group;
  const auto& receiver = network.Receivers()[group.receiver];
  Ptr<Node> node = network.Senders()[flow.sender].node;
  ListenTcp(receiver.node, flow.Port(), CongestionControl(group.tcp), received);
  auto application = CreateObject<FrameApplication>();
  application->SetSocket([node, &group] { return OpenTcp(node, group); },
                         InetSocketAddress(receiver.address, flow.Port()));
  application->SetFrames(rule, std::move(log));
  return application;
}

Ptr<Application> MakeGccCall(const Network& network, const Flow& flow, const FrameRule& rule,
                             double startBps, std::shared_ptr<WriteLog> log,
                             const Received& received) {
  const Group& group = *flow.group;
  const auto& receiver = network.Receivers()[group.receiver];
  Ptr<Node> node = network.Senders()[flow.sender].node;
  auto listener = CreateObject<GccReceiver>();
  listener->Listen(receiver.node->GetObject<UdpL4Protocol>()->CreateSocket(), flow.Port(),
                   rule.periodS, received);
  receiver.node->AddApplication(listener);
  auto application = CreateObject<GccApplication>();
  const auto open = [node] { return node->GetObject<UdpL4Protocol>()->CreateSocket(); };
  application->SetSocket(open, InetSocketAddress(receiver.address, flow.Port()));
  application->SetFrames(rule, startBps, std::move(log));
  return application;
}

void InstallCall(const Network& network, Flow& flow, const RealTime& traffic, double startS,
                 Experience& experience) {
  const FrameRule rule{1 / traffic.framesPerS, traffic.leastBps, traffic.mostBps};
  const auto log = std::make_shared<WriteLog>();
  flow.writes = log;
  const auto received = [&flow, follow = experience.FollowCall(flow, log)](uint32_t bytes) {
    follow(flow.receivedBytes += bytes);
  };
  const Ptr<Application> application =
      flow.group->tcp == kGcc ? MakeGccCall(network, flow, rule, traffic.startBps, log, received)
                              : MakeTcpCall(network, flow, rule, log, received);
  application->SetStartTime(Seconds(startS));
  network.Senders()[flow.sender].node->AddApplication(application);
}

}  // namespace

void InstallFlows(const Run& run, const Network& network, Flows& flows, Experience& experience,
                  int64_t& stream) {
  for (Flow& flow : flows) {
    const Group& group = *flow.group;
    if (const auto* pages = std::get_if<Pages>(&group.traffic)) {
      InstallObject(network, flow, *pages, experience);
      continue;
    }
    if (const auto* traffic = std::get_if<RealTime>(&group.traffic)) {
      auto start = Uniform(group.startFromS, group.startToS);
      start->SetStream(stream++);
      InstallCall(network, flow, *traffic, start->GetValue(), experience);
      continue;
    }
    const auto& receiver = network.Receivers()[group.receiver];
    Received received = [&flow](uint32_t bytes) { flow.receivedBytes += bytes; };
    Ptr<Node> node = network.Senders()[flow.sender].node;
    auto application = CreateObject<TrafficApplication>();
    const InetSocketAddress peer(receiver.address, flow.Port());
    if (group.tcp == "udp") {
      ListenUdp(receiver.node, flow.Port(), received);
      application->SetSocket([node] { return node->GetObject<UdpL4Protocol>()->CreateSocket(); },
                             peer);
    } else {
      const bool messages = std::holds_alternative<Messages>(group.traffic);
      if (messages ||
          (run.hold == Hold::kWrite && !std::holds_alternative<Greedy>(group.traffic))) {
        auto log = std::make_shared<WriteLog>();
        application->SetLog(log);
        flow.writes = log;
        if (messages) {
          received = [&flow, follow = experience.FollowMessages(flow, std::move(log))](
                         uint32_t bytes) { follow(flow.receivedBytes += bytes); };
        }
      }
      // DCTCP's echo of each CE mark is the receiver's part, so it has the same congestion control.
      ListenTcp(receiver.node, flow.Port(), CongestionControl(group.tcp), received);
      const bool isTold = flow.sender == 0 && group.tcp == "dctcp";
      const auto response = isTold ? run.movedResponse : MovedResponse::kScalable;
      const auto open = [node, &flow, response] {
        auto socket = OpenTcp(node, *flow.group);
        if (response != MovedResponse::kScalable) {
          auto dctcp = CreateObject<AnsweringDctcp>();
          socket->SetCongestionControlAlgorithm(dctcp);
          flow.hearsOfMoved = [dctcp](uint32_t moved, bool marked) {
            if (marked && moved > 0) {
              dctcp->AnswerAsLoss();
            }
          };
        }
        return socket;
      };
      application->SetSocket(open, peer);
    }
    auto start = Uniform(group.startFromS, group.startToS);
    if (!run.tracesStreams) {
      start->SetStream(stream++);
    }
    const Time duration = SetTraffic(*application, group.traffic, stream);
    if (run.tracesStreams) {
      start->SetStream(stream++);
    }
    const Time from = Seconds(start->GetValue());
    application->SetStartTime(from);
    if (duration.IsStrictlyPositive()) {
      application->SetStopTime(from + duration);
    }
    node->AddApplication(application);
  }
  Simulator::Schedule(Seconds(run.warmupS), [&flows] {
    for (Flow& flow : flows) {
      flow.receivedInWarmup = flow.receivedBytes;
    }
  });
}

}  // namespace swiftqueue::lab
