// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/planted_faults.hpp"

#include <gtest/gtest.h>

#include <set>

namespace magi::testing {
namespace {

const Specimen& specimen_of(StageMode mode) {
  static const Specimen rows = make_specimen(StageMode::Rows);
  static const Specimen heads = make_specimen(StageMode::Heads);
  return mode == StageMode::Rows ? rows : heads;
}

std::vector<PlantedFault> all_faults() {
  std::vector<PlantedFault> faults = mask_faults();
  for (auto* more : {&plan_faults, &result_faults}) {
    const std::vector<PlantedFault> part = (*more)();
    faults.insert(faults.end(), part.begin(), part.end());
  }
  return faults;
}

TEST(PlantedFaults, NothingIsFoundWhereNothingIsPlanted) {
  for (const StageMode mode : {StageMode::Rows, StageMode::Heads}) {
    for (const Checker checker : {Checker::Expansion, Checker::Area, Checker::Coverage,
                                  Checker::Plan, Checker::Bytes, Checker::Results}) {
      EXPECT_EQ(findings_of(checker, specimen_of(mode)), cli::Findings{});
    }
    EXPECT_EQ(cli::verify(specimen_of(mode).verify_case), cli::Findings{});
  }
}

TEST(PlantedFaults, TheSpecimenHasWhatFaultsNeed) {
  for (const StageMode mode : {StageMode::Rows, StageMode::Heads}) {
    const Specimen& specimen = specimen_of(mode);
    EXPECT_EQ(num_stages(specimen.plan), 3);
    EXPECT_GE(specimen.plan.transfers.size(), 6u);
    EXPECT_GT(specimen.coverage.overlapping_pairs, 0);
    EXPECT_GT(specimen.coverage.empty_rows, 0);
    EXPECT_GT(specimen.coverage.unseen_keys, 0);
  }
}

TEST(PlantedFaults, EachIsFoundByItsChecker) {
  std::set<std::string> names;
  for (const PlantedFault& fault : all_faults()) {
    SCOPED_TRACE(fault.name);
    EXPECT_TRUE(names.insert(fault.name).second) << "two faults of one name";
    Specimen specimen = specimen_of(fault.mode);
    fault.plant(specimen);
    if (fault.checker == Checker::Plan && fault.is_digest_renewed) {
      specimen.plan.digest = plan_digest(specimen.plan);
    }
    EXPECT_FALSE(findings_of(fault.checker, specimen).empty());
  }
  EXPECT_GE(names.size(), 30u);
}

TEST(PlantedFaults, AStaleDigestIsNamed) {
  Specimen specimen = specimen_of(StageMode::Rows);
  specimen.plan.digest ^= 1u;
  const cli::Findings findings = findings_of(Checker::Plan, specimen);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_NE(findings[0].find("digest"), std::string::npos);
}

}  // namespace
}  // namespace magi::testing
