// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <tuple>

#include "mask/slice_lists.hpp"

namespace magi {
namespace {

bool is_without_bounds(const BandSlice& slice) {
  return slice.d_min == -kBandInfinity && slice.d_max == kBandInfinity;
}

bool is_below(const BandSlice& slice, const BandSlice& next) {
  return slice.q1 == next.q0 && slice.k0 == next.k0 && slice.k1 == next.k1 &&
         is_without_bounds(slice) && is_without_bounds(next);
}

// Objects, as calls of functions by address would not be inlined into the sorts.
constexpr auto kInOrder = [](const BandSlice& s) {
  return std::tie(s.q0, s.k0, s.q1, s.k1, s.d_min, s.d_max);
};
constexpr auto kByQueries = [](const BandSlice& s) {
  return std::tie(s.q0, s.q1, s.k0, s.k1, s.d_min, s.d_max);
};
constexpr auto kByKeys = [](const BandSlice& s) {
  return std::tie(s.k0, s.k1, s.q0, s.q1, s.d_min, s.d_max);
};

template <typename Order>
void sort_by(std::vector<BandSlice>& slices, const Order& order_of) {
  const auto less = [&](const BandSlice& a, const BandSlice& b) {
    return order_of(a) < order_of(b);
  };
  if (!std::is_sorted(slices.begin(), slices.end(), less)) {
    std::sort(slices.begin(), slices.end(), less);
  }
}

/// Joins each slice with those right after it that continue it: join(slice, next) says whether.
template <typename Join>
void join_runs(std::vector<BandSlice>& slices, const Join& join) {
  auto last = slices.begin();
  for (auto next = last; next != slices.end(); ++next) {
    if (next == slices.begin() || join(*last, *next)) continue;
    *++last = *next;
  }
  if (last != slices.end()) slices.erase(last + 1, slices.end());
}

}  // namespace

bool is_continued_by(const BandSlice& slice, const BandSlice& next) {
  if (slice.k1 != next.k0 || slice.q0 != next.q0 || slice.q1 != next.q1) return false;
  if (slice.d_min == next.d_min && slice.d_max == next.d_max) return true;
  return slice.d_max == kBandInfinity && next.d_min == -kBandInfinity;
}

void join_neighbours(std::vector<BandSlice>& slices) {
  sort_by(slices, kByQueries);
  join_runs(slices, [](BandSlice& slice, const BandSlice& next) {
    if (!is_continued_by(slice, next)) return false;
    slice.k1 = next.k1;
    slice.d_max = next.d_max;
    return true;
  });
  if (std::ranges::count_if(slices, is_without_bounds) > 1) {
    sort_by(slices, kByKeys);
    join_runs(slices, [](BandSlice& slice, const BandSlice& next) {
      if (!is_below(slice, next)) return false;
      slice.q1 = next.q1;
      return true;
    });
  }
  sort_by(slices, kInOrder);
}

}  // namespace magi
