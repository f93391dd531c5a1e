// SPDX-License-Identifier: GPL-2.0-only
//
// NumPy's file format, version 1.0, for arrays of packed rows.

#ifndef SWIFTQUEUE_LABORATORY_NPY_H
#define SWIFTQUEUE_LABORATORY_NPY_H

#include <cstddef>
#include <string>

namespace swiftqueue::lab {

/**
 * Writes `rows` rows that lie at `data`, `rowBytes` each, described by NumPy's list of fields
 * `descr`. Throws std::runtime_error naming the file.
 */
void WriteNpy(const std::string& path, const std::string& descr, const void* data, std::size_t rows,
              std::size_t rowBytes);

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_NPY_H
