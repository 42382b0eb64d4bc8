// SPDX-License-Identifier: Apache-2.0
#include "plan/cost/bound.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace magi::planner {
namespace {

/// More slices side by side than this are left out of the count: the bound stays true.
constexpr std::size_t kMaxCompared = 64;

/// Slices that share no row or key with the others.
struct Part {
  Range q;
  Range k;
  std::size_t begin = 0;  ///< first slice
};

bool overlaps(const BandSlice& a, const BandSlice& b) {
  return a.q0 < b.q1 && b.q0 < a.q1 && a.k0 < b.k1 && b.k0 < a.k1;
}

std::vector<BandSlice> ordered_slices(const Mask& mask) {
  std::vector<BandSlice> slices;
  slices.reserve(mask.slices.size());
  for (const BandSlice& slice : mask.slices) {
    const BandSlice small = shrink(slice);
    if (small.q1 > small.q0) slices.push_back(small);
  }
  const auto less = [](const BandSlice& a, const BandSlice& b) {
    return a.q0 != b.q0 ? a.q0 < b.q0 : a.k0 < b.k0;
  };
  if (!std::is_sorted(slices.begin(), slices.end(), less)) {
    std::sort(slices.begin(), slices.end(), less);
  }
  return slices;
}

/// Parts in ascending order of queries and of keys; slices that break this order join their parts.
std::vector<Part> find_parts(const std::vector<BandSlice>& slices) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    Part part{{slices[i].q0, slices[i].q1}, {slices[i].k0, slices[i].k1}, i};
    while (!parts.empty() &&
           (part.q.begin < parts.back().q.end || part.k.begin < parts.back().k.end)) {
      const Part& last = parts.back();
      part.q = {std::min(part.q.begin, last.q.begin), std::max(part.q.end, last.q.end)};
      part.k = {std::min(part.k.begin, last.k.begin), std::max(part.k.end, last.k.end)};
      part.begin = last.begin;
      parts.pop_back();
    }
    parts.push_back(part);
  }
  return parts;
}

/// Slices of the part that share no pair, chosen greedily: no two boxes overlap.
void pick_disjoint(const BandSlice* begin, const BandSlice* end, std::vector<BandSlice>& picked) {
  picked.clear();
  std::vector<BandSlice> active;
  for (const BandSlice* slice = begin; slice != end; ++slice) {
    std::erase_if(active, [&](const BandSlice& other) { return other.q1 <= slice->q0; });
    if (active.size() >= kMaxCompared) continue;
    const bool is_clear = std::none_of(active.begin(), active.end(), [&](const BandSlice& other) {
      return overlaps(other, *slice);
    });
    if (!is_clear) continue;
    active.push_back(*slice);
    picked.push_back(*slice);
  }
}

/// The diagonal D such that every row of the slice sees key i + D, its last one.
std::optional<std::int32_t> diagonal_of(const BandSlice& slice) {
  if (slice.d_max == kBandInfinity) {
    if (slice.q1 - slice.q0 != 1) return std::nullopt;
    return slice.k1 - slice.q1;
  }
  const std::int32_t d = slice.d_max;
  const bool is_inside = slice.q0 + d >= slice.k0 && slice.q1 + d <= slice.k1;
  return is_inside && d >= slice.d_min ? std::optional(d) : std::nullopt;
}

struct PartCount {
  std::int64_t pairs = 0;
  std::int64_t rows = 0;  ///< with pairs
  bool is_diagonal = false;
};

PartCount count_part(const std::vector<BandSlice>& picked) {
  PartCount count;
  std::optional<std::int32_t> diagonal;
  for (const BandSlice& slice : picked) {
    if (!diagonal) diagonal = diagonal_of(slice);
  }
  std::int64_t diagonal_rows = 0;
  bool is_below = diagonal.has_value();
  std::int32_t covered = picked.front().q0;
  for (const BandSlice& slice : picked) {
    count.pairs += area(slice);
    count.rows += std::max(0, slice.q1 - std::max(slice.q0, covered));
    covered = std::max(covered, slice.q1);
    if (!diagonal) continue;
    if (diagonal_of(slice) == diagonal) diagonal_rows += slice.q1 - slice.q0;
    is_below = is_below && std::min(slice.d_max, slice.k1 - 1 - slice.q0) <= *diagonal;
  }
  count.is_diagonal = is_below && diagonal_rows == count.rows;
  return count;
}

/// Most of the n rows of a causal document that the rank with the last one can hold.
std::int64_t rows_with_last(std::int64_t n, const BoundLimits& limits) {
  std::int64_t low = 1;
  std::int64_t high = std::max<std::int64_t>(1, std::min(n, limits.max_rows));
  while (low < high) {
    const std::int64_t q = (low + high + 1) / 2;
    if (n + q * (q - 1) / 2 <= limits.max_area) {
      low = q;
    } else {
      high = q - 1;
    }
  }
  return low;
}

}  // namespace

std::int64_t lower_bound_rows(const Mask& mask, const BoundLimits& limits) {
  const std::vector<BandSlice> slices = ordered_slices(mask);
  const std::vector<Part> parts = find_parts(slices);
  std::vector<BandSlice> picked;
  std::int64_t total = 0;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    const std::size_t end = p + 1 < parts.size() ? parts[p + 1].begin : slices.size();
    pick_disjoint(slices.data() + part.begin, slices.data() + end, picked);
    const PartCount count = count_part(picked);
    const std::int64_t keys = part.k.size();
    const std::int64_t share = std::max<std::int64_t>(1, std::min(limits.max_rows, count.rows));
    std::int64_t rows = std::max<std::int64_t>(0, (count.pairs + share - 1) / share - keys);
    if (count.is_diagonal) {
      const std::int64_t ranks = std::min<std::int64_t>(limits.num_ranks, count.rows);
      rows = std::max(rows, count.pairs / share + (count.rows - ranks) / 2 - keys);
      const bool is_document = limits.is_shared && picked.size() == 1 && end - part.begin == 1 &&
                               part.q == part.k && picked.front().d_min == -kBandInfinity;
      if (is_document) rows = std::max(rows, keys - rows_with_last(keys, limits));
    }
    total += rows;
  }
  return total;
}

}  // namespace magi::planner
