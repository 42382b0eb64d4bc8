// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <vector>

#include "base/check.hpp"
#include "magi/mask_builders.hpp"
#include "magi/mask_runs.hpp"
#include "mask/form_masks.hpp"

namespace magi::forms {
namespace {

/// Intervals of keys, row after row.
struct RowIntervals {
  std::vector<std::int64_t> offsets{0};
  std::vector<Range> intervals;

  void add(Range interval) {
    if (!interval.empty()) intervals.push_back(interval);
    if (static_cast<std::int64_t>(intervals.size()) > kMaxSlices) {
      throw invalid("number of intervals", intervals.size(),
                    "at most " + std::to_string(kMaxSlices));
    }
  }
  void end_row() { offsets.push_back(static_cast<std::int64_t>(intervals.size())); }
  std::span<const Range> row(std::size_t index) const {
    const auto begin = static_cast<std::size_t>(offsets[index]);
    return std::span(intervals).subspan(begin,
                                        static_cast<std::size_t>(offsets[index + 1]) - begin);
  }
};

/// The fields "offsets" and "intervals" of masks with `rows_k` keys.
RowIntervals intervals_of(const Value& offsets, const Value& table, std::int32_t rows_k) {
  RowIntervals found;
  check_bounds("offsets", offsets.numbers);
  check_count("intervals", table.num_rows(), static_cast<std::size_t>(offsets.numbers.back()),
              "the last of offsets");
  for (std::size_t i = 0; i < table.num_rows(); ++i) {
    const auto pair = table.row(i);
    check_count("entries of " + element_name("intervals", i), pair.size(), 2, "begin and end");
    if (pair[0] > pair[1] || pair[1] > rows_k) {
      throw invalid(element_name("intervals", i),
                    "[" + std::to_string(pair[0]) + ", " + std::to_string(pair[1]) + "]",
                    "begin <= end <= " + std::to_string(rows_k) + ", the keys");
    }
    found.intervals.push_back({pair[0], pair[1]});
  }
  found.offsets.assign(offsets.numbers.begin(), offsets.numbers.end());
  return found;
}

/// The rows that up to two intervals of [0, rows) leave open.
void add_gaps(RowIntervals& found, std::array<Range, 2> hidden, std::int32_t rows) {
  for (Range& interval : hidden) {
    if (interval.empty()) interval = {rows, rows};
  }
  if (hidden[1].begin < hidden[0].begin) std::swap(hidden[0], hidden[1]);
  found.add({0, hidden[0].begin});
  found.add({hidden[0].end, std::max(hidden[0].end, hidden[1].begin)});
  found.add({std::max(hidden[0].end, hidden[1].end), rows});
}

/// Rows from which FlashMask hides a key.
std::array<Range, 2> hidden_rows(std::span<const std::int32_t> bounds, bool is_causal,
                                 std::int32_t key, std::int32_t rows) {
  const auto interval = [](std::int32_t begin, std::int32_t end) {
    return Range{begin, std::max(begin, end)};
  };
  if (is_causal) {
    return {Range{0, std::min(key, rows)},
            interval(bounds[0], bounds.size() == 1 ? rows : bounds[1])};
  }
  if (bounds.size() == 2) return {interval(bounds[0], rows), Range{0, bounds[1]}};
  return {interval(bounds[0], bounds[1]), interval(bounds[2], bounds[3])};
}

/// Throws for numbers above `most`, which `reason` explains.
void check_at_most(std::string_view name, const Value& table, std::int32_t most,
                   std::string_view reason) {
  for (std::size_t i = 0; i < table.num_rows(); ++i) {
    const auto row = table.row(i);
    const auto found = std::ranges::find_if(row, [&](std::int32_t n) { return n > most; });
    if (found == row.end()) continue;
    throw invalid(
        element_name(element_name(name, i), static_cast<std::size_t>(found - row.begin())), *found,
        "at most " + std::to_string(most) + ", " + std::string(reason));
  }
}

/// Keys of blocks, neighbours joined, ascending.
std::vector<Range> keys_of_blocks(std::span<const std::int32_t> blocks, std::int32_t size,
                                  std::int32_t rows_k) {
  std::vector<std::int32_t> order(blocks.begin(), blocks.end());
  std::ranges::sort(order);
  std::vector<Range> keys;
  for (const std::int32_t block : order) {
    const std::int64_t begin = std::int64_t{block} * size;
    const Range next{static_cast<std::int32_t>(begin),
                     static_cast<std::int32_t>(std::min<std::int64_t>(begin + size, rows_k))};
    if (!keys.empty() && keys.back().end >= next.begin) {
      keys.back().end = next.end;
    } else {
      keys.push_back(next);
    }
  }
  return keys;
}

/// The keys that ascending `keys` and an interval have in common.
void add_common(RowIntervals& found, Range interval, std::span<const Range> keys) {
  auto next = std::ranges::partition_point(
      keys, [&](const Range& run) { return run.end <= interval.begin; });
  for (; next != keys.end() && next->begin < interval.end; ++next) {
    found.add({std::max(interval.begin, next->begin), std::min(interval.end, next->end)});
  }
}

/// The keys of block_size, whose tables have a row for each row of blocks.
struct Blocks {
  std::int32_t rows_q = 0, rows_k = 0;
  std::int32_t size_q = 0, size_k = 0;

  void check(std::string_view name, const Value& table) const {
    const std::int32_t count = rows_q == 0 ? 0 : (rows_q - 1) / size_q + 1;
    check_count("rows of " + std::string(name), table.num_rows(), static_cast<std::size_t>(count),
                "the rows of blocks");
    check_at_most(name, table, rows_k == 0 ? -1 : (rows_k - 1) / size_k, "the last block of keys");
  }
};

Blocks blocks_of(Values values) {
  check_count("entries of block_size", values[2].numbers.size(), 2, "queries and keys of a block");
  return {.rows_q = values[0].numbers[0],
          .rows_k = values[1].numbers[0],
          .size_q = values[2].numbers[0],
          .size_k = values[2].numbers[1]};
}

}  // namespace

Mask of_intervals(Values values) {
  const std::int32_t rows_k = values[2].numbers[0];
  const RowIntervals rows = intervals_of(values[0], values[1], rows_k);
  return mask_from_runs(rows.offsets, rows.intervals, rows_k);
}

Mask of_interval_ends(Values values) {
  const Value& ends = values[0];
  const std::int32_t rows_k = values[1].numbers[0];
  const std::size_t rows_q = width_of("ends", ends);
  if (ends.num_rows() % 2 == 0) {
    throw invalid("ends", "an array of " + std::to_string(ends.num_rows()),
                  "an odd number of rows");
  }
  check_at_most("ends", ends, rows_k, "the keys");
  RowIntervals rows;
  for (std::size_t i = 0; i < rows_q; ++i) {
    rows.add({0, ends.row(0)[i]});
    for (std::size_t n = 1; n < ends.num_rows(); n += 2) {
      const std::int32_t begin = ends.row(n)[i];
      rows.add({begin, std::max(begin, ends.row(n + 1)[i])});
    }
    rows.end_row();
  }
  return mask_from_runs(rows.offsets, rows.intervals, rows_k);
}

Mask of_flashmask(Values values) {
  const Value& bounds = values[0];
  const bool is_causal = flag_or(values[1], true);
  const auto rows_k = static_cast<std::int32_t>(bounds.num_rows());
  const std::int32_t rows_q = integer_or(values[2], rows_k);
  const std::size_t width = width_of("startend_row_indices", bounds);
  const bool is_known = is_causal ? width == 1 || width == 2 : width == 2 || width == 4;
  if (rows_k > 0 && !is_known) {
    throw invalid("number of integers of startend_row_indices[0]", width,
                  is_causal ? "1, 2 where causal is true" : "2, 4 where causal is false");
  }
  check_at_most("startend_row_indices", bounds, rows_q, "the rows");
  RowIntervals columns;
  for (std::int32_t key = 0; key < rows_k; ++key) {
    const auto of_key = bounds.row(static_cast<std::size_t>(key));
    add_gaps(columns, hidden_rows(of_key, is_causal, key, rows_q), rows_q);
    columns.end_row();
  }
  return compacted(transposed(mask_from_runs(columns.offsets, columns.intervals, rows_q)));
}

Mask of_block_mask(Values values) {
  const Blocks blocks = blocks_of(values);
  const Value& partial = values[3];
  const Value& whole = values[4];
  blocks.check("kv_indices", partial);
  blocks.check("full_kv_indices", whole);
  const RowIntervals pairs = intervals_of(values[5], values[6], blocks.rows_k);
  check_count("entries of offsets", pairs.offsets.size(),
              static_cast<std::size_t>(blocks.rows_q) + 1, "one more than rows_q");
  RowIntervals rows;
  for (std::size_t block = 0; block < whole.num_rows(); ++block) {
    const auto full = keys_of_blocks(whole.row(block), blocks.size_k, blocks.rows_k);
    const auto some = keys_of_blocks(partial.row(block), blocks.size_k, blocks.rows_k);
    const std::int64_t begin = static_cast<std::int64_t>(block) * blocks.size_q;
    const std::int64_t end = std::min<std::int64_t>(begin + blocks.size_q, blocks.rows_q);
    for (std::int64_t row = begin; row < end; ++row) {
      for (const Range keys : full) rows.add(keys);
      for (const Range interval : pairs.row(static_cast<std::size_t>(row))) {
        add_common(rows, interval, some);
      }
      rows.end_row();
    }
  }
  return mask_from_runs(rows.offsets, rows.intervals, blocks.rows_k);
}

Mask of_matrix(Values values) {
  const Value& visible = values[0];
  const std::size_t width = width_of("visible", visible);
  const std::vector<std::uint8_t> cells(visible.numbers.begin(), visible.numbers.end());
  return mask_from_matrix(cells, static_cast<std::int32_t>(visible.num_rows()),
                          static_cast<std::int32_t>(width));
}

}  // namespace magi::forms
