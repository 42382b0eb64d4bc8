// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "common/exit.hpp"
#include "doctor/gpus.hpp"
#include "doctor/machine.hpp"
#include "doctor/ranks_environment.hpp"
#include "magi/cost.hpp"

namespace magi::cli {

/// The run of a small attention, and what was wrong.
struct Checked {
  std::string where;  ///< "the CPU", "GPU 0", "two ranks on the CPU", ...
  std::string backend;
  std::vector<std::string> findings;
};

/// All that the doctor found.
struct DoctorReport {
  HostFacts host;
  GpuMachine machine;
  NcclFacts nccl;
  RanksEnvironment ranks;
  std::vector<BackendFacts> backends;
  std::string cost_path;  ///< empty: the library's own constants
  CostFile cost;
  std::vector<Checked> checks;

  /// Why ranks or GPUs of this machine cannot be used as they are; empty where nothing is unfit.
  std::vector<std::string> unfit() const;
  /// CheckFailed where a result was wrong, else Unfit where unfit() is not empty.
  Exit exit() const;
};

/// A page for a person.
std::string doctor_text(const DoctorReport& report);
std::string doctor_json(const DoctorReport& report);

}  // namespace magi::cli
