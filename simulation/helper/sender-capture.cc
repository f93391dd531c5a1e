// SPDX-License-Identifier: GPL-2.0-only

#include "sender-capture.h"

#include <array>
#include <initializer_list>
#include <stdexcept>

#include "ns3/simulator.h"

namespace swiftqueue {

namespace {

constexpr uint32_t kMagicNanoseconds = 0xA1B23C4D;
constexpr uint32_t kVersion = 2 | 4 << 16;  // 2.4: two 16-bit numbers
constexpr uint32_t kPppHeaderBytes = 2;     // bytes of a frame before the IP packet

void WriteWords(std::ofstream& file, std::initializer_list<uint32_t> words) {
  file.write(reinterpret_cast<const char*>(words.begin()),
             static_cast<std::streamsize>(words.size() * sizeof(uint32_t)));
}

}  // namespace

SenderCapture::SenderCapture(const std::string& path, ns3::Ptr<ns3::PointToPointNetDevice> device)
    : m_path(path), m_file(path, std::ios::binary) {
  constexpr uint32_t kZone = 0;
  constexpr uint32_t kAccuracy = 0;
  WriteWords(m_file, {kMagicNanoseconds, kVersion, kZone, kAccuracy, kSnaplenBytes, kLinktypeRaw});
  if (!m_file) {
    throw std::runtime_error("cannot write " + path);
  }
  device->TraceConnectWithoutContext("PromiscSniffer",
                                     ns3::MakeCallback(&SenderCapture::Write, this));
}

void SenderCapture::Write(ns3::Ptr<const ns3::Packet> frame) {
  constexpr int64_t kNsPerS = 1'000'000'000;
  const int64_t timeNs = ns3::Simulator::Now().GetNanoSeconds();
  std::array<uint8_t, kPppHeaderBytes + kSnaplenBytes> bytes;
  const uint32_t copied = frame->CopyData(bytes.data(), bytes.size()) - kPppHeaderBytes;
  WriteWords(m_file,
             {static_cast<uint32_t>(timeNs / kNsPerS), static_cast<uint32_t>(timeNs % kNsPerS),
              copied, frame->GetSize() - kPppHeaderBytes});
  m_file.write(reinterpret_cast<const char*>(bytes.data() + kPppHeaderBytes), copied);
  RequireAllWritten();
}

void SenderCapture::Flush() {
  m_file.flush();
  RequireAllWritten();
}

void SenderCapture::Close() {
  m_file.close();
  RequireAllWritten();
}

void SenderCapture::RequireAllWritten() const {
  if (!m_file) {
    throw std::runtime_error("cannot write all of " + m_path + ": is the disk full?");
  }
}

}  // namespace swiftqueue
