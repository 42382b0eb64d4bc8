// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "magi/plan.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

std::string refusal(const std::string& text) {
  return testing::refusal_of([&] { plan_from_json(text); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

Plan golden_plan() {
  const Mask mask{8, 8, {band_slice({0, 8}, {0, 8}, MaskType::Causal)}};
  PlanConfig config;
  config.num_ranks = 2;
  config.num_heads_q = 4;
  config.num_heads_kv = 2;
  config.head_dim_qk = 8;
  config.head_dim_v = 8;
  config.overlap_degree = 1;
  const Placement placement = placement_from_chunks(8, 2, 2, {0, 1, 1, 0});
  return make_plan_on(mask, config, placement, placement);
}

const std::string kGolden = R"golden({"format": "magi plan",
"version": 5,
"mask": {"rows_q": 8, "rows_k": 8, "slices": [[0,8,0,8,null,0]]},
"config": {"num_ranks": 2,
"num_heads_q": 4,
"num_heads_kv": 2,
"head_dim_qk": 8,
"head_dim_v": 8,
"element_bytes": 2,
"placement": {"algorithm": "auto",
"chunk_size": null,
"min_chunks_per_rank": 8,
"uneven_shard": false,
"token_tolerance": 0,
"seed": 42},
"placement_k": null,
"overlap_degree": 1,
"work": "keys",
"stage_mode": "auto",
"min_stage_rows": 512,
"cost": {"flops_per_second": 6e+14,
"backward_flops_per_second": 5.2e+14,
"bytes_per_second": 2.75e+11,
"memory_bytes_per_second": 3.6e+12,
"seconds_per_transfer": 2e-06,
"seconds_per_launch": 5e-06}},
"placement_q": {"num_rows": 8, "chunk_size": 2, "num_ranks": 2, "chunk_rank": [0,1,1,0]},
"placement_k": {"num_rows": 8, "chunk_size": 2, "num_ranks": 2, "chunk_rank": [0,1,1,0]},
"exchanges": [[0,1,0,2,0,1],[3,1,0,2,0,1]],
"ranks": [{"q": [[0,4]],
"k": [[0,4],[-1,4]],
"slices": [[0,2,0,2,null,0],
[2,4,0,4,null,0],
[2,4,0,4,null,null]],
"attends": [[0,0,0,2,0,2,0],[0,1,0,2,2,3,1]],
"forward": [[0,0,-1,-1],[1,0,-1,-1],[1,1,0,-1]],
"backward": [[0,0,-1,-1],[1,0,-1,-1],[1,1,0,-1],[0,1,2,-1]]},
{"q": [[1,4]],
"k": [[1,4],[-1,2]],
"slices": [[0,4,0,4,null,0],
[0,4,0,2,null,null]],
"attends": [[0,0,0,2,0,1,0],[0,1,0,2,1,2,1]],
"forward": [[0,0,-1,-1],[1,0,-1,-1],[1,1,0,-1]],
"backward": [[0,0,-1,-1],[1,0,-1,-1],[1,1,0,-1],[0,1,2,-1]]}],
"transfers": [[1,0,0,1,0,0,4],
[0,1,0,1,0,0,2]],
"report": {"rank_area": [18,18],
"rank_rows": [4,4],
"remote_rows": [4,2],
"rank_memory": [768,384],
"pair_bytes": [0,128,256,0],
"balance": 1,
"total_bytes": 384,
"lower_bound_bytes": 256,
"ring_bytes": 512,
"forward_seconds": 2.3667000000000002e-05,
"backward_seconds": 8.066900000000001e-05,
"exposed_comm_seconds": 7.001e-06},
"digest": "c1a6ecb8782ca193"}
)golden";

TEST(PlanJson, RandomPlansSurviveARoundTrip) {
  for (RandomStream& random : testing::RandomStreams(300)) {
    const Plan plan = random_plan(random);
    const std::string text = plan_to_json(plan);
    const Plan read = plan_from_json(text);
    EXPECT_EQ(read, plan);
    EXPECT_EQ(plan_to_json(read), text);
  }
}

TEST(PlanJson, TextOfVersionFiveStays) { EXPECT_EQ(plan_to_json(golden_plan()), kGolden); }

TEST(PlanJson, SeveralQuerySegmentsSurviveARoundTrip) {
  const Plan plan = rectangle_plan();
  EXPECT_EQ(plan_from_json(plan_to_json(plan)), plan);
}

TEST(PlanJson, TheReportIsThatOfTheTables) {
  const std::string text = plan_to_json(golden_plan());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    return changed.replace(changed.find(from), from.size(), to);
  };
  for (const auto& [from, to] :
       {std::pair{"\"total_bytes\": 384", "\"total_bytes\": 1"},
        std::pair{"\"pair_bytes\": [0,128,256,0]", "\"pair_bytes\": [0,256,128,0]"},
        std::pair{"\"rank_area\": [18,18]", "\"rank_area\": [17,19]"},
        std::pair{"\"lower_bound_bytes\": 256", "\"lower_bound_bytes\": 0"}}) {
    EXPECT_EQ(refusal(with(from, to)),
              "plan JSON: report is that of another plan; allowed: the figures of its own tables");
  }
  EXPECT_EQ(
      plan_from_json(with("\"forward_seconds\": 2.3667000000000002e-05", "\"forward_seconds\": 7")),
      golden_plan());
  EXPECT_EQ(plan_from_json(with("\"balance\": 1,", "\"balance\": 9,")), golden_plan());
}

TEST(PlanJson, EveryTruncationIsRefused) {
  const std::string text = plan_to_json(golden_plan());
  for (std::size_t size = 0; size + 2 < text.size(); ++size) {
    EXPECT_NE(refusal(text.substr(0, size)), "accepted") << "first " << size << " bytes";
  }
}

TEST(PlanJson, RefusalsNamePathValueAndWhatIsAllowed) {
  const std::string text = plan_to_json(golden_plan());
  for (const char* version : {"4", "6"}) {
    EXPECT_EQ(
        refusal(replaced(text, "\"version\": 5", std::string("\"version\": ") + version)),
        "plan JSON: version is " + std::string(version) + "; allowed: 5; plan the mask again");
  }
  EXPECT_EQ(refusal(replaced(text, "\"format\": \"magi plan\"", "\"format\": \"other\"")),
            "plan JSON: format is other; allowed: magi plan");
  EXPECT_EQ(refusal(replaced(text, "\"rows_k\"", "\"rows\"")),
            "plan JSON: mask is holding key rows; allowed: rows_q, rows_k, slices");
  EXPECT_EQ(refusal(replaced(text, "\"rows_k\": 8", "\"rows_q\": 8")),
            "plan JSON: mask is holding key rows_q twice; allowed: each key once");
  EXPECT_EQ(refusal(replaced(text, "\"rows_k\": 8, ", "")),
            "plan JSON: mask is without key rows_k; allowed: all of rows_q, rows_k, slices");
  EXPECT_EQ(refusal(replaced(text, "[0,8,0,8,null,0]", "[0,8,0,8.5,null,0]")),
            "plan JSON: mask.slices[0][3] is 8.5; allowed: an integer from 0 to 1073741823");
  EXPECT_EQ(refusal(replaced(text, "[0,8,0,8,null,0]", "[0,8,0,8,null]")),
            "plan JSON: mask.slices[0] is too short; allowed: [q0, q1, k0, k1, d_min, d_max]");
  EXPECT_EQ(refusal(replaced(text, "[0,8,0,8,null,0]", "[0,9,0,8,null,0]")).substr(0, 10),
            "plan JSON:");
  EXPECT_EQ(refusal(replaced(text, "\"num_ranks\": 2", "\"num_ranks\": 99999999999999999999")),
            "plan JSON: config.num_ranks is 99999999999999999999; allowed: an integer from 1 to "
            "2147483647");
  EXPECT_EQ(refusal(text + "x"), "plan JSON is followed by x; allowed: one JSON object");
  EXPECT_EQ(refusal(""), "plan JSON is cut off; allowed: an object");
  EXPECT_EQ(refusal(std::string(100000, '[')).substr(0, 12), "plan JSON is");
}

TEST(PlanJson, RefusalsShowAnyTextAsOneLineOfAscii) {
  const std::string text = plan_to_json(golden_plan());
  const auto with_algorithm = [&text](const std::string& name) {
    return refusal(replaced(text, "\"algorithm\": \"auto\"", "\"algorithm\": \"" + name + "\""));
  };
  const std::string seen = with_algorithm(R"(aut\u0000\n\u00e4)");
  EXPECT_EQ(seen.substr(0, seen.find("; allowed: auto, ")),
            R"(placement algorithm is "aut\x00\x0a\xc3\xa4")");
  EXPECT_NE(seen.find("; allowed: auto, "), std::string::npos) << seen;
  EXPECT_LT(with_algorithm(std::string(100000, 'x')).size(), 400u);
  EXPECT_EQ(refusal(replaced(text, "\"magi plan\"", R"("magi\u0000\nplan")")),
            R"(plan JSON: format is magi\x00\x0aplan; allowed: magi plan)");
}

TEST(PlanJson, PassesThatRanksCannotRunTogetherAreRefused) {
  PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2, .overlap_degree = 2};
  const Mask mask{16, 16, {band_slice({0, 16}, {0, 16}, MaskType::Causal)}};
  const std::vector<std::function<void(Plan&)>> faults = {
      [](Plan& p) { p.ranks[1].attends[0].heads.end = 1; },
      [](Plan& p) { p.ranks[0].attends[0].k_segment = 1; },
      [](Plan& p) { p.ranks[1].attends[2].heads.begin = 0; },
      [](Plan& p) { p.ranks[1].forward[0].index = 1; },
      [](Plan& p) { p.ranks[1].backward.pop_back(); },
      [](Plan& p) { p.exchanges[1].heads.end = 1; },
      [](Plan& p) { p.transfers.clear(); },
  };
  const auto expect_refused = [](Plan plan, const std::function<void(Plan&)>& plant) {
    ASSERT_TRUE(check_plan(plan_from_json(plan_to_json(plan))).empty());
    plant(plan);
    for (RankPlan& rank : plan.ranks) rank.slices.assign(rank.slices.size(), BandSlice{});
    plan.digest = plan_digest(plan);
    const std::string seen = refusal(plan_to_json(plan));
    EXPECT_EQ(seen.find("plan JSON: "), 0u) << seen;
    EXPECT_NE(seen.find("allowed: the parts of one plan, which agree"), std::string::npos) << seen;
  };
  const Plan staged = make_plan(mask, config);
  for (const auto& plant : faults) expect_refused(staged, plant);
  config.overlap_degree = 0;
  const Plan gathered = make_plan(mask, config);
  expect_refused(gathered, [](Plan& p) {
    p.ranks[1].k.segments[1].num_rows = 1;
    p.transfers.clear();
  });
  expect_refused(gathered, [](Plan& p) { p.ranks[1].forward[1].after[0] = -1; });
}

TEST(PlanJson, TablesOfAnotherPlanAreRefused) {
  const std::string text = plan_to_json(golden_plan());
  const std::string digest = text.substr(text.find("\"digest\": ") + 11, 16);
  EXPECT_EQ(refusal(replaced(text, digest, "0123456789abcdef")),
            "plan JSON is carrying the digest of another plan; allowed: the digest of its own "
            "tables");
}

}  // namespace
}  // namespace magi
