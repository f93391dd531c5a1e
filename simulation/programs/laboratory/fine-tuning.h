// SPDX-License-Identifier: GPL-2.0-only
//
// Fine-tuning while the run goes on: a command makes a new head from the sender's packets so far.

#ifndef SWIFTQUEUE_LABORATORY_FINE_TUNING_H
#define SWIFTQUEUE_LABORATORY_FINE_TUNING_H

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "json-text.h"
#include "model-controller.h"
#include "ns3/nstime.h"
#include "run.h"

namespace swiftqueue::lab {

/** Ends each round with the command of the run file, and swaps the head that it names. */
class FineTuner {
 public:
  /** `folder` gets a folder for each round, and by `writePackets` what was sent so far. */
  FineTuner(const Run& run, std::string folder, std::function<void()> writePackets,
            ModelMove& control);

  /** Adds the rounds to the summary. */
  void AddTo(JsonObject& summary) const;

 private:
  struct Round {
    double atS;
    std::string artifact;
    int64_t version;
  };

  void ScheduleRound();
  void EndRound();
  void Apply(std::size_t round);

  FineTuning m_params;
  ns3::Time m_end;  // end of the run
  int64_t m_firstVersion;
  std::string m_folder;
  std::function<void()> m_writePackets;
  ModelMove& m_control;
  std::string m_answering;  // the artifact whose head answers now
  std::vector<Round> m_rounds;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_FINE_TUNING_H
