// SPDX-License-Identifier: Apache-2.0
#include "simulate/simulate.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.hpp"
#include "magi/error.hpp"
#include "plan/travel/queries.hpp"
#include "support/random_mask.hpp"

namespace magi::simulate {
namespace {

std::vector<std::string> all_strategies() {
  std::vector<std::string> names = placement_strategies();
  for (const std::string& name : moving_strategies()) names.push_back(name);
  for (const std::string& name : baseline_strategies()) names.push_back(name);
  return names;
}

Mask one_document(std::int32_t rows, MaskType type) {
  return {rows, rows, {band_slice({0, rows}, {0, rows}, type)}};
}

/// Kernels that pay for visible pairs alone, and no time for merging.
Cluster plain_cluster() {
  Cluster cluster{.machine = "plain", .devices_per_node = 2};
  cluster.node = {.bytes_per_second = 1e8};
  cluster.network = {.bytes_per_second = 1e8};
  cluster.memory_bytes_per_second = 1e30;
  cluster.forward = {.flops_per_second = 1e9};
  cluster.backward = {.flops_per_second = 1e9};
  return cluster;
}

/// 64 rows on 4 ranks; one head of 8 elements of 2 bytes: 512 bytes of keys a rank.
struct SmallCase {
  Mask mask = one_document(64, MaskType::Full);
  PlanConfig config{
      .num_ranks = 4, .num_heads_q = 1, .num_heads_kv = 1, .head_dim_qk = 8, .head_dim_v = 8};
  Cluster cluster = plain_cluster();

  Figures run(const std::string& strategy) const {
    return simulate({.mask = mask, .config = config, .cluster = cluster}, strategy);
  }
};

constexpr double kStepSeconds = 16 * 16 * 2.0 * 16 / 1e9;  // forward, keys of one rank
constexpr std::int64_t kKeyBytes = 16 * 16 * 2;

TEST(Simulate, ARingOfFourByHand) {
  SmallCase small;
  const Figures hidden = small.run("ring");
  EXPECT_NEAR(hidden.passes[0].seconds, 4 * kStepSeconds, 1e-12);
  EXPECT_NEAR(hidden.passes[0].exposed_seconds(), 0.0, 1e-12);
  // Two of four hops leave their node. Sums are float32 and make one hop more than keys.
  EXPECT_EQ(hidden.passes[0].bytes, (std::array<std::int64_t, 2>{6 * kKeyBytes, 6 * kKeyBytes}));
  const std::int64_t backward = 2 * (3 * kKeyBytes + 4 * 2 * kKeyBytes);
  EXPECT_EQ(hidden.passes[1].bytes, (std::array<std::int64_t, 2>{backward, backward}));
  EXPECT_EQ(hidden.rank_work, std::vector<double>(4, 16 * 64));
  EXPECT_EQ(hidden.balance(), 1.0);
  // Links ten times as slow: three hops follow one another, then the last keys are attended to.
  small.cluster.node.bytes_per_second = small.cluster.network.bytes_per_second = 1e7;
  const double hop = static_cast<double>(kKeyBytes) / 1e7;
  ASSERT_GT(hop, kStepSeconds);
  EXPECT_NEAR(small.run("ring").passes[0].seconds, 3 * hop + kStepSeconds, 1e-12);
  // One slow hop between nodes holds all of them up in the end.
  small.cluster.node.bytes_per_second = 1e12;
  EXPECT_GT(small.run("ring").passes[0].seconds, 2 * hop);
}

TEST(Simulate, ACausalRingWaitsForItsLastRankAndAZigzagOneIsBalanced) {
  SmallCase small;
  small.mask = one_document(64, MaskType::Causal);
  const Figures ring = small.run("ring");
  EXPECT_EQ(ring.rank_work, (std::vector<double>{136, 392, 648, 904}));
  EXPECT_NEAR(ring.passes[0].attending_seconds, 904 * 2.0 * 16 / 1e9, 1e-12);
  const Figures zigzag = small.run("zigzag_ring");
  EXPECT_EQ(zigzag.balance(), 1.0);
  EXPECT_EQ(zigzag.passes[0].bytes, ring.passes[0].bytes);
}

TEST(Simulate, AnAllGatherCrossesToEachNodeOnce) {
  const SmallCase small;
  const Figures figures = small.run("all_gather");
  // Each of the two nodes takes in two ranks' keys, and each rank gets those of three.
  EXPECT_EQ(figures.passes[0].bytes, (std::array<std::int64_t, 2>{8 * kKeyBytes, 4 * kKeyBytes}));
  EXPECT_EQ(figures.passes[1].bytes, (std::array<std::int64_t, 2>{24 * kKeyBytes, 12 * kKeyBytes}));
  // In a node: one neighbour's keys and half of what crossed; between nodes: the other half.
  EXPECT_NEAR(figures.passes[0].seconds, 4 * kStepSeconds + 2 * kKeyBytes / 1e8, 1e-12);
}

TEST(Simulate, LatentsTravelAndAreProjected) {
  SmallCase small;
  EXPECT_EQ(small.run("latents").refusal, "the sizes of latents are not given");
  Problem problem{.mask = small.mask, .config = small.config, .cluster = small.cluster};
  problem.latents = {.latent = 4, .rope = 2};
  const Figures figures = simulate(problem, "latents");
  // Each rank gets 16 rows of its node and 32 of the other, of 6 elements.
  const std::int64_t bytes = 4 * 16 * 6 * 2;
  EXPECT_EQ(figures.passes[0].bytes, (std::array<std::int64_t, 2>{bytes, 2 * bytes}));
  EXPECT_EQ(figures.passes[1].bytes, (std::array<std::int64_t, 2>{2 * bytes, 4 * bytes}));
  const double row = 2.0 * 4 * (8 - 2 + 8) / 1e9;
  EXPECT_NEAR(figures.passes[0].exposed_seconds(), 32 * 12 / 1e8 + 48 * row, 1e-12);
  EXPECT_NEAR(figures.passes[1].exposed_seconds(), 32 * 24 / 1e8 + (16 + 3 * 48) * row, 1e-12);
  EXPECT_NEAR(figures.passes[0].attending_seconds, 4 * kStepSeconds, 1e-12);
  problem.latents = {.latent = 4, .rope = 9};
  EXPECT_EQ(simulate(problem, "latents").refusal,
            "the rotated part of a key has 9 elements, a key 8");
}

TEST(Simulate, UlyssesSharesHeads) {
  SmallCase small;
  EXPECT_EQ(small.run("ulysses").refusal, "1:1 heads cannot be shared by 4 ranks");
  small.config.num_heads_q = 8;
  small.config.num_heads_kv = 2;
  const Figures figures = small.run("ulysses");
  ASSERT_EQ(figures.refusal, "");
  EXPECT_EQ(figures.rank_work, std::vector<double>(4, 64 * 64 * 2));
  // To each of three others: 16 rows of two heads of q, one of k, of v (two ranks have the same),
  // and two of out back.
  const std::int64_t bytes = 16 * (2 + 1 + 1 + 2) * 8 * 2;
  EXPECT_EQ(figures.passes[0].bytes, (std::array<std::int64_t, 2>{4 * bytes, 8 * bytes}));
  EXPECT_EQ(figures.passes[1].bytes, figures.passes[0].bytes);
  // Packing reads and writes all heads of 16 rows: eight of q and of out, four (two twice) of k, v.
  Cluster& cluster = small.cluster;
  cluster.memory_bytes_per_second = 1e6;
  const double packing = 2 * 16 * (8 + 4 + 4 + 8) * 8 * 2 / 1e6;
  EXPECT_NEAR(small.run("ulysses").passes[0].seconds, figures.passes[0].seconds + packing, 1e-9);
}

TEST(Simulate, UspIsARingOfNodesThatShareHeads) {
  SmallCase small;
  small.config.num_heads_q = 8;
  small.config.num_heads_kv = 2;
  const Figures figures = small.run("usp");
  ASSERT_EQ(figures.refusal, "");
  EXPECT_EQ(figures.rank_work, std::vector<double>(4, 64 * 32 * 4));
  // Between the two nodes each rank sends 32 rows of a head of k and v once.
  EXPECT_EQ(figures.passes[0].bytes[1], 4 * 32 * 16 * 2);
  const Problem bad{
      .mask = small.mask, .config = small.config, .cluster = small.cluster, .ulysses_degree = 3};
  EXPECT_EQ(simulate(bad, "usp").refusal, "4 ranks are no multiple of the 3 that share heads");
}

TEST(Simulate, WorkOfAllRanksIsTheMasks) {
  constexpr std::uint64_t kSeed = 22;
  SCOPED_TRACE(kSeed);
  RandomStream random(kSeed);
  int num_run = 0;
  for (int i = 0; i < 40; ++i) {
    RandomMaskOptions options;
    options.is_square = true;
    const Mask mask = random_mask(random, options);
    const std::int32_t ranks = random.between(1, 8);
    if (mask.rows_q < ranks) continue;
    const PlanConfig config{.num_ranks = ranks, .num_heads_q = 8, .num_heads_kv = 4};
    const Cluster cluster{.devices_per_node = random.between(1, 4)};
    for (const std::string& strategy : all_strategies()) {
      SCOPED_TRACE(strategy);
      const Figures figures =
          simulate({.mask = mask, .config = config, .cluster = cluster}, strategy);
      if (!figures.refusal.empty()) continue;
      ++num_run;
      ASSERT_EQ(figures.rank_work.size(), static_cast<std::size_t>(ranks));
      EXPECT_EQ(std::accumulate(figures.rank_work.begin(), figures.rank_work.end(), 0.0),
                static_cast<double>(area(mask) * config.num_heads_q));
      for (const PassFigures& pass : figures.passes) {
        EXPECT_GE(pass.exposed_seconds(), -1e-12);
        if (ranks > 1) continue;
        EXPECT_EQ(pass.bytes, (std::array<std::int64_t, 2>{0, 0}));
      }
    }
  }
  EXPECT_GT(num_run, 300);
}

TEST(Simulate, BytesOfAPlanAreThoseOfItsReport) {
  const Mask mask = one_document(4096, MaskType::Causal);
  for (const std::int32_t degree : {0, 1, 3}) {
    const PlanConfig config{.num_ranks = 8,
                            .num_heads_q = 8,
                            .num_heads_kv = 4,
                            .placement = {.algorithm = PlacementAlgorithm::MinHeap},
                            .overlap_degree = degree,
                            .devices_per_node = 4};
    const Cluster cluster{.devices_per_node = 4};
    const Figures figures =
        simulate({.mask = mask, .config = config, .cluster = cluster}, "min_heap");
    const Plan plan = make_plan(mask, config);
    std::array<std::int64_t, kNumLinkClasses> bytes{};
    for (std::int32_t from = 0; from < 8; ++from) {
      for (std::int32_t to = 0; to < 8; ++to) {
        bytes[from / 4 == to / 4 ? 0 : 1] +=
            plan.report.pair_bytes[static_cast<std::size_t>(from * 8 + to)];
      }
    }
    EXPECT_EQ(figures.passes[0].bytes, bytes);
    // Keys travel again, and their gradients back in twice as many bytes.
    EXPECT_EQ(figures.passes[1].bytes[0], 3 * bytes[0]);
    EXPECT_EQ(figures.passes[1].bytes[1], 3 * bytes[1]);
  }
}

TEST(Simulate, QueriesTravelWithTheirStatisticsAndFloat32Partials) {
  const Mask mask = one_document(4096, MaskType::Causal);
  for (const std::int32_t degree : {0, 1, 4}) {
    PlanConfig config{
        .num_ranks = 8, .num_heads_q = 8, .num_heads_kv = 8, .overlap_degree = degree};
    const Cluster cluster{.devices_per_node = 8};
    const Figures figures =
        simulate({.mask = mask, .config = config, .cluster = cluster}, "queries");
    config.work = WorkMode::Queries;
    config.devices_per_node = 8;
    const Plan plan = make_plan(mask, config);
    const planner::RowCosts costs = planner::row_costs(config);
    std::int64_t bytes = 0, num_queries = 0;
    for (const Transfer& t : plan.transfers) {
      if (t.src == t.dst) continue;
      bytes += t.num_rows * (t.space == Space::Keys ? costs.k : costs.q);
      num_queries += t.space == Space::Queries ? t.num_rows : 0;
    }
    EXPECT_GT(num_queries, 0);
    EXPECT_EQ(figures.bytes(LinkClass::Node), bytes);
    EXPECT_EQ(figures.bytes(LinkClass::Network), 0);
    EXPECT_LT(figures.balance(), 1.002);
  }
}

TEST(Simulate, MemoryCountsReceivedQueriesAndPartialsOfOwnOnes) {
  const Mask mask = one_document(4096, MaskType::Causal);
  const PlanConfig config{.num_ranks = 2,
                          .num_heads_q = 4,
                          .num_heads_kv = 4,
                          .head_dim_qk = 64,
                          .head_dim_v = 64,
                          .overlap_degree = 1};
  const Figures figures = simulate({.mask = mask, .config = config, .cluster = {}}, "queries");
  PlanConfig moving = config;
  moving.work = WorkMode::Queries;
  const Plan plan = make_plan(mask, moving);
  std::int64_t most = 0;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    std::int64_t in[2] = {0, 0}, out[2] = {0, 0};  // by Space
    for (const Transfer& t : plan.transfers) {
      if (t.dst == rank) in[static_cast<int>(t.space)] += t.num_rows;
      if (t.src == rank) out[static_cast<int>(t.space)] += t.num_rows;
    }
    constexpr std::int64_t kHeads = 4 * 64;  // elements of a row of q, k, v or out
    const std::int64_t own = 2048 * (2 * 4 * kHeads * 2 + 4 * 4 + kHeads * 4 + 2 * kHeads * 4);
    const std::int64_t keys = in[0] * 2 * kHeads * (2 + 4) + out[0] * 2 * kHeads * 4;
    const std::int64_t queries =
        in[1] * (3 * kHeads * 2 + kHeads * 4 + 2 * 4 * 4) + out[1] * kHeads * 4;
    most = std::max(most, own + keys + queries);
  }
  EXPECT_EQ(figures.memory_bytes, most);
}

TEST(Simulate, StagesThatTakeTurnsNeedTheMemoryOfThoseInFlight) {
  const Mask mask = one_document(2048, MaskType::Full);
  PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 4, .overlap_degree = 4};
  const auto run = [&] {
    return simulate({.mask = mask, .config = config, .cluster = plain_cluster()}, "auto");
  };
  const Figures all = run();
  // 1,024 rows of K and V, 4 heads of 128, in two bytes; their sums and partials of own ones.
  const std::int64_t elements = 1024 * 2 * 4 * 128;
  config.max_exchange_bytes = elements * (2 + 4) / 2;
  const Figures half = run();
  EXPECT_EQ(all.memory_bytes - half.memory_bytes, elements * (2 + 4 + 4) / 2);
  EXPECT_EQ(half.passes[1].bytes, all.passes[1].bytes);
  config.max_exchange_bytes = *config.max_exchange_bytes - 1;
  EXPECT_EQ(run().refusal,
            "for rows of others a rank would need 3145728 bytes, of which max_exchange_bytes "
            "allows 3145727");
}

TEST(Simulate, QueriesMoveBetween64RanksAtMost) {
  const Mask mask = one_document(8192, MaskType::Causal);
  const PlanConfig config{.num_ranks = 65, .num_heads_q = 8, .num_heads_kv = 8};
  const Figures figures = simulate({.mask = mask, .config = config, .cluster = {}}, "queries");
  EXPECT_EQ(figures.refusal, "it is planned for at most 64 ranks, not 65");
  EXPECT_EQ(simulate({.mask = mask, .config = config, .cluster = {}}, "auto_work").refusal, "");
}

/// A plan of one attention call for each rank: rank 0 of two needs the keys of rank 1, and the
/// other way.
TEST(Simulate, OneAttendTakesKeysAsTheyComeWithinANode) {
  SmallCase small;
  small.config.num_ranks = 2;
  small.config.overlap_degree = 0;
  constexpr double kAttend = 32 * 64 * 2.0 * 16 / 1e9;  // half of it with keys of the other rank
  constexpr double kBackward = 2.5 * kAttend;
  constexpr double kBytes = 32 * 16 * 2;
  const auto run = [&](double bytes_per_second, std::int32_t devices_per_node) {
    small.cluster.node.bytes_per_second = bytes_per_second;
    small.cluster.network.bytes_per_second = bytes_per_second;
    small.cluster.devices_per_node = devices_per_node;
    return small.run("auto");
  };
  // Keys that come early enough cost nothing, and gradients leave from the middle on; the backward
  // waits for its keys.
  const Figures fast = run(1e9, 2);
  EXPECT_NEAR(fast.passes[0].seconds, kAttend, 1e-12);
  EXPECT_NEAR(fast.passes[1].seconds, kBytes / 1e9 + kBackward, 1e-12);
  // Late ones: half of what reads them is behind the last, gradients are two times as wide.
  const Figures slow = run(1e6, 2);
  EXPECT_NEAR(slow.passes[0].seconds, kBytes / 1e6 + kAttend / 4, 1e-12);
  EXPECT_NEAR(slow.passes[1].seconds, 3 * kBytes / 1e6 + kBackward / 2, 1e-12);
  // Between nodes all keys have come before the attention call begins.
  EXPECT_NEAR(run(1e9, 1).passes[0].seconds, kBytes / 1e9 + kAttend, 1e-12);
}

TEST(Simulate, HeadsAreSharedByAsManyAndMixedByFewer) {
  const Mask mask = one_document(4096, MaskType::Full);
  PlanConfig config{.num_ranks = 8, .num_heads_q = 16, .num_heads_kv = 8, .overlap_degree = 1};
  const Problem problem{.mask = mask, .config = config, .cluster = {}};
  config.work = WorkMode::Heads;
  config.devices_per_node = 8;
  const Figures heads = simulate(problem, "heads");
  const Figures mixed = simulate(problem, "mixed");
  std::vector<std::int64_t> bytes;  // of 2, 4 and 8 shares
  for (config.head_shares = 2; config.head_shares <= 8; config.head_shares *= 2) {
    bytes.push_back(make_plan(mask, config).report.total_bytes);
  }
  // Results have lse with them; all else is counted as the plan does.
  const std::int64_t lse = 8 * 7 * 512 / 8 * 16 * 4;
  EXPECT_EQ(heads.passes[0].bytes[0], bytes[2] + lse);
  // Then q, out, dout, k and v there and three gradients back, in two bytes.
  EXPECT_EQ(heads.passes[1].bytes[0], 8 * 7 * 512 / 8 * (4 * 16 + 4 * 8) * 128 * 2 + lse);
  EXPECT_EQ(heads.passes[0].bytes[1], 0);
  EXPECT_NE(mixed.passes[0].bytes[0], heads.passes[0].bytes[0]);
  EXPECT_GT(mixed.passes[0].bytes[0], std::min(bytes[0], bytes[1]));
  EXPECT_DOUBLE_EQ(heads.balance(), 1.0);
}

TEST(Simulate, HeadsAreCopiedInFlatRowsAndBack) {
  const Mask mask = one_document(512, MaskType::Full);
  const PlanConfig config{.num_ranks = 2, .num_heads_q = 2, .num_heads_kv = 2, .overlap_degree = 1};
  Cluster cluster = plain_cluster();
  const Figures before = simulate({.mask = mask, .config = config, .cluster = cluster}, "heads");
  cluster.memory_bytes_per_second = 1e6;
  const Figures after = simulate({.mask = mask, .config = config, .cluster = cluster}, "heads");
  // 256 rows of q, k, v and out, 2 heads of 128 of 2 bytes, read and written; in the backward the
  // gradients too. What comes back is whole, and nothing is merged.
  const double copied = 2.0 * 256 * 4 * 256 * 2 / 1e6;
  EXPECT_NEAR(after.passes[0].seconds - before.passes[0].seconds, copied, 1e-6);
  EXPECT_NEAR(after.passes[1].seconds - before.passes[1].seconds, 2 * copied, 1e-6);
}

TEST(Simulate, MemoryOfSharedHeadsIsThatOfWholeGradients) {
  const Mask mask = one_document(512, MaskType::Full);
  const PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2, .overlap_degree = 1};
  const Figures figures = simulate({.mask = mask, .config = config, .cluster = {}}, "heads");
  // Own tensors and gradients of 256 rows in two bytes with lse, twice: as they are and as flat
  // rows.
  const std::int64_t tensors = 256 * 2 * (2 * 4 + 2 * 2) * 128 * 2;
  const std::int64_t own = 2 * tensors + 256 * 4 * 4;
  // 512 rows of half of the heads: k, v and their gradients; q, out, dout and dq in two bytes, a
  // float32 sum of dq, lse and delta.
  const std::int64_t keys = 512 * 4 * 128 * 2;
  const std::int64_t queries = 512 * 2 * (4 * 128 * 2 + 128 * 4 + 2 * 4);
  EXPECT_EQ(figures.memory_bytes, own + keys + queries);
}

TEST(Simulate, HeadsAreRefusedWhereRanksCannotShareThem) {
  const Mask mask = one_document(4096, MaskType::Causal);
  PlanConfig config{.num_ranks = 7, .num_heads_q = 8, .num_heads_kv = 8};
  const auto refusal = [&](const char* strategy) {
    return simulate({.mask = mask, .config = config, .cluster = {}}, strategy).refusal;
  };
  EXPECT_EQ(refusal("heads"), "8 kv heads and 7 ranks have no common divisor above 1");
  EXPECT_EQ(refusal("mixed"),
            "8 kv heads and 7 ranks have no common divisor between 1 and the largest");
  config.num_ranks = 2;
  EXPECT_EQ(refusal("heads"), "");
  EXPECT_EQ(refusal("mixed"),
            "8 kv heads and 2 ranks have no common divisor between 1 and the largest");
}

/// Packed causal documents of 256 to 16,384 rows.
Mask random_documents(std::uint64_t seed, std::int32_t rows) {
  RandomStream random(seed);
  Mask mask{rows, rows, {}};
  for (std::int32_t begin = 0; begin < rows;) {
    const std::int32_t end = std::min(rows, begin + (256 << random.between(0, 6)));
    mask.slices.push_back(band_slice({begin, end}, {begin, end}, MaskType::Causal));
    begin = end;
  }
  return mask;
}

TEST(Simulate, PlansSuitSlowNetworks) {
  constexpr int kMasks = 8;
  for (const double rate : {5e9, 50e9}) {
    double over_placements = 0.0, over_degrees = 0.0;  // of the fastest
    for (int seed = 0; seed < kMasks; ++seed) {
      const Mask mask = random_documents(static_cast<std::uint64_t>(seed), 32768);
      Problem problem{.mask = mask,
                      .config = {.num_ranks = 4, .num_heads_q = 32, .num_heads_kv = 8},
                      .cluster = {.devices_per_node = 2}};
      problem.cluster.network.bytes_per_second = rate;
      const double chosen = simulate(problem, "auto").step_seconds();
      double placed = chosen, staged = chosen;
      for (const std::string& strategy : placement_strategies()) {
        placed = std::min(placed, simulate(problem, strategy).step_seconds());
      }
      for (const std::int32_t degree : {0, 1, 2, 4, 8}) {
        problem.config.overlap_degree = degree;
        staged = std::min(staged, simulate(problem, "auto").step_seconds());
      }
      over_placements += chosen / placed / kMasks;
      over_degrees += chosen / staged / kMasks;
    }
    EXPECT_LT(over_placements, 1.01) << rate;
    EXPECT_LT(over_degrees, 1.01) << rate;
  }
}

TEST(Simulate, RefusesWhatItCannotMean) {
  const Mask mask = one_document(64, MaskType::Full);
  const Mask cross{64, 32, {band_slice({0, 64}, {0, 32}, MaskType::Full)}};
  const PlanConfig config{.num_ranks = 2, .num_heads_q = 4, .num_heads_kv = 2};
  EXPECT_THROW(simulate({.mask = mask, .config = config, .cluster = {}}, "carrier"),
               InvalidArgument);
  for (const char* strategy : {"auto", "ring"}) {
    EXPECT_THROW(simulate({.mask = cross, .config = config, .cluster = {}}, strategy),
                 InvalidArgument);
    PlanConfig uneven = config;
    uneven.num_heads_q = 3;
    EXPECT_THROW(simulate({.mask = mask, .config = uneven, .cluster = {}}, strategy),
                 InvalidArgument);
  }
}

TEST(Simulate, WorkBeyond63BitsIsBalanced) {
  const std::int32_t rows = 1'000'000'000;
  const Mask mask{rows, rows, {band_slice({0, rows}, {0, rows}, MaskType::Full)}};
  const PlanConfig config{.num_ranks = 1, .num_heads_q = 64, .num_heads_kv = 8};
  for (const char* strategy : {"ring", "ulysses", "auto"}) {
    const Figures figures = simulate({.mask = mask, .config = config}, strategy);
    ASSERT_EQ(figures.refusal, "") << strategy;
    EXPECT_DOUBLE_EQ(figures.rank_work[0], 64e18) << strategy;
    EXPECT_DOUBLE_EQ(figures.balance(), 1.0) << strategy;
  }
}

}  // namespace
}  // namespace magi::simulate
