// SPDX-License-Identifier: GPL-2.0-only

#include "sender-capture.h"

#include <stdexcept>

#include "ns3/boolean.h"
#include "ns3/ppp-header.h"
#include "ns3/simulator.h"
#include "ns3/uinteger.h"

namespace swiftqueue {

SenderCapture::SenderCapture(const std::string& path, ns3::Ptr<ns3::PointToPointNetDevice> device)
    : m_path(path),
      m_file(ns3::CreateObjectWithAttributes<ns3::PcapFileWrapper>(
          "CaptureSize", ns3::UintegerValue(kSnaplenBytes), "NanosecMode",
          ns3::BooleanValue(true))) {
  m_file->Open(path, std::ios::out | std::ios::binary);
  if (m_file->Fail()) {
    throw std::runtime_error("cannot write " + path);
  }
  m_file->Init(kLinktypeRaw, kSnaplenBytes);
  device->TraceConnectWithoutContext("PromiscSniffer",
                                     ns3::MakeCallback(&SenderCapture::Write, this));
}

void SenderCapture::Write(ns3::Ptr<const ns3::Packet> frame) {
  ns3::Ptr<ns3::Packet> packet = frame->Copy();
  ns3::PppHeader ppp;
  packet->RemoveHeader(ppp);
  RequireAllWritten();  // ns-3 itself aborts on a file that has failed
  m_file->Write(ns3::Simulator::Now(), packet);
}

void SenderCapture::Close() {
  m_file->Close();
  RequireAllWritten();
}

void SenderCapture::RequireAllWritten() const {
  if (m_file->Fail()) {
    throw std::runtime_error("cannot write all of " + m_path + ": is the disk full?");
  }
}

}  // namespace swiftqueue
