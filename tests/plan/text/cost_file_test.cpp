// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "magi/error.hpp"
#include "magi/mask_builders.hpp"
#include "magi/plan.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

using ::testing::HasSubstr;

const CostFile kFile{.machine = "2 x a GPU, nvlink",
                     .cost = {.flops_per_second = 1e14,
                              .backward_flops_per_second = 9e13,
                              .bytes_per_second = 1.5e11,
                              .memory_bytes_per_second = 2e12,
                              .seconds_per_transfer = 0.0,
                              .seconds_per_launch = 4e-6}};

constexpr std::string_view kText = R"({"format": "magi cost",
"version": 1,
"machine": "2 x a GPU, nvlink",
"flops_per_second": 1e+14,
"backward_flops_per_second": 9e+13,
"bytes_per_second": 1.5e+11,
"memory_bytes_per_second": 2e+12,
"seconds_per_transfer": 0,
"seconds_per_launch": 4e-06}
)";

/// What reading the text says with `from` replaced by `to`.
std::string refusal(std::string_view from, std::string_view to) {
  std::string text(kText);
  text.replace(text.find(from), from.size(), to);
  return testing::refusal_of([&] { static_cast<void>(cost_file_from_json(text)); });
}

TEST(CostFile, IsReadAndWritten) {
  EXPECT_EQ(cost_file_to_json(kFile), kText);
  EXPECT_EQ(cost_file_from_json(kText), kFile);
  CostFile of_runs = kFile;
  of_runs.cost.seconds_per_run = 2e-5;
  EXPECT_EQ(cost_file_from_json(cost_file_to_json(of_runs)), of_runs);
}

TEST(CostFile, RefusesWhatIsNotItsSchema) {
  EXPECT_THAT(refusal("magi cost", "magi plan"), HasSubstr("cost file: format is magi plan"));
  EXPECT_EQ(refusal("\"version\": 1", "\"version\": 2"), "cost file: version is 2; allowed: 1");
  EXPECT_THAT(refusal("1.5e+11", "\"fast\""), HasSubstr("cost file: bytes_per_second is fast"));
  EXPECT_THAT(refusal("\"seconds_per_transfer\": 0,\n", ""), HasSubstr("seconds_per_transfer"));
  EXPECT_THAT(refusal("seconds_per_launch", "seconds_per_lunch"), HasSubstr("seconds_per_lunch"));
  EXPECT_THAT(refusal("2 x a GPU, nvlink", ""), HasSubstr("cost file: machine is "));
  EXPECT_THAT(refusal("{", ""), HasSubstr("cost file"));
}

TEST(CostFile, RefusesConstantsThatNoMachineHas) {
  EXPECT_EQ(refusal("2e+12", "0"),
            "cost.memory_bytes_per_second is 0; allowed: finite and above 0");
  EXPECT_EQ(refusal("4e-06", "2"), "cost.seconds_per_launch is 2; allowed: 0 to 1 second");
  CostFile file = kFile;
  file.cost.flops_per_second = std::numeric_limits<double>::infinity();
  EXPECT_THROW(static_cast<void>(cost_file_to_json(file)), InvalidArgument);
}

TEST(CostFile, WritesNoMachineThatItWouldNotRead) {
  for (const std::string& machine :
       {std::string(), std::string("a \"GPU\""), std::string("a\\b"), std::string(201, 'x')}) {
    CostFile file = kFile;
    file.machine = machine;
    EXPECT_THROW(static_cast<void>(cost_file_to_json(file)), InvalidArgument) << machine;
  }
}

TEST(CostFile, EachConstantIsPartOfThePlanAndItsDigest) {
  const Mask mask = mask_from_cu_seqlens({{0, 256}}, {{0, 256}}, {.is_causal = true});
  const PlanConfig config{.num_ranks = 2, .num_heads_q = 2};
  const Plan plan = make_plan(mask, config);
  for (double CostModel::*constant :
       {&CostModel::flops_per_second, &CostModel::backward_flops_per_second,
        &CostModel::bytes_per_second, &CostModel::memory_bytes_per_second,
        &CostModel::seconds_per_transfer, &CostModel::seconds_per_launch,
        &CostModel::seconds_per_run}) {
    PlanConfig other = config;
    other.cost.*constant += 1e-15 * std::max(other.cost.*constant, 1.0);
    const Plan changed = make_plan(mask, other);
    EXPECT_NE(changed.digest, plan.digest);
    EXPECT_EQ(plan_from_json(plan_to_json(changed)), changed);
  }
}

TEST(CostFile, ZerosOfEitherSignGiveOneDigest) {
  const Mask mask = mask_from_cu_seqlens({{0, 256}}, {{0, 256}}, {.is_causal = true});
  PlanConfig config{.num_ranks = 2, .num_heads_q = 2, .cost = {.seconds_per_transfer = 0.0}};
  const Plan plan = make_plan(mask, config);
  config.cost.seconds_per_transfer = -0.0;
  EXPECT_EQ(make_plan(mask, config).digest, plan.digest);
}

TEST(CostFile, NamesTheNetworkWhereItIsNotTheUsualOne) {
  CostFile file = kFile;
  file.cost.network_bytes_per_second = 2e10;
  const std::string text = cost_file_to_json(file);
  EXPECT_THAT(text, HasSubstr("\"network_bytes_per_second\": 2e+10"));
  EXPECT_EQ(cost_file_from_json(text), file);
  file.cost.network_seconds_per_transfer = 2;
  EXPECT_THROW(static_cast<void>(cost_file_to_json(file)), InvalidArgument);
  file.cost = {.bytes_per_second = 275e9, .network_bytes_per_second = 45e9};
  EXPECT_EQ(crossing_price(file.cost), 6);
  file.cost.network_bytes_per_second = 1e12;
  EXPECT_EQ(crossing_price(file.cost), 1);
  file.cost.network_bytes_per_second = 1;
  EXPECT_EQ(crossing_price(file.cost), 1024);
}

}  // namespace
}  // namespace magi
