// SPDX-License-Identifier: Apache-2.0
#include "bench/distributed/layouts.hpp"

#include <algorithm>
#include <tuple>

#include "base/check.hpp"

namespace magi::cli {
namespace {

bool is_unbounded(const BandSlice& slice) {
  return slice.d_min == -kBandInfinity && slice.d_max == kBandInfinity;
}

/// Neighbouring slices without bounds that share their queries become one, which kernels walk
/// faster; `Order` sorts neighbours side by side.
template <typename Order, typename Touch>
std::vector<BandSlice> joined(const std::vector<BandSlice>& unsorted, const Order& order,
                              const Touch& touch) {
  std::vector<BandSlice> slices = unsorted;
  std::ranges::sort(slices, {}, order);
  std::vector<BandSlice> found;
  for (const BandSlice& slice : slices) {
    const bool joins = !found.empty() && is_unbounded(found.back()) && is_unbounded(slice) &&
                       touch(found.back(), slice);
    if (!joins) {
      found.push_back(slice);
      continue;
    }
    found.back().q1 = slice.q1;
    found.back().k1 = slice.k1;
  }
  return found;
}

std::vector<BandSlice> joined_both_ways(const std::vector<BandSlice>& slices) {
  const auto by_keys = joined(
      slices, [](const BandSlice& s) { return std::tuple(s.q0, s.q1, s.k0, s.k1); },
      [](const BandSlice& a, const BandSlice& b) {
        return a.q0 == b.q0 && a.q1 == b.q1 && a.k1 == b.k0;
      });
  return joined(
      by_keys, [](const BandSlice& s) { return std::tuple(s.k0, s.k1, s.q0, s.q1); },
      [](const BandSlice& a, const BandSlice& b) {
        return a.k0 == b.k0 && a.k1 == b.k1 && a.q1 == b.q0;
      });
}

/// Calls visit(local row of the first, range) for every range.
template <typename Visit>
void for_placed(const Rows& rows, const Visit& visit) {
  std::int32_t offset = 0;
  for (const Range& range : rows) {
    visit(offset, range);
    offset += range.size();
  }
}

Rows merged(Rows ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  Rows found;
  for (const Range& range : ranges) {
    if (found.empty() || range.begin > found.back().end) {
      found.push_back(range);
    } else {
      found.back().end = std::max(found.back().end, range.end);
    }
  }
  return found;
}

}  // namespace

std::int32_t count_rows(const Rows& rows) {
  std::int32_t count = 0;
  for (const Range& range : rows) count += range.size();
  return count;
}

Rows contiguous_rows(std::int32_t total, std::int32_t size, std::int32_t rank) {
  MAGI_CHECK(total % size == 0);
  const std::int32_t share = total / size;
  return {{rank * share, (rank + 1) * share}};
}

Rows zigzag_rows(std::int32_t total, std::int32_t size, std::int32_t rank) {
  MAGI_CHECK(total % (2 * size) == 0);
  const std::int32_t chunk = total / (2 * size);
  const std::int32_t last = 2 * size - 1 - rank;
  return {{rank * chunk, (rank + 1) * chunk}, {last * chunk, (last + 1) * chunk}};
}

Rows share_of(const Rows& rows, std::int32_t count, std::int32_t index) {
  const std::int32_t total = count_rows(rows);
  MAGI_CHECK(total % count == 0);
  const Range share{total / count * index, total / count * (index + 1)};
  Rows found;
  for_placed(rows, [&](std::int32_t offset, const Range& range) {
    const Range part{range.begin + std::max(share.begin - offset, 0),
                     range.begin + std::min(share.end - offset, range.size())};
    if (!part.empty()) found.push_back(part);
  });
  return found;
}

std::vector<BandSlice> slices_between(std::span<const BandSlice> slices, const Rows& rows_q,
                                      const Rows& rows_k) {
  std::vector<BandSlice> found;
  for (const BandSlice& slice : slices) {
    for_placed(rows_q, [&](std::int32_t q_offset, const Range& q) {
      const BandSlice rows = cut_q(slice, q);
      if (rows.q0 == rows.q1) return;
      for_placed(rows_k, [&](std::int32_t k_offset, const Range& k) {
        const BandSlice part = shrink(cut_k(rows, k));
        if (area(part) == 0) return;
        found.push_back(shift(part, q_offset - q.begin, k_offset - k.begin));
      });
    });
  }
  return joined_both_ways(found);
}

Rows seen_keys(std::span<const BandSlice> slices, const Rows& rows_q) {
  Rows found;
  for (const BandSlice& slice : slices) {
    for (const Range& rows : rows_q) {
      const BandSlice part = shrink(cut_q(slice, rows));
      if (area(part) > 0) found.push_back({part.k0, part.k1});
    }
  }
  return merged(std::move(found));
}

Hull hull_of(std::span<const BandSlice> slices) {
  const BandSlice& first = slices.front();
  Hull hull{{first.q0, first.q1}, {first.k0, first.k1}};
  for (const BandSlice& slice : slices) {
    hull.q = {std::min(hull.q.begin, slice.q0), std::max(hull.q.end, slice.q1)};
    hull.k = {std::min(hull.k.begin, slice.k0), std::max(hull.k.end, slice.k1)};
  }
  return hull;
}

std::vector<BandSlice> slices_inside(const Hull& hull, std::span<const BandSlice> slices) {
  std::vector<BandSlice> found;
  for (const BandSlice& slice : slices) {
    found.push_back(shift(slice, -hull.q.begin, -hull.k.begin));
  }
  return found;
}

}  // namespace magi::cli
