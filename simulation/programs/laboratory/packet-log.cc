// SPDX-License-Identifier: GPL-2.0-only

#include "packet-log.h"

#include "npy.h"

namespace swiftqueue::lab {

NS_OBJECT_ENSURE_REGISTERED(PacketTag);

ns3::TypeId PacketTag::GetTypeId() {
  static ns3::TypeId tid = ns3::TypeId("swiftqueue::PacketTag")
                               .SetParent<ns3::Tag>()
                               .SetGroupName("SwiftQueue")
                               .AddConstructor<PacketTag>();
  return tid;
}

void PacketTag::Serialize(ns3::TagBuffer buffer) const {
  buffer.WriteU16(sender);
  buffer.WriteU32(packet);
}

void PacketTag::Deserialize(ns3::TagBuffer buffer) {
  sender = buffer.ReadU16();
  packet = buffer.ReadU32();
}

void PacketTag::Print(std::ostream& out) const { out << sender << ':' << packet; }

void WriteTruth(const std::string& path, const PacketLog& log) {
  static_assert(sizeof(PacketRow) == 43, "the description below is this struct's");
  WriteNpy(path,
           "[('sent_ns', '<i8'), ('acked_ns', '<i8'), ('packet', '<u4'), ('one_way_us', '<f4'), "
           "('queueing_us', '<f4'), ('latency_us', '<f4'), ('flow', '<u2'), ('size_bytes', '<u2'), "
           "('queue', '|u1'), ('default_queue', '|u1'), ('retransmitted', '|u1'), "
           "('dropped', '|u1'), ('marked', '|u1'), ('reordered', '|u1'), ('ambiguous', '|u1')]",
           log.data(), log.size(), sizeof(PacketRow));
}

void WriteWaits(const std::string& path, const WaitsLog& log) {
  WriteNpy(path, "[('l4s_us', '<f4'), ('classic_us', '<f4')]", log.data(), log.size(),
           sizeof(Waits));
}

}  // namespace swiftqueue::lab
