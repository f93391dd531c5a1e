// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
//
// Artifacts of the form before this one: networks over windows of packets. Nothing here serves
// them; models/networks/parameters.py says the same line.
#ifndef SWIFTQUEUE_SERVING_ENGINE_OLD_FORM_H_
#define SWIFTQUEUE_SERVING_ENGINE_OLD_FORM_H_

#include <string>
#include <string_view>

namespace swiftqueue::engine {

inline constexpr std::string_view kOldSchemaHash =
    "ed5cfb08984c5aee135616b101e817c99cfe962ea8aaabdd3d98516674f4bed3";

// Returns why a model of this architecture, made for features of this schema hash, is not served;
// empty unless it is of the old form. Either argument may be empty, where it is unknown.
inline std::string why_old(std::string_view architecture, std::string_view schema_hash) {
  if (architecture != "transformer-encoder" && architecture != "bilstm" &&
      architecture != "query-mlp" && schema_hash != kOldSchemaHash) {
    return {};
  }
  return "is of the old form, a network over windows of packets; commit ebbf31e4 is the last one "
         "that serves it";
}

}  // namespace swiftqueue::engine

#endif  // SWIFTQUEUE_SERVING_ENGINE_OLD_FORM_H_
