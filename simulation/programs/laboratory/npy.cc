// SPDX-License-Identifier: GPL-2.0-only

#include "npy.h"

#include <bit>
#include <fstream>
#include <stdexcept>

namespace swiftqueue::lab {

void WriteNpy(const std::string& path, const std::string& descr, const void* data, std::size_t rows,
              std::size_t rowBytes) {
  static_assert(std::endian::native == std::endian::little, "rows are written as they lie");
  std::string header =
      "{'descr': " + descr + ", 'fortran_order': False, 'shape': (" + std::to_string(rows) + ",)}";
  // Magic, version, length of a header that ends in a newline on a boundary of 64 bytes
  constexpr std::size_t kPrefixBytes = 10;
  header.append(63 - (kPrefixBytes + header.size()) % 64, ' ').push_back('\n');
  std::ofstream file(path, std::ios::binary);
  file.write("\x93NUMPY\x01\x00", 8);
  file.put(static_cast<char>(header.size() & 0xFF));
  file.put(static_cast<char>(header.size() >> 8));
  file << header;
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(rows * rowBytes));
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

}  // namespace swiftqueue::lab
