// SPDX-License-Identifier: GPL-2.0-only

#include "experience.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ns3/simulator.h"

namespace swiftqueue::lab {

namespace {

constexpr double kStallS = 0.19;  // a frame later than this is one that the viewer waits for

double NowS() { return ns3::Simulator::Now().GetSeconds(); }

}  // namespace

Experience::Object Experience::ObjectOf(const Pages& pages, uint32_t index) {
  std::size_t page = 0;
  while (index >= pages[page].bytes.size()) {
    index -= static_cast<uint32_t>(pages[page++].bytes.size());
  }
  return {pages[page].startS, pages[page].bytes[index], page};
}

std::function<void(uint64_t)> Experience::FollowObject(const Flow& flow, const Object& object) {
  auto found = std::find_if(m_pages.begin(), m_pages.end(), [&](const Page& page) {
    return page.group == flow.group && page.number == object.page;
  });
  if (found == m_pages.end()) {
    m_pages.push_back({flow.group, object.page, object.startS});
    found = std::prev(m_pages.end());
  }
  ++found->objects;
  const auto page = static_cast<std::size_t>(found - m_pages.begin());
  return [this, page, wanted = object.bytes, done = false](uint64_t bytes) mutable {
    if (!done && bytes >= wanted) {
      done = true;
      ++m_pages[page].loaded;
      m_pages[page].endS = NowS();
    }
  };
}

std::function<void(uint64_t)> Experience::FollowCall(const Flow& flow,
                                                     std::shared_ptr<WriteLog> log) {
  m_calls.push_back({flow.number, &std::get<RealTime>(flow.group->traffic), log});
  return [log = std::move(log)](uint64_t bytes) { log->Received(bytes); };
}

std::function<void(uint64_t)> Experience::FollowMessages(const Flow& flow,
                                                         std::shared_ptr<WriteLog> log) {
  m_messages.push_back({flow.sender, flow.group->l4s, log});
  return [log = std::move(log)](uint64_t bytes) { log->Received(bytes); };
}

std::string Experience::Messages(uint32_t sender, bool l4s) const {
  uint64_t count = 0;
  uint64_t unfinished = 0;
  double bytes = 0;
  double unfinishedBytes = 0;
  double byteSeconds = 0;
  for (const OfFlow& flow : m_messages) {
    if (flow.sender != sender || flow.l4s != l4s) {
      continue;
    }
    uint64_t begin = 0;
    for (const auto& message : flow.log->Writes()) {
      const auto size = static_cast<double>(message.endByte - begin);
      begin = message.endByte;
      const double madeS = message.made.GetSeconds();
      if (madeS < m_run.warmupS) {
        continue;
      }
      const bool whole = message.delayS >= 0;
      ++count;
      unfinished += !whole;
      bytes += size;
      unfinishedBytes += whole ? 0 : size;
      byteSeconds += size * (whole ? message.delayS : NowS() - madeS);
    }
  }
  return JsonObject()
      .Add("count", JsonNumber(count))
      .Add("unfinished", JsonNumber(unfinished))
      .Add("bytes", JsonNumber(bytes))
      .Add("unfinished_bytes", JsonNumber(unfinishedBytes))
      .Add("byte_mean_s", count ? JsonNumber(byteSeconds / bytes) : "null")
      .Text();
}

std::string Experience::CrossP99() const {
  std::vector<double> delaysS;
  for (const OfFlow& flow : m_messages) {
    for (const auto& message : flow.log->Writes()) {
      const double madeS = message.made.GetSeconds();
      if (flow.sender > 0 && madeS >= m_run.warmupS) {
        delaysS.push_back(message.delayS >= 0 ? message.delayS : NowS() - madeS);
      }
    }
  }
  if (delaysS.empty()) {
    return "null";
  }
  const auto p99 = delaysS.begin() + static_cast<std::ptrdiff_t>(delaysS.size() * 99 / 100);
  std::nth_element(delaysS.begin(), p99, delaysS.end());
  return JsonNumber(*p99);
}

void Experience::AddTo(JsonObject& summary) const {
  JsonArray pages;
  for (const Page& page : m_pages) {
    const bool whole = page.loaded == page.objects;
    pages.Add(JsonObject()
                  .Add("start_s", JsonNumber(page.startS))
                  .Add("objects", JsonNumber(page.objects))
                  .Add("load_s", whole ? JsonNumber(page.endS - page.startS) : "null")
                  .Text());
  }
  JsonArray calls;
  for (const Call& call : m_calls) {
    JsonArray made;
    JsonArray delays;
    uint64_t late = 0;
    for (const auto& frame : call.log->Writes()) {
      const double madeS = frame.made.GetSeconds();
      const bool arrived = frame.delayS >= 0;
      made.Add(JsonNumber(madeS));
      delays.Add(arrived ? JsonNumber(frame.delayS) : "null");
      late += madeS >= m_run.warmupS && (arrived ? frame.delayS : NowS() - madeS) > kStallS;
    }
    // Each frame stands for the time until the next one.
    const double stallS = static_cast<double>(late) / call.traffic->framesPerS;
    calls.Add(JsonObject()
                  .Add("flow", JsonNumber(call.flow))
                  .Add("frames_per_s", JsonNumber(call.traffic->framesPerS))
                  .Add("stall_s", JsonNumber(stallS))
                  .Add("made_s", made.Text())
                  .Add("delay_s", delays.Text())
                  .Text());
  }
  if (!m_messages.empty()) {
    JsonObject messages;
    for (uint32_t s = 0; s < m_run.senders.size(); ++s) {
      messages.Add(
          m_run.senders[s].name,
          JsonObject().Add("l4s", Messages(s, true)).Add("classic", Messages(s, false)).Text());
    }
    summary.Add("messages", messages.Text());
    if (!m_run.uplinks.empty()) {
      summary.Add("cross_message_p99_s", CrossP99());
    }
  }
  if (!m_pages.empty()) {
    summary.Add("pages", pages.Text());
  }
  if (!m_calls.empty()) {
    summary.Add("calls", calls.Text());
  }
}

}  // namespace swiftqueue::lab
