// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/expand_list.hpp"

#include <algorithm>

#include "kernels/schedule/host/tile_run.hpp"

namespace magi::test {
namespace {

class Walker {
 public:
  Walker(const ForwardList& list, ExpandedList& result) : list_(list), result_(result) {}

  void walk(const TileWork& work) {
    row_begin_ = work.tile * list_.tile_tokens;
    row_end_ = std::min(row_begin_ + list_.tile_tokens, list_.problem.rows_q);
    int num_wide = 0;
    for (std::int32_t i = work.record_begin; i < work.record_end; ++i) {
      BandSlice band = list_.records[static_cast<std::size_t>(i)].band;
      const bool is_last = i + 1 == work.record_end;
      if (i == work.record_begin) band.k1 = std::min(band.k1, work.k_end);
      if (is_last) band.k0 = std::max(band.k0, work.k_begin);
      num_wide += walk_record(band, is_last, num_wide);
    }
  }

 private:
  /// Returns the number of full-width tiles.
  int walk_record(const BandSlice& band, bool is_last, int earlier_wide) {
    const std::int32_t width = list_.shape.keys;
    const std::int32_t trimmed = list_.shape.trimmed_keys;
    const TileRun run = tile_run(band, row_begin_, row_end_, width);
    const bool is_short =
        is_last && earlier_wide + run.num_tiles >= 2 && ends_short(band, run, width, trimmed);
    const int num_wide = run.num_tiles - (is_short ? 1 : 0);
    for (int j = 0; j < num_wide; ++j) {
      const bool is_full = j >= run.full_begin && j < run.full_end;
      count(band, run.k_end - (j + 1) * width, width, is_full);
    }
    if (is_short) count(band, run.k_end - num_wide * width - trimmed, trimmed, false);
    return num_wide;
  }

  void count(const BandSlice& band, std::int32_t key_begin, std::int32_t width, bool is_full) {
    const std::int32_t rows_k = list_.problem.rows_k;
    if (is_full && (key_begin < 0 || key_begin + width > rows_k)) result_.is_inside = false;
    for (std::int32_t row = row_begin_; row < row_end_; ++row) {
      const Range seen = visible_keys(band, row);
      for (std::int32_t key = std::max(key_begin, 0); key < std::min(key_begin + width, rows_k);
           ++key) {
        const bool is_counted = is_full || (key >= seen.begin && key < seen.end);
        if (is_counted) ++result_.pairs[pair_index(row, key)];
      }
    }
  }

  std::size_t pair_index(std::int32_t row, std::int32_t key) const {
    return static_cast<std::size_t>(row) * static_cast<std::size_t>(list_.problem.rows_k) +
           static_cast<std::size_t>(key);
  }

  const ForwardList& list_;
  ExpandedList& result_;
  std::int32_t row_begin_ = 0;
  std::int32_t row_end_ = 0;
};

}  // namespace

ExpandedList expand_list(const ForwardList& list) {
  ExpandedList result;
  const auto groups = static_cast<std::size_t>(list.head_groups);
  result.pairs.resize(static_cast<std::size_t>(list.problem.rows_q) *
                      static_cast<std::size_t>(list.problem.rows_k));
  result.owners.resize(static_cast<std::size_t>(list.num_tiles()) * groups);
  result.writers.resize(static_cast<std::size_t>(list.num_slots()) * groups);
  Walker walker(list, result);
  for (const TileWork& work : list.tiles) walker.walk(work);
  for (std::int64_t i = 0; i < list.num_items(); ++i) {
    const ForwardItem item = forward_item(list.order(), static_cast<std::uint32_t>(i));
    const TileWork& work = list.tiles[static_cast<std::size_t>(item.work)];
    std::vector<int>& counts = work.slot < 0 ? result.owners : result.writers;
    const std::int32_t place = work.slot < 0 ? work.tile : work.slot;
    ++counts.at(static_cast<std::size_t>(place) * groups +
                static_cast<std::size_t>(item.head_group));
  }
  for (const SplitTile& split : list.split_tiles) {
    for (std::size_t group = 0; group < groups; ++group) {
      ++result.owners[static_cast<std::size_t>(split.tile) * groups + group];
    }
  }
  return result;
}

bool is_list_of(const ForwardList& list, const Mask& mask) {
  const ExpandedList expanded = expand_list(list);
  const auto is_each_one = [](const std::vector<int>& counts) {
    return std::ranges::count(counts, 1) == std::ssize(counts);
  };
  return is_each_one(expanded.owners) && is_each_one(expanded.writers) && expanded.is_inside &&
         expanded.pairs == expand(mask);
}

TileShape random_tile_shape(RandomStream& random, std::int32_t most_keys) {
  const std::int32_t keys = 8 * random.between(2, most_keys);
  return {.rows = 16 << random.between(0, 3),
          .keys = keys,
          .trimmed_keys = random.chance(30) ? 0 : 8 * random.between(1, keys / 8 - 1),
          .overhead = random.between(0, 3)};
}

}  // namespace magi::test
