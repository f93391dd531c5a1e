// SPDX-License-Identifier: GPL-2.0-only

#include "fine-tuning.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "ns3/simulator.h"

namespace swiftqueue::lab {

using ns3::Seconds;
using ns3::Simulator;

namespace {

/** In the child: becomes the command, and dies with the simulation that asked for it. */
[[noreturn]] void Become(std::vector<char*> words, pid_t simulation, int output) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Else it died before it could be watched.
  if (getppid() == simulation && dup2(output, STDOUT_FILENO) >= 0) {
    words.push_back(nullptr);
    execvp(words.front(), words.data());
  }
  _exit(127);
}

/** Runs a command and returns the last line that it prints. */
std::string LastLineOf(std::vector<std::string> command) {
  std::vector<char*> words;
  for (std::string& word : command) {
    words.push_back(word.data());
  }
  std::fflush(nullptr);
  std::array<int, 2> ends;  // to read, to write
  const pid_t simulation = getpid();
  const pid_t child = pipe2(ends.data(), O_CLOEXEC) == 0 ? fork() : -1;
  if (child < 0) {
    throw std::system_error(errno, std::generic_category(),
                            "finetune: cannot start " + command.front());
  }
  if (child == 0) {
    Become(std::move(words), simulation, ends[1]);
  }
  close(ends[1]);
  std::string printed;
  std::array<char, 4096> part;
  ssize_t got = 0;
  while ((got = read(ends[0], part.data(), part.size())) != 0) {
    if (got > 0) {
      printed.append(part.data(), static_cast<std::size_t>(got));
    } else if (errno != EINTR) {
      break;
    }
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (got < 0 || status != 0) {
    throw std::runtime_error("finetune: the command " + command.front() + " failed");
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
