// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/forward_arrivals.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/schedule/expand_list.hpp"
#include "kernels/schedule/host/split_list.hpp"
#include "kernels/schedule/host/tile_run.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

/// A random list, sometimes with splits, for keys of which some come.
struct ArrivalCase {
  explicit ArrivalCase(std::uint64_t seed) {
    RandomStream random(seed);
    mask = random_mask(random);
    const std::int32_t group = 1 << random.between(0, 2);
    const std::int32_t heads_kv = random.between(1, 6);
    const ForwardProblem problem{.rows_q = mask.rows_q,
                                 .rows_k = mask.rows_k,
                                 .heads_q = heads_kv * group,
                                 .heads_kv = heads_kv,
                                 .cache_bytes = std::int64_t{1} << random.between(10, 20)};
    const std::int32_t keys = 8 * random.between(2, 6);
    const TileShape shape{.rows = 16 << random.between(0, 2),
                          .keys = keys,
                          .trimmed_keys = random.chance(20) ? 0 : 8 * random.between(1, keys / 8)};
    list = build_forward_list(problem, mask.slices, shape);
    if (random.chance(50)) {
      split_long_tiles(list, {.max_splits = random.between(0, 60), .min_cost = 2});
    }
    before = list;
    set_in_flight(random, heads_kv);
    order_by_arrival(list, coming, 132);
  }

  void set_in_flight(RandomStream& random, std::int32_t heads_kv) {
    coming.num_sources = random.between(1, 7);
    coming.num_sections = random.between(1, heads_kv);
    while (heads_kv % coming.num_sections != 0) --coming.num_sections;
    for (std::int32_t row = random.between(0, 40); row < mask.rows_k;) {
      const Range rows{row, std::min(row + random.between(1, 40), mask.rows_k)};
      coming.parts.push_back({rows, random.between(0, coming.num_sources - 1)});
      row = rows.end + random.between(0, 40);
    }
    check_in_flight_keys(coming, mask.rows_k, heads_kv);
  }

  /// Rows that a CTA loads for a work, as the scheduler and the loader do it.
  std::vector<bool> loaded_rows(const TileWork& work) const {
    std::vector<bool> loaded(static_cast<std::size_t>(mask.rows_k), false);
    const std::int32_t token = work.tile * list.tile_tokens;
    const std::int32_t row_end = std::min(token + list.tile_tokens, mask.rows_q);
    const TileShape& shape = list.shape;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      BandSlice band = list.records[static_cast<std::size_t>(i)].band;
      const bool is_last = i + 1 == work.record_end;
      if (i == work.record_begin) band.k1 = std::min(band.k1, work.k_end);
      if (is_last) band.k0 = std::max(band.k0, work.k_begin);
      const TileRun run = tile_run(band, token, row_end, shape.keys);
      const bool has_wide = run.num_tiles >= 2 || i != work.record_begin;
      const bool is_short =
          is_last && has_wide && ends_short(band, run, shape.keys, shape.trimmed_keys);
      std::int32_t key = run.k_end;
      for (std::int32_t j = is_short ? 1 : 0; j < run.num_tiles; ++j) {
        key -= shape.keys;
        load(loaded, key);
      }
      if (is_short) load(loaded, key - shape.trimmed_keys);
    }
    return loaded;
  }

  void load(std::vector<bool>& loaded, std::int32_t key) const {
    const std::int32_t end = std::min(key + list.shape.keys, mask.rows_k);
    for (std::int32_t row = std::max(key, 0); row < end; ++row) {
      loaded[static_cast<std::size_t>(row)] = true;
    }
  }

  Mask mask;
  InFlightKeys coming;
  ForwardList before;  ///< the same list in its usual order
  ForwardList list;
};

std::uint32_t sources_of_rows(const InFlightKeys& coming, const std::vector<bool>& rows) {
  std::uint32_t sources = 0;
  for (const KeyPart& part : coming.parts) {
    for (std::int32_t row = part.rows.begin; row < part.rows.end; ++row) {
      if (rows[static_cast<std::size_t>(row)]) sources |= std::uint32_t{1} << part.source;
    }
  }
  return sources;
}

TEST(ForwardArrivalsTest, WorksWaitForWhatTheyLoadAndForNothingElse) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ArrivalCase test(seed);
    for (const TileWork& work : test.list.tiles) {
      ASSERT_EQ(work.sources, sources_of_rows(test.coming, test.loaded_rows(work)))
          << "tile " << work.tile << " slot " << work.slot;
    }
  }
}

TEST(ForwardArrivalsTest, EveryItemIsHandedOutOnce) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ArrivalCase test(seed);
    const ExpandedList expanded = expand_list(test.list);
    const ExpandedList expected = expand_list(test.before);
    ASSERT_EQ(expanded.pairs, expected.pairs);
    ASSERT_EQ(expanded.owners, expected.owners);
    ASSERT_EQ(expanded.writers, expected.writers);
    ASSERT_TRUE(expanded.is_inside);
  }
}

TEST(ForwardArrivalsTest, ReadyItemsComeFirstThenSectionAfterSectionLongestFirst) {
  int num_waiting = 0;
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    const ArrivalCase test(seed);
    const ForwardList& list = test.list;
    const std::int32_t groups_per_arrival = list.head_groups / test.coming.num_sections;
    const auto first_in_flight = static_cast<std::uint32_t>(
        list.num_items() - std::int64_t{list.head_groups} * list.num_in_flight_works);
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(list.num_items()); ++i) {
      const ForwardItem item = forward_item(list.order(), i);
      const TileWork& work = list.tiles[static_cast<std::size_t>(item.work)];
      ASSERT_EQ(work.sources != 0, i >= first_in_flight);
      if (i <= first_in_flight) continue;
      ++num_waiting;
      const ForwardItem before = forward_item(list.order(), i - 1);
      const std::int32_t width = list.in_flight_groups_per_section;
      ASSERT_LE(before.head_group / groups_per_arrival, item.head_group / groups_per_arrival);
      if (before.head_group / width != item.head_group / width) continue;
      ASSERT_GE(list.tiles[static_cast<std::size_t>(before.work)].cost, work.cost);
    }
  }
  EXPECT_GT(num_waiting, 5000);
}

TEST(ForwardArrivalsTest, SplitsOfOneTileWaitEachForItsOwnKeys) {
  const Mask mask{64, 4096, {band_slice({0, 64}, {0, 4096}, MaskType::Full)}};
  const ForwardProblem problem{.rows_q = 64, .rows_k = 4096};
  ForwardList list = build_forward_list(problem, mask.slices, {}, 1);
  split_long_tiles(list, {.max_splits = 8});
  ASSERT_EQ(list.num_slots(), 8);
  order_by_arrival(list, {.parts = {{{1024, 2048}, 2}, {{3072, 4096}, 0}}, .num_sources = 3}, 132);
  EXPECT_EQ(list.num_in_flight_works, 4);
  for (const TileWork& work : list.tiles) {
    const std::int32_t keys = 512;
    const std::int32_t begin = 4096 - (work.slot + 1) * keys;  // walked from high keys to low
    const std::uint32_t expected = begin >= 3072 ? 1 : (begin >= 1024 && begin < 2048 ? 4 : 0);
    EXPECT_EQ(work.sources, expected) << "slot " << work.slot;
  }
}

TEST(ForwardArrivalsTest, WithoutPartsNothingChanges) {
  ArrivalCase test(5);
  ForwardList list = test.before;
  order_by_arrival(list, {}, 132);
  EXPECT_EQ(list.num_in_flight_works, 0);
  EXPECT_EQ(list.tiles, test.before.tiles);
}

}  // namespace
}  // namespace magi::test
