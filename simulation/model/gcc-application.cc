// SPDX-License-Identifier: GPL-2.0-only

#include "gcc-application.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "ns3/inet-socket-address.h"
#include "ns3/simulator.h"

namespace swiftqueue {

using ns3::MakeCallback;
using ns3::Packet;
using ns3::Ptr;
using ns3::Simulator;
using ns3::Socket;
using ns3::Time;

NS_OBJECT_ENSURE_REGISTERED(GccApplication);
NS_OBJECT_ENSURE_REGISTERED(GccReceiver);

namespace {

constexpr uint32_t kMediaBytes = 1200;  // most bytes of a packet, as the draft reckons (5.5)
const Time kGroupInterval = ns3::MilliSeconds(5);  // burst_time

/** In front of a media packet's bytes; as long as RTP's header. */
struct MediaHeader {
  uint32_t number;  // in send order
  uint32_t beginLow;
  uint32_t beginHigh;
};
static_assert(sizeof(MediaHeader) == 12);

/** In front of feedback; then 4 bytes for each packet from the first on. */
struct FeedbackHeader {
  uint32_t first;
  uint32_t heldUs;  // how long ago the last of them came
  uint32_t baseLow;
  uint32_t baseHigh;  // us: of the first that came
};
constexpr uint32_t kLost = 0xffffffff;

double Ms(Time time) { return time.GetSeconds() * 1e3; }

uint64_t Join(uint32_t low, uint32_t high) { return (uint64_t{high} << 32) | low; }

std::vector<uint8_t> BytesOf(Ptr<Packet> packet) {
  std::vector<uint8_t> bytes(packet->GetSize());
  packet->CopyData(bytes.data(), packet->GetSize());
  return bytes;
}

}  // namespace

ns3::TypeId GccApplication::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::GccApplication")
                               .SetParent<ns3::Application>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<GccApplication>();
  return tid;
}

void GccApplication::SetSocket(std::function<Ptr<Socket>()> open, const ns3::Address& peer) {
  m_open = std::move(open);
  m_peer = peer;
}

void GccApplication::SetFrames(const FrameRule& rule, double startBps,
                               std::shared_ptr<WriteLog> log, uint32_t scale) {
  m_rule = rule;
  m_log = std::move(log);
  m_controller.emplace(startBps, rule.leastBps, rule.mostBps, scale);
}

void GccApplication::StartApplication() {
  m_socket = m_open();
  m_socket->Bind();
  m_socket->Connect(m_peer);
  m_socket->SetRecvCallback(MakeCallback(&GccApplication::Hear, this));
  NextFrame();
  NextGroup();
}

void GccApplication::StopApplication() {
  m_nextFrame.Cancel();
  m_nextGroup.Cancel();
}

void GccApplication::NextFrame() {
  uint64_t begin = m_log->Bytes();
  const uint64_t bytes = m_rule.Bytes(m_controller->TargetBps(), m_waitingBytes);
  m_log->Made(bytes);
  m_waitingBytes += bytes;
  for (const uint64_t end = begin + bytes; begin < end;) {
    const auto part = static_cast<uint32_t>(std::min<uint64_t>(kMediaBytes, end - begin));
    m_waiting.push_back({begin, part});
    begin += part;
  }
  m_nextFrame = Simulator::Schedule(ns3::Seconds(m_rule.periodS), &GccApplication::NextFrame, this);
}

void GccApplication::NextGroup() {
  // bytes = bit/s · s / (bit/byte); what is not used does not add up, what is too much is owed
  const double groupBytes = m_controller->TargetBps() * kGroupInterval.GetSeconds() / 8;
  m_creditBytes = std::min(m_creditBytes, 0.0) + groupBytes;
  while (!m_waiting.empty() && m_creditBytes > 0) {
    const Part part = m_waiting.front();
    m_waiting.pop_front();
    m_waitingBytes -= part.bytes;
    m_creditBytes -= part.bytes;
    Send(part);
  }
  m_nextGroup = Simulator::Schedule(kGroupInterval, &GccApplication::NextGroup, this);
}

void GccApplication::Send(const Part& part) {
  const MediaHeader header{m_firstUnreported + static_cast<uint32_t>(m_unreported.size()),
                           static_cast<uint32_t>(part.begin),
                           static_cast<uint32_t>(part.begin >> 32)};
  auto packet = ns3::Create<Packet>(reinterpret_cast<const uint8_t*>(&header), sizeof header);
  packet->AddAtEnd(ns3::Create<Packet>(part.bytes));
  m_unreported.push_back({part, Simulator::Now()});
  m_socket->Send(packet);
}

uint64_t MediaBegin(Ptr<const Packet> packet) {
  constexpr uint32_t kUdpHeaderBytes = 8;
  std::array<uint8_t, kUdpHeaderBytes + sizeof(MediaHeader)> bytes{};
  packet->CopyData(bytes.data(), bytes.size());
  MediaHeader header{};
  std::memcpy(&header, bytes.data() + kUdpHeaderBytes, sizeof header);
  return Join(header.beginLow, header.beginHigh);
}

void GccApplication::Hear(Ptr<Socket> socket) {
  while (Ptr<Packet> packet = socket->Recv()) {
    Feedback(packet);
  }
}

void GccApplication::Feedback(Ptr<Packet> packet) {
  const std::vector<uint8_t> bytes = BytesOf(packet);
  FeedbackHeader header{};
  std::memcpy(&header, bytes.data(), sizeof header);
  const double baseMs = static_cast<double>(Join(header.baseLow, header.baseHigh)) * 1e-3;
  std::vector<uint32_t> told((bytes.size() - sizeof header) / sizeof(uint32_t));
  std::memcpy(told.data(), bytes.data() + sizeof header, told.size() * sizeof(uint32_t));
  std::vector<gcc::Arrival> came;
  std::vector<Part> lost;
  Time lastSent;
  while (m_firstUnreported < header.first + told.size()) {
    const Sent sent = m_unreported.front();
    m_unreported.pop_front();
    const uint32_t number = m_firstUnreported++;
    // A packet that no feedback names was named by a lost one: it may be lost too.
    const uint32_t afterUs = number < header.first ? kLost : told[number - header.first];
    if (afterUs == kLost) {
      lost.push_back(sent.part);
      continue;
    }
    came.push_back({Ms(sent.at), baseMs + afterUs * 1e-3, sent.part.bytes});
    lastSent = sent.at;
  }
  for (auto part = lost.rbegin(); part != lost.rend(); ++part) {
    m_waiting.push_front(*part);
    m_waitingBytes += part->bytes;
  }
  const double rttMs = Ms(Simulator::Now() - lastSent) - header.heldUs * 1e-3;
  m_controller->Feedback(came, static_cast<uint32_t>(lost.size()), rttMs, Ms(Simulator::Now()));
}

ns3::TypeId GccReceiver::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::GccReceiver")
                               .SetParent<ns3::Application>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<GccReceiver>();
  return tid;
}

void GccReceiver::Listen(Ptr<Socket> socket, uint16_t port, double periodS, Received received) {
  m_socket = std::move(socket);
  m_interval = ns3::Seconds(periodS);
  m_received = std::move(received);
  m_socket->Bind(ns3::InetSocketAddress(ns3::Ipv4Address::GetAny(), port));
  m_socket->SetRecvCallback(MakeCallback(&GccReceiver::Hear, this));
}

void GccReceiver::DoDispose() {
  m_next.Cancel();
  m_socket = nullptr;
  ns3::Application::DoDispose();
}

void GccReceiver::Hear(Ptr<Socket> socket) {
  while (Ptr<Packet> packet = socket->RecvFrom(m_sender)) {
    MediaHeader header{};
    packet->CopyData(reinterpret_cast<uint8_t*>(&header), sizeof header);
    Arrived(header.number, Join(header.beginLow, header.beginHigh),
            packet->GetSize() - static_cast<uint32_t>(sizeof header));
    if (!m_next.IsPending()) {
      m_next = Simulator::Schedule(m_interval, &GccReceiver::Tell, this);
    }
  }
}

void GccReceiver::Arrived(uint32_t number, uint64_t begin, uint32_t bytes) {
  if (number >= m_firstUntold) {  // else it was told of as lost
    const std::size_t place = number - m_firstUntold;
    m_untold.resize(std::max(m_untold.size(), place + 1));
    m_untold[place] = Simulator::Now();
  }
  m_beyond.emplace(begin, begin + bytes);
  const uint64_t before = m_streamBytes;
  while (!m_beyond.empty() && m_beyond.begin()->first <= m_streamBytes) {
    m_streamBytes = std::max(m_streamBytes, m_beyond.begin()->second);
    m_beyond.erase(m_beyond.begin());
  }
  if (m_streamBytes > before) {
    m_received(static_cast<uint32_t>(m_streamBytes - before));
  }
}

void GccReceiver::Tell() {
  if (m_untold.empty()) {
    return;  // all that came was reported as lost
  }
  const auto first = std::find_if(m_untold.begin(), m_untold.end(),
                                  [](const auto& came) { return came.has_value(); });
  const auto baseUs = static_cast<uint64_t>((*first)->GetMicroSeconds());
  std::vector<uint32_t> words = {
      m_firstUntold, static_cast<uint32_t>((Simulator::Now() - *m_untold.back()).GetMicroSeconds()),
      static_cast<uint32_t>(baseUs), static_cast<uint32_t>(baseUs >> 32)};
  static_assert(sizeof(FeedbackHeader) == 4 * sizeof(uint32_t));
  for (const auto& came : m_untold) {
    words.push_back(
        came ? static_cast<uint32_t>(static_cast<uint64_t>(came->GetMicroSeconds()) - baseUs)
             : kLost);
  }
  m_firstUntold += static_cast<uint32_t>(m_untold.size());
  m_untold.clear();
  m_socket->SendTo(ns3::Create<Packet>(reinterpret_cast<const uint8_t*>(words.data()),
                                       static_cast<uint32_t>(words.size() * sizeof(uint32_t))),
                   0, m_sender);
}

}  // namespace swiftqueue
