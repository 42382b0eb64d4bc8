// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "base/check.hpp"
#include "magi/mask_runs.hpp"
#include "mask/band_grower.hpp"
#include "mask/slice_lists.hpp"

namespace magi {
namespace {

bool begins_first(const Range& a, const Range& b) { return a.begin < b.begin; }

/// The union of a row's intervals as runs.
void join_intervals(std::span<const Range> intervals, std::vector<Range>& runs) {
  runs.clear();
  for (const Range interval : intervals) {
    if (!interval.empty()) runs.push_back(interval);
  }
  if (!std::is_sorted(runs.begin(), runs.end(), begins_first)) {
    std::sort(runs.begin(), runs.end(), begins_first);
  }
  std::size_t last = 0;
  for (std::size_t next = 1; next < runs.size(); ++next) {
    if (runs[next].begin <= runs[last].end) {
      runs[last].end = std::max(runs[last].end, runs[next].end);
    } else {
      runs[++last] = runs[next];
    }
  }
  if (!runs.empty()) runs.resize(last + 1);
}

void check_intervals(std::span<const Range> intervals, std::int32_t row, std::int32_t rows_k) {
  for (const Range interval : intervals) {
    if (interval.begin < 0 || interval.end < interval.begin || interval.end > rows_k) {
      throw invalid(
          "interval of row " + std::to_string(row),
          "[" + std::to_string(interval.begin) + ", " + std::to_string(interval.end) + ")",
          "0 <= begin <= end <= " + std::to_string(rows_k));
    }
  }
}

std::string as_text(const BandSlice& s) {
  return "[" + std::to_string(s.q0) + ", " + std::to_string(s.q1) + ") x [" + std::to_string(s.k0) +
         ", " + std::to_string(s.k1) + ")";
}

/// A run and the slice that it is of.
struct Seen {
  Range keys;
  const BandSlice* slice = nullptr;
};

void add_runs(std::vector<Seen>& seen, std::int32_t row, std::vector<Range>& runs) {
  std::sort(seen.begin(), seen.end(),
            [](const Seen& a, const Seen& b) { return begins_first(a.keys, b.keys); });
  const std::size_t first = runs.size();
  for (std::size_t n = 0; n < seen.size(); ++n) {
    const Range keys = seen[n].keys;
    if (n > 0 && keys.begin < seen[n - 1].keys.end) {
      throw invalid("row " + std::to_string(row),
                    "in slices " + as_text(*seen[n - 1].slice) + " and " + as_text(*seen[n].slice) +
                        " that both show key " + std::to_string(keys.begin),
                    "masks that show a pair once");
    }
    if (runs.size() > first && runs.back().end == keys.begin) {
      runs.back().end = keys.end;
    } else {
      runs.push_back(keys);
    }
  }
}

}  // namespace

Mask mask_from_runs(std::span<const std::int64_t> offsets, std::span<const Range> intervals,
                    std::int32_t rows_k) {
  const auto count = static_cast<std::int64_t>(intervals.size());
  if (offsets.empty() || offsets.size() > std::size_t{kMaxRows} + 1) {
    throw invalid("number of offsets", offsets.size(), "1 to 2^30, one more than rows");
  }
  if (offsets.front() != 0 || offsets.back() != count ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    throw invalid("offsets",
                  std::to_string(offsets.front()) + " to " + std::to_string(offsets.back()),
                  "ascending from 0 to " + std::to_string(count) + ", the number of intervals");
  }
  Mask mask{static_cast<std::int32_t>(offsets.size() - 1), rows_k, {}};
  validate(mask);
  BandGrower grower;
  std::vector<Range> runs;
  for (std::int32_t row = 0; row < mask.rows_q; ++row) {
    const auto begin = static_cast<std::size_t>(offsets[static_cast<std::size_t>(row)]);
    const auto end = static_cast<std::size_t>(offsets[static_cast<std::size_t>(row) + 1]);
    const auto of_row = intervals.subspan(begin, end - begin);
    check_intervals(of_row, row, rows_k);
    join_intervals(of_row, runs);
    grower.add_row(row, runs);
  }
  mask.slices = grower.finish();
  return mask;
}

RowRuns runs_of(const Mask& mask) {
  validate(mask);
  std::vector<BandSlice> slices;
  for (const BandSlice& given : mask.slices) {
    const BandSlice tight = shrink(given);
    if (tight.q0 < tight.q1) slices.push_back(tight);
  }
  std::sort(slices.begin(), slices.end(),
            [](const BandSlice& a, const BandSlice& b) { return a.q0 < b.q0; });
  RowRuns found{.rows_k = mask.rows_k};
  found.offsets.reserve(static_cast<std::size_t>(mask.rows_q) + 1);
  std::vector<const BandSlice*> active;
  std::vector<Seen> seen;
  std::size_t next = 0;
  for (std::int32_t row = 0; row < mask.rows_q; ++row) {
    std::erase_if(active, [&](const BandSlice* s) { return s->q1 <= row; });
    for (; next < slices.size() && slices[next].q0 == row; ++next) active.push_back(&slices[next]);
    seen.clear();
    for (const BandSlice* slice : active) seen.push_back({visible_keys(*slice, row), slice});
    add_runs(seen, row, found.runs);
    found.offsets.push_back(static_cast<std::int64_t>(found.runs.size()));
  }
  return found;
}

Mask transposed(const Mask& mask) { return {mask.rows_k, mask.rows_q, transpose(mask.slices)}; }

}  // namespace magi
