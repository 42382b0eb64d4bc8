// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "kernels/sm90/guarded_call.hpp"
#include "support/gpu/gpu_test.hpp"
#include "support/gpu/instance_dims.hpp"

// Masks, sizes and dims that both directions take. A Direction has its Case, checks one, and tells
// the rows of a tile and the most heads that one packs.
namespace magi::test {

inline Mask one_slice(std::int32_t rows_q, std::int32_t rows_k, MaskType type) {
  return {rows_q, rows_k, {band_slice({0, rows_q}, {0, rows_k}, type)}};
}

inline std::int32_t pick(RandomStream& random, const std::vector<std::int32_t>& values) {
  return values[static_cast<std::size_t>(
      random.between(0, static_cast<std::int32_t>(values.size()) - 1))];
}

/// Draws dims of q and k, and of v, for instances up to 128, of 192 with 128, and of 256.
inline void draw_dims(RandomStream& random, std::int32_t instance, AttentionCase& test) {
  if (instance == 128) {
    test.dim_qk = pick(random, {64, 128, 128, 80});
    test.dim_v = random.chance(80) ? test.dim_qk : pick(random, {32, 64, 128});
  } else if (instance == 192) {
    test.dim_qk = pick(random, {192, 192, 192, 136, 184});
    test.dim_v = pick(random, {128, 128, 128, 72, 8});
  } else {
    test.dim_qk = pick(random, {256, 256, 256, 200, 64});
    test.dim_v = random.chance(80) ? 256 : pick(random, {136, 192, 248});
  }
}

/// Draws a mask, heads, dims, layout and options that both directions have.
inline void draw_case(RandomStream& random, std::int32_t instance, const RandomMaskOptions& options,
                      AttentionCase& test) {
  test.mask = random_mask(random, options);
  test.type = random.chance(70) ? DType::BFloat16 : DType::Float16;
  test.heads_kv = pick(random, {1, 1, 2, 2, 5});
  test.heads_q = test.heads_kv * pick(random, {1, 2, 3, 4, 8});
  draw_dims(random, instance, test);
  test.layout = static_cast<Layout>(random.between(0, 2));
  test.has_float_out = random.chance(20);
  test.num_sinks = random.chance(20) ? random.between(1, 8) : 0;
  test.params.sink_layout = random.chance(50) ? SinkLayout::SinkHead : SinkLayout::RowSinkHead;
  test.params.softcap = random.chance(20) ? 20.0 : 0.0;
  test.params.softmax_scale = random.chance(30) ? 0.3 : 0.0;
}

template <typename Direction>
struct SharedSuite {
  using Case = typename Direction::Case;

  static void full_tiles(Case test) {
    for (const std::int32_t rows_q : {64, 128}) {
      test.mask = one_slice(rows_q, 128, MaskType::Full);
      Direction::check(test);
    }
    test.heads_q = 8;
    test.heads_kv = 2;
    test.mask = one_slice(300, 709, MaskType::Full);
    Direction::check(test);
  }

  static void every_type_and_relation_of_lengths(Case test) {
    constexpr std::int32_t kRows = Direction::kTileRows;
    for (const MaskType type : {MaskType::Full, MaskType::Causal, MaskType::InverseCausal,
                                MaskType::BidirectionalCausal}) {
      for (const std::int32_t rows_k : {kRows - 1, kRows, kRows + 1, 2 * kRows + 150}) {
        test.mask = one_slice(kRows, rows_k, type);
        Direction::check(test);
      }
    }
  }

  static void one_token_each_way(Case test) {
    for (const Mask& mask : {one_slice(1, 1, MaskType::Full), one_slice(1, 500, MaskType::Causal),
                             one_slice(500, 1, MaskType::Full)}) {
      test.mask = mask;
      Direction::check(test);
    }
  }

  static void rows_and_keys_that_see_nothing(Case test) {
    for (const Mask& mask : {Mask{400, 400, {}}, Mask{400, 0, {}}, Mask{0, 400, {}},
                             Mask{400, 400, {band_slice({100, 130}, {7, 390}, MaskType::Full)}},
                             Mask{400, 400, {band_slice({7, 390}, {200, 230}, MaskType::Full)}},
                             one_slice(400, 100, MaskType::Causal)}) {
      test.mask = mask;
      Direction::check(test);
    }
    test.num_sinks = 2;
    Direction::ask_for_more(test);
    Direction::check(test);
  }

  static void sliding_window(Case test) {
    for (const std::int32_t packed_heads : {1, 2, 4, 8, 16}) {
      if (packed_heads > Direction::kMostPacked) continue;
      test.heads_q = Direction::kMostPacked;
      test.tuning.packed_heads = packed_heads;
      test.mask = {600, 600, {{.q0 = 0, .q1 = 600, .k0 = 0, .k1 = 600, .d_min = -149, .d_max = 0}}};
      Direction::check(test);
    }
  }

  static void overlapping_slices_count_pairs_once_per_slice(Case test) {
    test.mask = one_slice(200, 300, MaskType::Full);
    test.mask.slices.push_back(band_slice({50, 180}, {20, 290}, MaskType::Causal));
    test.mask.slices.push_back(test.mask.slices.front());
    Direction::check(test);
  }

  static void softcap_and_sinks(Case test) {
    test.heads_q = 4;
    test.mask = one_slice(300, 300, MaskType::Causal);
    Direction::ask_for_more(test);
    Direction::check(test);
    test.magnitude = 2.0;
    test.params.softcap = 15.0;
    Direction::check(test);
    test.num_sinks = 3;
    Direction::check(test);
    test.params.sink_layout = SinkLayout::RowSinkHead;
    Direction::check(test);
  }

  static void dims_below_the_instance_and_unequal_ones(Case test) {
    for (const auto& [dim_qk, dim_v] : {std::pair{8, 8},
                                        {40, 56},
                                        {120, 64},
                                        {72, 128},
                                        {136, 8},
                                        {184, 120},
                                        {136, 128},
                                        {24, 136},
                                        {64, 248},
                                        {200, 248},
                                        {256, 64}}) {
      test.dim_qk = dim_qk;
      test.dim_v = dim_v;
      test.mask = one_slice(150, 333, MaskType::Causal);
      Direction::check(test);
    }
  }
};

/// Tests of a suite that has base().
#define MAGI_SHARED_TESTS(suite, direction)                                              \
  TEST_P(suite, FullTiles) { SharedSuite<direction>::full_tiles(base()); }               \
  TEST_P(suite, EveryTypeAndRelationOfLengths) {                                         \
    SharedSuite<direction>::every_type_and_relation_of_lengths(base());                  \
  }                                                                                      \
  TEST_P(suite, OneTokenEachWay) { SharedSuite<direction>::one_token_each_way(base()); } \
  TEST_P(suite, RowsAndKeysThatSeeNothing) {                                             \
    SharedSuite<direction>::rows_and_keys_that_see_nothing(base());                      \
  }                                                                                      \
  TEST_P(suite, SlidingWindow) { SharedSuite<direction>::sliding_window(base()); }       \
  TEST_P(suite, OverlappingSlicesCountPairsOncePerSlice) {                               \
    SharedSuite<direction>::overlapping_slices_count_pairs_once_per_slice(base());       \
  }                                                                                      \
  TEST_P(suite, SoftcapAndSinks) { SharedSuite<direction>::softcap_and_sinks(base()); }  \
  TEST_P(suite, DimsBelowTheInstanceAndUnequalOnes) {                                    \
    SharedSuite<direction>::dims_below_the_instance_and_unequal_ones(base());            \
  }

}  // namespace magi::test
