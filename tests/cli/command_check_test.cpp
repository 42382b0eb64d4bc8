// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "cli/run_magi.hpp"
#include "cli/temporary_folder.hpp"
#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"

namespace magi::testing {
namespace {

Plan documents_plan() {
  const std::vector<std::int32_t> cu = {0, 300, 1000, 1024};
  PlanConfig config{.num_ranks = 4, .num_heads_q = 4, .num_heads_kv = 2};
  config.placement.chunk_size = 32;
  return make_plan(mask_from_cu_seqlens(cu, cu, {.is_causal = true}), config);
}

TEST(CommandCheck, ASoundPlanIsSound) {
  const TemporaryFolder folder;
  const std::string file = folder.write("plan.json", plan_to_json(documents_plan()));
  const Outcome outcome = run_magi("check " + file);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "sound\n");
  EXPECT_NE(outcome.err.find("checked in"), std::string::npos) << outcome.err;
  const Outcome json = run_magi("check - --json", "", plan_to_json(documents_plan()));
  EXPECT_EQ(json.code, 0) << json.err;
  EXPECT_EQ(nlohmann::json::parse(json.out),
            nlohmann::json({{"is_sound", true}, {"problems", nlohmann::json::array()}}));
}

TEST(CommandCheck, AFaultIsNamedByRankStepAndRows) {
  struct Fault {
    std::function<void(Plan&)> plant;
    const char* sentence;
  };
  const Fault faults[] = {
      {[](Plan& p) { --p.ranks[2].slices[0].k1; }, "query row"},
      {[](Plan& p) { --p.transfers.back().num_rows; }, "are filled by nothing"},
      {[](Plan& p) {
         p.ranks[1].forward.back().after = {-1, -1};
       },
       "does not wait for"},
      {[](Plan& p) { ++p.report.rank_area[3]; }, "rank 3: the report says"},
      {[](Plan& p) { p.digest ^= 1; }, "the digest is not that of the tables"},
  };
  for (const Fault& fault : faults) {
    Plan plan = documents_plan();
    const std::uint64_t digest = plan.digest;
    fault.plant(plan);
    if (plan.digest == digest) plan.digest = plan_digest(plan);
    const Outcome outcome = run_magi("check -", "", plan_to_json(plan));
    EXPECT_EQ(outcome.code, 1) << fault.sentence << outcome.err;
    EXPECT_NE(outcome.out.find(fault.sentence), std::string::npos)
        << fault.sentence << ": " << outcome.out;
    const auto json = nlohmann::json::parse(run_magi("check --json -", "", plan_to_json(plan)).out);
    EXPECT_EQ(json["is_sound"], false);
    EXPECT_EQ(json["problems"][0].get<std::string>() + "\n",
              outcome.out.substr(0, outcome.out.find('\n') + 1));
  }
}

TEST(CommandCheck, WhatIsNoPlanIsAWrongCall) {
  const std::string text = plan_to_json(documents_plan());
  for (const std::string& input :
       {std::string(), std::string("{}"), text.substr(0, text.size() / 2)}) {
    const Outcome outcome = run_magi("check -", "", input);
    EXPECT_EQ(outcome.code, 2) << outcome.out;
    EXPECT_EQ(outcome.out, "");
    EXPECT_NE(outcome.err.find("plan JSON"), std::string::npos) << outcome.err;
  }
  EXPECT_EQ(run_magi("check").code, 2);
  EXPECT_EQ(run_magi("check /no/such/file").code, 2);
}

TEST(CommandCheck, BoundsAreFound) {
  const TemporaryFolder folder;
  const std::string file = folder.write("plan.json", plan_to_json(documents_plan()));
  const Outcome found = run_magi("check " + file + " --bounds");
  EXPECT_EQ(found.code, 0) << found.err;
  for (const char* word : {"sound\n", "placed", "in order", "as here", "balance", "backward"}) {
    EXPECT_NE(found.out.find(word), std::string::npos) << word << found.out;
  }
  const auto bounds =
      nlohmann::json::parse(run_magi("check " + file + " --json --bounds").out)["bounds"];
  EXPECT_GT(bounds["bytes"], 0);
  EXPECT_LE(bounds["bytes"], documents_plan().report.total_bytes);
}

}  // namespace
}  // namespace magi::testing
