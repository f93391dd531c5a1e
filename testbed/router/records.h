// SPDX-License-Identifier: Apache-2.0
//
// The router's log: a record of each packet and each stall, written beside the loop.
#ifndef SWIFTQUEUE_TESTBED_ROUTER_RECORDS_H_
#define SWIFTQUEUE_TESTBED_ROUTER_RECORDS_H_

#include <condition_variable>
#include <cstdint>
#include <fstream>
#include <ios>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "testbed/fail.h"

namespace swiftqueue::testbed {

// One of the log's, little endian as the machine is; testbed's readers take it as it stands
// (testbed/host/router_log.py).
struct Record {
  std::int64_t arrived_ns;  // read from the device; of a stall its beginning
  std::int64_t started_ns;  // on the link; of a drop: when it was decided
  std::int64_t due_ns;      // at the other device; -1 of a drop
  std::int64_t written_ns;  // there; of a stall its end
  std::int64_t packet;      // number in our own UDP packets, else -1
  std::uint32_t bytes;
  std::uint16_t source_port, destination_port;
  std::uint8_t kind;     // Kind
  std::uint8_t queue;    // dual_pi2::Queue; of packets from b: 255
  std::uint8_t verdict;  // dual_pi2::Verdict
  std::uint8_t ecn;      // as it arrived
  std::uint8_t protocol;
  std::uint8_t moved;    // 1: the rule took it to the classic queue; `ecn` is then ECT(0)
  std::uint8_t headers;  // bytes of IP and TCP; 0: no TCP
  std::uint8_t dscp;     // as it arrived
  std::uint32_t sequence, acknowledged;  // of TCP
  std::uint8_t link;                     // number of the link that it took
  std::uint8_t zero[7];
};
static_assert(sizeof(Record) == 72);
enum Kind : std::uint8_t {
  kForward = 0,
  kBack = 1,
  kDropped = 2,
  kRefused = 3,
  kStall = 4,
  kCrossPacket = 5
};

// Writes records in a thread of its own, so that no packet waits for a disk.
class Log {
 public:
  explicit Log(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::binary);
    if (!file_) fail(path);
    thread_ = std::thread([this] { write(); });
  }
  ~Log() { end(); }
  // Throws std::runtime_error: not all of it could be written.
  void close() {
    end();
    if (!file_) throw std::runtime_error(path_ + ": could not be written");
  }
  void put(const Record& record) {
    if (!thread_.joinable()) return;
    filling_.push_back(record);
    if (filling_.size() >= 2048) hand_over();
  }

 private:
  void end() {
    if (!thread_.joinable()) return;
    hand_over();
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void hand_over() {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), filling_.begin(), filling_.end());
    }
    filling_.clear();
    wake_.notify_one();
  }
  void write() {
    std::vector<Record> taken;
    for (bool last = false; !last;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return ended_ || !waiting_.empty(); });
        taken.swap(waiting_);
        last = ended_;
      }
      file_.write(reinterpret_cast<const char*>(taken.data()),
                  static_cast<std::streamsize>(taken.size() * sizeof(Record)));
      taken.clear();
    }
    file_.flush();
  }

  const std::string path_;
  std::ofstream file_;
  std::vector<Record> filling_, waiting_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace swiftqueue::testbed

#endif  // SWIFTQUEUE_TESTBED_ROUTER_RECORDS_H_
