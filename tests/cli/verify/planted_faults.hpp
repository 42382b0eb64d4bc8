// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <vector>

#include "verify/checks.hpp"

// Faults as data: each says what is broken and which checker must notice. A checker that lets one
// pass is worth nothing.
namespace magi::testing {

enum class Checker { Expansion, Area, Coverage, Plan, Bytes, Results };

/// Everything that the checkers judge, right at first.
struct Specimen {
  cli::VerifyCase verify_case;
  std::vector<std::uint16_t> expanded;
  std::int64_t pairs = 0;
  Coverage coverage;
  Plan plan;
  cli::CaseData data;
  cli::CaseResults results;
  cli::CaseResults truth;
};

/// A case with every feature: four slice types, overlaps, empty rows, grouped heads, sinks,
/// softcap, a gradient through lse, three ranks, two remote stages.
Specimen make_specimen(StageMode mode);

/// What `checker` finds in the specimen.
cli::Findings findings_of(Checker checker, const Specimen& specimen);

struct PlantedFault {
  const char* name;
  Checker checker;
  StageMode mode = StageMode::Rows;  ///< of the specimen that it is planted in
  std::function<void(Specimen&)> plant;
  bool is_digest_renewed = true;  ///< so that the digest is not what gives a plan away
};

std::vector<PlantedFault> mask_faults();
std::vector<PlantedFault> plan_faults();
std::vector<PlantedFault> result_faults();

}  // namespace magi::testing
