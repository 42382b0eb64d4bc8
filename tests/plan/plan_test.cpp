// SPDX-License-Identifier: Apache-2.0
#include "magi/plan.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/words.hpp"
#include "magi/error.hpp"
#include "plan/cost/walked_tiles.hpp"
#include "plan/plan_oracle.hpp"
#include "plan/plan_support.hpp"
#include "support/random_streams.hpp"
#include "support/refusal.hpp"

namespace magi {
namespace {

/// With own keys and one remote stage.
PlanConfig config_of(std::int32_t num_ranks, std::int32_t heads_kv = 1) {
  PlanConfig config{.overlap_degree = 1};
  config.num_ranks = num_ranks;
  config.num_heads_q = heads_kv * 2;
  config.num_heads_kv = heads_kv;
  return config;
}

// The example of src/plan/README.md.
TEST(Plan, EightCausalRowsOnTwoRanksAreThoseOfTheReadme) {
  const Plan plan = make_plan(causal(8), config_of(2));
  EXPECT_EQ(global_rows(plan.placement_q, 0), (std::vector<std::int32_t>{0, 1, 6, 7}));
  EXPECT_EQ(global_rows(plan.placement_q, 1), (std::vector<std::int32_t>{2, 3, 4, 5}));
  EXPECT_EQ(plan.report.rank_area, (std::vector<std::int64_t>{18, 18}));
  EXPECT_EQ(plan.report.remote_rows, (std::vector<std::int64_t>{4, 2}));
  const RankPlan& rank = plan.ranks[0];
  const std::vector<BandSlice> slices = {
      {.q0 = 0, .q1 = 2, .k0 = 0, .k1 = 2, .d_min = -kBandInfinity, .d_max = 0},
      {.q0 = 2, .q1 = 4, .k0 = 0, .k1 = 4, .d_min = -kBandInfinity, .d_max = 0},
      {.q0 = 2, .q1 = 4, .k0 = 0, .k1 = 4, .d_min = -kBandInfinity, .d_max = kBandInfinity}};
  EXPECT_EQ(rank.slices, slices);
  const std::vector<Attend> attends = {
      {.heads = {0, 1}, .slices = {0, 2}},
      {.k_segment = 1, .heads = {0, 1}, .slices = {2, 3}, .is_merging = true}};
  EXPECT_EQ(rank.attends, attends);
  std::vector<Step> steps = {{.kind = StepKind::Exchange},
                             {.kind = StepKind::Attend},
                             {.kind = StepKind::Attend, .index = 1, .after = {0, -1}}};
  EXPECT_EQ(rank.forward, steps);
  steps.push_back({.kind = StepKind::Exchange, .index = 1, .after = {2, -1}});
  EXPECT_EQ(rank.backward, steps);
}

TEST(Plan, UnevenChunksOfFewRanksAreHalvedWhereTheStepIsFaster) {
  const Mask window{16384, 16384, {{0, 16384, 0, 16384, -1023, 0}}};
  PlanConfig config{.num_ranks = 2, .num_heads_q = 64, .num_heads_kv = 8};
  const auto chunk_of = [&](const Mask& mask) {
    return make_plan(mask, config).placement_q.chunk_size;
  };
  EXPECT_EQ(chunk_of(causal(16384)), 1024);  // 8 chunks per rank, which are even
  EXPECT_EQ(chunk_of(window), 512);
  const double halved = make_plan(window, config).report.balance;
  config.placement.chunk_size = 1024;
  EXPECT_EQ(chunk_of(window), 1024);
  EXPECT_LT(halved, make_plan(window, config).report.balance);
}

TEST(Plan, HalvedChunksKeepThePaddingAndAreNoSlower) {
  int num_halved = 0;
  for (RandomStream& random : testing::RandomStreams(40)) {
    const std::int32_t rows =
        random.chance(30) ? random.between(16384, 65536) : 8192 * random.between(2, 8);
    const Mask mask = random_documents(random, rows, 64);
    PlanConfig config{.num_ranks = random.between(2, 5), .num_heads_q = 64, .num_heads_kv = 8};
    config.placement.uneven_shard = random.chance(30);
    config.overlap_degree = 0;
    const Plan plan = make_plan(mask, config);
    EXPECT_EQ(check_plan(plan), std::vector<std::string>{});
    EXPECT_EQ(plan, make_plan(mask, config));
    const std::int32_t chunk = resolve_chunk_size(rows, config.num_ranks, config.placement);
    config.placement.chunk_size = chunk;
    const Plan usual = make_plan(mask, config);
    EXPECT_EQ(plan.placement_q.num_rows, usual.placement_q.num_rows);
    EXPECT_LE(step_seconds(plan), step_seconds(usual));
    EXPECT_LE(planner::most_walked_tiles(plan), planner::most_walked_tiles(usual));
    if (plan.placement_q.chunk_size == chunk) continue;
    EXPECT_LE(config.num_ranks, 4);
    EXPECT_EQ(plan.placement_q.chunk_size % 256, 0);
    ++num_halved;
  }
  EXPECT_GT(num_halved, 3);
}

TEST(Plan, RandomPlansAreRight) {
  for (RandomStream& random : testing::RandomStreams(600)) {
    const Plan plan = random_plan(random);
    EXPECT_EQ(testing::judge_plan(plan), "");
    EXPECT_LE(plan.report.lower_bound_bytes, plan.report.total_bytes);
    EXPECT_LE(plan.report.total_bytes, plan.report.ring_bytes);
    EXPECT_LE(num_stages(plan), 1 + plan.config.overlap_degree.value_or(8));
  }
}

TEST(Plan, AChosenDegreeGivesWhatIsMadeWhereItIsAskedFor) {
  std::size_t num_found[3] = {};  // 0, 1, more
  std::size_t num_by_node = 0;
  for (RandomStream& random : testing::RandomStreams(300)) {
    const Plan drawn = random_plan(random);
    PlanConfig config = drawn.config;
    config.cost = slow_cost(random);
    const auto made = [&](std::optional<std::int32_t> degree) {
      config.overlap_degree = degree;
      return make_plan_on(drawn.mask, config, drawn.placement_q, drawn.placement_k);
    };
    const Plan chosen = made(std::nullopt);
    std::int32_t degree = 0;
    for (; degree <= 8; ++degree) {
      const Plan plan = made(degree);
      if (plan.exchanges != chosen.exchanges || plan.ranks != chosen.ranks) continue;
      EXPECT_EQ(plan.transfers, chosen.transfers);
      EXPECT_EQ(plan.report, chosen.report);
      break;
    }
    ASSERT_LE(degree, 8);
    ++num_found[std::min(degree, 2)];
    if (degree > 0 && is_by_node(chosen, Space::Keys, 1)) ++num_by_node;
  }
  for (const std::size_t count : num_found) EXPECT_GT(count, 20u);
  EXPECT_GT(num_by_node, 20u);
}

TEST(Plan, PlacedMasksOfEveryDegreeAttendTheSamePairs) {
  for (RandomStream& random : testing::RandomStreams(60)) {
    RandomMaskOptions options;
    options.is_square = random.chance(50);
    const Mask mask = random_mask(random, options);
    PlanConfig config = random_config(random);
    const Plan first = make_plan(mask, config);
    for (const std::int32_t degree : {0, 1, 2, 7}) {
      config.overlap_degree = degree;
      // Over nodes each degree may be placed in its own way.
      EXPECT_EQ(testing::judge_plan(make_plan(mask, config)), "");
      const Plan plan = make_plan_on(mask, config, first.placement_q, first.placement_k);
      EXPECT_EQ(testing::judge_plan(plan), "");
      EXPECT_EQ(plan.report.total_bytes, first.report.total_bytes);
    }
  }
}

/// Seconds of a step of keys alone in a placement.
double step_in(const Mask& mask, PlanConfig config, PlacementAlgorithm algorithm) {
  config.placement.algorithm = algorithm;
  return step_seconds(make_plan(mask, config));
}

TEST(Plan, OverNodesNoNamedPlacementOfFewChunksIsFaster) {
  for (RandomStream& random : testing::RandomStreams(120)) {
    const bool is_square = random.chance(70);
    const Mask mask = random_mask(random, {.is_square = is_square});
    PlanConfig config = random_config(random);
    config.devices_per_node = random.between(1, 3);
    config.cost = slow_cost(random);
    const std::int32_t price = random.between(1, 40);
    config.cost.network_bytes_per_second = config.cost.bytes_per_second / price;
    const Plan plan = make_plan(mask, config);
    EXPECT_EQ(testing::judge_plan(plan), "");
    EXPECT_EQ(plan, make_plan_on(mask, config, plan.placement_q, plan.placement_k));
    // Keys would be placed in another way too, and one node has nothing to choose.
    if (!is_square || config.num_ranks <= config.devices_per_node) continue;
    const auto place_as = [&](PlacementAlgorithm algorithm) {
      PlacementConfig how = config.placement;
      how.algorithm = algorithm;
      return place(mask, config.num_ranks, how);
    };
    std::vector<PlacementAlgorithm> named = {PlacementAlgorithm::Zigzag,
                                             PlacementAlgorithm::SequentialSelect};
    // Not one causal document, whose zigzag is all that searches would begin from.
    if (place_as(PlacementAlgorithm::Auto) != place_as(PlacementAlgorithm::Zigzag)) {
      named.push_back(PlacementAlgorithm::MinHeap);
      if (price >= 12) named.push_back(PlacementAlgorithm::Thorough);
    }
    for (const PlacementAlgorithm other : named) {
      EXPECT_LE(step_seconds(plan), step_in(mask, config, other)) << placement_name(other);
    }
  }
}

TEST(Plan, SameInputsGiveEqualPlans) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    RandomStream first(seed);
    RandomStream second(seed);
    const Plan a = random_plan(first);
    const Plan b = random_plan(second);
    EXPECT_EQ(a, b) << "seed " << seed;
    EXPECT_EQ(a.digest, plan_digest(b));
  }
}

TEST(Plan, DigestSeesEveryIntegerOfTheTables) {
  const Plan plan = make_plan(causal(256), config_of(4));
  ASSERT_FALSE(plan.transfers.empty());
  Plan changed = plan;
  ++changed.transfers[0].src_row;
  EXPECT_NE(plan_digest(changed), plan.digest);
  changed = plan;
  --changed.ranks[1].slices[0].k1;
  EXPECT_NE(plan_digest(changed), plan.digest);
  changed = plan;
  std::swap(changed.transfers[0], changed.transfers[1]);
  EXPECT_NE(plan_digest(changed), plan.digest);
  changed = plan;
  changed.report.total_bytes = 0;
  EXPECT_EQ(plan_digest(changed), plan.digest);
}

TEST(Plan, DegreeZeroIsOneExchangeThatCopiesOwnRowsToo) {
  PlanConfig config = config_of(2);
  config.overlap_degree = 0;
  // Rank 0 sees its own keys alone.
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  const Plan plan = make_plan_on(causal(64), config, placement, placement);
  ASSERT_EQ(plan.exchanges.size(), 2u);
  EXPECT_EQ(plan.exchanges[0], (Exchange{Role::KeysValues, 1, {0, 1}, 0, 0}));
  EXPECT_EQ(plan.exchanges[1], (Exchange{Role::KeyGradients, 1, {0, 1}, 0, 0}));
  ASSERT_EQ(plan.transfers.size(), 2u);
  EXPECT_EQ(plan.transfers[0], (Transfer{.src = 1, .dst = 1, .dst_segment = 1, .num_rows = 32}));
  EXPECT_EQ(plan.transfers[1],
            (Transfer{.src = 0, .dst = 1, .dst_segment = 1, .dst_row = 32, .num_rows = 32}));
  EXPECT_EQ(plan.report.remote_rows, (std::vector<std::int64_t>{0, 32}));
  const Step exchange{StepKind::Exchange, 0};
  EXPECT_EQ(plan.ranks[0].forward, (std::vector<Step>{exchange, {StepKind::Attend, 0}}));
  EXPECT_EQ(plan.ranks[1].forward, (std::vector<Step>{exchange, {StepKind::Attend, 0, {0, -1}}}));
  const Step returning{StepKind::Exchange, 1, {1, -1}};
  EXPECT_EQ(plan.ranks[1].backward,
            (std::vector<Step>{exchange, {StepKind::Attend, 0, {0, -1}}, returning}));
  EXPECT_EQ(plan.ranks[0].attends[0].k_segment, 0);
}

TEST(Plan, StepsSayWhatWaitsForWhat) {
  PlanConfig config = config_of(2, 2);
  config.overlap_degree = 2;
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  const Plan plan = make_plan_on(causal(64), config, placement, placement);
  ASSERT_EQ(plan.exchanges.size(), 4u);
  const auto exchange = [](std::int32_t index, std::int32_t after = -1) {
    return Step{StepKind::Exchange, index, {after, -1}};
  };
  const auto attend = [](std::int32_t index, std::int32_t after = -1) {
    return Step{StepKind::Attend, index, {after, -1}};
  };
  EXPECT_EQ(plan.ranks[1].forward,
            (std::vector<Step>{exchange(0), exchange(1), attend(0), attend(1, 0), attend(2, 1)}));
  EXPECT_EQ(plan.ranks[1].backward,
            (std::vector<Step>{exchange(0), exchange(1), attend(0), attend(1, 0), exchange(2, 3),
                               attend(2, 1), exchange(3, 5)}));
  // Rank 0 receives nothing; gradients come back to rows that its own attention call has written.
  EXPECT_EQ(plan.ranks[0].backward, (std::vector<Step>{exchange(0), exchange(1), attend(0),
                                                       exchange(2, 2), exchange(3, 2)}));
  EXPECT_FALSE(plan.ranks[1].attends[0].is_merging);
  EXPECT_TRUE(plan.ranks[1].attends[2].is_merging);
}

TEST(Plan, ASliceSeesNeighbouringReceivedRowsAsOnePiece) {
  // Rank 1 holds the last chunk only; the three chunks before it are one slice of received rows.
  const Placement placement = placement_from_chunks(64, 16, 2, {0, 0, 0, 1});
  const Plan plan = make_plan_on(causal(64), config_of(2), placement, placement);
  const RankPlan& rank = plan.ranks[1];
  ASSERT_EQ(rank.slices.size(), 2u);
  EXPECT_EQ(rank.slices[0], band_slice({0, 16}, {0, 16}, MaskType::Causal));
  EXPECT_EQ(rank.slices[1], (BandSlice{0, 16, 0, 48}));
  ASSERT_EQ(plan.transfers.size(), 1u);
  EXPECT_EQ(plan.transfers[0], (Transfer{.src = 0, .dst = 1, .dst_segment = 1, .num_rows = 48}));
}

TEST(Plan, FullPiecesAroundForeignRowsMergeIntoOneOwnSlice) {
  // Rank 0's last run sees its first run fully and itself causally: one band of local rows.
  const Placement placement = placement_from_chunks(48, 16, 2, {0, 1, 0});
  const Plan plan = make_plan_on(causal(48), config_of(2), placement, placement);
  const RankPlan& rank = plan.ranks[0];
  ASSERT_EQ(rank.attends[0].slices.size(), 2);
  EXPECT_EQ(rank.slices[0], (BandSlice{0, 16, 0, 16, -kBandInfinity, 0}));
  EXPECT_EQ(rank.slices[1], (BandSlice{16, 32, 0, 32, -kBandInfinity, 0}));
}

TEST(Plan, OneTokenOnManyRanksIsPadded) {
  const Plan plan = make_plan(causal(1), config_of(4));
  EXPECT_EQ(plan.placement_q.num_rows, 4);
  EXPECT_EQ(testing::judge_plan(plan), "");
}

TEST(Plan, ManyHeadsAreStagedByHeadsAndShareOneSegment) {
  PlanConfig config = config_of(2, 3);
  config.overlap_degree = 100;
  const Plan plan = make_plan(causal(64), config);
  EXPECT_EQ(num_stages(plan), 4);
  for (const RankPlan& rank : plan.ranks) {
    EXPECT_EQ(rank.k.segments.size(), 2u);
    EXPECT_EQ(rank.attends[3].heads, (Range{2, 3}));
    EXPECT_EQ(rank.attends[3].slices, rank.attends[1].slices);
  }
}

TEST(Plan, OneHeadIsStagedByRowsOfAtLeastTheMinimum) {
  PlanConfig config = config_of(2, 1);
  config.overlap_degree = 8;
  config.min_stage_rows = 10;
  const Placement placement = placement_from_chunks(64, 32, 2, {0, 1});
  const Plan plan = make_plan_on(causal(64), config, placement, placement);
  EXPECT_EQ(num_stages(plan), 4);  // 32 received rows in 3 stages
  for (std::size_t segment = 1; segment < 4; ++segment) {
    EXPECT_GE(plan.ranks[1].k.segments[segment].num_rows, 10);
    EXPECT_EQ(plan.ranks[0].k.segments[segment].num_rows, 0);
  }
  EXPECT_EQ(plan.ranks[0].attends.size(), 1u);  // its own keys alone
}

TEST(Plan, CrossAttentionPlacesKeysOnTheirOwn) {
  Mask mask{96, 40, {band_slice({0, 96}, {0, 40}, MaskType::Full)}};
  PlanConfig config = config_of(4);
  config.placement_k = PlacementConfig{.uneven_shard = true};
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(plan.placement_k.num_rows, 40);
  EXPECT_EQ(testing::judge_plan(plan), "");
}

TEST(Plan, KeysFollowTheQueriesThatSeeThem) {
  // Four documents of unequal query and key lengths; with one document a rank nothing must move.
  Mask mask{256, 128, {}};
  for (std::int32_t i = 0; i < 4; ++i) {
    mask.slices.push_back(
        band_slice({i * 64, i * 64 + 64}, {(3 - i) * 32, (3 - i) * 32 + 32}, MaskType::Causal));
  }
  PlanConfig config = config_of(4);
  config.placement.algorithm = PlacementAlgorithm::SequentialSelect;
  config.placement_k = PlacementConfig{};
  const Plan plan = make_plan(mask, config);
  EXPECT_EQ(plan.report.total_bytes, 0);
  for (std::int32_t rank = 0; rank < 4; ++rank) EXPECT_EQ(plan.placement_k.rows_of(rank), 32);
  config.placement_k = PlacementConfig{.algorithm = PlacementAlgorithm::RandomSelect};
  EXPECT_GT(make_plan(mask, config).report.total_bytes, 0);
}

TEST(Plan, MemoryIsLinearInChunksSlicesAndTransfers) {
  for (const std::int32_t scale : {1, 4}) {
    const std::int32_t rows = 65536 * scale;
    PlanConfig config = config_of(8);
    config.placement.chunk_size = 512;
    const Plan plan = make_plan(causal(rows), config);
    std::size_t slices = 0;
    for (const RankPlan& rank : plan.ranks) slices += rank.slices.capacity();
    const std::size_t size = plan.mask.slices.size() + plan.transfers.size() +
                             static_cast<std::size_t>(plan.placement_q.num_chunks());
    EXPECT_LE(slices, 4 * size);
    EXPECT_LE(plan.transfers.capacity(), 4 * size);
  }
}

TEST(Plan, BadInputIsNamed) {
  const auto message = [](const Mask& mask, const PlanConfig& config) {
    return testing::refusal_of([&] { make_plan(mask, config); });
  };
  const auto with = [&](auto change) {
    PlanConfig config = config_of(2);
    change(config);
    return message(causal(64), config);
  };
  EXPECT_EQ(with([](PlanConfig& c) { c.num_ranks = 0; }), "num_ranks is 0; allowed: 1 to 4096");
  EXPECT_EQ(with([](PlanConfig& c) { c.num_heads_kv = 0; }),
            "num_heads_kv is 0; allowed: 1 to 65536");
  EXPECT_EQ(with([](PlanConfig& c) {
              c.num_heads_q = 5;
              c.num_heads_kv = 2;
            }),
            "num_heads_q is 5; allowed: multiples of num_heads_kv, 2");
  EXPECT_EQ(with([](PlanConfig& c) { c.overlap_degree = -1; }),
            "overlap_degree is -1; allowed: 0 to 256");
  EXPECT_EQ(with([](PlanConfig& c) { c.cost.bytes_per_second = 0; }),
            "cost.bytes_per_second is 0; allowed: finite and above 0");
  EXPECT_NE(with([](PlanConfig& c) {
              c.cost.flops_per_second = std::numeric_limits<double>::quiet_NaN();
            }).find("cost.flops_per_second"),
            std::string::npos);
  EXPECT_EQ(message(causal(1 << 22), {.num_ranks = 64,
                                      .num_heads_q = 1 << 16,
                                      .head_dim_qk = 1 << 16,
                                      .work = WorkMode::Queries}),
            "bytes of all queries and results on every rank is 2.31035e+18; allowed: at most 2^60");
  EXPECT_EQ(message({0, 0, {}}, config_of(1)), "mask.rows_q is 0; allowed: 1 to 1073741823");
  const Placement small = placement_from_chunks(32, 8, 2, {0, 0, 1, 1});
  EXPECT_THROW(make_plan_on(causal(64), config_of(2), small, small), InvalidArgument);
  Placement crooked = placement_from_chunks(64, 16, 2, {0, 0, 1, 1});
  std::swap(crooked.rank_chunks[0], crooked.rank_chunks[3]);
  EXPECT_THROW(make_plan_on(causal(64), config_of(2), crooked, crooked), InvalidArgument);
}

TEST(Plan, TheLogTellsOfEachPlanOnce) {
  std::string seen;
  set_log_sink(
      [&](LogLevel, std::string_view module, std::string_view text) {
        seen += std::string(module) + ": " + std::string(text) + "\n";
      },
      LogLevel::Debug);
  const Plan plan = make_plan(causal(32), config_of(2));
  set_log_sink(nullptr, LogLevel::Warn);
  EXPECT_EQ(seen, "plan: made plan " + hex(plan.digest) + ": 32 rows on 2 ranks in chunks of " +
                      std::to_string(plan.placement_q.chunk_size) + ", 2 stages, " +
                      std::to_string(plan.report.total_bytes) +
                      " bytes sent in a forward pass, balance 1.000000\n");
}

}  // namespace
}  // namespace magi
