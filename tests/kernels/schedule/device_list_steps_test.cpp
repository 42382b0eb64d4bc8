// SPDX-License-Identifier: Apache-2.0
#include "kernels/schedule/device/device_list_steps.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "mask/random_mask.hpp"

// Lists as the device builds them from these: DeviceListTest; with tiles that have no room for
// their records: ForwardDeviceListTest.
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
