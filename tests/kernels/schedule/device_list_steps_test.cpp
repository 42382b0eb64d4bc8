// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_list_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "kernels/schedule/expand_list.hpp"
#include "kernels/schedule/host/tile_join.hpp"
#include "mask/random_mask.hpp"

namespace magi::test {
namespace {

/// Slices as the device gets them.
struct TypedArrays {
  std::vector<std::int32_t> q_ranges;
  std::vector<std::int32_t> k_ranges;
  std::vector<std::int32_t> types;

  void append(Range q, Range k, std::int32_t type) {
    q_ranges.insert(q_ranges.end(), {q.begin, q.end});
    k_ranges.insert(k_ranges.end(), {k.begin, k.end});
    types.push_back(type);
  }
  SliceArrays view() const {
    return {q_ranges.data(), k_ranges.data(), types.data(),
            static_cast<std::int32_t>(types.size())};
  }
};

struct RandomCase {
  TypedArrays arrays;
  Mask mask;
};

RandomCase random_case(RandomStream& random, std::int32_t max_rows, std::int32_t max_slices) {
  RandomCase result;
  result.mask.rows_q = random.between(1, max_rows);
  result.mask.rows_k = random.between(0, max_rows);
  const std::int32_t count = random.between(0, max_slices);
  for (std::int32_t i = 0; i < count; ++i) {
    const Range q = random_range(random, result.mask.rows_q);
    const Range k = result.mask.rows_k > 0 ? random_range(random, result.mask.rows_k) : Range{};
    const std::int32_t type = random.between(0, 3);
    result.arrays.append(q, k, type);
    result.mask.slices.push_back(band_slice(q, k, static_cast<MaskType>(type)));
  }
  return result;
}

TileGrid grid_of(const ForwardList& frame) {
  return {.rows_q = frame.problem.rows_q,
          .tile_tokens = frame.tile_tokens,
          .num_tiles = frame.num_tiles(),
          .packed_heads = frame.packed_heads,
          .head_groups = frame.head_groups};
}

/// The device's build with one thread, slices in an arbitrary order.
class StepByStep {
 public:
  StepByStep(const ForwardProblem& problem, const TileShape& shape, const SliceArrays& source)
      : problem_(problem), shape_(shape), source_(source), order_(std::size_t(source.count)) {
    std::iota(order_.begin(), order_.end(), 0);
    for (std::int32_t i = 0; i < source.count; ++i) {
      slices_.push_back(read_slice(source, i, problem.rows_q, problem.rows_k).band);
    }
  }

  void shuffle(RandomStream& random) {
    for (std::size_t i = order_.size(); i > 1; --i) {
      const std::int32_t other = random.between(0, static_cast<std::int32_t>(i) - 1);
      std::swap(order_[i - 1], order_[static_cast<std::size_t>(other)]);
    }
  }

  /// Of the device's list.
  std::int32_t packed_heads() const { return allowed_packed_heads(problem_, shape_).back(); }

  ForwardList build(std::int64_t capacity) {
    ForwardList list = forward_list_frame(problem_, shape_, packed_heads());
    const TileGrid grid = grid_of(list);
    count(grid);
    place(grid, capacity, list);
    join(grid, list);
    return list;
  }

 private:
  void count(const TileGrid& grid) {
    tallies_.assign(static_cast<std::size_t>(grid.num_tiles), {});
    seen_.assign(static_cast<std::size_t>(grid.num_tiles), {});
    for (const std::int32_t slice : order_) {
      const BandSlice& band = slices_[static_cast<std::size_t>(slice)];
      const Range tiles = reached_tiles(grid, band);
      for (std::int32_t tile = tiles.begin; tile < tiles.end; ++tile) {
        const BandSlice part = part_of_tile(grid, band, tile);
        if (part.q0 < part.q1) add(grid, part, tile, slice);
      }
    }
  }

  void add(const TileGrid& grid, const BandSlice& part, std::int32_t tile, std::int32_t slice) {
    const TileTally more = tally_of_part(grid, part, tile, shape_.keys, slice, source_.count);
    TileTally& tally = tallies_[static_cast<std::size_t>(tile)];
    tally.num_k_tiles += more.num_k_tiles;
    tally.num_records += more.num_records;
    tally.end_slice = std::max(tally.end_slice, more.end_slice);
    tally.begin_inverse = std::max(tally.begin_inverse, more.begin_inverse);
    seen_[static_cast<std::size_t>(tile)].push_back(slice);
  }

  void place(const TileGrid& grid, std::int64_t capacity, ForwardList& list) {
    std::int64_t next = 0;
    for (std::int32_t tile = 0; tile < grid.num_tiles; ++tile) {
      const TileTally& tally = tallies_[static_cast<std::size_t>(tile)];
      BandSlice last;
      if (tally.num_records > 0) {
        last = part_of_tile(grid, slices_[static_cast<std::size_t>(tally.end_slice - 1)], tile);
      }
      TileWork work = work_of_tile(tile, tally, next, capacity, source_.count);
      work.cost = cost_of_tally(grid, shape_, tile, tally, last);
      list.tiles.push_back(work);
      if (work.record_begin >= 0) append_records(grid, tile, list);
      next += tally.num_records;
    }
  }

  void join(const TileGrid& grid, ForwardList& list) {
    for (TileWork& work : list.tiles) {
      const std::int32_t count = work.record_end - work.record_begin;
      if (work.record_begin < 0 || count < 2 || count > kMostJoinedParts) continue;
      const auto records = std::span(list.records).subspan(std::size_t(work.record_begin));
      const std::int32_t left = join_parts(records.first(std::size_t(count)), JoinAlong::Queries);
      TileTally tally;
      const Range rows = rows_of_tile(grid, work.tile);
      for (const BandRecord& record : records.first(std::size_t(left))) {
        tally.num_k_tiles += static_cast<std::uint64_t>(
            tile_run(record.band, rows.begin, rows.end, shape_.keys).num_tiles);
      }
      work.record_end = work.record_begin + left;
      work.cost =
          cost_of_tally(grid, shape_, work.tile, tally, records[std::size_t(left) - 1].band);
    }
    std::stable_sort(list.tiles.begin(), list.tiles.end(),
                     [](const TileWork& a, const TileWork& b) { return a.cost > b.cost; });
  }

  void append_records(const TileGrid& grid, std::int32_t tile, ForwardList& list) {
    std::vector<std::int32_t>& seen = seen_[static_cast<std::size_t>(tile)];
    std::sort(seen.begin(), seen.end());
    for (const std::int32_t slice : seen) {
      const BandSlice& band = slices_[static_cast<std::size_t>(slice)];
      list.records.push_back({.band = part_of_tile(grid, band, tile)});
    }
  }

  ForwardProblem problem_;
  TileShape shape_;
  SliceArrays source_;
  std::vector<std::int32_t> order_;
  std::vector<BandSlice> slices_;
  std::vector<TileTally> tallies_;
  std::vector<std::vector<std::int32_t>> seen_;
};

TileShape random_shape(RandomStream& random) {
  const std::int32_t keys = 8 * random.between(2, 10);
  return {.rows = 16 << random.between(0, 3),
          .keys = keys,
          .trimmed_keys = random.chance(30) ? 0 : 8 * random.between(1, keys / 8 - 1),
          .overhead = random.between(0, 3)};
}

constexpr std::int64_t kPlenty = 1 << 20;

TEST(DeviceListStepsTest, GiveTheHostsListInAnyOrderOfTheSlices) {
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const RandomCase test = random_case(random, random.chance(20) ? 600 : 96, 40);
    const std::int32_t group = 1 << random.between(0, 4);
    const ForwardProblem problem{.rows_q = test.mask.rows_q,
                                 .rows_k = test.mask.rows_k,
                                 .heads_q = 2 * group,
                                 .heads_kv = 2};
    const TileShape shape = random_shape(random);
    StepByStep steps(problem, shape, test.arrays.view());
    const ForwardList host =
        build_forward_list(problem, test.mask.slices, shape, steps.packed_heads());
    steps.shuffle(random);
    const ForwardList device = steps.build(kPlenty);
    ASSERT_EQ(device.packed_heads, host.packed_heads);
    ASSERT_EQ(device.groups_per_section, host.groups_per_section);
    ASSERT_EQ(device.tiles, host.tiles);
    ASSERT_EQ(device.records, host.records);
  }
}

/// What the kernel makes of a tile whose records did not fit.
ForwardList with_cut_slices(const ForwardList& list, const std::vector<BandSlice>& slices) {
  ForwardList result = list;
  result.records.clear();
  const TileGrid grid = grid_of(list);
  for (TileWork& work : result.tiles) {
    const auto begin = static_cast<std::int32_t>(result.records.size());
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      const std::int64_t slice = i + std::ssize(slices);
      const BandSlice whole = i < 0 ? slices[static_cast<std::size_t>(slice)]
                                    : list.records[static_cast<std::size_t>(i)].band;
      const BandSlice part = part_of_tile(grid, whole, work.tile);
      const bool is_edge = i == work.record_begin || i + 1 == work.record_end;
      EXPECT_TRUE(!is_edge || part.q0 < part.q1) << "tile " << work.tile << " record " << i;
      if (part.q0 < part.q1) result.records.push_back({.band = part});
    }
    work.record_begin = begin;
    work.record_end = static_cast<std::int32_t>(result.records.size());
  }
  return result;
}

TEST(DeviceListStepsTest, TilesBeyondTheCapacityFindTheSameRecords) {
  int num_scanning = 0;
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    RandomStream random(seed);
    const RandomCase test = random_case(random, 96, 30);
    const ForwardProblem problem{.rows_q = test.mask.rows_q, .rows_k = test.mask.rows_k};
    const TileShape shape = random_shape(random);
    const ForwardList host = build_forward_list(problem, test.mask.slices, shape);
    const std::int32_t capacity = random.between(0, static_cast<std::int32_t>(host.records.size()));
    StepByStep steps(problem, shape, test.arrays.view());
    const ForwardList device = steps.build(capacity);
    ASSERT_LE(std::ssize(device.records), capacity);
    for (const TileWork& work : device.tiles) num_scanning += work.record_begin < 0 ? 1 : 0;
    const ForwardList cut = with_cut_slices(device, test.mask.slices);
    ASSERT_FALSE(HasFailure());
    const ExpandedList expanded = expand_list(cut);
    ASSERT_EQ(expanded.pairs, expand(test.mask));
    ASSERT_EQ(expanded.owners, expand_list(host).owners);
  }
  EXPECT_GT(num_scanning, 1000);
}

TEST(DeviceListStepsTest, ClampsEveryRangeIntoTheTensors) {
  constexpr std::int32_t kLow = std::numeric_limits<std::int32_t>::min();
  constexpr std::int32_t kHigh = std::numeric_limits<std::int32_t>::max();
  const std::array<std::int32_t, 9> values = {kLow, -1, 0, 1, 7, 10, 11, 1 << 30, kHigh};
  for (const std::int32_t q0 : values) {
    for (const std::int32_t q1 : values) {
      for (const std::int32_t k0 : values) {
        for (const std::int32_t k1 : values) {
          for (const std::int32_t type : {kLow, -1, 0, 1, 2, 3, 4, kHigh}) {
            TypedArrays arrays;
            arrays.append({q0, q1}, {k0, k1}, type);
            const CheckedSlice slice = read_slice(arrays.view(), 0, 10, 7);
            ASSERT_NO_THROW(validate(Mask{10, 7, {slice.band}}));
            const bool is_good = q0 >= 0 && q0 <= q1 && q1 <= 10 && k0 >= 0 && k0 <= k1 &&
                                 k1 <= 7 && type >= 0 && type <= 3;
            ASSERT_EQ(slice.bad_field == SliceField::None, is_good)
                << q0 << ':' << q1 << ' ' << k0 << ':' << k1 << " type " << type;
          }
        }
      }
    }
  }
}

TEST(DeviceListStepsTest, ReportsTheFirstBadFieldOfTheFirstBadSlice) {
  const auto field_of = [](Range q, Range k, std::int32_t type) {
    TypedArrays arrays;
    arrays.append(q, k, type);
    return read_slice(arrays.view(), 0, 100, 100).bad_field;
  };
  EXPECT_EQ(field_of({-1, 500}, {-1, 500}, 9), SliceField::QBegin);
  EXPECT_EQ(field_of({20, 10}, {-1, 500}, 9), SliceField::QEnd);
  EXPECT_EQ(field_of({10, 20}, {101, 500}, 9), SliceField::KBegin);
  EXPECT_EQ(field_of({10, 20}, {30, 101}, 9), SliceField::KEnd);
  EXPECT_EQ(field_of({10, 20}, {30, 40}, 4), SliceField::Type);
  std::uint64_t word = 0;
  for (const auto& [index, field] : {std::pair{900, SliceField::QBegin},
                                     {70, SliceField::Type},
                                     {70, SliceField::KEnd},
                                     {71, SliceField::QBegin},
                                     {5, SliceField::None}}) {
    word = std::max(word, bad_slice_word(index, field));
  }
  EXPECT_EQ(bad_slice_of(word).index, 70);
  EXPECT_EQ(bad_slice_of(word).field, SliceField::KEnd);
}

}  // namespace
}  // namespace magi::test
