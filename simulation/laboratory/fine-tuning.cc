// SPDX-License-Identifier: GPL-2.0-only

#include "fine-tuning.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "ns3/simulator.h"

namespace swiftqueue::lab {

using ns3::Seconds;
using ns3::Simulator;

namespace {

std::string ShellQuoted(const std::string& word) {
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

/** Runs a command and returns the last line that it prints. */
std::string LastLineOf(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + ShellQuoted(word);
  }
  std::fflush(nullptr);
  std::FILE* pipe = popen(line.c_str(), "r");
  if (pipe == nullptr) {
    throw std::runtime_error("finetune: cannot start " + words.front());
  }
  std::string printed;
  std::array<char, 4096> part;
  while (const std::size_t got = std::fread(part.data(), 1, part.size(), pipe)) {
    printed.append(part.data(), got);
  }
  if (pclose(pipe) != 0) {
    throw std::runtime_error("finetune: the command " + words.front() + " failed");
  }
  while (!printed.empty() && printed.back() == '\n') {
    printed.pop_back();
  }
  return printed.substr(printed.rfind('\n') + 1);
}

}  // namespace

FineTuner::FineTuner(const Run& run, std::string folder, std::function<void()> writePackets,
                     ModelMove& control)
    : m_params(*run.fineTuning),
      m_end(Seconds(run.seconds)),
      m_firstVersion(std::get<ModelControl>(run.control).version),
      m_folder(std::move(folder)),
      m_writePackets(std::move(writePackets)),
      m_control(control),
      m_answering(std::get<ModelControl>(run.control).artifact) {
  ScheduleRound();
}

void FineTuner::ScheduleRound() {
  if (Simulator::Now() + Seconds(m_params.everyS) < m_end) {
    Simulator::Schedule(Seconds(m_params.everyS), &FineTuner::EndRound, this);
  }
}

void FineTuner::EndRound() {
  ScheduleRound();
  const ns3::Time now = Simulator::Now();
  const ns3::Time from = std::max(now - Seconds(m_params.spanS), Seconds(0));
  const std::string number = std::to_string(m_rounds.size() + 1);
  const std::string output = m_folder + "/finetune/round-" + number;
  std::filesystem::create_directories(output);
  m_writePackets();
  std::vector<std::string> command = m_params.command;
  command.insert(command.end(),
                 {"--run", m_folder, "--from-ns", std::to_string(from.GetNanoSeconds()), "--to-ns",
                  std::to_string(now.GetNanoSeconds()), "--artifact", m_answering, "--round",
                  number, "--output", output});
  m_rounds.push_back({now.GetSeconds(), LastLineOf(command),
                      m_firstVersion + static_cast<int64_t>(m_rounds.size()) + 1});
  Simulator::Schedule(Seconds(m_params.applyAfterS), &FineTuner::Apply, this, m_rounds.size() - 1);
}

void FineTuner::Apply(std::size_t round) {
  m_control.SwapHead(m_rounds[round].artifact, m_rounds[round].version);
  m_answering = m_rounds[round].artifact;
}

void FineTuner::AddTo(JsonObject& summary) const {
  JsonArray rounds;
  for (const auto& [atS, path, version] : m_rounds) {
    // The folder is renamed when the run is done.
    const bool mine = path.starts_with(m_folder + "/");
    const std::string artifact = mine ? path.substr(m_folder.size() + 1) : path;
    rounds.Add(JsonObject()
                   .Add("at_s", JsonNumber(atS))
                   .Add("artifact", JsonString(artifact))
                   .Add("version", JsonNumber(version))
                   .Text());
  }
  summary.Add("finetune", rounds.Text());
}

}  // namespace swiftqueue::lab
