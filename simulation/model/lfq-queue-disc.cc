// SPDX-License-Identifier: GPL-2.0-only

#include "lfq-queue-disc.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "ns3/double.h"
#include "ns3/simulator.h"
#include "ns3/string.h"
#include "ns3/trace-source-accessor.h"
#include "serving/engine/error.h"

namespace swiftqueue {

NS_OBJECT_ENSURE_REGISTERED(LfqQueueDisc);

namespace {

const std::vector<std::size_t> kSizes = {lfq::kInputs, 256, 256, 256, 1};  // 147,457 parameters
constexpr std::size_t kMostBytes = 16 << 20;

}  // namespace

ns3::TypeId LfqQueueDisc::GetTypeId() {
  static ns3::TypeId tid =
      ns3::TypeId("swiftqueue::LfqQueueDisc")
          .SetParent<FairQueueDisc>()
          .SetGroupName("SwiftQueue")
          .AddConstructor<LfqQueueDisc>()
          .AddAttribute(
              "Weights",
              "File of the network's weights (safetensors); none: limits stay FlowLimit.",
              ns3::StringValue(""),
              ns3::MakeStringAccessor(&LfqQueueDisc::SetWeights, &LfqQueueDisc::GetWeights),
              ns3::MakeStringChecker())
          .AddAttribute("Beyond",
                        "How far an input may be beyond the training's range, as a part of it.",
                        ns3::DoubleValue(0.25), ns3::MakeDoubleAccessor(&LfqQueueDisc::m_beyond),
                        ns3::MakeDoubleChecker<double>(0))
          .AddAttribute("FallbackRtt",
                        "Round trip of the bandwidth-delay product that a flow gets out of range.",
                        ns3::TimeValue(ns3::MilliSeconds(100)),
                        ns3::MakeTimeAccessor(&LfqQueueDisc::m_fallbackRtt),
                        ns3::MakeTimeChecker(ns3::Time(0)))
          .AddTraceSource("Decided",
                          "A flow's limit was decided: bucket, packets, whether by the network.",
                          ns3::MakeTraceSourceAccessor(&LfqQueueDisc::m_decided),
                          "swiftqueue::LfqQueueDisc::DecidedCallback");
  return tid;
}

void LfqQueueDisc::SetWeights(std::string path) {
  m_path = std::move(path);
  m_network.reset();
  if (m_path.empty()) {
    return;
  }
  const auto problem = [this](const std::string& what) {
    return std::invalid_argument("attributes.Weights: " + what);
  };
  std::string content;
  try {
    content = engine::read_file(m_path, kMostBytes);  // its errors name the file
  } catch (const std::exception& error) {
    throw problem(error.what());
  }
  try {
    engine::Tensors tensors = engine::parse_safetensors(content);
    m_network = std::make_unique<Dense>(kSizes, tensors);
    m_low = take_tensor(tensors, "inputs.low", {lfq::kInputs});
    m_high = take_tensor(tensors, "inputs.high", {lfq::kInputs});
    if (!tensors.empty()) {
      throw engine::InvalidError("tensor '" + tensors.begin()->first + "' is one too many");
    }
  } catch (const engine::InvalidError& error) {
    throw problem(m_path + ": " + error.what());
  }
}

void LfqQueueDisc::InitializeParams() {
  FairQueueDisc::InitializeParams();
  m_known.assign(Buckets(), {});
  m_limits.assign(Buckets(), FlowLimit());
}

bool LfqQueueDisc::IsKnown(const lfq::Inputs& inputs) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const double slack = m_beyond * (m_high[i] - m_low[i]);
    if (inputs[i] < m_low[i] - slack || inputs[i] > m_high[i] + slack) {
      return false;
    }
  }
  return true;
}

uint32_t LfqQueueDisc::Admit(uint32_t bucket) {
  lfq::Flow& flow = m_known[bucket];
  flow.arrive(ns3::Simulator::Now().GetNanoSeconds(), static_cast<uint32_t>(Waiting(bucket)),
              GetLimit(bucket));
  if (!m_frozen && flow.ask()) {
    bool byNetwork = false;
    if (m_network) {
      const lfq::Inputs inputs = flow.inputs();
      byNetwork = IsKnown(inputs);
      if (byNetwork) {
        m_limits[bucket] = lfq::limit_of(m_network->forward(inputs).front());
      } else {
        ++m_fallbacks;
        // packets = packets/s · s
        const double packets = flow.departure_rate() * m_fallbackRtt.GetSeconds();
        m_limits[bucket] = lfq::limit_of(static_cast<float>(packets / lfq::kPackets));
      }
    }
    ++m_decisions;
    m_decided(bucket, m_limits[bucket], byNetwork);
  }
  return GetLimit(bucket);
}

void LfqQueueDisc::Departed(uint32_t bucket) {
  m_known[bucket].depart(ns3::Simulator::Now().GetNanoSeconds());
}

void LfqQueueDisc::Lost(uint32_t bucket) {
  m_known[bucket].lose(ns3::Simulator::Now().GetNanoSeconds());
}

}  // namespace swiftqueue
