// SPDX-License-Identifier: GPL-2.0-only
//
// The laboratory: one run file in, one folder of results out (simulation/doc/lab.md).

#include <sys/resource.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../helper/sender-capture.h"
#include "../helper/tcp-endpoints.h"
#include "laboratory/class-watch.h"
#include "laboratory/control.h"
#include "laboratory/experience.h"
#include "laboratory/fine-tuning.h"
#include "laboratory/flows.h"
#include "laboratory/model-controller.h"
#include "laboratory/network-watch.h"
#include "laboratory/network.h"
#include "laboratory/run.h"
#include "laboratory/sender-watch.h"
#include "laboratory/streams.h"
#include "laboratory/summary.h"
#include "ns3/command-line.h"
#include "ns3/rng-seed-manager.h"
#include "ns3/simulator.h"

namespace {

using namespace swiftqueue::lab;  // NOLINT(build/namespaces): this is its program
using ns3::Seconds;
using ns3::Simulator;

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteJson(const std::string& path, const swiftqueue::lab::JsonObject& json) {
  std::ofstream file(path, std::ios::binary);
  file << json.Text() << '\n';
  file.close();
  if (!file) {
    throw std::runtime_error("cannot write all of " + path + ": is the disk full?");
  }
}

/** The most memory that this program has held; getrusage would count the one that started it. */
int64_t PeakMemoryBytes() {
  std::ifstream status("/proc/self/status");
  const std::string wanted = "VmHWM:";
  for (std::string word; status >> word;) {
    if (word == wanted) {
      int64_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  }
  return 0;
}

/** What a run has cost so far, with the programs that tuned its model. */
class Cost {
 public:
  JsonObject Json() const {
    const auto seconds = [](const timeval& time) {
      return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    double cpuS = 0;
    for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
      rusage used{};
      getrusage(who, &used);
      cpuS += seconds(used.ru_utime) + seconds(used.ru_stime);
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - m_started;
    JsonObject json;
    json.Add("cpu_s", JsonNumber(cpuS))
        .Add("wall_s", JsonNumber(wall.count()))
        .Add("peak_memory_bytes", JsonNumber(PeakMemoryBytes()))
        .Add("events", JsonNumber(Simulator::GetEventCount()));
    return json;
  }

 private:
  std::chrono::steady_clock::time_point m_started{std::chrono::steady_clock::now()};
};

void ReportProgress() {
  std::cout << "progress " << Simulator::Now().GetSeconds() << std::endl;
  Simulator::Schedule(Seconds(1), &ReportProgress);
}

/** Every sender with default marking. */
std::vector<std::shared_ptr<SenderWatch>> WatchSenders(const Run& run, const Network& network,
                                                       const Flows& flows) {
  std::vector<std::shared_ptr<SenderWatch>> senders;
  for (uint32_t s = 0; s < network.Senders().size(); ++s) {
    const auto& end = network.Senders()[s];
    senders.push_back(std::make_shared<SenderWatch>(run, s, flows, end));
    end.disc->SetMarker(senders.back());
  }
  return senders;
}

/** Simulates `given` and writes its files into the existing `folder`. */
void Simulate(const Run& given, const std::string& folder) {
  Cost cost;
  Run run = given;
  if (std::holds_alternative<NoL4sControl>(run.control)) {
    RemoveL4s(run);
  }
  ns3::RngSeedManager::SetSeed(run.seed);
  swiftqueue::SetTcpDefaults();
  int64_t stream = kTrafficStream;
  const int64_t exploreStream = run.tracesStreams ? stream++ : kExploreStream + run.explore.seed;
  Network network(run, stream);
  Flows flows = MakeFlows(run);
  Experience experience(run);
  InstallFlows(run, network, flows, experience, stream);

  auto senders = WatchSenders(run, network, flows);
  const std::unique_ptr<QueueControl> control = MakeControl(run, network);
  senders.front()->SetControl(control.get(), exploreStream);
  NetworkWatch watch(network, senders, flows.size());
  if (run.waits) {
    watch.LogWaits(run);
  }
  std::optional<ClassWatch> classes;
  if (run.classes) {
    classes.emplace(network, senders, flows.size());
  }
  std::optional<swiftqueue::SenderCapture> capture;
  if (run.pcap) {
    capture.emplace(folder + "/s1.pcap", network.Senders().front().device);
  }
  const auto writePackets = [&] {
    WriteTruth(folder + "/truth.npy", senders.front()->Log());
    WriteJson(folder + "/trace.json", DescribeTrace(run, network, flows, senders.front()->Log()));
  };
  std::optional<FineTuner> tuner;
  if (run.fineTuning) {
    tuner.emplace(run, folder, writePackets, dynamic_cast<ModelMove&>(*control));
  }
  ReportProgress();
  Simulator::Stop(Seconds(run.seconds));
  Simulator::Run();

  std::vector<const PacketLog*> logs;
  for (const auto& sender : senders) {
    sender->Finish();
    logs.push_back(&sender->Log());
  }
  if (capture) {
    capture->Close();
  }
  writePackets();
  if (!run.truth) {
    std::filesystem::remove(folder + "/truth.npy");
  }
  if (run.questions) {
    dynamic_cast<const BatchMove&>(*control).WriteQuestions(folder + "/questions.npy");
  }
  if (run.decisions) {
    dynamic_cast<const BatchMove&>(*control).WriteDecisions(folder + "/decisions.txt");
  }
  JsonObject summary = Summarise(run, network, flows, logs);
  experience.AddTo(summary);
  if (run.waits) {
    const WaitsLog waits = watch.Waits();
    WriteWaits(folder + "/waits.npy", waits);
    summary.Add("choice", ScoreChoice(run, *logs.front(), waits).Text());
  }
  if (!run.uplinks.empty()) {
    std::vector<std::vector<uint32_t>> spurious;
    for (const auto& sender : senders) {
      spurious.push_back(sender->Spurious());
    }
    summary.Add("uplinks", DescribeUplinks(run, network, logs, spurious).Text());
  }
  if (classes) {
    summary.Add("flow_classes", classes->Json().Text());
  }
  JsonObject spent = cost.Json();
  control->AddTo(summary, spent);
  if (tuner) {
    tuner->AddTo(summary);
  }
  WriteJson(folder + "/summary.json", summary);
  WriteJson(folder + "/cost.json", spent);
  Simulator::Destroy();
}

/** Sets up the network of `run` and starts it, but lets no time pass: what cannot be says so. */
void Check(const Run& run) {
  int64_t stream = kTrafficStream;
  const Network network(run, stream);
  const Flows flows;
  const auto senders = WatchSenders(run, network, flows);
  Simulator::Stop(Seconds(0));
  Simulator::Run();
  Simulator::Destroy();
}

int Main(int argc, char** argv) {
  std::string runFile;
  std::string out;
  bool check = false;
  ns3::CommandLine line(__FILE__);
  line.AddValue("run", "run file to simulate (JSON)", runFile);
  line.AddValue("out", "folder to make for its results", out);
  line.AddValue("check", "only see whether its network can be set up", check);
  line.Parse(argc, argv);
  if (runFile.empty() || (out.empty() && !check)) {
    throw std::invalid_argument(runFile.empty() ? "--run is missing" : "--out is missing");
  }
  if (check) {
    Check(ReadRun(ReadText(runFile)));
    return 0;
  }
  if (std::filesystem::exists(out)) {
    throw std::invalid_argument(out + " exists already: a result is never overwritten");
  }
  const std::string partial = out + ".partial";
  std::filesystem::remove_all(partial);
  try {
    Run run;
    try {
      run = ReadRun(ReadText(runFile));
    } catch (const swiftqueue::engine::InvalidError& error) {
      throw std::invalid_argument(runFile + ": " + error.what());
    }
    std::filesystem::create_directories(partial);
    Simulate(run, partial);
    std::filesystem::rename(partial, out);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove_all(partial, ignored);
    throw;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
