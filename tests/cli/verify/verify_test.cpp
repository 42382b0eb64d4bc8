// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <map>

#include "kernels/cpu/attention.hpp"
#include "magi/error.hpp"
#include "support/random_streams.hpp"
#include "verify/checks.hpp"

namespace magi::cli {
namespace {

TEST(Verify, RandomCasesHold) {
  cpu::set_num_threads(1);
  for (RandomStream& random : testing::RandomStreams(150)) {
    const VerifyCase drawn = random_case(random);
    EXPECT_EQ(verify(drawn), Findings{}) << case_to_json(drawn);
  }
}

/// All rows see one key: its gradient is 0 but for what rounding leaves of each row.
TEST(Verify, WhatCancelsIsJudgedByItsTerms) {
  VerifyCase c;
  c.mask = {.rows_q = 400, .rows_k = 6, .slices = {{.q0 = 32, .q1 = 384, .k0 = 1, .k1 = 2}}};
  c.config.head_dim_qk = c.config.head_dim_v = 32;
  c.config.element_bytes = 8;
  c.params.softmax_scale = 1.0;
  c.data_seed = 17651153433812390216u;
  EXPECT_EQ(verify(c), Findings{});
}

TEST(Verify, DrawnCasesReachEveryCorner) {
  std::map<std::string, int> seen;
  for (RandomStream& random : testing::RandomStreams(2000)) {
    const VerifyCase c = random_case(random);
    ++seen["ranks " + std::to_string(c.config.num_ranks)];
    ++seen[std::string("placement ") + placement_name(c.config.placement.algorithm)];
    ++seen[dtype_name(c.dtype)];
    ++seen[c.mask.slices.empty() ? "no slices" : "slices"];
    ++seen[c.mask.slices.size() > 30 ? "over 30 slices" : "at most 30 slices"];
    ++seen[c.mask.rows_q == c.mask.rows_k  ? "square"
           : c.mask.rows_q < c.mask.rows_k ? "wide"
                                           : "tall"];
    ++seen[c.mask.rows_q > 1024 ? "long" : "short"];
    ++seen[c.config.num_heads_q > c.config.num_heads_kv ? "grouped" : "ungrouped"];
    ++seen[c.num_sinks > 0 ? "sinks" : "no sinks"];
    ++seen[c.config.placement_k ? "own keys" : "shared keys"];
    ++seen["degree " + std::to_string(c.config.overlap_degree.value_or(-1))];
    ++seen[std::string("work ") + work_name(c.config.work)];
  }
  EXPECT_EQ(seen.size(), 8u + kNumPlacementAlgorithms + 2 + 2 + 2 + 3 + 2 + 2 + 2 + 2 + 6 + 4);
  for (const auto& [name, count] : seen) EXPECT_GE(count, 4) << name;
}

TEST(Verify, CasesSurviveJson) {
  for (RandomStream& random : testing::RandomStreams(300)) {
    const VerifyCase drawn = random_case(random);
    EXPECT_EQ(case_from_json(case_to_json(drawn)), drawn);
  }
}

TEST(Verify, BrokenCasesAreRefused) {
  RandomStream random(3);
  const std::string good = case_to_json(random_case(random));
  for (std::size_t length = 0; length + 2 < good.size(); length += 11) {
    EXPECT_THROW(case_from_json(good.substr(0, length)), InvalidArgument);
  }
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  EXPECT_THROW(case_from_json(changed("\"dtype\"", "\"colour\": 1, \"dtype\"")), InvalidArgument);
  EXPECT_THROW(case_from_json(changed("\"num_ranks\":", "\"num_ranks\":1e3,\"x\":")),
               InvalidArgument);
  EXPECT_THROW(case_from_json(changed("\"num_ranks\":", "\"num_ranks\":99999999999,\"x\":")),
               InvalidArgument);
  EXPECT_THROW(case_from_json(changed("\"num_sinks\":", "\"num_sinks\":9")), InvalidArgument);
}

TEST(Verify, AnInvalidCaseIsAFinding) {
  VerifyCase c;
  c.mask = {.rows_q = 4, .rows_k = 4, .slices = {{.q0 = 0, .q1 = 9, .k0 = 0, .k1 = 4}}};
  const Findings findings = verify(c);
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].find("exception: "), 0u);
}

/// Results of a mask without one of its slices are those of a run that lost a stage.
TEST(Verify, ResultsOfAnotherMaskAreFound) {
  VerifyCase c;
  c.mask = {
      .rows_q = 40,
      .rows_k = 40,
      .slices = {{.q0 = 0, .q1 = 40, .k0 = 0, .k1 = 30}, {.q0 = 10, .q1 = 40, .k0 = 30, .k1 = 40}}};
  const CaseData data = make_data(c);
  const CaseResults truth = reference_results(c, data);
  EXPECT_EQ(check_results(c, data, truth, truth), Findings{});
  VerifyCase less = c;
  less.mask.slices.pop_back();
  const Findings findings = check_results(c, data, reference_results(less, data), truth);
  EXPECT_GE(findings.size(), 5u);  // out, lse and three gradients
  EXPECT_FALSE(check_area(c.mask, area(c.mask) - 1).empty());
}

TEST(Verify, FailingCasesAreMadeSmall) {
  // Fails whatever is left out of it but one slice: that slice lies outside.
  RandomStream random(11);
  VerifyCase c = random_case(random);
  while (c.mask.slices.size() < 5) c.mask.slices.push_back({.q0 = 0, .q1 = 1, .k0 = 0, .k1 = 1});
  c.mask.slices.insert(c.mask.slices.begin() + 2, {.q0 = 0, .q1 = 1 << 20, .k0 = 0, .k1 = 1});
  const VerifyCase smaller = shrink_case(c, 400);
  EXPECT_FALSE(verify(smaller).empty());
  EXPECT_EQ(smaller.mask.slices.size(), 1u);
  EXPECT_EQ(smaller.config.num_ranks, 1);
  EXPECT_EQ(smaller.num_sinks, 0);
}

}  // namespace
}  // namespace magi::cli
