// SPDX-License-Identifier: Apache-2.0
#include "serving/agent/decision/schedule.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "serving/agent/io/clock.h"

namespace swiftqueue::agent {
namespace {

constexpr std::int64_t kBehindNs = 5'000'000;
constexpr std::int64_t kSilentNs = 500'000'000;
constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();

class Replay final : public Source {
 public:
  explicit Replay(const std::string& path) : path_(path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    struct stat status{};
    if (fd < 0 || fstat(fd, &status) != 0) throw std::runtime_error(path + ": " + strerror(errno));
    bytes_ = static_cast<std::size_t>(status.st_size);
    void* const data =
        bytes_ > 0 ? mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    close(fd);
    if (data == MAP_FAILED) throw std::runtime_error(path + ": empty, or cannot be mapped");
    data_ = static_cast<const char*>(data);
    try {
      if (!read(0) || frame_.header.type != FrameType::kHello) {
        throw std::runtime_error(path + ": does not begin with a HELLO frame");
      }
      name_ = text_of(frame_.hello.name);
      event_ = sizeof(HelloFrame);
      find_batch(event_);
    } catch (...) {
      munmap(data, bytes_);
      throw;
    }
  }
  ~Replay() override { munmap(const_cast<char*>(data_), bytes_); }

  std::string name() const override { return name_; }
  const BatchFrame* batch() override { return ask_ < bytes_ ? &batch_ : nullptr; }
  void next_batch() override { find_batch(ask_ + sizeof(BatchFrame)); }
  void decided(const DecisionFrame& /*decision*/) override {}

  void feed(DecisionLoop& loop, std::uint32_t sender, std::int64_t until_ns) override {
    for (; event_ < ask_ && read(event_); event_ += frame_.header.bytes) {
      const char* why = nullptr;
      if (frame_.header.type == FrameType::kSent) {
        if (frame_.sent.sent_ns > until_ns) return;
        if (!loop.sent(sender, frame_.sent, why)) refuse(event_, why);
      } else if (frame_.header.type == FrameType::kAcked) {
        if (frame_.acked.acked_ns > until_ns) return;
        if (!loop.acked(sender, frame_.acked, why)) refuse(event_, why);
      }
    }
  }

 private:
  // Reads the frame at a byte; returns false at the end of the file.
  bool read(std::size_t at) {
    if (at >= bytes_) return false;
    const char* why = "the file ends inside it";
    if (read_frame({data_ + at, bytes_ - at}, frame_, why) != Read::kFrame) refuse(at, why);
    return true;
  }
  [[noreturn]] void refuse(std::size_t at, const char* why) const {
    throw std::runtime_error(path_ + ": frame at byte " + std::to_string(at) + ": " + why);
  }
  // Finds the next BATCH frame from a byte on; the end of the file if there is none.
  void find_batch(std::size_t from) {
    for (ask_ = from; read(ask_); ask_ += frame_.header.bytes) {
      if (frame_.header.type != FrameType::kBatch) continue;
      batch_ = frame_.batch;
      return;
    }
    ask_ = bytes_;
  }

  const std::string path_;
  std::string name_;
  const char* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t event_ = 0;  // offset of the next frame to feed
  std::size_t ask_ = 0;    // offset of `batch_`
  BatchFrame batch_;
  Frame frame_;
};

class SyntheticSource final : public Source {
 public:
  explicit SyntheticSource(const Synthetic& what)
      : what_(what),
        // ns/packet = bits/packet / (bits/s) * ns/s
        gap_ns_(kPacketBytes * 8.0 / what.rate_bps * 1e9),
        batches_(static_cast<std::int64_t>(what.seconds * 1e9 / gap_ns_) / kHorizon),
        chosen_(kRemembered) {
    Queues default_queues;
    default_queues.fill(kL4s);
    std::fill(chosen_.begin(), chosen_.end(), default_queues);
    make_batch();
  }

  std::string name() const override { return "synthetic"; }
  const BatchFrame* batch() override {
    return batch_.first_packet < batches_ * kHorizon ? &batch_ : nullptr;
  }
  void next_batch() override {
    batch_.first_packet += kHorizon;
    make_batch();
  }
  void decided(const DecisionFrame& decision) override {
    chosen_[place(decision.first_packet)] = decision.queues;
  }

  void feed(DecisionLoop& loop, std::uint32_t sender, std::int64_t until_ns) override {
    while (true) {
      const std::int64_t send_ns = sent_ < batch_.first_packet ? sent_ns(sent_) : kEnd;
      if (acked_ < sent_ && acked_ns(acked_) <= std::min(send_ns, until_ns)) {
        last_ack_ns_ = acked_ns(acked_);
        const char* why = nullptr;
        loop.acked(sender, {{}, acked_, last_ack_ns_, latency_ns(acked_) / 1e3F, 0}, why);
        ++acked_;
      } else if (send_ns <= until_ns && send_ns != kEnd) {
        SentFrame sent{{}, sent_, send_ns, kPacketBytes, flow(sent_), 0, 0, 1, 0, 0};
        sent.queue = chosen_[place(sent_)][static_cast<std::size_t>(sent_ % kHorizon)];
        const char* why = nullptr;
        loop.sent(sender, sent, why);
        ++sent_;
      } else {
        return;
      }
    }
  }

 private:
  static constexpr std::size_t kRemembered = std::size_t{1} << 16;  // batches asked, not yet sent
  static constexpr std::int64_t kBeginNs = 1'000'000'000;
  static constexpr std::int32_t kPacketBytes = 1'500;

  static std::size_t place(std::int64_t packet) {
    return static_cast<std::size_t>(packet / kHorizon) % kRemembered;
  }
  std::int32_t flow(std::int64_t packet) const {
    return static_cast<std::int32_t>(packet % what_.flows);
  }
  std::int64_t sent_ns(std::int64_t packet) const {
    return kBeginNs + std::llround(static_cast<double>(packet) * gap_ns_);
  }
  // Returns latencies between 35 and 45 ms, rising and falling over 8,192 packets.
  static float latency_ns(std::int64_t packet) {
    return 35e6F + static_cast<float>(std::llabs(packet % 8192 - 4096)) / 4096.0F * 10e6F;
  }
  std::int64_t acked_ns(std::int64_t packet) const {
    return std::max(last_ack_ns_, sent_ns(packet) + static_cast<std::int64_t>(latency_ns(packet)));
  }
  void make_batch() {
    batch_.now_ns = sent_ns(batch_.first_packet);
    for (std::size_t i = 0; i < batch_.packets.size(); ++i) {
      const std::int64_t packet = batch_.first_packet + static_cast<std::int64_t>(i);
      batch_.packets[i] = {kPacketBytes, flow(packet), 0, kL4s, {}};
    }
  }

  const Synthetic what_;
  const double gap_ns_;  // time between packets
  const std::int64_t batches_;
  BatchFrame batch_;
  std::vector<Queues> chosen_;  // ring by batch number
  std::int64_t sent_ = 0;       // next packet to be sent
  std::int64_t acked_ = 0;      // next packet to be acknowledged
  std::int64_t last_ack_ns_ = 0;
};

}  // namespace

std::unique_ptr<Source> open_replay(const std::string& path) {
  return std::make_unique<Replay>(path);
}

std::unique_ptr<Source> make_synthetic(const Synthetic& what) {
  return std::make_unique<SyntheticSource>(what);
}

void run_schedule(Source& source, DecisionLoop& loop, std::uint32_t sender, const Pace& pace,
                  Statistics& statistics, const std::atomic<bool>& stop) {
  const BatchFrame* batch = source.batch();
  const std::int64_t from_ns = batch == nullptr ? 0 : batch->now_ns;
  const std::int64_t start_ns = monotonic_ns() + pace.deadline_ns;
  // The deadline is real time; here it is on the source's clock.
  const std::int64_t lead_ns = std::llround(static_cast<double>(pace.deadline_ns) * pace.speed);
  for (; batch != nullptr && !stop; source.next_batch(), batch = source.batch()) {
    std::int64_t due_ns = monotonic_ns() + pace.deadline_ns;
    if (pace.speed > 0) {
      due_ns = start_ns + std::llround(static_cast<double>(batch->now_ns - from_ns) / pace.speed);
      const std::int64_t ask_ns = due_ns - pace.deadline_ns;
      do {  // the loop touches its heartbeat now and then, also while the source is silent for long
        loop.run(std::min(ask_ns, monotonic_ns() + kSilentNs));
      } while (monotonic_ns() < ask_ns && !stop);
      const std::int64_t late_ns = monotonic_ns() - ask_ns;
      statistics.behind.add(late_ns > kBehindNs ? 1 : 0);
      statistics.lateness.observe(late_ns);
    }
    BatchFrame asked = *batch;
    asked.now_ns = std::max<std::int64_t>(batch->now_ns - lead_ns, 0);
    source.feed(loop, sender, asked.now_ns);
    const char* why = nullptr;
    if (!loop.batch(sender, asked, due_ns, why)) throw std::runtime_error(why);
    if (pace.speed == 0) {  // the client is driven also where nothing can be asked
      do {
        loop.run(due_ns);
      } while (loop.outstanding() > 0);
    }
  }
  while (loop.outstanding() > 0) loop.run(kEnd);  // until the last one is due
  if (batch == nullptr) source.feed(loop, sender, kEnd);
}

}  // namespace swiftqueue::agent
