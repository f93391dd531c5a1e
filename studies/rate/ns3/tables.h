// SPDX-License-Identifier: GPL-2.0-only
//
// The CSV tables of downloads, as samples/tables.py reads them.

#ifndef SWIFTQUEUE_RATE_TABLES_H
#define SWIFTQUEUE_RATE_TABLES_H

#include <fstream>
#include <stdexcept>
#include <string>

#include "studies/rate/samples/tcp_sample.h"

namespace swiftqueue::rate {

/** Of a table with a row a sample. */
inline std::string SampleColumns() {
  std::string columns = "flow,sample";
  for (const Field& field : kFields) {
    columns += std::string(",") + field.name;
  }
  return columns;
}

/** Of a table with a row a download, as Download writes it. */
inline std::string RateColumns() {
  std::string rates;
  std::string times;
  for (const int packets : kHorizons) {
    rates += ",rate_" + std::to_string(packets) + "_bytes_per_s";
    times += ",at_" + std::to_string(packets) + "_ns";
  }
  return "flow,receiver,started_ns,samples" + rates + times;
}

inline std::ofstream Open(const std::string& path, const std::string& columns) {
  std::ofstream file(path, std::ios::binary);
  file << columns << '\n';
  return file;
}

inline void Close(std::ofstream& file, const std::string& path) {
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

}  // namespace swiftqueue::rate

#endif  // SWIFTQUEUE_RATE_TABLES_H
