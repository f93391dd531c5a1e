// SPDX-License-Identifier: GPL-2.0-only
//
// Fine-tuning while the run goes on: a command makes a new head from the capture so far.

#ifndef SWIFTQUEUE_LABORATORY_FINE_TUNING_H
#define SWIFTQUEUE_LABORATORY_FINE_TUNING_H

#include <cstdint>
#include <string>
#include <vector>

#include "../helper/sender-capture.h"
#include "json-text.h"
#include "model-controller.h"
#include "ns3/nstime.h"
#include "run.h"

namespace swiftqueue::lab {

/** Ends each round with the command of the run file, and swaps the head that it names. */
class FineTuner {
 public:
  /** `folder` holds the capture, and gets a folder for each round. */
  FineTuner(const Run& run, std::string folder, SenderCapture& capture, ModelMove& control);

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
  ns3::Time m_end;  // of the run
  int64_t m_firstVersion;
  std::string m_folder;
  SenderCapture& m_capture;
  ModelMove& m_control;
  std::string m_answering;  // the artifact whose head answers now
  std::vector<Round> m_rounds;
};

}  // namespace swiftqueue::lab

#endif  // SWIFTQUEUE_LABORATORY_FINE_TUNING_H
