// SPDX-License-Identifier: Apache-2.0
//
// A folder, or a link to one, in which another artifact may appear at any time.
#ifndef SWIFTQUEUE_SERVING_AGENT_ARTIFACT_FOLDER_H_
#define SWIFTQUEUE_SERVING_AGENT_ARTIFACT_FOLDER_H_

#include <sys/stat.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace swiftqueue::agent {

inline constexpr std::chrono::milliseconds kWatchPause{200};  // between looks at it

// Identifies one state of an artifact's folder.
struct Fingerprint {
  std::string folder;  // resolved
  std::array<std::array<std::int64_t, 4>, 2> files{};

  bool operator==(const Fingerprint&) const = default;
};

inline Fingerprint fingerprint_of(const std::string& folder) {
  std::error_code error;
  Fingerprint out{std::filesystem::canonical(folder, error).string(), {}};
  constexpr std::array kFiles{"/model.json", "/model.safetensors"};
  for (std::size_t i = 0; i < kFiles.size(); ++i) {
    struct stat status{};
    if (stat((out.folder + kFiles[i]).c_str(), &status) != 0) continue;
    out.files[i] = {static_cast<std::int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec,
                    status.st_mtim.tv_nsec};
  }
  return out;
}

// Returns the version number that is the folder's name, or 0.
inline std::int64_t version_of(const std::string& folder) {
  const std::string name = std::filesystem::path(folder).filename().string();
  std::int64_t version = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), version);
  return error == std::errc{} && end == name.data() + name.size() && version > 0 ? version : 0;
}

}  // namespace swiftqueue::agent

#endif  // SWIFTQUEUE_SERVING_AGENT_ARTIFACT_FOLDER_H_
