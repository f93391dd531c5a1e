// SPDX-License-Identifier: GPL-2.0-only

#include "packet-log.h"

#include <bit>
#include <fstream>
#include <stdexcept>

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

void WriteNpy(const std::string& path, const PacketLog& log) {
  static_assert(std::endian::native == std::endian::little, "rows are written as they lie");
  static_assert(sizeof(PacketRow) == 43, "the description below is this struct's");
  std::string header =
      "{'descr': [('sent_ns', '<i8'), ('acked_ns', '<i8'), ('packet', '<u4'), ('one_way_us', "
      "'<f4'), "
      "('queueing_us', '<f4'), ('latency_us', '<f4'), ('flow', '<u2'), ('size_bytes', '<u2'), "
      "('queue', '|u1'), ('default_queue', '|u1'), ('retransmitted', '|u1'), ('dropped', '|u1'), "
      "('marked', '|u1'), ('reordered', '|u1'), ('ambiguous', '|u1')], 'fortran_order': False, "
      "'shape': (" +
      std::to_string(log.size()) + ",)}";
  // Format 1.0: magic, version, length of a header that ends in a newline on a boundary of 64 bytes
  constexpr std::size_t kPrefixBytes = 10;
  header.append(63 - (kPrefixBytes + header.size()) % 64, ' ').push_back('\n');
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  file.put(static_cast<char>(header.size() & 0xFF));
  file.put(static_cast<char>(header.size() >> 8));
  file << header;
  file.write(reinterpret_cast<const char*>(log.data()),
             static_cast<std::streamsize>(log.size() * sizeof(PacketRow)));
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

}  // namespace swiftqueue::lab
