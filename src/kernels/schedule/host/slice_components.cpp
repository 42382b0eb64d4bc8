// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/slice_components.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace magi {
namespace {

/// Sets of slices; the least index of a set stands for it.
class SliceSets {
 public:
  explicit SliceSets(std::size_t count) : parents_(count) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
  }

  std::size_t find(std::size_t slice) {
    while (parents_[slice] != slice) slice = parents_[slice] = parents_[parents_[slice]];
    return slice;
  }
  void unite(std::size_t a, std::size_t b) {
    a = find(a);
    b = find(b);
    parents_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::size_t> parents_;
};

/// Unites slices whose ranges have something in common; sorts `order` by where they begin.
template <typename RangeOf>
void unite_overlapping(SliceSets& sets, std::vector<std::size_t>& order, RangeOf range_of) {
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return range_of(a).begin < range_of(b).begin; });
  std::int32_t end = 0;  // of the ranges so far
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Range range = range_of(order[i]);
    if (i > 0 && range.begin < end) sets.unite(order[i - 1], order[i]);
    end = std::max(end, range.end);
  }
}

/// Numbers the sets in the order of their first slices; -1 for a slice that is not in `order`.
std::vector<std::int32_t> number_sets(SliceSets& sets, std::span<const std::size_t> order,
                                      std::size_t num_slices) {
  std::vector<std::int32_t> number(num_slices, -1);
  std::vector<std::int32_t> component_of(num_slices, -1);
  std::int32_t count = 0;
  for (const std::size_t slice : order) {
    std::int32_t& own = number[sets.find(slice)];
    if (own < 0) own = count++;
    component_of[slice] = own;
  }
  return component_of;
}

}  // namespace

SliceComponents connect_slices(std::span<const BandSlice> slices) {
  std::vector<BandSlice> bands;
  std::vector<std::size_t> by_key;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    bands.push_back(shrink(slices[i]));
    if (bands.back().q0 < bands.back().q1) by_key.push_back(i);
  }
  std::vector<std::size_t> by_row = by_key;
  SliceComponents components;
  SliceSets sets(slices.size());
  unite_overlapping(sets, by_row, [&](std::size_t i) { return Range{bands[i].q0, bands[i].q1}; });
  components.by_rows = number_sets(sets, by_row, slices.size());
  unite_overlapping(sets, by_key, [&](std::size_t i) { return Range{bands[i].k0, bands[i].k1}; });
  components.by_rows_and_keys = number_sets(sets, by_row, slices.size());
  return components;
}

}  // namespace magi
