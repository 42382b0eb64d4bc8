// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/host/slice_components.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "magi/mask.hpp"

namespace magi::test {
namespace {

using Components = std::vector<std::int32_t>;

TEST(SliceComponentsTest, DocumentsLieApart) {
  const std::vector<BandSlice> slices{band_slice({200, 300}, {200, 300}, MaskType::Causal),
                                      band_slice({0, 200}, {0, 200}, MaskType::Causal)};
  EXPECT_EQ(connect_slices(slices).by_rows_and_keys, (Components{1, 0}));
}

TEST(SliceComponentsTest, KeysConnectRowsAndRowsConnectKeys) {
  // Two answers see one question; the last slice has nothing in common with them.
  const std::vector<BandSlice> answers{band_slice({100, 150}, {0, 100}, MaskType::Full),
                                       band_slice({100, 150}, {100, 150}, MaskType::Causal),
                                       band_slice({150, 200}, {0, 100}, MaskType::Full),
                                       band_slice({150, 200}, {150, 200}, MaskType::Causal),
                                       band_slice({200, 300}, {200, 300}, MaskType::Causal)};
  EXPECT_EQ(connect_slices(answers).by_rows_and_keys, (Components{0, 0, 0, 0, 1}));
  EXPECT_EQ(connect_slices(answers).by_rows, (Components{0, 0, 1, 1, 2}));
}

TEST(SliceComponentsTest, PairsCountNotRectangles) {
  // The band of the first slice reaches no row beyond 10; the second slice sees nothing.
  const std::vector<BandSlice> slices{
      {0, 100, 0, 10, 0, 0}, {0, 10, 50, 60, -5, 5}, {50, 60, 20, 30}};
  EXPECT_EQ(connect_slices(slices).by_rows_and_keys, (Components{0, -1, 1}));
  EXPECT_EQ(connect_slices({}).by_rows_and_keys, Components{});
}

bool overlap(std::int32_t begin, std::int32_t end, std::int32_t other_begin,
             std::int32_t other_end) {
  return begin < other_end && other_begin < end;
}

bool have_common(const BandSlice& a, const BandSlice& b, bool has_keys) {
  return overlap(a.q0, a.q1, b.q0, b.q1) || (has_keys && overlap(a.k0, a.k1, b.k0, b.k1));
}

/// Spreads the least index from slice to slice until nothing changes.
Components spread(const std::vector<BandSlice>& bands, bool has_keys) {
  Components least(bands.size());
  for (std::size_t i = 0; i < bands.size(); ++i) least[i] = static_cast<std::int32_t>(i);
  for (bool has_changed = true; has_changed;) {
    has_changed = false;
    for (std::size_t i = 0; i < bands.size(); ++i) {
      for (std::size_t j = 0; j < bands.size(); ++j) {
        if (!have_common(bands[i], bands[j], has_keys) || least[j] <= least[i]) continue;
        least[j] = least[i];
        has_changed = true;
      }
    }
  }
  return least;
}

void expect_same_sets(const Components& components, const Components& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (std::size_t j = 0; j < expected.size(); ++j) {
      EXPECT_EQ(components[i] == components[j], expected[i] == expected[j]) << i << " and " << j;
    }
  }
}

TEST(SliceComponentsTest, RandomSlicesAreConnectedWhereTheyMeet) {
  const auto seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 draw(seed);
  const auto in = [&](std::int32_t low, std::int32_t high) {
    return std::uniform_int_distribution<std::int32_t>(low, high)(draw);
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<BandSlice> slices;
    for (int i = in(1, 12); i > 0; --i) {
      const std::int32_t q = in(0, 190);
      const std::int32_t k = in(0, 190);
      slices.push_back(band_slice({q, q + in(1, 20)}, {k, k + in(1, 20)}, MaskType::Full));
    }
    const SliceComponents components = connect_slices(slices);
    expect_same_sets(components.by_rows, spread(slices, false));
    expect_same_sets(components.by_rows_and_keys, spread(slices, true));
  }
}

}  // namespace
}  // namespace magi::test
